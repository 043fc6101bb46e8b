"""Lines of the log that strangers cause: not more than a few of a kind in a minute, and nothing of theirs raw."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from dtx.protocol.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

LOG: Final = logging.getLogger("xabridge.broker")
PERIOD_S: Final = 60.0
MOST: Final = 10
"""Lines of one kind in one period."""


class RateLimitedLog:
    """Writes warnings about peers that nobody knows yet. A kind is its format."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}
        """Format → when its period began, and how many lines there were to be in it."""

    def warn(self, told: str, *about: object) -> None:
        """One line, unless there were many of this kind; then the next period says how many were left out."""
        now = self._clock()
        began, count = self._kinds.get(told, (now, 0))
        if now - began >= PERIOD_S:
            if count > MOST:
                LOG.warning("… and %d more lines of the same kind in %.0f s", count - MOST, now - began)
            began, count = now, 0
        self._kinds[told] = began, count + 1
        if count < MOST:
            LOG.warning(told, *(printable(str(one)) for one in about))
        elif count == MOST:
            LOG.warning("… the next lines of this kind are counted only: %s", told)
