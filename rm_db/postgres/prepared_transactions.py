"""PreparedTransactions: what is prepared in one PostgreSQL database, and the commands that complete it.

A prepared transaction belongs to the database and not to a connection. Any process may commit it or roll it back over
any connection, so that a connection that broke is never needed again. The gid of a branch is the text form of its xid.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from rm_db.postgres.gid import decode_gid, encode_gid
from rm_db.postgres.holdings import LOCKED, REPORT, read_locks, read_report
from rm_db.postgres.transaction_outcomes import NOTING
from rm_db.server.steps import ConnectionLost, Failure, understood
from rm_db.sqlstate import (
    COMMIT_PREPARED,
    FEATURE_NOT_SUPPORTED,
    INSUFFICIENT_PRIVILEGE,
    OBJECT_IN_USE,
    ROLLBACK_PREPARED,
    UNDEFINED_OBJECT,
    lookup,
)
from xa import Code, ResourceError, Xid, xa_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rm_db.postgres.database import PostgresDatabase
    from rm_db.postgres.libpq import LibpqConnection, Reply
    from xa.holdings import InDoubtBranch

_ROLE_SETTABLE: Final = 16_00_00
"""From this version on, membership in a role and the right to SET ROLE to it are two things."""

_MINE: Final = "p.database = current_database() AND pg_has_role(current_user, p.owner, '{privilege}')"

_GID: Final = "encode(decode(replace(p.gid, chr(92), repeat(chr(92), 2)), 'escape'), 'hex')"
"""The octets of a gid: it may be in the encoding of another database, and not be valid in this one's."""

_SCAN: Final = "SELECT {gid} FROM pg_prepared_xacts p WHERE {mine} ORDER BY p.prepared, p.gid"
_EXISTS: Final = "SELECT FROM pg_prepared_xacts p WHERE p.gid = '{gid}' AND p.database = current_database()"
_DATABASES: Final = "SELECT p.database, current_database() FROM pg_prepared_xacts p WHERE p.gid = '{gid}'"
_OWNER: Final = "SELECT quote_ident(p.owner) FROM pg_prepared_xacts p WHERE p.gid = '{gid}' AND {mine}"

_LIST: Final = """
SELECT {gid}, p.database, p.owner, to_char(p.prepared AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
       coalesce({mine}, false), p.transaction::text
  FROM pg_prepared_xacts p ORDER BY p.prepared, p.gid
"""

_BEING_PREPARED: Final = """
SELECT pg_terminate_backend(pid), pg_sleep(0.05) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active'
   AND (starts_with(query, 'PREPARE TRANSACTION ''{gid}''')
        OR starts_with(query, '{noting}PREPARE TRANSACTION ''{gid}'''))
"""
_COMPLETION: Final = {
    "commit": (b"COMMIT PREPARED", COMMIT_PREPARED),
    "rollback": (b"ROLLBACK PREPARED", ROLLBACK_PREPARED),
}
"""Verb → its command, and the codes for what the server refuses."""
_PAUSE: Final = b"SELECT pg_sleep(0.05)"
_TRIES: Final = 100
"""How often something that is over in a moment is asked again, with a pause between."""


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A prepared transaction of the server. `xid` is None where the gid is no xid's text form; `mine` says whether
    this resource manager may complete it: it is of this database, and of a role that the user may act as."""

    gid: bytes
    xid: Xid | None
    database: str
    owner: str
    prepared_at: datetime
    mine: bool
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Completion:
    """The statement `sql` that completes a branch, and the tag of its success."""

    verb: str
    xid: Xid
    tag: bytes
    sql: bytes


class PreparedTransactions:
    """The prepared transactions of one database. Its methods talk to the server in steps (`rm_db.postgres.libpq`)."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    # --- completion -----------------------------------------------------------------------------------------------

    async def complete(self, verb: str, xid: Xid) -> Code:
        """COMMIT PREPARED or ROLLBACK PREPARED, the latter also of a branch that the server is about to prepare.
        XAER_NOTA: it is not there. XAER_INVAL: it is in another database. XA_RETRY: the server refused, and the branch
        stays prepared. XAER_RMFAIL: the connection was lost meanwhile."""
        tag, codes = _COMPLETION[verb]
        completion = _Completion(verb, xid, tag, tag + b" '" + encode_gid(xid) + b"'")
        pool = self._database.pool
        try:
            connection = pool.acquire(work=False)
        except ResourceError as error:  # of a connection that can't be made, which says nothing of the branch
            raise xa_error(Code.XA_RETRY, error.message) from None

        try:
            failure = connection.refusal(await connection.exchange(completion.sql), tag)
            if failure is not None:
                failure = await self._after_refusal(connection, completion, failure)
        except ConnectionLost as lost:
            raise xa_error(Code.XAER_RMFAIL, f"the connection was lost over {verb}: {lost}", xid) from None
        finally:
            pool.release(connection, keep=connection.is_reusable)
        if failure is not None:
            raise xa_error(lookup(codes, failure.sqlstate or ""), f"{verb}: {failure}", xid)
        return Code.XA_OK

    async def _after_refusal(
        self, connection: LibpqConnection, completion: _Completion, refused: Failure
    ) -> Failure | None:
        """The server has refused it: does what can make it succeed. Returns what it is refused for then."""
        failure = await self._repeated(connection, completion, refused)
        if failure is None:
            return None
        if completion.verb == "commit" and failure.sqlstate == FEATURE_NOT_SUPPORTED:
            return await self._of_another_database(connection, failure, completion.xid)
        if completion.verb == "rollback" and failure.sqlstate == UNDEFINED_OBJECT:
            being_prepared = await self._end_of_preparation(connection, completion.xid)
            if being_prepared:
                failure = connection.refusal(await connection.exchange(completion.sql), completion.tag)
                if failure is not None:
                    failure = await self._repeated(connection, completion, failure)
        return failure

    async def _repeated(self, connection: LibpqConnection, completion: _Completion, refused: Failure) -> Failure | None:
        """Repeats it while somebody else is completing the same transaction, and as the role that owns it."""
        failure: Failure | None = refused
        for _ in range(_TRIES):
            if failure is None or failure.sqlstate != OBJECT_IN_USE:
                break
            await connection.exchange(_PAUSE)
            failure = connection.refusal(await connection.exchange(completion.sql), completion.tag)
        if failure is not None and failure.sqlstate == INSUFFICIENT_PRIVILEGE:
            return await self._as_owner(connection, completion, failure)
        return failure

    async def _of_another_database(self, connection: LibpqConnection, failure: Failure, xid: Xid) -> Failure:
        """The same failure, with the name of the database that has the branch."""
        reply = await connection.exchange(_DATABASES.format(gid=xid).encode("ascii"))
        if reply.failure is not None or not reply.rows():
            return failure
        with understood(connection.close):
            theirs, ours = ((octets or b"").decode("utf-8", "replace") for octets in reply.rows()[0])
        message = (
            f"{failure.message} · the branch is prepared in the database {theirs}, and this resource is the database "
            f"{ours}: give the resource a URL of {theirs}, or commit it by hand there"
        )
        return Failure(failure.sqlstate, message)

    async def _end_of_preparation(self, connection: LibpqConnection, xid: Xid) -> bool:
        """The server may be about to prepare the branch for a connection that was given up: terminates the process
        that does, and waits for its end; whether there was one."""
        query = _BEING_PREPARED.format(gid=xid, noting=NOTING.decode("ascii")).encode("ascii")
        for tries in range(_TRIES):
            reply = await connection.exchange(query)
            if reply.failure is not None:
                why = f"rollback: whether the branch is being prepared is unknown: {reply.failure}"
                raise xa_error(Code.XA_RETRY, why, xid)
            if not reply.rows():
                return tries > 0
        raise xa_error(Code.XA_RETRY, "rollback: a server process that prepares the branch does not end", xid)

    async def _as_owner(self, connection: LibpqConnection, completion: _Completion, refused: Failure) -> Failure | None:
        """PostgreSQL lets only the role that prepared a transaction complete it: becomes that role, if it may."""
        reply = await connection.exchange(_OWNER.format(gid=completion.xid, mine=self._mine).encode())
        if reply.failure is not None or not reply.rows():
            return refused
        with understood(connection.close):
            owner = reply.rows()[0][0] or b""
        connection.reusable = False  # until the role is reset
        reply = await connection.exchange(b"SET ROLE " + owner)
        if reply.failure is not None:
            return refused
        failure = connection.refusal(await connection.exchange(completion.sql), completion.tag)
        reply = await connection.exchange(b"RESET ROLE")
        connection.reusable = reply.failure is None
        return failure

    # --- what is prepared -----------------------------------------------------------------------------------------

    @property
    def _mine(self) -> str:
        """The condition for transactions that this user may complete."""
        return _MINE.format(privilege="SET" if self._database.facts.version >= _ROLE_SETTABLE else "MEMBER")

    async def exists(self, xid: Xid) -> bool:
        """Whether the branch is prepared in this database."""
        reply = await self._database.command(_EXISTS.format(gid=xid).encode("ascii"))
        return bool(reply.rows())

    async def scan(self) -> list[Xid]:
        """The branches that this user may complete, in the order in which they were prepared."""
        reply = await self._database.command(_SCAN.format(gid=_GID, mine=self._mine).encode())
        with understood(self._database.pool.close_idle):
            found = [decode_gid(bytes.fromhex((gid or b"").decode("ascii"))) for (gid,) in reply.rows()]
        return [xid for xid in found if xid is not None]

    async def in_doubt(self) -> list[InDoubtBranch]:
        """The same branches, with what they hold."""
        report = REPORT.format(gid=_GID, mine=self._mine)
        reply = await self._database.command(f"{report};{LOCKED}".encode())
        with understood(self._database.pool.close_idle):
            return list(read_report(reply.rows(), read_locks(reply.rows(1))))

    async def listed(self, *, everybodys: bool) -> list[PreparedTransaction]:
        """The same branches, or with `everybodys` all prepared transactions of the server, with the locks that they
        hold."""
        listing = _LIST.format(gid=_GID, mine=self._mine)
        reply = await self._database.command(f"{listing};{LOCKED}".encode())
        with understood(self._database.pool.close_idle):
            return list(_listed(reply, everybodys=everybodys))


def _listed(reply: Reply, *, everybodys: bool) -> Iterator[PreparedTransaction]:
    locks = read_locks(reply.rows(1))
    for row in reply.rows():
        gid_hex, database, owner, prepared_at, mine, transaction = ((octets or b"").decode() for octets in row)
        gid = bytes.fromhex(gid_hex)
        xid = decode_gid(gid)
        if everybodys or (mine == "t" and xid is not None):
            held = tuple(sorted({f"{mode} on {name}" for _, _, _, mode, name in locks.get(transaction.encode(), ())}))
            at = datetime.fromisoformat(prepared_at)
            yield PreparedTransaction(gid, xid, database, owner, at, mine == "t", held)
