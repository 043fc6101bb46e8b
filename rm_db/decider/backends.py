"""What a deciding database uses to do its work: psycopg for PostgreSQL, SQLAlchemy for every other database.

PostgreSQL has the faster way: the work is a `PostgresTransaction`, the same class that `PostgresResource` prepares, and
the decision is sent in one message with the commit.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import URL

from rm_db.address import DECIDER_PREFIX, Address
from rm_db.decider import mysql
from rm_db.decider.decision_table import DECIDED, DecisionTable
from rm_db.decider.engine import TABLE_CONNECTIONS, guard, make_engine, parse_url
from rm_db.decider.errors import from_dbapi
from rm_db.decider.transaction import SqlTransaction
from rm_db.postgres.database import PostgresDatabase
from rm_db.resource import Place

if TYPE_CHECKING:
    from rm_db.postgres.libpq import Steps
    from rm_db.postgres.pool import Outstanding
    from rm_db.postgres.transaction import PostgresTransaction
    from xa import Code, Xid


logger = logging.getLogger("xabridge.rm_db")


class DeciderBackend(Place, Protocol):
    """Where the work of a deciding database is done."""

    @property
    def table(self) -> DecisionTable:
        """Where its decisions are."""
        ...

    def reach(self) -> None:
        """Reaches the database; raises what `open` raises."""
        ...

    def decide(self, work: Any, gtrid: bytes, record: bytes) -> Steps[Code]:
        """Commits work that `begin` made, with the decision."""
        ...


class PostgresBackend:
    """PostgreSQL through psycopg."""

    def __init__(self, address: Address, outstanding: Outstanding) -> None:
        url = address.url.removeprefix(DECIDER_PREFIX)
        plain = Address(url, address.pool_size, address.pool_wait_s, address.reply_s, address.pooled)
        self._server = PostgresDatabase(plain, outstanding)
        self.table = DecisionTable(
            make_engine(
                URL.create("postgresql+psycopg"), TABLE_CONNECTIONS, address.pool_wait_s, creator=self._server.connect
            )
        )
        self.reply_s = address.reply_s
        self.begin = self._server.begin
        self._into = b""

    def reach(self) -> None:
        self._server.probe()

    def decide(self, work: PostgresTransaction, gtrid: bytes, record: bytes) -> Steps[Code]:
        if not self._into:
            self._into = self.table.insert_into().encode()
        # a literal: calling decode() costs the server as much as the rest of the insertion
        values = f" VALUES ('{gtrid.hex()}', '{DECIDED}', E'\\\\x{record.hex()}')"
        return work.decide(self._into + values.encode("ascii"))

    def close(self) -> None:
        self.table.close()
        self._server.close()


class SqlBackend:
    """Any other database, through SQLAlchemy."""

    def __init__(self, address: Address) -> None:
        url = parse_url(address)
        self._engine = make_engine(url, address.pool_size, address.pool_wait_s)
        guard(self._engine)
        self.reply_s = address.reply_s
        options = {"isolation_level": mysql.ISOLATION} if self._engine.dialect.name in mysql.DIALECTS else {}
        self.table = DecisionTable(make_engine(url, TABLE_CONNECTIONS, address.pool_wait_s, **options))

    def reach(self) -> None:
        """As `DeciderBackend` says: opening the table reaches it, where nothing is to be asked."""
        if self._engine.dialect.name in mysql.DIALECTS:
            with from_dbapi("open"), self._engine.connect() as connection:
                for weakness, mend in mysql.weaknesses(connection):
                    logger.warning("%s: a crash of the server's machine can lose a decision; %s", weakness, mend)

    def begin(self, xid: Xid, *, wait: bool) -> SqlTransaction:
        return SqlTransaction(xid, self._engine, wait=wait)

    def decide(self, work: SqlTransaction, gtrid: bytes, record: bytes) -> Steps[Code]:
        return work.decide(self.table.insertion(gtrid, record))

    def close(self) -> None:
        self.table.close()
        self._engine.dispose()
