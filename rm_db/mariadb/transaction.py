"""MariaTransaction: one branch on a connection to MariaDB or MySQL, from XA START until it is prepared, committed or
rolled back.

The server itself keeps the branch: until XA END it refuses every statement that would commit or roll back, also in a
procedure. XA END is refused if the transaction is not this branch any more, or was rolled back because of a deadlock.

A session that has ended its branch is reset, so that settings, variables, temporary tables and user locks do not reach
the next one. MariaDB spoils a session that is reset while a branch is prepared in it; so it is reset only after the
branch has ended, and closed where it did not end as asked.

How many rows a session has written, its counters tell: they begin at 0 when it is reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rm_db.mariadb.connection import MariaConnection
from rm_db.mariadb.xid import encode_xid, lock_name
from rm_db.server.steps import ConnectionLost, Failure
from rm_db.server.transaction import ServerTransaction
from rm_db.statements import SETS
from xa import Code, xa_error
from xa.sql.errors import IN_THE_WAY, MARIADB, ErrorKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_db.mariadb.connection import Result
    from rm_db.mariadb.database import MariaDatabase
    from rm_db.server.steps import Steps
    from rm_db.sessions.session import Session
    from rm_db.sessions.session_engine import SessionEngine
    from xa import XaError, Xid

ROLLED_BACK: Final[dict[int, Code]] = {
    1022: Code.XA_RBINTEGRITY,  # duplicate key
    1062: Code.XA_RBINTEGRITY,
    1451: Code.XA_RBINTEGRITY,  # foreign key
    1452: Code.XA_RBINTEGRITY,
    4025: Code.XA_RBINTEGRITY,  # CHECK, MariaDB
    3819: Code.XA_RBINTEGRITY,  # CHECK, MySQL
    1213: Code.XA_RBDEADLOCK,
    1614: Code.XA_RBDEADLOCK,
    1205: Code.XA_RBTRANSIENT,  # a lock was not free in time
    1020: Code.XA_RBTRANSIENT,  # the record was changed since the snapshot
    1613: Code.XA_RBTIMEOUT,
    1317: Code.XA_RBTIMEOUT,  # interrupted
    1969: Code.XA_RBTIMEOUT,  # max_statement_time
    3024: Code.XA_RBTIMEOUT,  # max_execution_time
    1399: Code.XA_RBPROTO,  # the session is not in this branch
    1397: Code.XA_RBPROTO,
    1400: Code.XA_RBPROTO,
    1402: Code.XA_RBROLLBACK,
}
"""The number of an error → why the work was rolled back. What is missing is of its kind (ROLLED_BACK_BY_KIND), else
XA_RBOTHER; a lost connection is XA_RBCOMMFAIL."""

ROLLED_BACK_BY_KIND: Final = dict.fromkeys(
    (ErrorKind.EXHAUSTED, ErrorKind.FULL, ErrorKind.UNAVAILABLE), Code.XA_RBTRANSIENT
)
"""The state of the server, and not of the work."""

_DUPLICATE: Final = 1440
_NOT_IDLE: Final = frozenset({1397, 1399, 1400})
"""XA START is refused because of what the session is in the middle of. The next attempt has another session."""
_AGAIN: Final = IN_THE_WAY | {ErrorKind.CANCELLED, *ROLLED_BACK_BY_KIND}
"""The errors at XA START after which the same may succeed a moment later."""
_WRONG_STATE: Final = 1399
_ROLLBACK_ONLY: Final = "ROLLBACK ONLY"
"""The state in the words of _WRONG_STATE, in every language, when the server has rolled the branch back itself."""
_GIVEN_UP: Final = "the server has rolled the branch back, because of a deadlock that a procedure did not pass on"
_HINTS: Final = {
    _WRONG_STATE: (
        "a statement has ended the branch, which only the transaction manager may; what came before may be committed"
    ),
    1397: "a statement has ended the branch, which only the transaction manager may; what came before may be committed",
}
_ENDS_THE_WORK: Final = frozenset({ErrorKind.DEADLOCK})
_COUNTERS: Final = b"SHOW SESSION STATUS WHERE Variable_name IN ('Handler_write','Handler_update','Handler_delete')"


class MariaTransaction(ServerTransaction[MariaConnection]):
    """One branch's transaction. Its connection is parked with the prepared branch where the server binds the two.

    `failure` is the error that made the server roll back; the session also notes in `in_the_way` the last one that may
    have done so, and in `last` the last one of all.
    """

    def __init__(
        self,
        xid: Xid,
        database: MariaDatabase,
        connection: MariaConnection,
        make_session: Callable[[SessionEngine, MariaTransaction], Session],
    ) -> None:
        self._database = database
        self._encoded = encode_xid(xid)
        self.in_the_way: Failure | None = None
        self.last: Failure | None = None
        super().__init__(xid, database, connection, make_session)

    def _begin(self, connection: MariaConnection) -> None:
        results = self._outstanding.run(connection.exchange(*self.begin_commands()))
        refused = results[-1].failure
        if refused is not None:
            code = Code.XAER_DUPID if refused.number == _DUPLICATE else Code.XAER_RMERR
            if refused.number in _NOT_IDLE or MARIADB.get(refused.number) in _AGAIN:
                code = Code.XA_RETRY
            raise xa_error(code, f"XA START: {refused}", self.xid)

    def begin_commands(self) -> tuple[bytes, bytes]:
        """What begins the branch: the lock that says which session has it, and XA START."""
        return f"DO GET_LOCK('{lock_name(self.xid)}', 0)".encode("ascii"), b"XA START " + self._encoded

    def failed(self, failure: Failure) -> None:
        """Notes, for the session, a statement that failed. Most errors undo the statement only."""
        self.last = failure
        kind = MARIADB.get(failure.number)
        if self.failure is None and kind in _ENDS_THE_WORK:
            self.failure = failure
        elif kind in IN_THE_WAY:
            self.in_the_way = failure

    def end_session(self, thread_id: int) -> bool:
        """Ends a session on the server (`MariaDatabase.end_session`)."""
        return self._database.end_session(thread_id)

    # --- steps ------------------------------------------------------------------------------------------------------

    def _fault(self, connection: MariaConnection, *, looks: bool) -> XaError | None:
        connection.drain()
        unfinished = connection.unfinished
        gone = looks and not unfinished and connection.went_away()

        if self.failure is not None:
            return self._rolled_back(self.failure)
        if gone or not connection.alive:
            return xa_error(Code.XAER_RMFAIL, "the connection was lost: its other side has closed it", self.xid)
        if self.misused is not None and self.last is not None:  # otherwise no message names the cause
            why = f"{self.misused}; the last error was: {self.last}"
            return xa_error(self._rolled_back(self.last).code, why, self.xid)
        if self.misused is not None:
            return xa_error(Code.XA_RBPROTO, self.misused, self.xid)
        if unfinished:
            return xa_error(Code.XA_RBPROTO, "the rows of a statement were not read to their end", self.xid)
        return None

    def _must_prepare(self) -> bool:
        return self.wrote

    async def _has_only_read(self, connection: MariaConnection) -> bool:
        result = await connection.query(_COUNTERS)
        try:
            return result.failure is None and all(int(count) == 0 for _, count in result.rows)
        except (TypeError, ValueError):
            return False

    async def _vote_read_only(self, connection: MariaConnection) -> Code:
        await self._commit_on(connection)
        return Code.XA_RDONLY

    async def _vote(self, connection: MariaConnection) -> Code:
        parked = self._database.parked
        parked.give_up(self.xid)  # until the answer is known: a rollback has to look for the session, too
        try:
            results = await connection.carry_out(b"XA END " + self._encoded, b"XA PREPARE " + self._encoded)
        except ConnectionLost as lost:
            raise self._lost_while("prepared", lost) from None

        parked.settled(self.xid)
        if results[1].failure is not None:
            raise (await self._refused(connection, results))
        self._database.prepared.note_prepared(self.xid)
        if self._database.facts.detaches:
            self._give_back(connection)
        else:
            self.connection = None
            parked.park(self.xid, connection)
        return Code.XA_OK

    async def _commit(self) -> Code:
        try:
            return await self._commit_on(self._connected())
        except ConnectionLost as lost:
            raise self._lost_while("committed", lost) from None

    async def _commit_on(self, connection: MariaConnection) -> Code:
        one_phase = b"XA COMMIT " + self._encoded + b" ONE PHASE"
        results = await connection.carry_out(b"XA END " + self._encoded, one_phase)
        if results[1].failure is not None:
            raise (await self._refused(connection, results))
        self._give_back(connection)
        return Code.XA_OK

    async def _refused(self, connection: MariaConnection, results: list[Result]) -> XaError:
        """The vote or the commit was refused, and the branch is rolled back: the error to raise."""
        first = next(result.failure for result in results if result.failure is not None)
        assert first is not None  # noqa: S101 — there is one
        self._leave(connection, ended=(await self._roll_back(connection)))
        if first.number == _WRONG_STATE and self.in_the_way is not None:
            first = self.in_the_way  # with innodb_rollback_on_timeout the server has rolled everything back then
        return self._rolled_back(self.failure or first)

    def _start_rollback(self) -> Steps[Code]:
        return self._rollback()

    async def _rollback(self) -> Code:
        connection = self._connection_to_roll_back()
        if connection is None:
            return Code.XA_OK
        ended = False
        try:
            if not connection.unfinished:
                ended = await self._roll_back(connection)
        finally:
            connection.lock.release()
        self._leave(connection, ended=ended)
        return Code.XA_OK

    async def _roll_back(self, connection: MariaConnection) -> bool:
        """XA ROLLBACK; whether it was carried out."""
        try:
            results = await connection.carry_out(b"XA END " + self._encoded, b"XA ROLLBACK " + self._encoded)
        except ConnectionLost:
            return False
        return results[1].failure is None

    def _leave(self, connection: MariaConnection, *, ended: bool) -> None:
        """A session in which the rollback was refused is closed, and what was not prepared ends with it."""
        if ended:
            self._give_back(connection)
        else:
            self._close_connection()

    # --- inside ---------------------------------------------------------------------------------------------

    def _give_back(self, connection: MariaConnection) -> None:
        """The branch has ended: the session is reset, and the reply collected before its next use."""
        if self.effects & SETS and not connection.driver.db:
            connection.reusable = False  # USE can't be undone where the URL names no database
        connection.reset_or_drop()
        self._release(connection)

    def _cancel(self, connection: MariaConnection) -> bool:
        return self._database.kill_query(connection.thread_id)

    def _rolled_back(self, failure: Failure) -> XaError:
        if failure.number == _WRONG_STATE and _ROLLBACK_ONLY in failure.message:
            return xa_error(Code.XA_RBDEADLOCK, f"{_GIVEN_UP} ({failure})", self.xid)
        kind = MARIADB.get(failure.number, ErrorKind.REFUSED)
        code = ROLLED_BACK.get(failure.number) or ROLLED_BACK_BY_KIND.get(kind, Code.XA_RBOTHER)
        if not failure.number or kind is ErrorKind.LOST:
            code = Code.XA_RBCOMMFAIL
        hint = _HINTS.get(failure.number)
        return xa_error(code, f"{failure} ({hint})" if hint else str(failure), self.xid)
