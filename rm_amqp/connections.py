"""The connections of one resource manager instance: its pool of transactional channels, and its command channel."""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from rm_amqp.channel.channel import Channel
from rm_amqp.channel.command_channel import Commands
from rm_amqp.channel.pool import ChannelPool
from rm_amqp.connection.connector import Connector, connect
from rm_amqp.connection.endpoint import Endpoint
from rm_amqp.errors import AllInUse, ConnectionLost, TimedOut, lost_error
from xa import Code, xa_error
from xa.keep_alive import MAINTENANCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rm_amqp.channel.pool import PooledChannel
    from rm_amqp.connection.connection import Connection
    from rm_amqp.connection.endpoint import Steps
    from rm_amqp.settings import Broker, Settings
    from xa import XaError, Xid
    from xa.keep_alive import Maintained

C = TypeVar("C", bound=Channel)
CLOSE_S: Final = 2.0
"""How long the broker may take, in all, to answer the close of every connection."""

REAP_S: Final = 0.5
"""How often it is looked after what threads of control have left that are gone."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The parts of the machine that an instance uses: network, clock, randomness, and the thread that maintains what is
    idle."""

    connect: Callable[[Settings, float, Callable[[Broker], Endpoint]], Connection] = connect
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    nonce: Callable[[int], bytes] = os.urandom
    maintain: Callable[[Maintained], None] = MAINTENANCE.add


class Connections(Generic[C]):
    """The connections of one instance. `open_channel` makes a connection a transactional channel."""

    def __init__(self, environment: Environment, open_channel: Callable[[Endpoint, Settings, float], Steps[C]]) -> None:
        self.environment = environment
        self.container = f"xabridge-{uuid.UUID(bytes=environment.nonce(16), version=4)}"
        """The name that every connection of this instance sends to the broker, with a number behind it."""
        self._open_channel = open_channel
        self._lock = threading.Lock()
        """Held while the settings change."""
        self._numbers = itertools.count(1)
        self._settings: Settings | None = None
        self._connector: Connector | None = None
        self._pool: ChannelPool[C] | None = None
        self._commands: Commands | None = None
        self._spent = 0
        """Round trips on connections that are closed."""

    @property
    def settings(self) -> Settings:
        """The settings in the open string."""
        if self._settings is None:
            raise _not_open()
        return self._settings

    @property
    def pool(self) -> ChannelPool[C]:
        """The transactional channels."""
        if self._pool is None:
            raise _not_open()
        return self._pool

    @property
    def commands(self) -> Commands:
        """The command channel."""
        if self._commands is None:
            raise _not_open()
        return self._commands

    @property
    def is_open(self) -> bool:
        """Whether connections can be made."""
        return self._pool is not None

    def deadline(self, timeout_s: float | None = None) -> float:
        """The time that is so many seconds from now; None: until when a call that begins now may take."""
        if timeout_s is None:
            if self._settings is None:
                raise _not_open()
            timeout_s = self._settings.timeout_s
        return self.environment.clock() + timeout_s

    @property
    def round_trips(self) -> int:
        """How often, in all, a caller has waited for the broker after something was sent."""
        pool, commands = self._pool, self._commands
        return self._spent + (pool.round_trips if pool else 0) + (commands.round_trips if commands else 0)

    def use(self, settings: Settings) -> None:
        """From now on connections are made with these settings. Those that are there are closed, where they have
        others."""
        with self._lock:
            if self._pool is None or settings != self._settings:
                self._use(settings)

    def _use(self, settings: Settings) -> None:
        self.close()
        tls = settings.tls_context()
        environment = self.environment

        def endpoint_for(broker: Broker) -> Endpoint:
            container = f"{self.container}-{next(self._numbers)}"
            return Endpoint(settings, broker, container, environment.clock, environment.nonce, tls)

        self._connector = Connector(
            lambda deadline: environment.connect(settings, deadline, endpoint_for),
            environment.clock,
            environment.sleep,
        )
        self._settings = settings
        self._pool = self.new_pool(settings)
        self._commands = Commands(self._connector)

    @contextmanager
    def borrowed(self) -> Iterator[PooledChannel[C]]:
        """A channel, for the length of a block. It is given up where the block loses it."""
        pool = self.pool
        pooled = pool.acquire(work=True, deadline=self.deadline())
        keep = True
        try:
            yield pooled
        except (ConnectionLost, TimedOut):
            keep = False
            raise
        finally:
            pool.release(pooled, keep=keep)

    def new_pool(self, settings: Settings) -> ChannelPool[C]:
        """A pool of channels. Whoever takes another one beside `pool` has to close it."""
        if self._connector is None:
            raise _not_open()
        pool = ChannelPool(settings, self._connector, self.environment.clock, self._open_channel)
        self.environment.maintain(pool)
        return pool

    def close(self) -> None:
        """Closes every connection."""
        deadline = self.environment.clock() + CLOSE_S
        pool, self._pool = self._pool, None
        commands, self._commands = self._commands, None
        if pool is not None:
            pool.close_until(deadline)
            self._spent += pool.round_trips
        if commands is not None:
            commands.close(deadline)
            self._spent += commands.round_trips

    def drop(self) -> None:
        """Closes every connection at once, without a word, as if the process had died."""
        pool, self._pool = self._pool, None
        commands, self._commands = self._commands, None
        if pool is not None:
            pool.drop()
        if commands is not None:
            commands.drop()

    def break_off(self) -> None:
        """Breaks the connections that are in use, while other threads wait for them."""
        pool, commands = self._pool, self._commands
        if pool is not None:
            pool.break_off()
        if commands is not None:
            commands.break_off()

    def forget(self) -> None:
        """The process was forked: the connections are the parent's, and are neither used nor closed here."""
        self._lock = threading.Lock()  # another thread may have held the parent's
        self._pool = self._commands = self._connector = None


def _not_open() -> XaError:
    return xa_error(Code.XAER_PROTO, "the resource manager is not open")


def not_begun(why: ConnectionLost | TimedOut, xid: Xid) -> XaError:
    """The error for work that got no channel. XA_RETRY: none was free. XAER_RMERR, XAER_RMFAIL: none can be made."""
    if isinstance(why, AllInUse):
        return xa_error(Code.XA_RETRY, f"start: {why}", xid)
    return lost_error("start", why, xid)
