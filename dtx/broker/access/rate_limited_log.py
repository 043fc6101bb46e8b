"""RateLimitedLog: warnings that unauthenticated peers cause, at most a few of each kind in a minute.

What a peer chose is written with escapes, so that it can't forge lines or control a terminal.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from xa.printable import printable
from xa.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Callable

LOG: Final = logging.getLogger("xabridge.broker")
PERIOD_S: Final = 60.0
MOST: Final = 10
"""Lines of one kind in one period."""


class RateLimitedLog:
    """Writes the warnings. Those of one format are of one kind."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}
        """Format → when its period began, and how many lines there were to be in it."""

    def warn(self, message: str, *words: object, user: object = None) -> None:
        """One line, unless there were many of this kind; then the next period says how many were left out. The first
        of `words` is the peer's address."""
        now = self._clock()
        began, count = self._kinds.get(message, (now, 0))
        if now - began >= PERIOD_S:
            if count > MOST:
                LOG.warning("… and %d more lines of the same kind in %.0f s", count - MOST, now - began)
            began, count = now, 0
        self._kinds[message] = began, count + 1
        if count > MOST:
            return
        shown = [printable(str(one)) for one in words]
        extra = about(connection=shown[0] if shown else None, user=user)
        if count < MOST:
            LOG.warning(message, *shown, extra=extra)
        else:
            LOG.warning("… the next lines of this kind are counted only: %s", message % tuple(shown), extra=extra)
