"""The pool of transactional channels of one resource manager instance.

A thread of control has a channel to itself. The pool is bounded, and keeps the channels that nobody has for the next
thread; the one that was used last comes first. What is done beside a branch (a token that is held for a moment, a queue
that is read) may take `SPARE` channels more, so that no thread waits for the channel that it has at work itself.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from rm_amqp.channel.channel import Channel
from rm_amqp.channel.message_links import IDLE_S
from rm_amqp.errors import AllInUse, ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.connection.connection import Connection
    from rm_amqp.connection.connector import Connector
    from rm_amqp.connection.endpoint import Endpoint, Steps
    from rm_amqp.settings import Settings

C = TypeVar("C", bound=Channel)
C_co = TypeVar("C_co", bound=Channel, covariant=True)
SPARE: Final = 4


@dataclass(slots=True, eq=False)
class PooledChannel(Generic[C_co]):
    """A channel, and the connection that it is on."""

    channel: C_co
    connection: Connection
    works: int = 0
    """How many works of its thread of control it carries; with the last one it goes back to the pool."""


class Pool(Generic[C]):
    """The transactional channels of one resource manager instance. `open_channel` makes a connection a channel."""

    def __init__(
        self,
        settings: Settings,
        connect: Connector,
        clock: Callable[[], float],
        open_channel: Callable[[Endpoint, Settings, float], Steps[C]],
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._open_channel = open_channel
        self._clock = clock
        self._changed = threading.Condition()
        self._idle: list[PooledChannel[C]] = []
        self._all: set[PooledChannel[C]] = set()
        self._at_work: set[PooledChannel[C]] = set()
        self._being_made = 0
        self._made_for_work = 0
        self._closed = False
        self._spent = 0
        """Round trips on channels that were closed."""

    @property
    def round_trips(self) -> int:
        """How often a caller waited for the broker on a channel."""
        with self._changed:
            return self._spent + sum(pooled.connection.round_trips for pooled in self._all)

    @property
    def is_idle(self) -> bool:
        """Whether `take` would return a channel of the pool now."""
        with self._changed:
            if not self._idle or not self._has_room(spare=False):
                return False
            pooled = self._idle[-1]
        pooled.connection.refresh()
        return not pooled.channel.broken

    def take(self, deadline: float, *, wait: bool = True, spare: bool = False) -> PooledChannel[C]:
        """A channel. With `spare` it is for something that needs no other one to end. AllInUse: all are at work.
        ConnectionLost: none can be made."""
        while True:
            with self._changed:
                while not self._has_room(spare=spare):
                    left_s = deadline - self._clock()
                    if left_s <= 0 or not wait:
                        raise AllInUse(f"all {self._settings.channels} channels are in use")
                    self._changed.wait(left_s)
                pooled = self._idle.pop() if self._idle else None
                if pooled is None:
                    self._being_made += 1
                    self._made_for_work += not spare
                elif not spare:
                    self._at_work.add(pooled)
            if pooled is None:
                return self._make(deadline, spare=spare)
            pooled.connection.refresh()
            if not pooled.channel.broken:
                return pooled
            self.discard(pooled)

    def _has_room(self, *, spare: bool) -> bool:
        """Whether a caller need not wait. Called with the lock held."""
        most = self._settings.channels
        if not spare and len(self._at_work) + self._made_for_work >= most:
            return False
        return bool(self._idle) or len(self._all) + self._being_made < most + SPARE

    def _make(self, deadline: float, *, spare: bool) -> PooledChannel[C]:
        connection, pooled = None, None
        try:
            connection = self._connect(deadline)
            steps = self._open_channel(connection.endpoint, self._settings, deadline)
            pooled = PooledChannel(connection.run(steps), connection)
        except BaseException:
            if connection is not None:
                connection.drop()
            raise
        finally:
            with self._changed:
                self._being_made -= 1
                self._made_for_work -= not spare
                if pooled is not None:
                    self._all.add(pooled)
                    if not spare:
                        self._at_work.add(pooled)
                self._changed.notify_all()
        return pooled

    def give(self, pooled: PooledChannel[C]) -> None:
        """Nobody works on the channel any more."""
        if pooled.channel.broken or self._closed:
            self.discard(pooled)
            return
        messages, now = pooled.channel.messages, self._clock()
        if messages.put_down(now):
            pooled.connection.run(messages.release_prefetched(now))
        with self._changed:
            self._at_work.discard(pooled)
            self._idle.append(pooled)
            self._changed.notify_all()

    def discard(self, pooled: PooledChannel[C]) -> None:
        """The channel can't be used any more, or what was done on it shall be undone."""
        pooled.connection.drop()
        with self._changed:
            if pooled in self._all:
                self._all.discard(pooled)
                self._spent += pooled.connection.round_trips
            self._at_work.discard(pooled)
            self._changed.notify_all()

    def maintain(self) -> float | None:
        """Gives back what was prefetched for addresses from which nobody has received for a while
        (`rm_amqp.connection.maintenance`)."""
        if self._closed:
            return None
        now = self._clock()
        with self._changed:
            idle = [pooled for pooled in self._idle if pooled.channel.messages.is_late(now)]
            for pooled in idle:
                self._idle.remove(pooled)
        for pooled in idle:
            pooled.connection.run(pooled.channel.messages.release_prefetched(now))
            with self._changed:
                self._idle.insert(0, pooled)
                self._changed.notify_all()
        return now + IDLE_S / 2

    def close(self, deadline: float) -> None:
        """Closes every channel; the broker has let go of what they held when this returns, if it answers until
        `deadline`."""
        for pooled in self._take_all():
            with contextlib.suppress(ConnectionLost):
                pooled.connection.run(pooled.channel.messages.empty(deadline))
            pooled.connection.close(deadline)

    def drop(self) -> None:
        """Closes every channel at once, without a word."""
        for pooled in self._take_all():
            pooled.connection.drop()

    def break_off(self) -> None:
        """Breaks the connections of the channels that somebody has."""
        with self._changed:
            taken = self._all.difference(self._idle)
        for pooled in taken:
            pooled.connection.break_off()

    def _take_all(self) -> list[PooledChannel[C]]:
        with self._changed:
            self._closed = True
            channels = list(self._all)
            self._spent += sum(pooled.connection.round_trips for pooled in channels)
            self._all.clear()
            self._at_work.clear()
            self._idle.clear()
            self._changed.notify_all()
        return channels
