"""PostgresDatabase: one PostgreSQL database, for the two resource managers that use PostgreSQL.

It asks the server at open whether it can be used (`probe`), and runs single commands that belong to no branch.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy.exc import OperationalError

from rm_db.address import POSTGRES_SCHEMES, Address
from rm_db.postgres.libpq import LibpqConnection
from rm_db.postgres.prepared_transactions import PreparedTransactions
from rm_db.postgres.transaction_outcomes import NOTING, TransactionOutcomes
from rm_db.server.database import ServerDatabase
from rm_db.server.pending import OutstandingSteps
from rm_db.server.steps import ConnectionLost, understood
from xa import Code, xa_error
from xa.sql.psycopg_connection import BoundedConnection

if TYPE_CHECKING:
    from rm_db.postgres.libpq import Reply
    from xa import XaError

logger = logging.getLogger("xabridge.rm_db")

MIN_VERSION: Final = 13_00_00
CONNECT_TIMEOUT_S: Final = 10

_REACHED: Final = re.compile(r"FATAL|\bauthentication\b|password|SSL|certificate", re.IGNORECASE)
_FULL: Final = re.compile(r"too many (clients|connections)|connection slots|no more connections", re.IGNORECASE)
_NOT_NOW: Final = re.compile(r"database system|shutting down|starting up|recovery", re.IGNORECASE)

RESET: Final = (
    b"CLOSE ALL;RESET SESSION AUTHORIZATION;RESET ROLE;RESET ALL;UNLISTEN *;"
    b"SELECT pg_advisory_unlock_all();DISCARD TEMP;DISCARD SEQUENCES"
)
"""DISCARD ALL without the prepared statements and plans, which are worth keeping."""
RESET_NOTED: Final = b"RESET SESSION AUTHORIZATION;RESET ROLE;RESET ALL;DISCARD SEQUENCES"
"""The same behind PREPARE TRANSACTION, which refuses held cursors, temporary tables and LISTEN: there are none.
NOTING has freed the advisory locks before."""
RESET_PREPARED: Final = RESET_NOTED + b";SELECT pg_advisory_unlock_all()"
"""The same without NOTING."""

_PROBE: Final = (
    b"SELECT current_setting('server_version_num'), current_setting('max_prepared_transactions'),"
    b" pg_is_in_recovery(), current_setting('default_transaction_read_only'),"
    b" current_setting('synchronous_commit'), current_setting('fsync'), current_user, current_database()"
)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """The server's properties."""

    version: int
    max_prepared: int
    standby: bool
    read_only: bool
    synchronous_commit: str
    fsync: bool
    user: str
    database: str


@dataclass(frozen=True, slots=True)
class EndCommands:
    """The commands that end a transaction. `reset` is False behind a transaction pooler, where no session belongs to a
    client. `synchronous_commit` is the setting for one-phase commits, so that they are durable when they are
    answered."""

    reset: bool = True
    synchronous_commit: str = "on"

    def ending(self, command: bytes) -> bytes:
        """`command`, which ends a transaction, followed by the reset."""
        return command + b";" + RESET if self.reset else command

    def preparing(self, gid: bytes, *, noting: bool) -> bytes:
        """PREPARE TRANSACTION, followed by the reset. With `noting`, which is not used behind a transaction pooler,
        the id of the transaction is read first."""
        command = b"PREPARE TRANSACTION '" + gid + b"'"
        if noting:
            return NOTING + command + b";" + RESET_NOTED
        return command + b";" + RESET_PREPARED if self.reset else command

    def durable_commit(self, insertion: bytes) -> bytes:
        """The commands that commit in one phase, with `insertion` before the commit unless it is empty."""
        setting = b"SET LOCAL synchronous_commit TO " + self.synchronous_commit.encode("ascii") + b";COMMIT"
        return self.ending(insertion + b";" + setting if insertion else setting)


class PostgresDatabase(ServerDatabase[LibpqConnection, ServerFacts]):
    """One database of PostgreSQL. `end_commands` are known after `probe`. With `notes` it takes notes of the branches
    that are prepared there."""

    prepared: PreparedTransactions
    end_commands: EndCommands

    def __init__(self, address: Address, *, notes: bool = False) -> None:
        self._notes = notes and not address.pooled
        self._conninfo = conninfo(address)
        super().__init__(address, "postgresql+psycopg", OutstandingSteps(address.reply_s))
        self.prepared = PreparedTransactions(self)
        self.outcomes = TransactionOutcomes(self)

    def probe(self) -> ServerFacts:
        """As everywhere; XAER_RMERR: it can be used neither to prepare nor to decide."""
        reply = self.outstanding.run(self.command(_PROBE))
        with understood(self.pool.close_idle):
            version, prepared, standby, read_only, synchronous, fsync, user, database = (
                (octets or b"").decode("utf-8", "replace") for octets in reply.rows()[0]
            )
            on = (standby == "t", read_only == "on")
            facts = ServerFacts(int(version), int(prepared), *on, synchronous, fsync == "on", user, database)

        if facts.version < MIN_VERSION:
            raise xa_error(
                Code.XAER_RMERR, f"PostgreSQL {facts.version // 10000} is too old, {MIN_VERSION // 10000} is needed"
            )
        if facts.standby:
            raise xa_error(Code.XAER_RMERR, "the server is a standby and takes no writes: name the primary")
        if facts.read_only:
            raise xa_error(
                Code.XAER_RMERR,
                f"default_transaction_read_only is on for {user} in {database}: take it back with "
                f"ALTER ROLE {user} RESET default_transaction_read_only, or in ALTER DATABASE or postgresql.conf",
            )

        if not facts.fsync:
            logger.warning("fsync is off in %s: a crash of the server's machine loses what was decided", database)
        if self.address.pooled:
            self._make_session_engine()
        self._facts = facts
        self.end_commands = EndCommands(
            reset=not self.address.pooled,
            synchronous_commit="on" if synchronous == "off" else synchronous,
        )
        return facts

    def _make_session_engine(self) -> None:
        """Behind a pooler the engine is made before there is any transaction. Later its connection would have to wait
        for one of the pooler's, and all of these may be held by transactions whose sessions wait for the engine."""
        try:
            self.session_engine.made  # noqa: B018 — it is made by the first access
        except OperationalError as error:
            raise unconnected(str(error.orig).strip()) from None

    async def command(self, sql: bytes) -> Reply:
        """Runs commands that belong to no branch. XAER_RMFAIL: the connection was lost meanwhile. XAER_RMERR: the
        server refused."""
        with self.releasing(self.pool.acquire(work=False)) as connection:
            reply = await connection.exchange(sql)
        if reply.failure is not None:
            raise xa_error(Code.XAER_RMERR, str(reply.failure))
        return reply

    def connect(self, reply_s: float | None = None) -> psycopg.Connection[Any]:
        threshold = None if self.address.pooled else 5
        return BoundedConnection.connect(
            self._conninfo,
            reply_s=reply_s,
            plain_without_tls=self.address.plain_without_tls,
            prepare_threshold=threshold,
        )

    def _connect(self) -> LibpqConnection:
        try:
            connection = LibpqConnection(self.connect(), self.address.reply_s)
        except psycopg.Error as error:
            raise unconnected(str(error).strip()) from None
        if self._notes:
            try:
                connection.place = self.outstanding.run(self.outcomes.place_of(connection))
            except BaseException as raised:
                connection.close()
                if isinstance(raised, ConnectionLost):
                    raise xa_error(Code.XAER_RMFAIL, f"the connection was lost: {raised}") from None
                raise
        return connection


def connect(open_string: str, *, autocommit: bool = False) -> BoundedConnection:
    """A connection beside the branches; psycopg.Error, XAER_INVAL."""
    address = Address.parse(open_string)
    return BoundedConnection.connect(
        conninfo(address),
        reply_s=address.reply_s,
        plain_without_tls=address.plain_without_tls,
        autocommit=autocommit,
    )


def conninfo(address: Address) -> str:
    """The connection string for libpq; XAER_INVAL for a wrong URL."""
    scheme, separator, rest = address.url.partition("://")
    if not separator or scheme not in POSTGRES_SCHEMES:
        raise xa_error(
            Code.XAER_INVAL, f"open: a URL that begins with {POSTGRES_SCHEMES[0]}:// is expected, not {scheme}://"
        )
    try:
        settings = conninfo_to_dict(f"postgresql://{rest}")
    except psycopg.ProgrammingError as error:
        raise xa_error(Code.XAER_INVAL, f"open: {str(error).strip()}") from None
    settings.setdefault("application_name", "xabridge")
    settings.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    return make_conninfo("", **settings)


def unconnected(message: str) -> XaError:
    """The error for a connection that could not be made. libpq gives the reason as text only. XA_RETRY: the server has
    no connection left. XAER_RMFAIL: it could not be reached. XAER_RMERR: it refused."""
    if _FULL.search(message):
        return xa_error(Code.XA_RETRY, message)
    code = Code.XAER_RMERR if _REACHED.search(message) and not _NOT_NOW.search(message) else Code.XAER_RMFAIL
    return xa_error(code, message)
