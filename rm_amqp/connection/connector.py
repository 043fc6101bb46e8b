"""Makes connections: to the first broker of a list that can be reached and used, and after failures with back-off."""

from __future__ import annotations

import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from rm_amqp.connection.connection import SocketConnection
from rm_amqp.connection.endpoint import wait_until_open
from rm_amqp.errors import Cause, ConnectionLost, unreachable
from xa.keep_alive import MAINTENANCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.connection.connection import Connection, Poll
    from rm_amqp.connection.endpoint import Endpoint
    from rm_amqp.settings import Broker, Settings
    from xa.keep_alive import Maintained

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LAST_S: Final = 1.0


class Connector:
    """Makes the connections of one resource manager instance. After a failure the next attempt waits, longer each
    time."""

    def __init__(
        self,
        connect: Callable[[float], Connection],
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._backoff_s = 0.0
        self._next_at = 0.0

    def __call__(self, deadline: float) -> Connection:
        """A connection that the broker has opened; ConnectionLost: there is none."""
        with self._lock:
            wait_s = min(self._next_at, deadline) - self._clock()
        if wait_s > 0:
            self._sleep(wait_s)
        try:
            connection = self._connect(deadline)
        except ConnectionLost:
            with self._lock:
                self._backoff_s = min(max(2 * self._backoff_s, BACKOFF_FIRST_S), BACKOFF_LAST_S)
                self._next_at = self._clock() + self._backoff_s
            raise
        with self._lock:
            self._backoff_s = self._next_at = 0.0
        return connection


def reach(broker: Broker, deadline: float, clock: Callable[[], float]) -> socket.socket:
    """A socket to the first of the host's addresses that answers. (Only the resolver is not bound by the deadline: it
    has time-outs of its own.)"""
    why = "no time was left to try it"
    try:
        addresses = socket.getaddrinfo(broker.host, broker.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise unreachable(broker, f"no such host ({error.strerror})") from None

    for family, kind, protocol, _, address in addresses:
        left_s = deadline - clock()
        if left_s <= 0:
            break
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(left_s)
            connected.connect(address)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connected.close()
            timed_out = isinstance(error, TimeoutError)
            why = f"no answer within {left_s:.1f} s" if timed_out else (error.strerror or str(error)).lower()
        except BaseException:
            connected.close()
            raise
        else:
            return connected
    raise unreachable(broker, why)


def connect(
    settings: Settings,
    deadline: float,
    make_endpoint: Callable[[Broker], Endpoint],
    clock: Callable[[], float] = time.monotonic,
    reach: Callable[[Broker, float, Callable[[], float]], socket.socket] = reach,
    make_poll: Callable[[], Poll] = select.poll,
    maintain: Callable[[Maintained], None] = MAINTENANCE.add,
) -> SocketConnection:
    """A connection that the first broker which can be reached has opened. ConnectionLost says what is wrong with each
    broker, or why one that was reached can't be used.

    `reach`, `make_poll` and `maintain` are the network: sockets, how they are waited for, and what keeps idle
    connections alive."""
    wrong: list[str] = []
    for broker in settings.brokers:
        until_s = min(deadline, clock() + settings.connect_timeout_s)
        try:
            connection = SocketConnection(reach(broker, until_s, clock), make_endpoint(broker), make_poll)
            try:
                connection.run(wait_until_open(connection.endpoint, until_s))
            except BaseException:
                connection.drop()
                raise
        except ConnectionLost as why:
            if why.cause is Cause.UNUSABLE:
                raise
            wrong.append(why.message)
        else:
            maintain(connection)
            return connection

    raise ConnectionLost(Cause.UNREACHABLE, "; ".join(wrong))
