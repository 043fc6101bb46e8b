"""PostgresResource: PostgreSQL as a resource manager, by PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED.

The gid of a branch is the text form of its xid. A prepared branch belongs to the database, not to a connection: it is
committed and rolled back over any, by any process, and a connection that broke is never needed again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from rm_db.address import Address
from rm_db.postgres.database import Facts, PostgresDatabase
from rm_db.postgres.diagnosis import diagnose_postgres
from rm_db.postgres.gid import decode_gid, encode_gid
from rm_db.postgres.holdings import LOCKED, REPORT, read_locks, read_report
from rm_db.postgres.libpq import ConnectionLost, Failure, LibpqConnection, Reply, Steps
from rm_db.resource import DatabaseResource
from rm_db.sqlstate import (
    COMMIT_PREPARED,
    FEATURE_NOT_SUPPORTED,
    INSUFFICIENT_PRIVILEGE,
    OBJECT_IN_USE,
    ROLLBACK_PREPARED,
    UNDEFINED_OBJECT,
    lookup,
)
from xa import Code, xa_error
from xa.tables import BranchVerb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xa import Handle, Xid
    from xa.diagnosis import Diagnosis
    from xa.holdings import InDoubtBranch

logger = logging.getLogger("xabridge.rm_db")

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
   AND starts_with(query, 'PREPARE TRANSACTION ''{gid}''')
"""
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


class PostgresResource(DatabaseResource[PostgresDatabase]):
    """One PostgreSQL database. Open string: `postgresql://…`, see `rm_db.address`."""

    name = "xabridge PostgreSQL"

    _version = 0
    max_prepared = 0
    """How many transactions the server lets be prepared at a time; known once it is open."""

    def _reach(self, url: str, place: PostgresDatabase | None) -> PostgresDatabase:
        server = place or PostgresDatabase(Address.parse(url), self._operations)
        try:
            facts = server.probe()
            _check_prepares(facts, server.address)
        except BaseException:
            if place is None:
                server.close()
            raise
        self._version = facts.version
        self.max_prepared = facts.max_prepared
        return server

    # --- completion -----------------------------------------------------------------------------------------------

    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        control = self._enter("prepare", rmid, flags, xid)
        steps = self._carry_out("prepare", BranchVerb.PREPARE, xid, lambda work: work.prepare(encode_gid(xid)))
        return self._perform(control, "prepare", xid, flags, steps, hold=True)

    def _commit_prepared(self, xid: Xid) -> Steps[Code]:
        self._find("commit", BranchVerb.COMMIT, xid)
        command = self._command_of(b"COMMIT PREPARED", xid)

        def committed(connection: LibpqConnection) -> Steps[Failure | None]:
            failure = yield from command(connection)
            if failure is not None and failure.sqlstate == FEATURE_NOT_SUPPORTED:
                failure = yield from self._of_another_database(connection, failure, xid)
            return failure

        yield from self._finish("commit", COMMIT_PREPARED, xid, committed)
        return Code.XA_OK

    def _rollback_prepared(self, xid: Xid) -> Steps[Code]:
        command = self._command_of(b"ROLLBACK PREPARED", xid)

        def rolled_back(connection: LibpqConnection) -> Steps[Failure | None]:
            failure = yield from command(connection)
            if failure is not None and failure.sqlstate == UNDEFINED_OBJECT:
                being_prepared = yield from self._end_of_preparation(connection, xid)
                if being_prepared:
                    failure = yield from command(connection)
            return failure

        yield from self._finish("rollback", ROLLBACK_PREPARED, xid, rolled_back)
        return Code.XA_OK

    def _forget(self, xid: Xid) -> Steps[Code]:
        self._find("forget", BranchVerb.FORGET, xid)
        reply = yield from self._opened.command(_EXISTS.format(gid=xid).encode("ascii"))
        if reply.rows():
            raise xa_error(Code.XAER_PROTO, "forget: the branch is prepared, not heuristically completed", xid)
        raise xa_error(Code.XAER_NOTA, "forget: PostgreSQL completes no branch on its own, none is remembered", xid)

    def _finish(
        self,
        verb: str,
        table: dict[str, Code],
        xid: Xid,
        command: Callable[[LibpqConnection], Steps[Failure | None]],
    ) -> Steps[None]:
        """Completes a prepared branch, over one connection; `table` has the codes for what the server refuses."""
        server = self._opened
        connection = server.reserve()
        try:
            failure = yield from command(connection)
        except ConnectionLost as lost:
            raise xa_error(Code.XAER_RMFAIL, f"the connection was lost over {verb}: {lost}", xid) from None
        finally:
            server.pool.release(connection)
        code = None if failure is None else lookup(table, failure.sqlstate or "")
        if code is None or code is Code.XAER_NOTA:
            self._branches.forget_prepared(xid)
        if code is not None:
            raise xa_error(code, f"{verb}: {failure}", xid)

    def _command_of(self, command: bytes, xid: Xid) -> Callable[[LibpqConnection], Steps[Failure | None]]:
        """COMMIT PREPARED or ROLLBACK PREPARED; its result is None when it is done."""
        statement = command + b" '" + encode_gid(xid) + b"'"

        def told(connection: LibpqConnection) -> Steps[Failure | None]:
            for _ in range(_TRIES):
                reply = yield from connection.exchange(statement)
                if reply.failure is None or reply.failure.sqlstate != OBJECT_IN_USE:
                    break
                yield from connection.exchange(_PAUSE)  # somebody else is completing it at this moment
            if reply.failure is not None and reply.failure.sqlstate == INSUFFICIENT_PRIVILEGE:
                reply = yield from self._as_owner(connection, statement, xid, reply)
            return reply.failure

        return told

    def _of_another_database(self, connection: LibpqConnection, failure: Failure, xid: Xid) -> Steps[Failure]:
        """The same failure, with the name of the database that has the branch."""
        reply = yield from connection.exchange(_DATABASES.format(gid=xid).encode("ascii"))
        if reply.failure is not None or not reply.rows():
            return failure
        theirs, ours = ((octets or b"").decode("utf-8", "replace") for octets in reply.rows()[0])
        message = (
            f"{failure.message} · the branch is prepared in the database {theirs}, and this resource is the database "
            f"{ours}: give the resource a URL of {theirs}, or commit it by hand there"
        )
        return Failure(failure.sqlstate, message)

    def _end_of_preparation(self, connection: LibpqConnection, xid: Xid) -> Steps[bool]:
        """The server may be about to prepare the branch for a connection that was given up: terminates the process
        that does, and waits for its end; whether there was one."""
        query = _BEING_PREPARED.format(gid=xid).encode("ascii")
        for tries in range(_TRIES):
            reply = yield from connection.exchange(query)
            if reply.failure is not None:
                why = f"rollback: whether the branch is being prepared can't be told: {reply.failure}"
                raise xa_error(Code.XA_RETRY, why, xid)
            if not reply.rows():
                return tries > 0
        raise xa_error(Code.XA_RETRY, "rollback: a server process that prepares the branch does not end", xid)

    def _as_owner(self, connection: LibpqConnection, statement: bytes, xid: Xid, refused: Reply) -> Steps[Reply]:
        """PostgreSQL lets only the very role finish a transaction that prepared it: becomes that role, where it may."""
        reply = yield from connection.exchange(_OWNER.format(gid=xid, mine=self._mine).encode())
        if reply.failure is not None or not reply.rows():
            return refused
        owner = reply.rows()[0][0] or b""
        connection.reusable = False  # until the role is given back
        reply = yield from connection.exchange(b"SET ROLE " + owner)
        if reply.failure is not None:
            return refused
        finished = yield from connection.exchange(statement)
        reply = yield from connection.exchange(b"RESET ROLE")
        connection.reusable = reply.failure is None
        return finished

    # --- recovery -------------------------------------------------------------------------------------------------

    @property
    def _mine(self) -> str:
        return _MINE.format(privilege="SET" if self._version >= _ROLE_SETTABLE else "MEMBER")

    def _scan(self) -> Steps[list[Xid]]:
        reply = yield from self._opened.command(_SCAN.format(gid=_GID, mine=self._mine).encode())
        found = (decode_gid(bytes.fromhex((gid or b"").decode("ascii"))) for (gid,) in reply.rows())
        return [xid for xid in found if xid is not None]

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        return self._page(self._reports, self._report, rmid, flags, count)

    def _report(self) -> Steps[list[InDoubtBranch]]:
        reply = yield from self._opened.command(f"{REPORT.format(gid=_GID, mine=self._mine)};{LOCKED}".encode())
        return list(read_report(reply.rows(), read_locks(reply.rows(1))))

    def diagnose(self, open_string: str) -> Diagnosis:
        return diagnose_postgres(open_string, two_phase=True)

    def prepared_transactions(self, rmid: int, *, everybodys: bool = False) -> Sequence[PreparedTransaction]:
        """What is prepared and could be recovered here, with what it holds; with `everybodys` also what other
        databases, other roles and other namings have prepared on this server, none of which is ever touched."""
        control = self._enter("prepared_transactions", rmid, 0)
        return self._run(control, self._list(everybodys=everybodys))

    def _list(self, *, everybodys: bool) -> Steps[list[PreparedTransaction]]:
        reply = yield from self._opened.command(f"{_LIST.format(gid=_GID, mine=self._mine)};{LOCKED}".encode())
        locks = read_locks(reply.rows(1))
        listed = []
        for row in reply.rows():
            gid_hex, database, owner, prepared_at, mine, transaction = ((octets or b"").decode() for octets in row)
            gid = bytes.fromhex(gid_hex)
            xid = decode_gid(gid)
            if everybodys or (mine == "t" and xid is not None):
                held = tuple(
                    sorted({f"{mode} on {name}" for _, _, _, mode, name in locks.get(transaction.encode(), ())})
                )
                at = datetime.fromisoformat(prepared_at)
                listed.append(PreparedTransaction(gid, xid, database, owner, at, mine == "t", held))
        return listed


def _check_prepares(facts: Facts, address: Address) -> None:
    if facts.max_prepared == 0:
        raise xa_error(
            Code.XAER_RMERR,
            f"max_prepared_transactions is 0: set it to at least {2 * address.pool_size} (transactions at work, "
            'and orphans) and restart PostgreSQL, or use mode = "decider"',
        )
    if facts.max_prepared < address.pool_size:
        logger.warning(
            "max_prepared_transactions is %d, less than the %d transactions that may be at work here (xa_pool_size)",
            facts.max_prepared,
            address.pool_size,
        )
