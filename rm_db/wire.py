"""Wire: one PostgreSQL connection as the XA verbs use it, below psycopg's transactions, on libpq's own calls.

What talks to the server is a generator that yields whenever it has to wait for the socket (READ, or READ | WRITE)
and returns when the replies are complete; `run` drives it on the calling thread. So a verb can send its request and
leave the reply for later (TMASYNC), and the same steps can be driven by somebody else's event loop.

A request whose reply nobody waits for is owed: the next exchange collects it first. At most one is owed.
"""

from __future__ import annotations

import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import pq

from rm_db.sqlstate import is_lost

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from psycopg.pq.abc import PGconn, PGresult

T = TypeVar("T")
Steps: TypeAlias = "Generator[int, None, T]"

READ: Final = select.POLLIN
WRITE: Final = select.POLLOUT

IDLE: Final = pq.TransactionStatus.IDLE
ACTIVE: Final = pq.TransactionStatus.ACTIVE
IN_TRANSACTION: Final = pq.TransactionStatus.INTRANS
IN_ERROR: Final = pq.TransactionStatus.INERROR

_OK: Final = pq.ConnStatus.OK
_GOOD: Final = frozenset({pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.EMPTY_QUERY})
_FIELD: Final = pq.DiagnosticField


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that the server, or libpq for it, reported. `sqlstate` is None where libpq speaks for itself."""

    sqlstate: str | None
    message: str
    constraint: str | None = None

    def __str__(self) -> str:
        return f"{self.sqlstate} {self.message}" if self.sqlstate else self.message


class ConnectionLost(Exception):
    """The connection broke, or was given up. Whatever was sent on it may have been carried out."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one request of one or more commands: the tags of those that were carried out, and the
    error that stopped the rest."""

    tags: tuple[bytes, ...]
    failure: Failure | None
    results: tuple[PGresult, ...] = ()

    def rows(self, index: int = 0) -> list[tuple[bytes | None, ...]]:
        """The rows of the result with this index, as the server's text."""
        result = self.results[index]
        columns = range(result.nfields)
        return [tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)]


class Wire:
    """One connection. Not for two threads at once."""

    __slots__ = ("_connection", "_owed", "_poll", "affinity", "idle_since", "pgconn", "reusable")

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self.pgconn: PGconn = connection.pgconn
        self._poll = select.poll()
        self._owed: bytes | None = None
        self.affinity = 0
        self.idle_since = 0.0
        self.reusable = True

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The psycopg connection that was opened: it keeps what is known of the session's prepared statements."""
        return self._connection

    @property
    def status(self) -> pq.TransactionStatus:
        """Where the session stands, as of the last reply that was collected."""
        return pq.TransactionStatus(self.pgconn.transaction_status)

    @property
    def alive(self) -> bool:
        """False once the connection is known to be broken."""
        return self.pgconn.status == _OK

    @property
    def owes(self) -> bool:
        """Whether a reply is still to be collected."""
        return self._owed is not None

    def close(self) -> None:
        """Closes the connection, whatever is going on there."""
        self._owed = None
        self._connection.close()

    def went_away(self) -> bool:
        """Whether an idle connection has been closed by the other side, as far as is known without asking."""
        if not self.alive:
            return True
        if self._readable_now():
            try:
                self.pgconn.consume_input()
            except psycopg.Error:
                return True
        # an idle server says nothing but notices and parameter changes; an error with the end of the stream
        # behind it shows as the end
        return not self.alive or (self._readable_now() and not self._drained())

    def _readable_now(self) -> bool:
        self._poll.register(self.pgconn.socket, READ)
        return bool(self._poll.poll(0))

    def _drained(self) -> bool:
        try:
            self.pgconn.consume_input()
        except psycopg.Error:
            return False
        return self.alive

    # --- requests -------------------------------------------------------------------------------------------

    def send(self, commands: bytes) -> None:
        """Sends commands and does not wait; their reply is owed."""
        if self._owed is not None:
            raise RuntimeError(f"the reply to {self._owed!r} has not been collected")
        try:
            self.pgconn.send_query(commands)
            self.pgconn.flush()
        except psycopg.Error as error:
            raise self._lost(error) from None
        self._owed = commands

    def collect(self) -> Steps[Reply]:
        """The reply that is owed."""
        try:
            results = yield from _collect(self.pgconn)
        except psycopg.Error as error:
            raise self._lost(error) from None
        self._owed = None
        return self._reply(results)

    def exchange(self, commands: bytes) -> Steps[Reply]:
        """Sends commands and collects their reply. A reply that was owed must have been a success."""
        if self._owed is not None:
            owed = yield from self.collect()
            if owed.failure is not None:
                return owed
        self.send(commands)
        return (yield from self.collect())

    def _reply(self, results: Sequence[PGresult]) -> Reply:
        tags: list[bytes] = []
        failure = None
        for result in results:
            if result.status in _GOOD:
                tags.append(result.command_status or b"")
            else:
                failure = failure or failure_of(result)
        if failure is not None and not tags and (not self.alive or is_lost(failure.sqlstate)):
            raise ConnectionLost(failure)
        return Reply(tuple(tags), failure, tuple(results))

    def _lost(self, error: psycopg.Error) -> ConnectionLost:
        return ConnectionLost(Failure(None, str(error).strip() or type(error).__name__))

    # --- the blocking shell -----------------------------------------------------------------------------------

    def run(self, steps: Steps[T], timeout_s: float) -> T:
        """Drives `steps` to their end on this thread. After `timeout_s`, or when the thread is interrupted, the
        connection is closed: what it would still say belongs to nobody. ConnectionLost in the first case."""
        deadline = None
        try:
            while True:
                events = next(steps)
                now = time.monotonic()
                if deadline is None:
                    deadline = now + timeout_s
                self._poll.register(self.pgconn.socket, events)
                if now >= deadline or not self._poll.poll((deadline - now) * 1000):
                    raise ConnectionLost(Failure(None, f"no answer within {timeout_s:g} s: connection given up"))
        except StopIteration as stop:
            result: T = stop.value
            return result
        except BaseException:
            self.close()
            raise

    def step(self, steps: Steps[T]) -> tuple[bool, T | None]:
        """Drives `steps` as far as they go without waiting: whether they are done, and their result if so."""
        try:
            while True:
                events = next(steps)
                self._poll.register(self.pgconn.socket, events)
                if not self._poll.poll(0):
                    return False, None
        except StopIteration as stop:
            return True, stop.value


def _collect(pgconn: PGconn) -> Steps[list[PGresult]]:
    """Flushes what was sent and returns all results of it."""
    while pgconn.flush():
        yield READ | WRITE
        pgconn.consume_input()
    results: list[PGresult] = []
    while True:
        while pgconn.is_busy():
            yield READ
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            return results
        results.append(result)


def failure_of(result: PGresult) -> Failure:
    """The error in a result."""

    def field(name: pq.DiagnosticField) -> str | None:
        octets = result.error_field(name)
        return octets.decode("utf-8", "replace") if octets is not None else None

    primary = field(_FIELD.MESSAGE_PRIMARY) or result.error_message.decode("utf-8", "replace").strip()
    more = [text for name in (_FIELD.MESSAGE_DETAIL, _FIELD.MESSAGE_HINT) if (text := field(name))]
    return Failure(field(_FIELD.SQLSTATE), " · ".join([primary, *more]), field(_FIELD.CONSTRAINT_NAME))
