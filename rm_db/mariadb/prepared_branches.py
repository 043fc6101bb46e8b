"""PreparedBranches: what is prepared in one server, and the statements that complete it.

A server lists all prepared branches, whatever their database and user, and lets any user complete them. MariaDB, and
MySQL with xa_detach_on_prepare off, bind a prepared branch to the session that prepared it, until that session has
ended. To every other session they say then what they say of a branch that does not exist: XAER_NOTA. So a branch is
gone if XA RECOVER does not list it, and for no other reason. One that it lists is completed in its own session, if that
is ours; otherwise its session is ended first. The list is asked for first, because the servers also take a statement
for a branch whose format id is another one.

Which session that is, a user lock says: a branch's session holds the lock `rm_db.mariadb.xid.lock_name` from XA START
on, until it is reset or ends. Branches of other software have none, and are waited for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from rm_db.mariadb.connection import PAUSE
from rm_db.mariadb.holdings import MARIADB_TABLES, MYSQL_TABLES, TRANSACTIONS, holder_queries, read_locks, report
from rm_db.mariadb.xid import decode_xids, encode_xid, lock_name
from rm_db.server.steps import understood
from xa import Code, xa_error
from xa.holdings import InDoubtBranch

if TYPE_CHECKING:
    from rm_db.mariadb.connection import MariaConnection
    from rm_db.mariadb.database import MariaDatabase
    from rm_db.server.steps import Failure
    from xa import Xid

UNKNOWN_XID: Final = 1397
"""XAER_NOTA."""

_STATEMENT: Final = {"commit": b"XA COMMIT ", "rollback": b"XA ROLLBACK "}
_PREPARES: Final = re.compile(r"\s*XA\s+PREPARE\b", re.IGNORECASE)
_TRIES: Final = 150
"""How often a branch that is bound to a session, or being completed by another one, is tried again."""
_PATIENCE: Final = 5
"""After so many tries the session that a branch is bound to is ended: it is not about to complete the branch."""


class PreparedBranches:
    """The prepared branches of a server. Its methods talk to it in steps (`rm_db.server.steps`)."""

    def __init__(self, database: MariaDatabase) -> None:
        self._database = database
        self._seen: set[Xid] = set()
        """Branches that were listed, or prepared by us, and are not known to be completed. So the statement is tried
        without asking for the list, which is long where recovery has much to do."""

    def note_prepared(self, xid: Xid) -> None:
        """The branch has been prepared here."""
        self._seen.add(xid)

    # --- completion -----------------------------------------------------------------------------------------------

    async def complete(self, verb: str, xid: Xid) -> Code:
        """XA COMMIT or XA ROLLBACK, the latter also of a branch that the server is about to prepare. XAER_NOTA: it is
        not there. XA_RETRY: the server refused, or another session has the branch, and it stays prepared. XAER_RMFAIL:
        the connection was lost meanwhile."""
        database = self._database
        own = database.parked.take(xid)
        statement = _STATEMENT[verb] + encode_xid(xid)
        with database.releasing(own or database.reserve(), f" over {verb}", xid) as connection:
            if own is not None:
                failure = (await connection.carry_out(statement))[0].failure
                if failure is not None:  # its session has to end, so that the next try can be made in any other
                    connection.reusable = False
                else:
                    connection.reset_or_drop()
            else:
                failure = await self._in_any_session(connection, statement, verb, xid)

        if failure is not None:
            raise xa_error(Code.XA_RETRY, f"{verb}: {failure}", xid)
        self._seen.discard(xid)
        database.parked.settled(xid)
        return Code.XA_OK

    async def _in_any_session(
        self, connection: MariaConnection, statement: bytes, verb: str, xid: Xid
    ) -> Failure | None:
        """Completes a branch that no session of ours has. Returns the server's refusal. XAER_NOTA: the branch is not
        there."""
        if self._database.parked.is_given_up(xid):
            holder, _ = await self._holder(connection, xid)
            if holder is not None:
                await self._end_session(connection, holder, verb, xid)
        elif xid in self._seen:
            failure = (await connection.carry_out(statement))[0].failure
            if failure is None or failure.number != UNKNOWN_XID:
                return failure

        holder = None
        for tries in range(_TRIES):
            # the session is asked for before the list, so that what it prepares in between is on the list
            holder, at_work = await self._holder(connection, xid)
            listed = await self._is_listed(connection, verb, xid)
            if not listed and verb == "rollback" and holder is not None and _PREPARES.match(at_work):
                await self._end_session(connection, holder, verb, xid)
                continue
            if not listed:
                self._seen.discard(xid)
                raise xa_error(Code.XAER_NOTA, f"{verb}: the branch is not prepared in this server", xid)
            failure = (await connection.carry_out(statement))[0].failure
            if failure is None or failure.number != UNKNOWN_XID:
                return failure

            if holder is not None and tries >= _PATIENCE:
                await self._end_session(connection, holder, verb, xid)
            else:
                await connection.exchange(PAUSE)
        whose = f"session {holder} has it" if holder is not None else "end the session of the program that prepared it"
        raise xa_error(
            Code.XA_RETRY,
            f"{verb}: the branch is prepared, and bound to another session, or being completed by one: {whose}",
            xid,
        )

    async def _holder(self, connection: MariaConnection, xid: Xid) -> tuple[int | None, str]:
        """The number of the session that has the branch, and the statement that it carries out."""
        asked = f"SELECT IS_USED_LOCK('{lock_name(xid)}')".encode("ascii")
        result = await connection.query(asked)
        if result.failure is not None or not result.rows or result.rows[0][0] is None:
            return None, ""
        with understood(connection.close):
            thread_id = int(result.rows[0][0])
        result = await connection.query(b"SELECT info FROM information_schema.processlist WHERE id = %d" % thread_id)
        return thread_id, str(result.rows[0][0] or "") if result.rows else ""

    async def _is_listed(self, connection: MariaConnection, verb: str, xid: Xid) -> bool:
        result = await connection.query(self._recover)
        if result.failure is not None:
            why = f"{verb}: whether the branch is still prepared is unknown: XA RECOVER failed: {result.failure}"
            raise xa_error(Code.XA_RETRY, why, xid)
        with understood(connection.close):
            return xid in decode_xids(result.rows)

    async def _end_session(self, connection: MariaConnection, thread_id: int, verb: str, xid: Xid) -> None:
        refused = await connection.end_session(thread_id)
        if refused is not None:
            raise xa_error(Code.XA_RETRY, f"{verb}: session {thread_id} has the branch, and {refused}", xid)

    # --- what is prepared -----------------------------------------------------------------------------------------

    @property
    def _recover(self) -> bytes:
        return b"XA RECOVER" if self._database.facts.is_mariadb else b"XA RECOVER CONVERT XID"

    async def in_doubt(self) -> list[InDoubtBranch]:
        """The same branches, with what they hold as far as this user may know it."""
        database = self._database
        xids = await self.scan()
        if not xids:
            return []

        with database.releasing(database.reserve()) as connection:
            # the server makes this table anew only if it was not read for a tenth of a second
            _, transactions = await connection.exchange(b"DO SLEEP(0.15)", TRANSACTIONS)
            if transactions.failure is not None:
                return [InDoubtBranch(xid) for xid in xids]
            tables = await connection.ask(MARIADB_TABLES if database.facts.is_mariadb else MYSQL_TABLES)
            sessions: list[int | None] = []
            for query in holder_queries(xids):
                asked = await connection.ask(query)
                sessions += asked.rows[0] if asked.rows else ()
        if len(sessions) != len(xids):
            return [InDoubtBranch(xid) for xid in xids]
        with understood(self._database.pool.close_idle):
            return list(report(dict(zip(xids, sessions, strict=True)), read_locks(transactions.rows, tables.rows)))

    async def exists(self, xid: Xid) -> bool:
        """Whether the branch is prepared in this server."""
        return xid in (await self.scan())

    async def scan(self) -> list[Xid]:
        """The branches that are prepared in this server."""
        result = await self._database.command(self._recover, has_rows=True)
        with understood(self._database.pool.close_idle):
            found = list(decode_xids(result.rows))
        self._seen = set(found)
        return found
