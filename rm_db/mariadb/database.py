"""MariaDatabase: one database of MariaDB or MySQL, with its pool of connections and its prepared branches."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any, Final

import pymysql
from sqlalchemy import create_engine
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from sqlalchemy.pool import NullPool

from rm_db.mariadb.connection import MariaConnection, Result, failure_of
from rm_db.mariadb.parked_branches import ParkedBranches
from rm_db.mariadb.prepared_branches import PreparedBranches
from rm_db.mariadb.server_facts import ASK_VARIABLES, ServerFacts
from rm_db.server.database import ServerDatabase
from rm_db.server.pending import OutstandingSteps
from rm_db.server.steps import drive, understood
from xa import Code, XaError, xa_error
from xa.sql.pymysql_connection import UNSAFE, WHY_UNSAFE, BoundedConnection
from xa.sql.url import database_url

if TYPE_CHECKING:
    from rm_db.address import Address
    from rm_db.mariadb.connection import Driver
    from rm_db.server.steps import Failure

logger = logging.getLogger("xabridge.rm_db")

SCHEMES: Final = ("mariadb", "mysql", "mariadb+pymysql", "mysql+pymysql")
CONNECT_TIMEOUT_S: Final = 10
END_SESSION_S: Final = 5.0
"""How long an interrupted thread or task waits for the server to end its session."""

_FULL: Final = frozenset({1040, 1203, 1226})
"""Too many connections: of the server, of the user, or within an hour."""
_UNREACHABLE: Final = frozenset({2002, 2003, 2005, 2013, 2006, 1053, 1129})
"""There is no answer, the server is shut down, or it has blocked this machine after errors of the network."""


class MariaDatabase(ServerDatabase[MariaConnection, ServerFacts]):
    """One database. What is prepared is not bound to a session any more when it is closed."""

    prepared: PreparedBranches

    def __init__(self, address: Address) -> None:
        self._arguments = arguments(address)
        outstanding = OutstandingSteps(address.reply_s)
        self.parked = ParkedBranches(outstanding)
        super().__init__(address, "mysql+pymysql", outstanding, self.parked)
        self.parked.pool = self.pool
        self.prepared = PreparedBranches(self)

    def probe(self) -> ServerFacts:
        """As everywhere; XAER_RMERR: branches can't be prepared there, or not be found again."""
        variables = self.outstanding.run(self.command(ASK_VARIABLES, has_rows=True))
        with understood(self.pool.close_idle):
            facts = ServerFacts.of({row[0]: row[1] for row in variables.rows})
        facts.check()
        self._facts = facts
        self.outstanding.run(self.prepared.scan())  # MySQL lists prepared branches to users with a right only
        for weakness, advice in facts.weaknesses():
            logger.warning("%s: a crash of the server's machine loses what was prepared; %s", weakness, advice)
        return facts

    def close(self) -> None:
        self.parked.close()
        super().close()

    async def command(self, sql: bytes, *, has_rows: bool = False) -> Result:
        """Runs a command that belongs to no branch. XAER_RMFAIL: the connection was lost meanwhile, or the reply has
        rows and the command has none, or the other way round. XAER_RMERR: the server refused."""
        with self.releasing(self.pool.acquire(work=False)) as connection:
            result = (await connection.query(sql)) if has_rows else (await connection.carry_out(sql))[0]
        if result.failure is not None:
            raise xa_error(Code.XAER_RMERR, str(result.failure))
        return result

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

    async def _end_session(self, thread_id: int) -> str | None:
        with self.releasing(self.pool.acquire(work=False)) as connection:
            return await connection.end_session(thread_id)

    def connect(self, reply_s: float | None = None) -> Driver:
        return new_connection(self._arguments, reply_s)

    def _connect(self) -> MariaConnection:
        try:
            return MariaConnection(self.connect(), self.address.reply_s)
        except pymysql.MySQLError as error:
            raise unconnected(failure_of(error)) from None


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
