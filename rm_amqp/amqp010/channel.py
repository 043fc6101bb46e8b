"""A channel: one connection with one session over a socket, on the caller's own thread.

A caller sends commands and waits for what it needs of their results. Whatever comes meanwhile is taken by the session.
Any failure, an interruption included, breaks the channel for good: its connection is closed, and the broker makes the
branch that it was at work for rollback-only, and gives back what it had received. Heartbeats are sent by the
maintenance thread, because an application may compute for a long time.

A refused command ends the session, not the connection: `renew` begins another one.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import threading
import time
from typing import TYPE_CHECKING, Final, TypeVar

from rm_amqp.amqp010.connection import Connection
from rm_amqp.amqp010.session import SessionState
from rm_amqp.amqp010.structs import DtxSelect
from rm_amqp.connection.connector import reach
from rm_amqp.connection.tls import TlsLayer
from rm_amqp.errors import Cause, ConnectionLost, TimedOut
from xa.keep_alive import MAINTENANCE
from xa.tls import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.amqp010.session import MessageContent, Session
    from rm_amqp.amqp010.settings import Settings010
    from rm_amqp.amqp010.structs import Command, Struct
    from rm_amqp.settings import Broker

R = TypeVar("R")
T = TypeVar("T", bound="Struct")
READ: Final = 1 << 18
NOT_FOUND, ILLEGAL_STATE, COMMAND_INVALID, NOT_ALLOWED = 404, 409, 503, 530
UNAUTHORIZED, LOCKED, LIMIT_EXCEEDED = 403, 405, 506


class Refused(Exception):
    """The broker refused a command, and ended the session with it."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.description = description or f"refused with {code}"


class Channel:
    """One channel. A caller holds `lock` for as long as an operation takes."""

    def __init__(
        self, settings: Settings010, broker: Broker, connected: socket.socket, clock: Callable[[], float]
    ) -> None:
        self.lock = threading.RLock()
        self.works = 0
        """How many works of its thread of control it carries."""
        self.broken = False
        self.receiving: dict[str, str] = {}
        """Address → the destination of its subscription, in this session."""
        self.addresses: dict[str, bool] = {}
        """Addresses that were found, and whether their queues are durable."""
        self.round_trips = 0
        self._settings = settings
        self._broker = broker
        self._socket = connected
        self._clock = clock
        self._process = os.getpid()

        context = settings.tls_context()
        self._tls = TlsLayer(context, broker.host) if context is not None else None
        self.connection = Connection(
            settings.policy,
            str(broker),
            settings.virtual_host,
            settings.heartbeat_s,
            encrypted=settings.tls,
            nonce=os.urandom,
        )
        self._session: Session | None = None
        self._names = 0
        self._name = os.urandom(12).hex()
        self._read_at = self._written_at = clock()
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)

    @property
    def session(self) -> Session:
        """The session; ConnectionLost where the channel is broken."""
        if self._session is None or self.broken:
            raise ConnectionLost(Cause.LOST, f"the connection to {self._broker} was lost")
        return self._session

    @property
    def session_name(self) -> bytes:
        """The name that the broker knows the session by."""
        return f"xabridge-{self._name}-{self._names}".encode()

    def now(self) -> float:
        """The time, on the clock of deadlines."""
        return self._clock()

    # --- making it --------------------------------------------------------------------------------------------
    def open(self, deadline: float) -> None:
        """The handshake, and the first session. ConnectionLost, TimedOut: there is no channel."""
        self._guarded(lambda: self._wait(lambda: self.connection.is_open, deadline))
        self.renew(deadline, wait=True)

    def renew(self, deadline: float, *, wait: bool = False) -> None:
        """Begins a session for distributed transactions, where there is none that is alive."""
        if self._session is not None and not self._session.ended and not self.broken:
            return

        def begin() -> None:
            if self._session is not None:
                self._wait(lambda: self._session is None or self._session.state is SessionState.ENDED, deadline)
            self._names += 1
            self.receiving.clear()
            session = self._session = self.connection.attach(self.session_name)
            number = session.send(DtxSelect(), sync=True)
            if wait:
                self._wait(lambda: number not in session.outstanding or session.ended, deadline)
                self._check(session)
            else:
                self._write(deadline)

        self._guarded(begin)

    # --- commands -----------------------------------------------------------------------------------------------
    def send(self, command: Command, content: MessageContent | None = None, *, sync: bool = False) -> int:
        """Sends a command with the next that is waited for, or that `flush` writes; its number. ValueError: it can't be
        encoded."""
        session = self.session
        self._check(session)
        return session.send(command, content, sync=sync)

    def flush(self, deadline: float) -> None:
        """Writes what was sent, and takes what has come."""

        def write() -> None:
            self._write(deadline)
            while self._readable(0):
                self._read()

        self._guarded(write)

    def wait_result(self, number: int, of: type[T], deadline: float) -> T:
        """The result of a command. Refused: it, or one before it, was refused."""

        def wait() -> Struct | None:
            session = self.session
            self.round_trips += 1
            self._wait(lambda: number in session.results or session.ended, deadline)
            if number not in session.results:
                self._check(session)
            return session.results.pop(number)

        found = self._guarded(wait)
        if not isinstance(found, of):
            self.drop()
            raise ConnectionLost(Cause.LOST, f"the broker at {self._broker} answered with something else")
        return found

    def wait_complete(self, number: int, deadline: float) -> None:
        """The command, and all before it, were carried out. Refused: one of them was refused."""

        def wait() -> None:
            session = self.session
            self.round_trips += 1
            self._wait(lambda: number not in session.outstanding or session.ended, deadline)
            if number in session.outstanding:
                self._check(session)

        self._guarded(wait)

    def wait_until(self, done: Callable[[Session], bool], deadline: float) -> bool:
        """Waits until something has happened in the session; whether it did in time. Refused."""

        def wait() -> bool:
            session = self.session
            self.round_trips += 1
            try:
                self._wait(lambda: done(session) or session.ended, deadline)
            except TimedOut:
                return False
            if not done(session):
                self._check(session)
            return True

        return self._guarded(wait, timeouts=False)

    def pump(self, done: Callable[[], bool], deadline: float) -> None:
        """Writes and reads until `done`."""
        self._guarded(lambda: self._wait(done, deadline))

    def _check(self, session: Session) -> None:
        """Raises what has ended the session."""
        if session.exception is not None:
            raise Refused(session.exception.error_code or 0, session.exception.description or "")
        if session.ended:
            raise ConnectionLost(Cause.LOST, f"the broker at {self._broker} ended the session ({session.detach_code})")

    # --- the end ------------------------------------------------------------------------------------------------
    @property
    def is_reusable(self) -> bool:
        return not self.broken

    def is_ready(self, idle_s: float) -> bool:
        return self.is_usable(idle_s)

    def is_usable(self, idle_s: float) -> bool:
        del idle_s  # heartbeats have kept it alive
        with self.lock:
            if not self.broken and (self._process != os.getpid() or not self._settled()):
                self.drop()
            return not self.broken

    def _settled(self) -> bool:
        try:
            self.flush(self._clock())
        except (ConnectionLost, TimedOut):
            return False
        return True

    def close(self, deadline: float) -> None:
        """Takes leave of the broker, and waits until it has closed the connection: then it has let go of everything."""
        with contextlib.suppress(ConnectionLost, TimedOut, OSError, ssl.SSLError):
            if not self.broken:
                self.connection.close()
                self._write(deadline)
                while self._readable(deadline - self._clock()):
                    if not self._socket.recv(READ):
                        break
        self.drop()

    def drop(self) -> None:
        """Closes it at once, without a word."""
        self.broken = True
        self._socket.close()

    def discard(self) -> None:
        self.drop()

    def break_off(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def maintain(self) -> float | None:
        """Sends a heartbeat when one is due (`xa.keep_alive`)."""
        if self.broken or self._process != os.getpid():
            return None
        now = self._clock()
        every_s = self.connection.heartbeat_s / 2
        if not every_s:
            return None
        due = self._written_at + every_s
        if now < due:
            return due

        if self.lock.acquire(blocking=False):
            try:
                if self.connection.is_open:
                    self.connection.heartbeat()
                    self._write(now + 1)
            except (ConnectionLost, TimedOut):
                self.drop()
            finally:
                self.lock.release()
        return now + min(every_s, 0.5)

    # --- octets -------------------------------------------------------------------------------------------------
    def _guarded(self, steps: Callable[[], R], *, timeouts: bool = True) -> R:
        """Does the steps. What fails, or is interrupted, breaks the channel: it is unknown what has reached the
        broker. A refusal does not."""
        try:
            return steps()
        except Refused:
            raise
        except TimedOut:
            if timeouts:
                self.drop()
            raise
        except BaseException:
            self.drop()
            raise

    def _wait(self, done: Callable[[], bool], deadline: float) -> None:
        """Writes what is to be written, and reads until `done`. TimedOut, ConnectionLost."""
        self._write(deadline)
        while not done():
            now = self._clock()
            silent_until = deadline
            if self.connection.heartbeat_s:
                silent_until = self._read_at + 2.5 * self.connection.heartbeat_s
                self._beat(now)
            until = min(deadline, silent_until, now + max(self.connection.heartbeat_s / 2, 0.5))
            if self._readable(until - now):
                self._read()
                self._write(deadline)
            elif self._clock() >= deadline:
                raise TimedOut(f"the broker at {self._broker} did not answer in time")
            elif self._clock() >= silent_until:
                raise ConnectionLost(Cause.LOST, f"the broker at {self._broker} has said nothing, not even heartbeats")

    def _beat(self, now: float) -> None:
        if now - self._written_at >= self.connection.heartbeat_s / 2:
            self.connection.heartbeat()
            self._write(now + 1)

    def _readable(self, seconds: float) -> bool:
        try:
            return bool(self._poll.poll(max(seconds, 0) * 1000))
        except (OSError, ValueError):
            raise self._lost("it was closed") from None

    def _read(self) -> None:
        try:
            octets = self._socket.recv(READ)
            if not octets:
                raise self._lost("the broker closed it")
            self._read_at = self._clock()
            if self._tls is not None:
                octets = self._tls.received(octets)
        except ssl.SSLError as error:
            raise ConnectionLost(
                Cause.UNUSABLE, f"the broker at {self._broker} can't be used: TLS: {reason_of(error)}"
            ) from None
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None
        self.connection.receive(octets)

    def _write(self, deadline: float) -> None:
        octets = self.connection.output()
        if self._tls is not None:
            try:
                self._tls.send(octets)
                octets = self._tls.output()
            except ssl.SSLError as error:
                raise self._lost(str(error)) from None
        if not octets:
            return

        try:
            self._socket.settimeout(max(deadline - self._clock(), 0.05))
            self._socket.sendall(octets)
        except TimeoutError:
            self.drop()
            raise TimedOut(f"the broker at {self._broker} takes nothing") from None
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from None
        self._written_at = self._clock()

    def _lost(self, why: str) -> ConnectionLost:
        cause = Cause.LOST if self.connection.is_open else Cause.UNREACHABLE
        return ConnectionLost(cause, f"the connection to {self._broker} was lost: {why.lower()}")


def connect(settings: Settings010, deadline: float, clock: Callable[[], float] = time.monotonic) -> Channel:
    """A channel to the first broker that can be reached. ConnectionLost says what is wrong with each."""
    wrong: list[str] = []
    for broker in settings.brokers:
        until = min(deadline, clock() + settings.connect_timeout_s)
        channel = None

        try:
            channel = Channel(settings, broker, reach(broker, until, clock), clock)
            channel.open(until)
        except TimedOut as why:
            wrong.append(str(why))
        except Refused as why:
            message = f"the broker at {broker} has no distributed transactions: {why.description}"
            raise ConnectionLost(Cause.UNUSABLE, message) from None
        except ConnectionLost as why:
            if why.cause is Cause.UNUSABLE:
                raise
            wrong.append(why.message)
        else:
            MAINTENANCE.add(channel)
            return channel
        finally:
            if channel is not None and not channel.connection.is_open:
                channel.drop()
    raise ConnectionLost(Cause.UNREACHABLE, "; ".join(wrong))
