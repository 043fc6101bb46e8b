"""MariaDatabase: one database of MariaDB or MySQL, with its pool of connections and its prepared branches."""

from __future__ import annotations

import inspect
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pymysql
from sqlalchemy import create_engine
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from rm_db.connections.pending import OutstandingSteps
from rm_db.connections.pool import ConnectionPool, ServerFull
from rm_db.connections.steps import ConnectionLost, drive, understood
from rm_db.mariadb.connection import MariaConnection, Result, failure_of
from rm_db.mariadb.parked import ParkedBranches
from rm_db.mariadb.prepared_branches import PreparedBranches
from rm_db.mariadb.server import ASK_VARIABLES, Facts
from rm_db.mariadb.transaction import MariaTransaction
from rm_db.sessions.mariadb import MariaSession
from rm_db.sessions.session_engine import SessionEngine
from xa import Code, ResourceError, XaError, xa_error
from xa.sql.pymysql_connection import UNSAFE, WHY_UNSAFE, BoundedConnection
from xa.sql.url import database_url

if TYPE_CHECKING:
    from rm_db.address import Address
    from rm_db.connections.steps import Failure, Steps
    from rm_db.mariadb.connection import Driver
    from xa import Xid

logger = logging.getLogger("xabridge.rm_db")

SCHEMES: Final = ("mariadb", "mysql", "mariadb+pymysql", "mysql+pymysql")
CONNECT_TIMEOUT_S: Final = 10
END_SESSION_S: Final = 5.0
"""How long an interrupted thread or task waits for the server to end its session."""

_FULL: Final = frozenset({1040, 1203, 1226})
"""Too many connections: of the server, of the user, or within an hour."""
_UNREACHABLE: Final = frozenset({2002, 2003, 2005, 2013, 2006, 1053, 1129})
"""There is no answer, the server is shut down, or it has blocked this machine after errors of the network."""


class MariaDatabase:
    """One database. `probe` comes first: before it nothing else can be done."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._arguments = arguments(address)
        self._session_engine = SessionEngine("mysql+pymysql", partial(self.connect, address.reply_s))
        self._make_session = partial(MariaSession, self._session_engine)
        self.outstanding = OutstandingSteps(address.reply_s)
        self.parked = ParkedBranches(self.outstanding)
        self.pool = ConnectionPool(self._connect, address.pool_size, address.pool_wait_s, address.reply_s, self.parked)
        self.parked.pool = self.pool
        self.prepared = PreparedBranches(self)
        self._facts: Facts | None = None

    @property
    def facts(self) -> Facts:
        """The server's properties at the last probe."""
        if self._facts is None:
            raise xa_error(Code.XAER_PROTO, "the database has not been probed")
        return self._facts

    def probe(self) -> Facts:
        """Reaches the database and asks for its facts. XAER_RMERR: branches can't be prepared there, or not be found
        again."""
        variables = self.outstanding.run(self.command(ASK_VARIABLES, has_rows=True))
        with understood(self.pool.close_idle):
            facts = Facts.of({row[0]: row[1] for row in variables.rows})
        facts.check()
        self._facts = facts
        self.outstanding.run(self.prepared.scan())  # MySQL lists prepared branches to users with a right only
        for weakness, mend in facts.weaknesses():
            logger.warning("%s: a crash of the server's machine loses what was prepared; %s", weakness, mend)
        return facts

    def begin(self, xid: Xid, *, wait: bool) -> MariaTransaction:
        """The transaction of a new branch. XA_RETRY: no connection is free."""
        return MariaTransaction(xid, self, self._make_session, wait=wait)

    def break_off(self) -> None:
        """Breaks the connections that are in use, while other threads wait for them."""
        self.pool.break_off()

    def close(self) -> None:
        """Closes the connections. What is prepared stays so, and is not bound to a session any more."""
        self.parked.close()
        self.pool.close()

    def command(self, sql: bytes, *, has_rows: bool = False) -> Steps[Result]:
        """Runs a command that belongs to no branch. XAER_RMFAIL: the connection was lost meanwhile, or the reply has
        rows and the command has none, or the other way round. XAER_RMERR: the server refused."""
        connection = self.pool.acquire(work=False)
        try:
            result = (yield from connection.query(sql)) if has_rows else (yield from connection.carry_out(sql))[0]
        except ConnectionLost as lost:
            raise xa_error(Code.XAER_RMFAIL, f"the connection was lost: {lost}") from None
        finally:
            self.pool.release(connection)
        if result.failure is not None:
            raise xa_error(Code.XAER_RMERR, str(result.failure))
        return result

    def reserve(self) -> MariaConnection:
        """A connection for a command about a prepared branch. XA_RETRY, XAER_RMFAIL: there is none, and the branch is
        as it was. It never raises XAER_RMERR, for example because the password is wrong: at commit and rollback that
        code means that the branch was rolled back."""
        try:
            return self.pool.acquire(work=False)
        except ResourceError as error:
            raise xa_error(Code.XA_RETRY, error.message) from None

    def kill_query(self, thread_id: int) -> bool:
        """Interrupts the statement of another of our connections; False where that can't be asked for now."""
        try:
            drive(self.command(b"KILL QUERY %d" % thread_id), END_SESSION_S)
        except XaError:
            return False
        return True

    def end_session(self, thread_id: int) -> bool:
        """Ends the session of another of our connections, and waits until it has ended; False where that can't be done
        now."""
        try:
            return drive(self._end_session(thread_id), END_SESSION_S) is None
        except XaError:
            return False

    def _end_session(self, thread_id: int) -> Steps[str | None]:
        connection = self.pool.acquire(work=False)
        try:
            return (yield from connection.end_session(thread_id))
        except ConnectionLost as lost:
            return str(lost)
        finally:
            self.pool.release(connection)

    def connect(self, reply_s: float | None = None) -> Driver:
        """A new PyMySQL connection, which waits at most `reply_s` for a reply; None: as long as it takes."""
        return new_connection(self._arguments, reply_s)

    def _connect(self) -> MariaConnection:
        try:
            return MariaConnection(self.connect(), self.address.reply_s)
        except pymysql.MySQLError as error:
            refused = unconnected(failure_of(error))
            raise ServerFull(refused) if refused.code is Code.XA_RETRY else refused from None


def new_connection(given: dict[str, Any], reply_s: float | None) -> Driver:
    """A connection with these `arguments`; pymysql.MySQLError."""
    return BoundedConnection(**given, reply_s=reply_s)


def arguments(address: Address) -> dict[str, Any]:
    """What a `BoundedConnection` is to connect with; XAER_INVAL for a wrong URL. Commit after each statement is on,
    because XA START is refused inside another transaction."""
    scheme, separator, rest = address.url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise xa_error(Code.XAER_INVAL, f"open: a URL that begins with {SCHEMES[0]}:// is expected, not {scheme}://")
    if address.pooled:
        raise xa_error(
            Code.XAER_INVAL,
            "open: xa_pooler=transaction is for PostgreSQL only: a branch here needs a session of its own until it is "
            "prepared, and mostly until it is committed",
        )
    try:
        url = database_url(f"mysql+pymysql://{rest}")
        _, settings = create_engine(url, poolclass=NullPool).dialect.create_connect_args(url)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError, TypeError, ValueError) as error:
        raise xa_error(Code.XAER_INVAL, f"open: {error}") from None
    unsupported = _UNSUPPORTED & settings.keys()
    if unsupported:
        names = ", ".join(sorted(unsupported))
        raise xa_error(
            Code.XAER_INVAL,
            f"open: {names} can't be set here: a session is reset behind each transaction, which would undo it. Set it "
            "in the server, for the user or in the transaction",
        )
    if UNSAFE & settings.keys():
        names = ", ".join(sorted(UNSAFE & settings.keys()))
        raise xa_error(Code.XAER_INVAL, f"open: {names} can't be set: {WHY_UNSAFE}")
    unknown = settings.keys() - inspect.signature(pymysql.Connection.__init__).parameters.keys()
    if unknown:
        raise xa_error(Code.XAER_INVAL, f"open: PyMySQL has no option {', '.join(sorted(unknown))}")
    settings.setdefault("charset", "utf8mb4")
    settings.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    settings.setdefault("read_timeout", None)
    settings.setdefault("program_name", "xabridge")
    settings["autocommit"] = True
    return {**settings, "plain_without_tls": address.plain_without_tls}


_UNSUPPORTED: Final = frozenset({"init_command", "sql_mode", "collation", "read_default_file", "cursorclass"})


def unconnected(failure: Failure) -> XaError:
    """The error for a connection that could not be made. XA_RETRY: the server has no connection left. XAER_RMFAIL: it
    could not be reached. XAER_RMERR: it refused."""
    if failure.number in _FULL:
        return xa_error(Code.XA_RETRY, str(failure))
    return xa_error(Code.XAER_RMFAIL if failure.number in _UNREACHABLE else Code.XAER_RMERR, str(failure))
