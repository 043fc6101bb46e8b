"""What a queue counts: the messages that it has and that are on their way to it, and those that came and went, with
their rates over the last seconds (Meter)."""

from __future__ import annotations

from typing import Final

INTERVAL_S: Final = 5.0


class RateMeter:
    """What came in and what went out of something, noted every INTERVAL_S. Its rates are those since the note before
    the last one."""

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


class UnstoredMemory:
    """Octets of messages that are in memory only: their queue is not stored, they came in part, or their transactions
    are open. `limit` bounds them."""

    __slots__ = ("limit", "octets")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.octets = 0


class Counters:
    """Those of one queue; of one that lives in memory, `memory` counts the octets as well."""

    def __init__(self, memory: UnstoredMemory | None) -> None:
        self.memory = memory
        self.pending = 0
        self.pending_octets = 0
        """Messages that open transactions and prepared branches post."""
        self.held = 0
        """Messages that deliveries or transactions hold."""
        self.delayed = 0
        """Messages whose time has not come."""

        self.kept_octets = 0
        """Of those that are held or delayed."""
        self.octets = 0
        """Of the messages in it."""
        self.came = 0
        self.went = 0
        """Messages that came into it, and that left it, since it is there or was restored."""
        self.dead_lettered = 0
        """Of those that left it: messages that became dead letters."""
        self.meter = RateMeter()

    def clear(self) -> None:
        """The queue is deleted, with what is in it."""
        if self.memory is not None:
            self.memory.octets -= self.octets
        self.octets = self.held = self.delayed = self.kept_octets = 0
