"""Reminders: what lasts, say an outage, is worth a line of the log when it begins, and then only now and then."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

REMIND_S: Final = 600.0
MOST: Final = 10_000


class Reminders:
    """What lasts at this moment, by whatever names it; kept by any thread. At most `MOST` at a time: beyond it the
    oldest is taken for new when it is met again."""

    def __init__(self, clock: Callable[[], float], every_s: float = REMIND_S) -> None:
        self._clock = clock
        self._every_s = every_s
        self._lock = threading.Lock()
        self._told: dict[Hashable, tuple[float, float]] = {}
        """When it began, and when it was told of last."""

    def due(self, about: Hashable) -> str | None:
        """It lasts: what to put behind its name in a line about it, which is how long, and nothing where it is new;
        None where no line is due."""
        now = self._clock()
        with self._lock:
            began, told = self._told.get(about, (now, None))
            if told is not None and now - told < self._every_s:
                return None
            if told is None and len(self._told) >= MOST:
                del self._told[next(iter(self._told))]
            self._told[about] = began, now
        return "" if told is None else f" for {(now - began) / 60:.0f} min"

    def over(self, about: Hashable) -> str | None:
        """It is over: how long it lasted; None where nobody was told of it."""
        if about not in self._told:
            return None
        with self._lock:
            found = self._told.pop(about, None)
        return None if found is None else f"{self._clock() - found[0]:.0f} s"
