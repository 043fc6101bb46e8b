"""Meter: how fast two counts grow, over the last seconds. Somebody notes them every INTERVAL_S."""

from __future__ import annotations

from typing import Final

INTERVAL_S: Final = 5.0


class Meter:
    """What came in and what went out of something. Its rates are those since the note before the last one."""

    __slots__ = ("_earlier", "_last")

    def __init__(self) -> None:
        self._earlier: tuple[float, int, int] | None = None
        self._last: tuple[float, int, int] | None = None

    def note(self, now: float, came: int, went: int) -> None:
        """So much has come, and gone, by now."""
        self._earlier, self._last = self._last, (now, came, went)

    def rates(self, now: float, came: int, went: int) -> tuple[float, float]:
        """Per second: what came, and what went. 0 where nothing was noted before."""
        then, came_then, went_then = self._earlier or self._last or (now, came, went)
        if now <= then:
            return 0.0, 0.0
        return (came - came_then) / (now - then), (went - went_then) / (now - then)
