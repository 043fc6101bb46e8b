"""ServerDatabase: one database of a server, with the pool of connections to it: what PostgreSQL, MariaDB and MySQL have
in common. A subclass knows how a connection is made, what it has to find in the server (`probe`), and its commands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rm_db.server.connection import ServerConnection
from rm_db.server.steps import ConnectionLost
from rm_db.sessions.session_engine import SessionEngine
from xa import Code, ResourceError, xa_error
from xa.pool import ConnectionPool

if TYPE_CHECKING:
    from rm_db.address import Address
    from rm_db.server.pending import OutstandingSteps
    from rm_db.server.steps import Steps
    from xa import Xid
    from xa.holdings import InDoubtBranch
    from xa.pool import OutstandingOperations

C = TypeVar("C", bound=ServerConnection)
F = TypeVar("F")


class PreparedWork(Protocol):
    """What is prepared in one database. Its methods talk to the server in steps (`rm_db.server.steps`)."""

    def complete(self, verb: str, xid: Xid) -> Steps[Code]:
        """Commits or rolls back, as `verb` says: "commit" or "rollback". XAER_NOTA: the branch is not there. XA_RETRY:
        the server refused, and the branch stays prepared. XAER_RMFAIL: the connection was lost meanwhile."""
        ...

    def exists(self, xid: Xid) -> Steps[bool]:
        """Whether the branch is prepared here."""
        ...

    def scan(self) -> Steps[list[Xid]]:
        """The branches that this user may complete."""
        ...

    def in_doubt(self) -> Steps[list[InDoubtBranch]]:
        """The same branches, with what they hold."""
        ...


class ServerDatabase(ABC, Generic[C, F]):
    """One database. `probe` comes first: before it nothing else can be done. `drivername` is SQLAlchemy's name of the
    driver; `holders` are the operations that hold connections, the `outstanding` ones and others."""

    prepared: PreparedWork

    def __init__(
        self,
        address: Address,
        drivername: str,
        outstanding: OutstandingSteps,
        holders: OutstandingOperations | None = None,
    ) -> None:
        self.address = address
        self.outstanding = outstanding
        self.session_engine = SessionEngine(drivername, partial(self.connect, address.reply_s))
        self.pool = ConnectionPool(
            lambda _: self._connect(),
            address.pool_size,
            address.pool_wait_s,
            partial(xa_error, Code.XA_RETRY),
            advice="raise xa_pool_size, or look for transactions that hang",
            outstanding=outstanding if holders is None else holders,
        )
        self._facts: F | None = None

    @abstractmethod
    def probe(self) -> F:
        """Reaches the database and asks for its facts. XAER_RMERR: it can't be used."""

    @abstractmethod
    def connect(self, reply_s: float | None = None) -> Any:
        """A new connection of the driver, which waits at most `reply_s` for a reply; None: as long as it takes."""

    @abstractmethod
    def _connect(self) -> C:
        """A new connection for the pool; the XaError for one that can't be made is XA_RETRY where the server has none
        left."""

    @property
    def facts(self) -> F:
        """The server's properties at the last probe."""
        if self._facts is None:
            raise xa_error(Code.XAER_PROTO, "the database has not been probed")
        return self._facts

    def reserve(self) -> C:
        """A connection for a command about a prepared branch. XA_RETRY, XAER_RMFAIL: there is none, and the branch is
        as it was. It never raises XAER_RMERR, for example because the password is wrong: at commit and rollback that
        code means that the branch was rolled back."""
        try:
            return self.pool.acquire(work=False)
        except ResourceError as error:
            raise xa_error(Code.XA_RETRY, error.message) from None

    def releasing(self, connection: C, over: str = "", xid: Xid | None = None) -> _Releasing[C]:
        """Around commands on a connection, which is given back then. XAER_RMFAIL: it was lost meanwhile."""
        return _Releasing(self.pool, connection, over, xid)

    def break_off(self) -> None:
        """Breaks the connections that are in use, while other threads wait for them."""
        self.pool.break_off()

    def close(self) -> None:
        """Closes the connections. What is prepared stays so."""
        self.pool.close()


class _Releasing(Generic[C]):
    """A block of commands on a connection, which is given back at its end. XAER_RMFAIL: it was lost meanwhile."""

    __slots__ = ("_connection", "_over", "_pool", "_xid")

    def __init__(self, pool: ConnectionPool[C], connection: C, over: str, xid: Xid | None) -> None:
        self._pool = pool
        self._connection = connection
        self._over = over
        self._xid = xid

    def __enter__(self) -> C:
        return self._connection

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._pool.release(self._connection, keep=self._connection.is_reusable)
        if isinstance(error, ConnectionLost):
            raise xa_error(Code.XAER_RMFAIL, f"the connection was lost{self._over}: {error}", self._xid) from None
