"""PostgresDatabase: one PostgreSQL database, for the two resource managers that use PostgreSQL.

It holds the pool of connections, asks the server at open whether it can be used (`probe`), begins the local
transactions of branches, and runs single commands that belong to no branch.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy.exc import OperationalError

from rm_db.address import POSTGRES_SCHEMES, Address
from rm_db.connections.pending import OutstandingSteps
from rm_db.connections.pool import ConnectionPool, ServerFull
from rm_db.connections.steps import ConnectionLost, Steps, understood
from rm_db.postgres.libpq import LibpqConnection, Reply
from rm_db.postgres.prepared_transactions import PreparedTransactions
from rm_db.postgres.transaction import EndCommands, PostgresTransaction
from rm_db.sessions.postgres import PostgresSession
from rm_db.sessions.session_engine import SessionEngine
from xa import Code, ResourceError, XaError, xa_error
from xa.sql.psycopg_connection import BoundedConnection

if TYPE_CHECKING:
    from xa import Xid

logger = logging.getLogger("xabridge.rm_db")

MIN_VERSION: Final = 13_00_00
CONNECT_TIMEOUT_S: Final = 10

_REACHED: Final = re.compile(r"FATAL|\bauthentication\b|password|SSL|certificate", re.IGNORECASE)
_FULL: Final = re.compile(r"too many (clients|connections)|connection slots|no more connections", re.IGNORECASE)
_NOT_NOW: Final = re.compile(r"database system|shutting down|starting up|recovery", re.IGNORECASE)

_PROBE: Final = (
    b"SELECT current_setting('server_version_num'), current_setting('max_prepared_transactions'),"
    b" pg_is_in_recovery(), current_setting('default_transaction_read_only'),"
    b" current_setting('synchronous_commit'), current_setting('fsync'), current_user, current_database()"
)


@dataclass(frozen=True, slots=True)
class Facts:
    """The server's properties."""

    version: int
    max_prepared: int
    standby: bool
    read_only: bool
    synchronous_commit: str
    fsync: bool
    user: str
    database: str


class PostgresDatabase:
    """One database, with the pool of connections to it. `probe` comes first: before it nothing else can be done."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._conninfo = conninfo(address)
        self._session_engine = SessionEngine("postgresql+psycopg", partial(self.connect, address.reply_s))
        self._make_session = partial(PostgresSession, self._session_engine)
        self.outstanding = OutstandingSteps(address.reply_s)
        self.pool = ConnectionPool(
            self._connect, address.pool_size, address.pool_wait_s, address.reply_s, self.outstanding
        )
        self.prepared = PreparedTransactions(self)
        self._facts: Facts | None = None

    @property
    def facts(self) -> Facts:
        """The server's properties at the last probe."""
        if self._facts is None:
            raise xa_error(Code.XAER_PROTO, "the database has not been probed")
        return self._facts

    def probe(self) -> Facts:
        """Reaches the database and asks for its facts. XAER_RMERR: it can be used neither to prepare nor to decide."""
        reply = self.outstanding.run(self.command(_PROBE))
        with understood(self.pool.close_idle):
            version, prepared, standby, read_only, synchronous, fsync, user, database = (
                (octets or b"").decode("utf-8", "replace") for octets in reply.rows()[0]
            )
            on = (standby == "t", read_only == "on")
            facts = Facts(int(version), int(prepared), *on, synchronous, fsync == "on", user, database)
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
        self._end_commands = EndCommands(
            reset=not self.address.pooled,
            synchronous_commit="on" if synchronous == "off" else synchronous,
        )
        return facts

    def _make_session_engine(self) -> None:
        """Behind a pooler the engine is made before there is any transaction. Later its connection would have to wait
        for one of the pooler's, and all of these may be held by transactions whose sessions wait for the engine."""
        try:
            self._session_engine.made  # noqa: B018 — it is made by the first access
        except OperationalError as error:
            raise unconnected(str(error.orig).strip()) from None

    def begin(self, xid: Xid, *, wait: bool) -> PostgresTransaction:
        """The local transaction of a new branch. XA_RETRY: no connection is free."""
        return PostgresTransaction(xid, self.pool, self._end_commands, self._make_session, self.outstanding, wait=wait)

    def break_off(self) -> None:
        """Breaks the connections that are in use, while other threads wait for them."""
        self.pool.break_off()

    def close(self) -> None:
        """Closes the connections."""
        self.pool.close()

    def command(self, sql: bytes) -> Steps[Reply]:
        """Runs commands that belong to no branch. XAER_RMFAIL: the connection was lost meanwhile. XAER_RMERR: the
        server refused."""
        reply = yield from self.attempt(sql)
        if reply.failure is not None:
            raise xa_error(Code.XAER_RMERR, str(reply.failure))
        return reply

    def attempt(self, sql: bytes) -> Steps[Reply]:
        """The same, with the server's refusal as part of the reply."""
        connection = self.pool.acquire(work=False)
        try:
            return (yield from connection.exchange(sql))
        except ConnectionLost as lost:
            raise xa_error(Code.XAER_RMFAIL, f"the connection was lost: {lost}") from None
        finally:
            self.pool.release(connection)

    def reserve(self) -> LibpqConnection:
        """A connection for a command about a prepared branch. XA_RETRY, XAER_RMFAIL: there is none, and the branch is
        as it was. It never raises XAER_RMERR, for example because the password is wrong: at commit and rollback that
        code means that the branch was rolled back."""
        try:
            return self.pool.acquire(work=False)
        except ResourceError as error:
            raise xa_error(Code.XA_RETRY, error.message) from None

    def connect(self, reply_s: float | None = None) -> psycopg.Connection[Any]:
        """A new psycopg connection, which waits at most `reply_s` for a reply; None: as long as it takes."""
        threshold = None if self.address.pooled else 5
        return BoundedConnection.connect(
            self._conninfo,
            reply_s=reply_s,
            plain_without_tls=self.address.plain_without_tls,
            prepare_threshold=threshold,
        )

    def _connect(self) -> LibpqConnection:
        try:
            return LibpqConnection(self.connect())
        except psycopg.Error as error:
            refused = unconnected(str(error).strip())
            raise ServerFull(refused) if refused.code is Code.XA_RETRY else refused from None


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
