"""MariaConnection: one connection to MariaDB or MySQL as the XA verbs use it, over PyMySQL's protocol code.

A request is one command or several. Several leave in one write, and the server carries each of them out, also when the
one before it failed; so commands are sent together only where the later ones fail, or do no harm, if an earlier one
failed. Replies that nobody has collected yet are owed: the next exchange collects them first.

PyMySQL reads whole replies and blocks meanwhile. Its buffered reader is replaced by one that can tell whether a packet
has arrived, so that a thread waits for several connections at once.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pymysql
from pymysql.constants import COMMAND

from rm_db.connections.steps import ConnectionLost, Failure, Wait, drive
from xa.sql.errors import MARIADB, ErrorKind

if TYPE_CHECKING:
    from rm_db.connections.steps import Steps

Driver: TypeAlias = "pymysql.connections.Connection[Any]"

RESET: Final = b"\x1f"
"""COM_RESET_CONNECTION: rolls back, and brings the session back to where it was when the user had logged in: settings,
variables, temporary tables, named statements and user locks are gone. The current database stays."""
INIT_DB: Final = b"\x02"
"""COM_INIT_DB; the name of a database follows."""

_HEADER: Final = 4
_CHUNK: Final = 65536
_IN_TRANSACTION: Final = 1
"""The server's status flag."""


class Result(NamedTuple):
    """The server's answer to one command: its rows, or the error."""

    rows: tuple[tuple[Any, ...], ...]
    failure: Failure | None


class MariaConnection:
    """One connection. `lock` is held by the one thread that talks on it; the other attributes are those of a
    `rm_db.connections.pool.PooledConnection`."""

    __slots__ = (
        "_poller",
        "_readable",
        "_reader",
        "_socket",
        "affinity",
        "driver",
        "idle_since",
        "is_cut",
        "lock",
        "owed",
        "reusable",
        "thread_id",
        "working",
    )

    def __init__(self, driver: Any) -> None:
        self.driver = driver  # a PyMySQL connection, whose types leave out what is used here
        self.thread_id: int = driver.thread_id()
        self.lock = threading.Lock()
        self.reusable = True
        self.is_cut = False
        self.working = False
        self.affinity = 0
        self.idle_since = 0.0
        self.owed = 0
        """How many replies are still to be collected."""
        self._socket: socket.socket = self.driver._sock
        self._reader = _Reader(self._socket)
        self.driver._rfile.close()
        self.driver._rfile = self._reader
        self._poller = select.poll()
        self._poller.register(self._socket, select.POLLIN)
        self._readable = Wait(self, select.POLLIN)

    @property
    def alive(self) -> bool:
        """False once the connection is known to be broken."""
        return self.driver._sock is not None

    @property
    def is_free(self) -> bool:
        return self.alive and (self.owed > 0 or not self.driver.server_status & _IN_TRANSACTION)

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
        """Reads the further results of a procedure, which nobody has asked for. ConnectionLost."""
        driver = self.driver
        while self.unfinished and not driver._result.unbuffered_active:
            try:
                driver._read_query_result()
            except pymysql.MySQLError as error:
                driver._result = None
                if not self.alive:
                    raise ConnectionLost(failure_of(error)) from None

    def is_ready(self) -> bool:
        return not self.owed and not self.went_away()

    def is_usable(self, timeout_s: float, *, test: bool) -> bool:
        try:
            if self.owed and any(result.failure is not None for result in drive(self.collect(), timeout_s)):
                return False
            if self.went_away():
                return False
            if test:
                drive(self.exchange(b"DO 0"), timeout_s)
        except ConnectionLost:
            return False
        return self.is_free

    def went_away(self) -> bool:
        """Whether the other side has closed an idle connection, as far as is known without asking. An idle server has
        nothing to say but that it ends the connection."""
        return not self.alive or bool(self._reader) or bool(self._poller.poll(0))

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

    def cut(self) -> None:
        """Shuts the connection down while another thread waits on it: that thread gets an error, and closes it."""
        self.is_cut = True
        self.break_off()

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
        try:
            driver._write_bytes(b"".join(len(one).to_bytes(3, "little") + b"\x00" + one for one in commands))
        except pymysql.MySQLError as error:
            raise ConnectionLost(failure_of(error)) from None
        self.owed += len(commands)

    def collect(self) -> Steps[list[Result]]:
        """The replies that are owed."""
        results: list[Result] = []
        while self.owed:
            if not self.alive:
                raise ConnectionLost(Failure(None, "the connection is closed"))
            while not self._reader.has_packet:
                yield self._readable
                try:
                    more = self._reader.receive()
                except OSError as error:
                    self.driver._force_close()
                    raise ConnectionLost(Failure(None, str(error))) from None
                if not more:
                    self.driver._force_close()
                    raise ConnectionLost(Failure(None, "the server closed the connection"))
            self.owed -= 1
            results.append(self._read())
        return results

    def _read(self) -> Result:
        """The next reply, of which at least the first packet is there."""
        driver = self.driver
        driver._next_seq_id = 1
        try:
            driver._read_query_result()
        except pymysql.MySQLError as error:
            driver._result = None
            failure = failure_of(error)
            if not self.alive or is_loss(failure):
                raise ConnectionLost(failure) from None
            return Result((), failure)
        result, driver._result = driver._result, None
        return Result(tuple(result.rows or ()), None)

    def exchange(self, *commands: bytes) -> Steps[list[Result]]:
        """Sends commands and collects their replies; replies that were owed before are dropped."""
        before = self.owed
        self.send(*commands)
        return self._collect_after(before)

    def _collect_after(self, before: int) -> Steps[list[Result]]:
        results = yield from self.collect()
        return results[before:]

    def ask(self, command: bytes) -> Steps[Result]:
        """Sends one command; its reply."""
        results = yield from self.exchange(command)
        return results[0]


class _Reader:
    """What PyMySQL reads from, with a buffer of our own."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._buffer = bytearray()

    def __bool__(self) -> bool:
        return bool(self._buffer) or self.has_more

    @property
    def has_packet(self) -> bool:
        """Whether a whole packet is in the buffer."""
        buffer = self._buffer
        return len(buffer) >= _HEADER and len(buffer) >= _HEADER + int.from_bytes(buffer[:3], "little")

    @property
    def has_more(self) -> bool:
        """Whether TLS has octets that the operating system does not know of."""
        pending = getattr(self._socket, "pending", None)
        return pending is not None and pending() > 0

    def receive(self) -> bool:
        """Takes what has arrived; False at the end of the stream."""
        octets = self._socket.recv(_CHUNK)
        self._buffer += octets
        return bool(octets)

    def read(self, count: int) -> bytes:
        """As a buffered reader: blocks until there are so many octets, or the end."""
        buffer = self._buffer
        while len(buffer) < count and self.receive():
            pass
        octets = bytes(buffer[:count])
        del buffer[:count]
        return octets

    def close(self) -> None:
        """As a buffered reader."""
        self._buffer.clear()


def failure_of(error: BaseException) -> Failure:
    """The error of PyMySQL's as a failure."""
    number, *rest = error.args or (0,)
    if not isinstance(number, int):
        return Failure(None, str(error))
    words = " ".join(str(rest[0]).split()) if rest and rest[0] else type(error).__name__
    return Failure(None, words, None, number)


def is_loss(failure: Failure) -> bool:
    """Whether the failure means that the connection is gone."""
    return failure.number == 0 or MARIADB.get(failure.number) is ErrorKind.LOST
