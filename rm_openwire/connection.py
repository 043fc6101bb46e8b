"""Connection: one OpenWire connection over a socket, with one session and one producer in it.

`Connector` tries the addresses in their order, and says who we are. One thread at a time uses a connection (`lock`).
While it waits, it keeps the connection alive; `maintain` does so for connections that no thread waits on. `cut` breaks
one at any moment, from any thread: a waiting thread gets ConnectionLost.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Final

from rm_openwire.endpoint import Endpoint
from rm_openwire.errors import ConnectionLost, Refused, is_security
from rm_openwire.wire import (
    ConnectionId,
    ConnectionInfo,
    ConsumerId,
    KeepAliveInfo,
    MessageId,
    ProducerId,
    ProducerInfo,
    RemoveInfo,
    SessionId,
    SessionInfo,
    ShutdownInfo,
)
from xa import Code, xa_error
from xa.tls import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.settings import Broker
    from rm_openwire.settings import Settings
    from rm_openwire.wire import Command, Response

READ: Final = 65_536
SLACK_S: Final = 5.0
"""Artemis looks every 2 s only whether it has to say that it is alive."""
_NUMBERS: Final = itertools.count(1)


class Connection:
    """A connection that is open, negotiated and authenticated: an `xa.pool.PooledConnection`. `clock` counts
    seconds."""

    def __init__(self, sock: socket.socket, settings: Settings, address: Broker, clock: Callable[[], float]) -> None:
        self.lock = threading.RLock()
        self.endpoint = Endpoint(settings.idle_timeout_s)
        self.address = address
        self.lost: str | None = None
        """Why it can't be used any more."""
        self._socket = sock
        self._clock = clock
        self._idle_timeout_s = settings.idle_timeout_s

        self._timeout_s = settings.timeout_s
        self._received_at = self._sent_at = clock()
        self.name = f"ID:xabridge-{socket.gethostname()}-{os.getpid()}-{time.time_ns()}-{next(_NUMBERS)}"
        self.connection_id = ConnectionId(self.name)
        self.session_id = SessionId(self.name, 1)
        self.producer_id = ProducerId(self.name, 1, 1)
        self._consumers = itertools.count(1)
        self._messages = itertools.count(1)
        self._producers = itertools.count(2)

    def introduce(self, settings: Settings, deadline: float) -> None:
        """Negotiates, and says who we are. Refused: the broker does not want us."""
        endpoint = self.endpoint
        self._until(lambda: endpoint.version and endpoint.broker is not None, deadline)
        client = ConnectionInfo(connection_id=self.connection_id, client_id=self.name)
        client.user, client.password = settings.user or None, settings.password or None
        for command in (
            client,
            SessionInfo(session_id=self.session_id),
            ProducerInfo(producer_id=self.producer_id),
        ):
            self.ask(command, deadline)

    # --- names ------------------------------------------------------------------------------------------------
    def new_consumer(self) -> ConsumerId:
        """The name of another consumer."""
        return ConsumerId(self.name, self.session_id.value, next(self._consumers))

    def new_producer(self) -> ProducerId:
        """The name of another producer."""
        return ProducerId(self.name, next(self._producers), self.session_id.value)

    def new_message(self) -> MessageId:
        """The name of another message."""
        return MessageId(None, self.producer_id, next(self._messages))

    # --- talking ----------------------------------------------------------------------------------------------
    def deadline(self, timeout_s: float | None = None) -> float:
        """The time, on the clock of this connection, that is so many seconds from now; None: as settings say."""
        return self._clock() + (self._timeout_s if timeout_s is None else timeout_s)

    def ask(self, command: Command, deadline: float | None = None) -> Response:
        """Sends a command, and waits for its answer. Refused, ConnectionLost."""
        return self.wait(self.send(command), deadline)

    def send(self, command: Command) -> int:
        """Sends a command that is answered, and tells its number."""
        self._check_lost()
        number = self.endpoint.ask(command)
        self.flush()
        return number

    def tell(self, command: Command) -> None:
        """Sends a command that is not answered."""
        self._check_lost()
        self.endpoint.send(command)
        self.flush()

    def wait(self, number: int, deadline: float | None = None) -> Response:
        """Waits for the answer to the command of this number."""
        self._until(lambda: self.endpoint.is_answered(number), deadline)
        response = self.endpoint.answer(number)
        assert response is not None  # noqa: S101 — it was there
        return response

    def is_answered(self, number: int) -> bool:
        """Whether the answer has come, without waiting. True also when the connection is lost."""
        with contextlib.suppress(ConnectionLost):
            if not self.endpoint.is_answered(number):
                self._read(0.0)
            return self.endpoint.is_answered(number)
        return True

    def wait_until(self, happened: Callable[[], bool], deadline: float) -> bool:
        """Waits until something has happened; False: not in time."""
        return self._until(happened, deadline, patient=True)

    def flush(self) -> None:
        """Writes what is to be sent."""
        outgoing = self.endpoint.outgoing
        if not outgoing:
            return
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(outgoing)
        except (OSError, ValueError) as error:
            raise self._is_lost(f"it can't be written to: {error or type(error).__name__}") from None
        except BaseException:  # an interruption: a part of it may be written
            self.drop("writing was interrupted")
            raise
        outgoing.clear()
        self._sent_at = self._clock()

    def keep_alive(self) -> None:
        """Says that we are alive, and reads what the broker says; for a connection that is idle at this moment."""
        if self.lost is None:
            with contextlib.suppress(ConnectionLost):
                self._read(0.0)
                self._speak_up()

    def maintain(self) -> float | None:
        """The same, where it is idle at this moment (`xa.keep_alive`)."""
        if self.lost is not None:
            return None
        if self.lock.acquire(blocking=False):
            try:
                self.keep_alive()
            finally:
                self.lock.release()
        return time.monotonic() + self._idle_timeout_s / 3

    @property
    def is_reusable(self) -> bool:
        return self.lost is None

    def is_ready(self, idle_s: float) -> bool:
        return self.is_usable(idle_s)

    def is_usable(self, idle_s: float) -> bool:
        del idle_s  # it was kept alive
        with self.lock:
            self.keep_alive()
            return self.lost is None

    def discard(self) -> None:
        with self.lock:  # it may be being maintained
            self.close()

    def break_off(self) -> None:
        self.cut("the connection was broken off")

    def check(self) -> None:
        """Looks whether it is lost, without waiting; ConnectionLost."""
        self.keep_alive()
        self._check_lost()

    def cut(self, why: str) -> None:
        """Breaks the connection, as a network does that fails."""
        self.lost = self.lost or why
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection; what it holds at the broker is the broker's again."""
        if self.lost is None:
            with contextlib.suppress(ConnectionLost):
                self._timeout_s = min(self._timeout_s, 2.0)
                self.endpoint.send(RemoveInfo(object_id=self.connection_id))
                self.endpoint.send(ShutdownInfo())
                self.flush()
        self.drop("it was closed")

    def drop(self, why: str) -> None:
        """Closes the socket without a word."""
        self.lost = self.lost or why
        with contextlib.suppress(OSError):
            self._socket.close()

    # --- inside -----------------------------------------------------------------------------------------------
    def _check_lost(self) -> None:
        if self.lost is not None:
            raise ConnectionLost(self.lost)

    def _is_lost(self, why: str) -> ConnectionLost:
        why = self.lost or f"the connection to {self.address} is lost: {why}"
        self.drop(why)
        return ConnectionLost(why)

    def _until(self, happened: Callable[[], object], deadline: float | None = None, *, patient: bool = False) -> bool:
        """Reads until something has happened. Without `patient` a broker that does not answer in time is lost."""
        deadline = self.deadline() if deadline is None else deadline
        self.flush()
        while not happened():
            self._check_lost()
            left_s = deadline - self._clock()
            if left_s <= 0:
                if patient:
                    return False
                raise self._is_lost("the broker does not answer in time")
            self._read(min(left_s, self._idle_timeout_s / 3))
            self._speak_up()
        return True

    def _speak_up(self) -> None:
        now = self._clock()
        if now - self._sent_at > self._idle_timeout_s / 3:
            self.endpoint.send(KeepAliveInfo())
        self.flush()
        if now - self._received_at > 2 * self._idle_timeout_s + SLACK_S:
            raise self._is_lost(f"the broker has been silent for {now - self._received_at:.0f} s")

    def _read(self, wait_s: float) -> None:
        """Reads once, after waiting at most so long."""
        try:
            self._socket.settimeout(max(wait_s, 0.0))
            octets = self._socket.recv(READ)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return
        except (OSError, ValueError) as error:
            raise self._is_lost(str(error) or type(error).__name__) from None
        if not octets:
            raise self._is_lost("the broker has closed it")
        self._received_at = self._clock()
        try:
            self.endpoint.receive(octets)
        except ConnectionLost as error:
            raise self._is_lost(str(error)) from None


class Connector:
    """Finds a broker that can be reached, beginning with the one that was reached last."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._clock = clock
        self._tls = settings.tls_context()
        self._last = 0

    def connect(self) -> Connection:
        """A connection. XAER_RMFAIL: none can be reached. XAER_RMERR: one was reached, and refused us."""
        settings, failures = self.settings, []
        deadline = self._clock() + settings.timeout_s
        count = len(settings.addresses)
        for place in range(self._last, self._last + count):
            address = settings.addresses[place % count]
            left_s = deadline - self._clock()
            if left_s <= 0:
                break

            try:
                connection = self._reach(address, min(settings.connect_timeout_s, left_s))
            except (ConnectionLost, OSError) as error:
                why = f"TLS: {reason_of(error)}" if isinstance(error, ssl.SSLError) else str(error)
                failures.append(f"{address}: {why or type(error).__name__}")
                continue
            self._last = place % count
            return connection
        raise xa_error(Code.XAER_RMFAIL, f"open: no broker can be reached: {'; '.join(failures) or 'no time is left'}")

    def _reach(self, address: Broker, timeout_s: float) -> Connection:
        deadline = self._clock() + timeout_s
        sock = socket.create_connection((address.host, address.port), timeout_s)
        connection: Connection | None = None

        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.settimeout(max(deadline - self._clock(), 0.05))  # for the TLS handshake
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=address.host)
            connection = Connection(sock, self.settings, address, self._clock)
            connection.introduce(self.settings, deadline)
        except Refused as refused:
            connection = None
            what = "it does not let us in" if is_security(refused.cause) else "it refuses the connection"
            raise xa_error(Code.XAER_RMERR, f"open: {address}: {what}: {refused}") from None
        finally:
            if connection is None or connection.lost is not None:
                sock.close()
        return connection
