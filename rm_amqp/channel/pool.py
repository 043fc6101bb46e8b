"""ChannelPool: the transactional channels of one resource manager instance, each on a connection of its own.

A thread of control has a channel to itself. What is done beside a branch (a token that is held for a moment, a queue
that is read) is a command of `xa.pool`: it never waits for the channel that its thread has at work itself.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rm_amqp.channel.channel import Channel
from rm_amqp.channel.message_links import IDLE_S
from rm_amqp.connection.links import ATTACHED
from rm_amqp.errors import AllInUse, ConnectionLost
from xa.pool import ConnectionPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.connection.connection import Connection
    from rm_amqp.connection.connector import Connector
    from rm_amqp.connection.endpoint import Endpoint, Steps
    from rm_amqp.settings import Settings

C = TypeVar("C", bound=Channel)
C_co = TypeVar("C_co", bound=Channel, covariant=True)


@dataclass(slots=True, eq=False)
class PooledChannel(Generic[C_co]):
    """A channel, and the connection that it is on: an `xa.pool.PooledConnection`."""

    channel: C_co
    connection: Connection
    pool: ChannelPool[Any]
    works: int = 0
    """How many works of its thread of control it carries; with the last one it goes back to the pool."""
    counted: int = 0
    """How many of its round trips the pool has counted."""

    @property
    def is_reusable(self) -> bool:
        return self.channel.control.state is ATTACHED

    def is_ready(self, idle_s: float) -> bool:
        return self.is_usable(idle_s)

    def is_usable(self, idle_s: float) -> bool:
        del idle_s  # heartbeats have kept it alive
        self.connection.refresh()
        return self.channel.control.state is ATTACHED

    def discard(self) -> None:
        self.connection.drop()
        self.pool.closed(self)

    def break_off(self) -> None:
        self.connection.break_off()


class ChannelPool(ConnectionPool[PooledChannel[C]]):
    """The transactional channels of one resource manager instance. `open_channel` makes a connection a channel."""

    def __init__(
        self,
        settings: Settings,
        connect: Connector,
        clock: Callable[[], float],
        open_channel: Callable[[Endpoint, Settings, float], Steps[C]],
    ) -> None:
        def opened(deadline: float) -> PooledChannel[C]:
            connection = connect(deadline)
            try:
                channel = connection.run(open_channel(connection.endpoint, settings, deadline))
            except BaseException:
                connection.drop()
                raise
            return PooledChannel(channel, connection, self)

        super().__init__(
            opened,
            settings.channels,
            settings.timeout_s,
            AllInUse,
            what="channels",
            advice="end other work, or allow more with channels= in the open string",
            clock=clock,
        )
        self._spent = 0
        """Round trips on channels that were closed."""

    @property
    def round_trips(self) -> int:
        """How often a caller waited for the broker on a channel."""
        return self._spent + sum(pooled.connection.round_trips - pooled.counted for pooled in self)

    def closed(self, pooled: PooledChannel[C]) -> None:
        """Notes that a channel is closed."""
        with self._lock:
            self._spent += pooled.connection.round_trips - pooled.counted
            pooled.counted = pooled.connection.round_trips

    def release(self, connection: PooledChannel[C], *, keep: bool | None = None) -> None:
        if keep is None:
            messages, now = connection.channel.messages, self._clock()
            if messages.put_down(now) and connection.is_reusable:
                connection.connection.step(partial(messages.release_prefetched, now))
        super().release(connection, keep=keep)

    def maintain(self) -> float | None:
        """Gives back what was prefetched for addresses from which no one has received for a while
        (`xa.keep_alive`)."""
        if self._closed:
            return None
        now = self._clock()
        with self.idle(lambda pooled: pooled.channel.messages.is_late(now)) as late:
            for pooled in late:
                pooled.connection.step(partial(pooled.channel.messages.release_prefetched, now))
        return now + IDLE_S / 2

    def close_until(self, deadline: float) -> None:
        """Closes every channel; the broker has let go of what they held when this returns, if it answers until
        `deadline`."""
        for pooled in self.close_all():
            with contextlib.suppress(ConnectionLost):
                pooled.connection.run(pooled.channel.messages.empty(deadline))
            pooled.connection.close(deadline)
            self.closed(pooled)

    def drop(self) -> None:
        """Closes every channel at once, without a word."""
        for pooled in self.close_all():
            pooled.discard()
