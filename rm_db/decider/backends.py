"""DeciderBackend: how the work of a deciding database is done; SqlBackend: through SQLAlchemy, for every database but
PostgreSQL, which has a faster way in `rm_db.decider.postgres_backend`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy.pool import QueuePool

from rm_db.decider.decision_table import DecisionTable
from rm_db.decider.engine import TABLE_CONNECTIONS, make_engine, parse_url
from rm_db.decider.errors import from_dbapi
from rm_db.decider.session import guard
from rm_db.decider.transaction import SqlTransaction
from xa.pool import Connections
from xa.sql import mariadb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_db.address import Address
    from xa import Code, Xid
    from xa.driver import Pending
    from xa.in_process_branches import UnitOfWork


logger = logging.getLogger("xabridge.rm_db")


class DeciderBackend(Protocol):
    """How the work of a deciding database is done."""

    @property
    def table(self) -> DecisionTable:
        """The table of its decisions."""
        ...

    def reach(self) -> None:
        """Reaches the database; raises what `open` raises."""
        ...

    def begin(self, xid: Xid, *, wait: bool) -> UnitOfWork:
        """The local transaction of a new branch. XA_RETRY: no connection is free."""
        ...

    def begins_at_once(self) -> bool:
        """Whether `begin` waits for nothing now, as far as is known."""
        ...

    def connections(self) -> Connections | None:
        """How the pool for work is now."""
        ...

    def decide(self, unit: Any, gtrid: bytes, record: bytes) -> Code:
        """Commits a transaction that `begin` has begun, with the decision in it."""
        ...

    def first(self, outstanding: Sequence[Pending]) -> Pending: ...

    def break_off(self) -> None:
        """Breaks the connections that are in use, where that is possible while other threads wait for them."""
        ...

    def close(self) -> None:
        """Closes every connection."""
        ...


class SqlBackend:
    """Any other database, through SQLAlchemy."""

    def __init__(self, address: Address) -> None:
        url = parse_url(address)
        waits = (address.pool_wait_s, address.reply_s)
        clear = address.plain_without_tls
        self._engine = make_engine(url, address.pool_size, *waits, plain_without_tls=clear)
        guard(self._engine)
        options: dict[str, Any] = (
            {"isolation_level": mariadb.ISOLATION} if self._engine.dialect.name in mariadb.DIALECTS else {}
        )
        self._commands = make_engine(url, TABLE_CONNECTIONS, *waits, plain_without_tls=clear, **options)
        self.table = DecisionTable(self._commands)

    def reach(self) -> None:
        """Asks only MariaDB for its settings; otherwise opening the table reaches the database."""
        if self._engine.dialect.name in mariadb.DIALECTS:
            with from_dbapi("open"), self._engine.connect() as connection:
                for weakness, advice in mariadb.weaknesses(connection):
                    logger.warning("%s: a crash of the server's machine can lose a decision; %s", weakness, advice)

    def begin(self, xid: Xid, *, wait: bool) -> SqlTransaction:
        return SqlTransaction(xid, self._engine, self._commands, wait=wait)

    def begins_at_once(self) -> bool:
        return False

    def connections(self) -> Connections | None:
        pool = self._engine.pool
        if not isinstance(pool, QueuePool):
            return None
        return Connections(pool.checkedin(), pool.checkedout(), pool.size(), 0)

    def decide(self, unit: SqlTransaction, gtrid: bytes, record: bytes) -> Code:
        return unit.decide(self.table.insertion(gtrid, record))

    def first(self, outstanding: Sequence[Pending]) -> Pending:
        return outstanding[0]  # nothing is answered later here

    def break_off(self) -> None:
        """SQLAlchemy has no way for this that all drivers know: their own time-outs end the wait."""

    def close(self) -> None:
        self.table.close()
        self._engine.dispose()
