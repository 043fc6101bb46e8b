"""BrokersAway: remembers for a moment which brokers a source has skipped.

To ask a broker whose host does not answer takes as long as its open string says. The other brokers would wait for that
with each batch, and so it is asked only now and then.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger: Final = logging.getLogger("xabridge.pipeline")

AGAIN_S: Final = 5.0
"""How long a broker that was away is not asked."""


class BrokersAway:
    """The brokers of one source that are known to be away."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, tuple[float, str]] = {}

    def now(self) -> Mapping[str, str]:
        """Those that are not asked now, with the reason."""
        now = self._clock()
        return {name: why for name, (until, why) in self._until.items() if now < until}

    def note(self, away: Mapping[str, str]) -> None:
        """These are away, with the reason, and the others are not."""
        asked = self.now()
        for name in [name for name in self._until if name not in away]:
            logger.info("%s is read again", name)
            del self._until[name]
        for name, why in away.items():
            if name not in asked:
                if name not in self._until:
                    logger.warning("%s is skipped until it can be reached: %s", name, why)
                self._until[name] = self._clock() + AGAIN_S, why
