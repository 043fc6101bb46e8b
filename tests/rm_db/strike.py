"""Strike: a disaster at one step of a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Strike:
    """What happens at the point number `at` of a transaction; points are before and after each verb."""

    def __init__(self, at: int, disaster: Callable[[], None]) -> None:
        self._at = at
        self._disaster = disaster
        self._points = 0
        self.armed = False
        self.struck = ""

    def hit(self, when: str, verb: str) -> None:
        """A point was reached."""
        if self.armed:
            self._points += 1
            if self._points == self._at:
                self.struck = f"{when} {verb}"
                self._disaster()
