"""LibpqConnection: one PostgreSQL connection as the XA verbs use it, on libpq's own calls below psycopg's transactions.

Code that talks to the server is a coroutine, `Steps` (`rm_db.server.steps`).

A request can be sent without waiting for its reply (`send`). The reply is then owed: the next exchange collects it
first. At most one reply is owed at a time.
"""

from __future__ import annotations

import os
import select
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg import pq

from rm_db.server.connection import CHECK_AFTER_S, ServerConnection
from rm_db.server.steps import ConnectionLost, Failure, Wait
from rm_db.sqlstate import is_lost
from xa.fork import belongs_to_this_process
from xa.sql.psycopg_connection import received_octets

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

    from rm_db.server.steps import Steps

IDLE: Final = pq.TransactionStatus.IDLE
ACTIVE: Final = pq.TransactionStatus.ACTIVE
IN_ERROR: Final = pq.TransactionStatus.INERROR

MAX_REPLY: Final = 64 << 20
"""Octets of the reply to a verb."""

_OK: Final = pq.ConnStatus.OK
_NO_PIPELINE: Final = pq.PipelineStatus.OFF
_GOOD: Final = frozenset({pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK, pq.ExecStatus.EMPTY_QUERY})
_COPY: Final = frozenset({pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH})
_FIELD: Final = pq.DiagnosticField


class Reply(NamedTuple):
    """The reply to one request of one or more commands: the results of those that were carried out, and the error that
    stopped the rest."""

    results: tuple[PGresult, ...]
    failure: Failure | None

    def tag(self, index: int) -> bytes | None:
        """The tag of the command with this index; None when it was not carried out."""
        return self.results[index].command_status or b"" if index < len(self.results) else None

    def rows(self, index: int = 0) -> list[tuple[bytes | None, ...]]:
        """The rows of the command with this index, in the server's text format."""
        result = self.results[index]
        columns = range(result.nfields)
        return [tuple(result.get_value(row, column) for column in columns) for row in range(result.ntuples)]


class LibpqConnection(ServerConnection):
    """One connection."""

    __slots__ = ("__weakref__", "_poller", "_psycopg", "_readable", "_writable", "pgconn", "place")

    def __init__(self, connection: psycopg.Connection[Any], reply_s: float) -> None:
        super().__init__(reply_s)
        self._psycopg = connection
        self.pgconn: PGconn = connection.pgconn
        self._poller = select.poll()
        self._poller.register(self.pgconn.socket, select.POLLIN)
        self._readable = Wait(self, select.POLLIN)
        self.place = b""
        """The server and its timeline, where notes of outcomes are wanted (`rm_db.postgres.transaction_outcomes`)."""
        self._writable = Wait(self, select.POLLIN | select.POLLOUT)
        belongs_to_this_process(self)

    @property
    def psycopg_connection(self) -> psycopg.Connection[Any]:
        """The psycopg connection that was opened: it keeps what is known of the session's prepared statements."""
        return self._psycopg

    @property
    def status(self) -> int:
        """The session's transaction status (one of pq.TransactionStatus) after the last reply that was collected."""
        return self.pgconn.transaction_status

    @property
    def alive(self) -> bool:
        return self.pgconn.status == _OK

    @property
    def pipelined(self) -> bool:
        """Whether the application has left the connection in pipeline mode."""
        return self.pgconn.pipeline_status != _NO_PIPELINE

    @property
    def is_reusable(self) -> bool:
        pgconn = self.pgconn
        if not self.reusable or self.is_cut or pgconn.status != _OK:
            return False
        return self.owed > 0 or (pgconn.transaction_status == IDLE and pgconn.pipeline_status == _NO_PIPELINE)

    def is_usable(self, idle_s: float) -> bool:
        is_quiet = self.pgconn.status == _OK and not self.owed and not self._poller.poll(0)
        return (is_quiet and idle_s <= CHECK_AFTER_S) or super().is_usable(idle_s)

    async def is_settled(self) -> bool:
        return (await self.collect()).failure is None

    def test(self) -> Steps[Reply]:
        return self.exchange(b"")

    def went_away(self) -> bool:
        while self.pgconn.status == _OK:
            if not self._poller.poll(0):
                return False
            try:
                self.pgconn.consume_input()  # a notice or a changed parameter is no loss, the end of the stream is one
            except psycopg.Error:
                return True
        return True

    def fileno(self) -> int:
        return self.pgconn.socket

    def poll(self, events: int, timeout_s: float) -> bool:
        if events == select.POLLIN:
            return bool(self._poller.poll(timeout_s * 1000))
        poller = select.poll()
        poller.register(self.pgconn.socket, events)
        return bool(poller.poll(timeout_s * 1000))

    def close(self) -> None:
        self.owed = 0
        self._psycopg.close()

    def forked(self) -> None:
        """This process was forked, and the connection is its parent's. libpq itself (`pgconn.exec_`) would use it all
        the same; here it finds a stream in its place that has ended."""
        ended, other = socket.socketpair()
        with ended, other, suppress(OSError, psycopg.Error):  # it is closed already
            other.shutdown(socket.SHUT_RDWR)
            os.dup2(ended.fileno(), self.pgconn.socket, inheritable=False)

    def break_off(self) -> None:
        with (
            suppress(OSError, psycopg.Error),  # it is closed already
            socket.socket(fileno=os.dup(self.pgconn.socket)) as duplicate,
        ):
            duplicate.shutdown(socket.SHUT_RDWR)

    # --- requests -------------------------------------------------------------------------------------------

    def send(self, commands: bytes) -> None:
        """Sends commands and does not wait; their reply is owed. ConnectionLost: they were not sent."""
        if self.owed:
            raise RuntimeError(f"the reply to an earlier request has not been collected; to be sent was {commands!r}")
        try:
            self.pgconn.send_query(commands)
            self.pgconn.flush()
        except psycopg.Error as error:
            raise _lost(error) from None
        self.owed = 1

    async def collect(self, *, asked_before: bool = False) -> Reply:
        """The reply that is owed. With `asked_before` it may be there already, and is read without asking whether it
        is."""
        pgconn = self.pgconn
        results: list[PGresult] = []
        most = 0
        try:
            while pgconn.flush():
                await self._writable
                pgconn.consume_input()
            if asked_before:
                pgconn.consume_input()

            while True:
                while pgconn.is_busy():
                    await self._readable
                    try:
                        pgconn.consume_input()
                    except psycopg.Error:
                        if not results:
                            raise
                        return self._reply(results)  # what came before the connection broke is known all the same
                    if pgconn.is_busy():
                        most = most or received_octets(pgconn.socket) + MAX_REPLY
                        if received_octets(pgconn.socket) > most:
                            raise self._not_understood("the server sends more than such a reply can have")
                result = pgconn.get_result()
                if result is None:
                    pgconn.is_busy()  # libpq drops what the server says beyond its reply, so that no later one gets it
                    return self._reply(results)
                if result.status in _COPY:  # libpq would give the same result again and again
                    raise self._not_understood("the server begins a COPY that no verb asks for")
                results.append(result)
        except psycopg.Error as error:
            raise _lost(error) from None

    def _reply(self, results: list[PGresult]) -> Reply:
        """The reply that these results are. ConnectionLost: they tell nothing but that."""
        self.owed = 0
        failure = None
        for index, result in enumerate(results):
            if result.status not in _GOOD:
                failure = failure_of(result)
                del results[index:]  # an error is the last of what the server says to a request
                break
        if failure is not None and not results and (not self.alive or is_lost(failure.sqlstate)):
            raise ConnectionLost(failure)
        if failure is None and not results:
            raise self._not_understood("the server's reply says nothing")
        return Reply(tuple(results), failure)

    def took_effect(self, reply: Reply, index: int, tag: bytes) -> bool:
        """Whether the command with this index, which ends a transaction, was carried out: then its tag is `tag`. False:
        the server has rolled back instead. ConnectionLost: the reply says neither, so that it is none to this
        command, or the connection broke before it was answered."""
        said, failure = reply.tag(index), reply.failure
        if said == tag:
            return True
        if said == b"ROLLBACK":
            return False
        if said is None and failure is not None and self.alive and not is_lost(failure.sqlstate):
            return False
        raise self._not_understood(
            f"the server answered {tag.decode()} with {said!r}" + (f": {failure}" if failure else "")
        )

    def refusal(self, reply: Reply, tag: bytes) -> Failure | None:
        """The server's refusal of one command. ConnectionLost: the tag of its success is another one than `tag`."""
        if reply.failure is None and reply.tag(0) != tag:
            raise self._not_understood(f"the server answered {tag.decode()} with {reply.tag(0)!r}")
        return reply.failure

    def _not_understood(self, why: str) -> ConnectionLost:
        """Closes the connection: which reply belongs to which request is not known any more."""
        self.owed = 0
        self.pgconn.finish()
        return ConnectionLost(Failure(None, why))

    def exchange(self, commands: bytes) -> Steps[Reply]:
        """Sends commands and collects their reply; a reply that was owed is dropped."""
        if self.owed:
            return self._exchange_after(self.collect(), commands)
        self.send(commands)
        return self.collect()

    async def _exchange_after(self, owed: Steps[Reply], commands: bytes) -> Reply:
        await owed
        self.send(commands)
        return await self.collect()


def _lost(error: psycopg.Error) -> ConnectionLost:
    return ConnectionLost(Failure(None, str(error).strip() or type(error).__name__))


def failure_of(result: PGresult) -> Failure:
    """The error in a result."""

    def field(name: pq.DiagnosticField) -> str | None:
        octets = result.error_field(name)
        return octets.decode("utf-8", "replace") if octets is not None else None

    primary = field(_FIELD.MESSAGE_PRIMARY) or result.error_message.decode("utf-8", "replace").strip()
    more = [text for name in (_FIELD.MESSAGE_DETAIL, _FIELD.MESSAGE_HINT) if (text := field(name))]
    return Failure(field(_FIELD.SQLSTATE), " · ".join([primary, *more]), field(_FIELD.CONSTRAINT_NAME))
