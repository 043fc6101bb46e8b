"""MariaConnection: one connection to MariaDB or MySQL as the XA verbs use it, over PyMySQL's protocol code.

A request is one command or several. Several leave in one write, and the server carries each of them out, also when the
one before it failed; so commands are sent together only where the later ones fail, or do no harm, if an earlier one
failed. Replies that are not collected yet are owed: the next exchange collects them first.

PyMySQL reads whole replies and blocks meanwhile. Its buffered reader is replaced by one that can tell whether a whole
reply has arrived, so that a thread waits for several connections at once, and for none longer than it wants. While
`waiting` lasts, somebody else waits for the socket whenever PyMySQL would block: that is how a task's statement leaves
the event loop free.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias, TypeVar

import pymysql
from pymysql.constants import COMMAND

from rm_db.server.connection import ServerConnection
from rm_db.server.steps import ConnectionLost, Failure, Wait
from rm_db.sessions.errors import forked_error
from xa.fork import belongs_to_this_process
from xa.sql.errors import MARIADB, ErrorKind
from xa.sql.pymysql_connection import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rm_db.server.steps import Steps

Driver: TypeAlias = "pymysql.connections.Connection[Any]"
Waiter: TypeAlias = "Callable[[socket.socket, int, float | None], None]"
"""Waits until one of these events of select.poll can go on, at most so many seconds; TimeoutError."""

T = TypeVar("T")

RESET: Final = b"\x1f"
"""COM_RESET_CONNECTION: rolls back, and brings the session back to where it was when the user had logged in: settings,
variables, temporary tables, named statements and user locks are gone. The current database stays."""
INIT_DB: Final = b"\x02"
"""COM_INIT_DB; the name of a database follows."""

NO_SUCH_THREAD: Final = 1094
PAUSE: Final = b"DO SLEEP(0.02)"
_TRIES: Final = 150
"""How often a session is looked for that ends."""

MAX_REPLY: Final = 64 << 20
"""Octets of the replies to the verbs of one request."""
_HEADER: Final = 4
_LONGEST: Final = 0xFFFFFF
"""The length of a packet that is continued in the next one."""
_ERROR: Final = b"\xff"
_ALONE: Final = frozenset({b"\x00", b"\xfb", _ERROR})
"""The first octet of success, of a request for a file, of an error: nothing follows these."""
_END: Final = b"\xfe"
_END_LENGTH: Final = 9
"""A row that begins like an end is longer."""
_CHUNK: Final = 65536
_IN_TRANSACTION: Final = 1
"""The server's status flag."""


class Result(NamedTuple):
    """The server's answer to one command: its rows, or the error. `columns`: how many a row has; 0: there are none, it
    is a success without rows."""

    rows: tuple[tuple[Any, ...], ...]
    failure: Failure | None
    columns: int = 0


def _read_in_fork() -> NoReturn:
    """What PyMySQL calls for the next row of a stream."""
    raise forked_error(None)


class MariaConnection(ServerConnection):
    """One connection."""

    __slots__ = ("__weakref__", "_poller", "_readable", "_reader", "_socket", "driver", "thread_id")

    def __init__(self, driver: Any, reply_s: float) -> None:
        super().__init__(reply_s)
        self.driver = driver  # a PyMySQL connection, whose types leave out what is used here
        self.thread_id: int = driver.thread_id()
        self._socket: socket.socket = self.driver._sock
        self._reader = _Reader(self._socket)
        self.driver._rfile.close()
        self.driver._rfile = self._reader
        self._poller = select.poll()
        self._poller.register(self._socket, select.POLLIN)
        self._readable = Wait(self, select.POLLIN)
        belongs_to_this_process(self)

    @property
    def alive(self) -> bool:
        return self.driver._sock is not None

    @property
    def is_reusable(self) -> bool:
        if not self.reusable or self.is_cut or not self.alive:
            return False
        return self.owed > 0 or not self.driver.server_status & _IN_TRANSACTION

    @property
    def unfinished(self) -> bool:
        """Whether the application has not read all rows of its last statement."""
        result = self.driver._result
        return result is not None and bool(result.unbuffered_active or result.has_next)

    @property
    def last_result(self) -> Any:
        """The result of the application's last statement, PyMySQL's object."""
        return self.driver._result

    def drain(self) -> None:
        """Reads the further results of a procedure, which are not wanted. ConnectionLost."""
        driver = self.driver
        self._reader.until = time.monotonic() + self.reply_s
        try:
            while self.unfinished and not driver._result.unbuffered_active:
                try:
                    driver._read_query_result()
                except pymysql.MySQLError as error:
                    driver._result = None
                    if not self.alive:
                        raise ConnectionLost(failure_of(error)) from None
        except UNREADABLE as error:
            raise self._not_understood(error) from None
        finally:
            self._reader.until = None

    async def is_settled(self) -> bool:
        return all(result.failure is None for result in (await self.collect()))

    def test(self) -> Steps[list[Result]]:
        return self.exchange(b"DO 0")

    def went_away(self) -> bool:
        """An idle server has nothing to say but that it ends the connection."""
        return not self.alive or bool(self._reader) or bool(self._poller.poll(0))

    def begin_statement(self) -> None:
        """PyMySQL is about to send a statement of the application's. ConnectionLost: it must not."""
        self._check_silent()
        self.driver._next_seq_id = 0

    @property
    def in_statement(self) -> bool:
        """Whether PyMySQL has sent the statement. The number is that of the reply's next packet."""
        return bool(self.driver._next_seq_id)

    @contextmanager
    def waiting(self, waiter: Waiter) -> Iterator[None]:
        """Meanwhile `waiter` waits for the socket whenever PyMySQL would."""
        reader = self._reader
        before, reader.waiter = reader.waiter, waiter
        reader.timeout_s = self.driver._read_timeout
        self.driver._write_bytes = self._write
        try:
            yield
        finally:
            reader.waiter = before
            if before is None:
                del self.driver._write_bytes

    def _write(self, octets: bytes) -> None:
        """Replaces PyMySQL's, which blocks until the server has read enough."""
        driver = self.driver
        view, sent = memoryview(octets), 0
        try:
            while sent < len(view):
                sent += self._reader.without_blocking(partial(self._socket.send, view[sent:]), select.POLLOUT)
        except OSError as error:
            driver._force_close()
            raise pymysql.OperationalError(2006, f"MySQL server has gone away ({error!r})") from None
        except BaseException:
            driver._force_close()  # the server has a part of the statement
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def poll(self, events: int, timeout_s: float) -> bool:
        del events  # requests are written at once: only replies are waited for
        return self._reader.has_more or bool(self._poller.poll(timeout_s * 1000))

    def close(self) -> None:
        self.owed = 0
        if self.alive:
            with suppress(OSError):  # the server ends the session when it has read this, or the end of the stream
                self._socket.settimeout(0.0)
                self._socket.send(b"\x01\x00\x00\x00" + bytes([COMMAND.COM_QUIT]))
        result = self.driver._result
        if result is not None:
            result.unbuffered_active = False  # otherwise PyMySQL would still read it when the object is deleted
        self.driver._force_close()

    def forked(self) -> None:
        """This process was forked, and the connection is its parent's. PyMySQL would read the rest of a reply when the
        last reference to it goes, and take it from the parent."""
        result = self.driver._result
        if result is not None:
            result.unbuffered_active = result.has_next = False
            result._read_rowdata_packet_unbuffered = _read_in_fork  # otherwise the rows would seem to end here

    def break_off(self) -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(self._socket.fileno())) as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)

    # --- requests -------------------------------------------------------------------------------------------

    def send(self, *commands: bytes) -> None:
        """Sends statements and does not wait; their replies are owed. ConnectionLost: nothing is known to have been
        sent."""
        self._send([bytes([COMMAND.COM_QUERY]) + command for command in commands])

    def reset(self) -> None:
        """Brings the session back to where it began; the replies are owed, and have to be successes."""
        database = self.driver.db
        self._send([RESET, INIT_DB + database] if database else [RESET])

    def reset_or_drop(self) -> None:
        """The same, at the end of its work: where the connection is lost, it is not used again."""
        try:
            self.reset()
        except ConnectionLost:
            self.reusable = False

    def _send(self, commands: list[bytes]) -> None:
        driver = self.driver
        if not self.alive:
            raise ConnectionLost(Failure(None, "the connection is closed"))
        if not self.owed:
            self._check_silent()
        try:
            driver._write_bytes(b"".join(len(one).to_bytes(3, "little") + b"\x00" + one for one in commands))
        except pymysql.MySQLError as error:
            raise ConnectionLost(failure_of(error)) from None
        self.owed += len(commands)

    async def collect(self) -> list[Result]:
        """The replies that are owed."""
        results: list[Result] = []
        while self.owed:
            if not self.alive:
                raise ConnectionLost(Failure(None, "the connection is closed"))
            while not self._reader.has_reply():
                await self._readable
                self._reader.take()
                why = self._reader.why_lost
                if why:
                    self.driver._force_close()
                    raise ConnectionLost(Failure(None, why))
            self.owed -= 1
            results.append(self._read())
        return results

    def _read(self) -> Result:
        """The next reply, which is there as a whole."""
        driver = self.driver
        driver._next_seq_id = 1
        self._reader.begin_reply()

        try:
            driver._read_query_result()
        except pymysql.MySQLError as error:
            driver._result = None
            failure = failure_of(error)
            if not self.alive or is_loss(failure):
                raise ConnectionLost(failure) from None
            return Result((), failure)
        except UNREADABLE as error:
            raise self._not_understood(error) from None
        finally:
            self._reader.end_reply()
        result, driver._result = driver._result, None
        return Result(tuple(result.rows or ()), None, result.field_count)

    def _check_silent(self) -> None:
        """ConnectionLost: the server has sent more than its replies, which would be taken for the next one."""
        if self._reader:
            raise self._not_understood("the reply came before the request")

    def _not_understood(self, why: object) -> ConnectionLost:
        self.driver._force_close()
        return ConnectionLost(Failure(None, f"the reply can't be understood: {why!r}"))

    def exchange(self, *commands: bytes) -> Steps[list[Result]]:
        """Sends commands and collects their replies; replies that were owed before are dropped."""
        before = self.owed
        self.send(*commands)
        return self._collect_after(before)

    async def _collect_after(self, before: int) -> list[Result]:
        results = await self.collect()
        return results[before:]

    async def ask(self, command: bytes) -> Result:
        """Sends one command; its reply."""
        results = await self.exchange(command)
        return results[0]

    async def carry_out(self, *commands: bytes) -> list[Result]:
        """Sends commands that have no rows; their replies."""
        results = await self.exchange(*commands)
        if any(result.columns for result in results):
            raise self._not_understood("rows of a command that has none")
        return results

    async def query(self, command: bytes) -> Result:
        """Sends one command that has rows; its reply."""
        result = await self.ask(command)
        if result.failure is None and not result.columns:
            raise self._not_understood("no rows of a command that has some")
        return result

    async def end_session(self, thread_id: int) -> str | None:
        """Ends another session, and waits until it has ended: a prepared branch belongs to no session then, any other
        is rolled back. Returns why that can't be done."""
        kill = b"KILL %d" % thread_id
        for _ in range(_TRIES):
            failure = (await self.ask(kill)).failure
            if failure is not None:
                return None if failure.number == NO_SUCH_THREAD else f"can't be ended by this user: {failure}"
            await self.exchange(PAUSE)
        return "does not end"


class _Part(Enum):
    """Where in a reply a packet is."""

    HEAD = "the first packet"
    COLUMNS = "the descriptions of columns, and an end"
    ROWS = "rows, and an end"


class _Reader:
    """What PyMySQL reads from, with a buffer of our own. It knows where a reply to a verb ends, so that PyMySQL is
    called when all of it is there, and need not wait."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._is_tls = isinstance(connected, ssl.SSLSocket)
        self._buffer = bytearray()
        self._part: _Part | None = _Part.HEAD
        """Of the reply that is arriving, the next packet; None: all of it is there."""
        self._at = 0
        """Where that packet begins."""

        self._continues = False
        """Whether it is only the rest of a packet of 16 MB."""
        self._is_whole = False
        """Whether PyMySQL reads a reply that is there as a whole."""
        self.why_lost = ""
        self.until: float | None = None
        """The time on the monotonic clock after which PyMySQL is not to wait any more."""
        self.waiter: Waiter | None = None
        self.timeout_s: float | None = None

    def __bool__(self) -> bool:
        return bool(self._buffer) or self.has_more

    @property
    def has_more(self) -> bool:
        """Whether TLS has octets that the operating system does not know of."""
        pending = getattr(self._socket, "pending", None)
        return pending is not None and pending() > 0

    # --- whole replies ----------------------------------------------------------------------------------------
    def has_reply(self) -> bool:
        """Whether a whole reply is in the buffer."""
        buffer = self._buffer
        while self._part is not None and len(buffer) >= self._at + _HEADER:
            length = int.from_bytes(buffer[self._at : self._at + 3], "little")
            begin = self._at + _HEADER
            if len(buffer) < begin + length:
                break
            if not self._continues:
                self._part = _next_part(self._part, bytes(buffer[begin : begin + 1]), length)
            self._continues = length == _LONGEST
            self._at = begin + length
        return self._part is None

    def take(self) -> None:
        """Takes what has arrived, without waiting; `why_lost` says when there can't be more."""
        before = self._socket.gettimeout()
        try:
            if self._is_tls:
                self._socket.settimeout(0.0)  # there may be half of what TLS decrypts as one
            octets = self._socket.recv(_CHUNK)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError as error:
            self.why_lost = str(error) or type(error).__name__
            return
        finally:
            if self._is_tls:
                self._socket.settimeout(before)

        self._buffer += octets
        if not octets:
            self.why_lost = "the server closed the connection"
        elif len(self._buffer) > MAX_REPLY:
            self.why_lost = "the server sends more than such a reply can have"

    def begin_reply(self) -> None:
        """PyMySQL reads the reply that `has_reply` has found."""
        self._is_whole = True

    def end_reply(self) -> None:
        """The next reply is looked for."""
        self._is_whole = False
        self._part, self._at, self._continues = _Part.HEAD, 0, False

    # --- for PyMySQL ------------------------------------------------------------------------------------------
    def receive(self) -> bool:
        """Takes what arrives; False at the end of the stream. TimeoutError, and other OSErrors."""
        if self._is_whole:
            return False
        if self.waiter is not None:
            octets = self.without_blocking(partial(self._socket.recv, _CHUNK), select.POLLIN)
        elif self.until is not None:
            octets = self._receive_until(self.until)
        else:
            octets = self._socket.recv(_CHUNK)
        self._buffer += octets
        return bool(octets)

    def _receive_until(self, until: float) -> bytes:
        before = self._socket.gettimeout()
        try:
            self._socket.settimeout(max(until - time.monotonic(), 0.001))
            return self._socket.recv(_CHUNK)
        finally:
            self._socket.settimeout(before)

    def without_blocking(self, operation: Callable[[], T], events: int) -> T:
        """The result of an operation on the socket, which waits for `events` by `waiter`."""
        assert self.waiter is not None  # noqa: S101 — only then
        connected = self._socket
        while True:
            timeout_s = connected.gettimeout()
            connected.settimeout(0.0)

            try:
                return operation()
            except ssl.SSLWantReadError:
                needed = select.POLLIN
            except ssl.SSLWantWriteError:
                needed = select.POLLOUT
            except BlockingIOError:
                needed = events
            finally:
                connected.settimeout(timeout_s)
            self.waiter(connected, needed, self.timeout_s)

    def read(self, count: int) -> bytes:
        """Blocks until there are so many octets, or the end."""
        buffer = self._buffer
        while len(buffer) < count and self.receive():
            pass
        octets = bytes(buffer[:count])
        del buffer[:count]
        return octets

    def close(self) -> None:
        """Forgets what was received and not read."""
        self._buffer.clear()


def _next_part(part: _Part, first: bytes, length: int) -> _Part | None:
    """What follows a packet that begins so in a reply to one statement."""
    if part is _Part.HEAD:
        return None if not first or first in _ALONE else _Part.COLUMNS
    if first == _ERROR:
        return None
    if first == _END and length < _END_LENGTH:
        return _Part.ROWS if part is _Part.COLUMNS else None
    return part


def failure_of(error: BaseException) -> Failure:
    """The error of PyMySQL's as a failure."""
    number, *rest = error.args or (0,)
    if not isinstance(number, int):
        words = str(error)
        if words.startswith("Packet sequence number wrong"):  # PyMySQL's way of saying that it reads another protocol
            words = f"what answers there does not speak the protocol of MariaDB and MySQL ({words})"
        return Failure(None, words)
    words = " ".join(str(rest[0]).split()) if rest and rest[0] else type(error).__name__
    return Failure(None, words, None, number)


def is_loss(failure: Failure) -> bool:
    """Whether the failure means that the connection is gone."""
    return failure.number == 0 or MARIADB.get(failure.number) is ErrorKind.LOST
