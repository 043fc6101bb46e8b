"""The pool of transactional channels, and how connections are made: in turn, with back-off.

A thread of control has a channel to itself; the pool is bounded, and keeps those that nobody has for the next one, the
one that was used last first. What is done beside a branch (a token that is held for a moment, a queue that is read) may
take `SPARE` channels more, so that no thread waits for the channel that it has at work itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rm_amqp.bulk import selected
from rm_amqp.loss import AllInUse, ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.bulk import BulkChannel
    from rm_amqp.core import Core, Steps
    from rm_amqp.line import Line
    from rm_amqp.settings import Settings

    Select = Callable[[Core, Settings, float], Steps[BulkChannel]]
    """Makes a connection a channel."""

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LAST_S: Final = 1.0
SPARE: Final = 4
IDLE_S: Final = 1.0
"""How long a channel that nobody has keeps messages that were sent ahead."""


class Dialler:
    """Makes connections. After a failure the next attempt waits, longer each time, for whoever makes it."""

    def __init__(
        self,
        connect: Callable[[float], Line],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._backoff_s = 0.0
        self._next_at = 0.0

    def __call__(self, deadline: float) -> Line:
        """A connection that the broker has opened; ConnectionLost: there is none."""
        with self._lock:
            wait_s = min(self._next_at, deadline) - self._clock()
        if wait_s > 0:
            self._sleep(wait_s)
        try:
            line = self._connect(deadline)
        except ConnectionLost:
            with self._lock:
                self._backoff_s = min(max(2 * self._backoff_s, BACKOFF_FIRST_S), BACKOFF_LAST_S)
                self._next_at = self._clock() + self._backoff_s
            raise
        with self._lock:
            self._backoff_s = self._next_at = 0.0
        return line


@dataclass(frozen=True, slots=True, eq=False)
class Seat:
    """A channel, and the line that it is on."""

    channel: BulkChannel
    line: Line


class Pool:
    """The transactional channels of one resource manager instance."""

    def __init__(
        self, settings: Settings, dial: Dialler, clock: Callable[[], float], select: Select = selected
    ) -> None:
        self._settings = settings
        self._dial = dial
        self._select = select
        self._clock = clock
        self._changed = threading.Condition()
        self._idle: list[Seat] = []
        self._all: set[Seat] = set()
        self._at_work: set[Seat] = set()
        self._being_made = 0
        self._made_for_work = 0
        self._closed = False
        self._spent = 0
        """Round trips on channels that are gone."""
        self._abandoned: deque[Seat] = deque()

    @property
    def round_trips(self) -> int:
        """How often somebody waited for the broker on a channel."""
        with self._changed:
            return self._spent + sum(seat.line.round_trips for seat in self._all)

    def take(self, deadline: float, *, wait: bool = True, spare: bool = False) -> Seat:
        """A channel. With `spare` it is for something that needs no other one to end. AllInUse: all are at work.
        ConnectionLost: none can be made."""
        while True:
            self._reap()
            with self._changed:
                while not self._has_room(spare=spare):
                    left_s = deadline - self._clock()
                    if left_s <= 0 or not wait:
                        raise AllInUse(f"all {self._settings.channels} channels are in use")
                    self._changed.wait(left_s)
                seat = self._idle.pop() if self._idle else None
                if seat is None:
                    self._being_made += 1
                    self._made_for_work += not spare
                elif not spare:
                    self._at_work.add(seat)
            if seat is None:
                return self._make(deadline, spare=spare)
            seat.line.refresh()
            if not seat.channel.broken:
                return seat
            self.discard(seat)

    def _has_room(self, *, spare: bool) -> bool:
        """Whether somebody need not wait. Called with the lock held."""
        most = self._settings.channels
        if not spare and len(self._at_work) + self._made_for_work >= most:
            return False
        return bool(self._idle) or len(self._all) + self._being_made < most + SPARE

    def _make(self, deadline: float, *, spare: bool) -> Seat:
        line, seat = None, None
        try:
            line = self._dial(deadline)
            seat = Seat(line.run(self._select(line.core, self._settings, deadline)), line)
        except BaseException:
            if line is not None:
                line.drop()
            raise
        finally:
            with self._changed:
                self._being_made -= 1
                self._made_for_work -= not spare
                if seat is not None:
                    self._all.add(seat)
                    if not spare:
                        self._at_work.add(seat)
                self._changed.notify_all()
        return seat

    def give(self, seat: Seat) -> None:
        """Nobody works on the channel any more."""
        if seat.channel.broken or self._closed:
            self.discard(seat)
            return
        seat.channel.idle_since = self._clock()
        with self._changed:
            self._at_work.discard(seat)
            self._idle.append(seat)
            self._changed.notify_all()

    def discard(self, seat: Seat) -> None:
        """The channel can't be used any more, or what was done on it shall be undone."""
        seat.line.drop()
        with self._changed:
            if seat in self._all:
                self._all.discard(seat)
                self._spent += seat.line.round_trips
            self._at_work.discard(seat)
            self._changed.notify_all()

    def abandon(self, seat: Seat) -> None:
        """The thread of control that had the channel is gone. It is called while garbage is collected, at any moment
        and with any lock held, so that it only takes note."""
        self._abandoned.append(seat)

    def _reap(self) -> None:
        while self._abandoned:
            self.discard(self._abandoned.popleft())

    def keep(self) -> float | None:
        """As Kept says: closes what was abandoned, and gives back what was sent ahead to channels that nobody has used
        for a while."""
        if self._closed:
            return None
        self._reap()
        now = self._clock()
        with self._changed:
            idle = [seat for seat in self._idle if 0 < seat.channel.idle_since < now - IDLE_S]
            for seat in idle:
                self._idle.remove(seat)
        for seat in idle:
            seat.line.run(seat.channel.let_go())
            with self._changed:
                if seat.channel.holds_nothing:
                    seat.channel.idle_since = 0.0
                self._idle.insert(0, seat)
                self._changed.notify_all()
        return now + IDLE_S / 2

    def close(self, deadline: float) -> None:
        """Closes every channel; the broker has let go of what they held when this returns, if it answers until
        `deadline`."""
        for seat in self._taken_out():
            with contextlib.suppress(ConnectionLost):
                seat.line.run(seat.channel.emptied(deadline))
            seat.line.close(deadline)

    def drop(self) -> None:
        """Closes every channel at once, without a word."""
        for seat in self._taken_out():
            seat.line.drop()

    def _taken_out(self) -> list[Seat]:
        with self._changed:
            self._closed = True
            seats = list(self._all)
            self._spent += sum(seat.line.round_trips for seat in seats)
            self._all.clear()
            self._at_work.clear()
            self._idle.clear()
            self._changed.notify_all()
        return seats
