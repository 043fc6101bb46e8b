"""WarningThrottle: a condition that lasts, an outage say, is logged when it begins, and then once every ten minutes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

REMIND_S: Final = 600.0
MOST: Final = 10_000


class WarningThrottle:
    """The conditions that last at this moment, each by a name, for any thread. It keeps `MOST` of them; with more, the
    oldest one counts as new when it is met again."""

    def __init__(self, clock: Callable[[], float], every_s: float = REMIND_S) -> None:
        self._clock = clock
        self._every_s = every_s
        self._lock = threading.Lock()
        self._conditions: dict[Hashable, tuple[float, float]] = {}
        """When it began, and when it was last logged."""

    def due(self, about: Hashable) -> str | None:
        """Notes that the condition is met. None: nothing is to be logged now. Otherwise the text for how long it
        has lasted, to be put after its name; empty if it is new."""
        now = self._clock()
        with self._lock:
            began, logged = self._conditions.get(about, (now, None))
            if logged is not None and now - logged < self._every_s:
                return None
            if logged is None and len(self._conditions) >= MOST:
                del self._conditions[next(iter(self._conditions))]
            self._conditions[about] = began, now
        return "" if logged is None else f" for {(now - began) / 60:.0f} min"

    def over(self, about: Hashable) -> str | None:
        """Notes that the condition is over. How long it lasted; None if it was never logged."""
        if about not in self._conditions:
            return None
        with self._lock:
            found = self._conditions.pop(about, None)
        return None if found is None else f"{self._clock() - found[0]:.0f} s"
