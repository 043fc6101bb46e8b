"""The connections of one resource manager instance: its pool of transactional channels, and its command channel."""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from rm_amqp.channel.channel import Channel
from rm_amqp.channel.command_channel import Commands
from rm_amqp.channel.pool import ChannelPool
from rm_amqp.connection.connector import Connector, connect
from rm_amqp.connection.endpoint import Endpoint
from rm_amqp.errors import AllInUse, ConnectionLost, TimedOut, lost_error
from xa import Code, xa_error
from xa.keep_alive import MAINTENANCE
from xa.switch import Switch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rm_amqp.channel.pool import PooledChannel
    from rm_amqp.connection.connection import Connection
    from rm_amqp.connection.endpoint import Steps
    from rm_amqp.session import Session
    from rm_amqp.settings import Broker, Settings
    from xa import Handle, XaError, Xid
    from xa.keep_alive import Maintained

C = TypeVar("C", bound=Channel)
W = TypeVar("W")
CLOSE_S: Final = 2.0
"""How long the broker may take, in all, to answer the close of every connection."""

REAP_S: Final = 0.5
"""How often it is looked after what threads of control have left that are gone."""

NOT_OPEN: Final = "the resource manager is not open"


class _NotOpen:
    """What stands for settings and connections of an instance that is not open: every use is refused."""

    def __getattr__(self, name: str) -> NoReturn:
        raise xa_error(Code.XAER_PROTO, NOT_OPEN)


_NOT_OPEN: Final[Any] = _NotOpen()


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

        self.settings: Settings = _NOT_OPEN
        """The settings in the open string."""
        self.pool: ChannelPool[C] = _NOT_OPEN
        """The transactional channels."""
        self.commands: Commands = _NOT_OPEN
        """The command channel."""
        self._connector: Connector | None = None
        self._spent = 0
        """Round trips on connections that are closed."""

    @property
    def is_open(self) -> bool:
        """Whether connections can be made."""
        return self.pool is not _NOT_OPEN

    def deadline(self, timeout_s: float | None = None) -> float:
        """The time that is so many seconds from now; None: until when a call that begins now may take."""
        if timeout_s is None:
            timeout_s = self.settings.timeout_s
        return self.environment.clock() + timeout_s

    @property
    def round_trips(self) -> int:
        """How often, in all, a caller has waited for the broker after something was sent."""
        opened = [one for one in (self.pool, self.commands) if one is not _NOT_OPEN]
        return self._spent + sum(one.round_trips for one in opened)

    def use(self, settings: Settings) -> None:
        """From now on connections are made with these settings. Those that are there are closed, where they have
        others."""
        with self._lock:
            if not self.is_open or settings != self.settings:
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
        self.settings = settings
        self.commands = Commands(self._connector)
        self.pool = self.new_pool(settings)

    @contextmanager
    def borrowed(self) -> Iterator[PooledChannel[C]]:
        """A channel, for the length of a block. It is given up where the block loses it."""
        pool = self.pool
        pooled = pool.acquire(work=True, deadline=self.deadline())
        keep: bool | None = None
        try:
            yield pooled
        except (ConnectionLost, TimedOut):
            keep = False
            raise
        finally:
            pool.release(pooled, keep=keep)

    def new_pool(self, settings: Settings) -> ChannelPool[C]:
        """A pool of channels. The caller that takes another one beside `pool` has to close it."""
        if self._connector is None:
            raise xa_error(Code.XAER_PROTO, NOT_OPEN)
        pool = ChannelPool(settings, self._connector, self.environment.clock, self._open_channel)
        self.environment.maintain(pool)
        return pool

    def close(self) -> None:
        """Closes every connection."""
        deadline = self.environment.clock() + CLOSE_S
        pool, commands = self._taken_out()
        if pool is not _NOT_OPEN:
            pool.close_until(deadline)
            commands.close(deadline)
            self._spent += pool.round_trips + commands.round_trips

    def drop(self) -> None:
        """Closes every connection at once, without a word, as if the process had died."""
        pool, commands = self._taken_out()
        if pool is not _NOT_OPEN:
            pool.drop()
            commands.drop()

    def break_off(self) -> None:
        """Breaks the connections that are in use, while other threads wait for them."""
        for one in (self.pool, self.commands):
            if one is not _NOT_OPEN:
                one.break_off()

    def forget(self) -> None:
        """The process was forked: the connections are the parent's, and are neither used nor closed here."""
        self._lock = threading.Lock()  # another thread may have held the parent's
        self._connector = None
        self._taken_out()

    def _taken_out(self) -> tuple[ChannelPool[C], Commands]:
        """Its connections, which are not used from here on."""
        pool, self.pool = self.pool, _NOT_OPEN
        commands, self.commands = self.commands, _NOT_OPEN
        return pool, commands


def not_begun(why: ConnectionLost | TimedOut, xid: Xid) -> XaError:
    """The error for work that got no channel. XA_RETRY: none was free. XAER_RMERR, XAER_RMFAIL: none can be made."""
    if isinstance(why, AllInUse):
        return xa_error(Code.XA_RETRY, f"start: {why}", xid)
    return lost_error("start", why, xid)


class ConnectedSwitch(Switch[W]):
    """A switch whose driver has `connections`."""

    driver: Any

    def open(self, open_string: str, rmid: int, flags: int = 0) -> Code | Handle:
        answer = super().open(open_string, rmid, flags)
        self.driver.connections.environment.maintain(self)
        return answer

    def maintain(self) -> float | None:
        """Closes what threads of control that have ended have left (`xa.keep_alive`)."""
        connections: Connections[Any] = self.driver.connections
        if not connections.is_open:
            return None
        self.reap()
        return connections.environment.clock() + REAP_S

    @property
    def container(self) -> str:
        """The container id of this instance's connections, without the number behind it."""
        container: str = self.driver.connections.container
        return container

    @property
    def round_trips(self) -> int:
        """How often, in all, a caller has waited for the broker after something was sent."""
        count: int = self.driver.connections.round_trips
        return count

    if TYPE_CHECKING:

        def session(self, rmid: int) -> Session: ...
