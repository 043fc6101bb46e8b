"""Shops: a kind of database in a transaction manager, with another database beside it so that a transaction goes the
whole way. It says what a test of asyncio sessions has to know of the kind.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pytest
from sqlalchemy import String, TextClause, make_url, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from tm import RolledBack

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tm import Transaction, TransactionManager
    from xabridge.testing.mariadb import MariaDB

PATIENCE_S = 60


class Base(DeclarativeBase):
    """The tests' tables."""


class Order(Base):
    """A row."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    words: Mapped[str] = mapped_column(String(50))


class Shop(Protocol):
    """The tables `orders` of the resource "shop" and `made` of the resource "other"."""

    tm: TransactionManager
    sleep: TextClause
    """A statement that takes longer than any test."""
    sleeping_rows: TextClause
    """The same as a query of several rows."""
    asleep: tuple[str, ...]
    """What the server calls them begins with one of these."""
    duplicate: str
    """What an error says of a key that is there already."""
    refused: Sequence[Callable[[Any], Awaitable[object]]]
    """What else ends a transaction, besides what all kinds of databases have."""

    def insert_with_driver(self, session: Any, number: int, words: str) -> Awaitable[None]:
        """By the driver's own connection."""
        ...

    def after_a_failure(self) -> AbstractContextManager[object]:
        """How a transaction ends in which a statement has failed."""
        ...

    def rows(self) -> list[tuple[int, str]]:
        """What is committed in the shop."""
        ...

    def made(self) -> list[int]:
        """What is committed in the other database."""
        ...

    def at_work(self, *what: str) -> bool:
        """Whether a session carries out a statement that begins with one of these."""
        ...

    def left(self) -> list[Any]:
        """What must not be left behind: branches and transactions."""
        ...


class MariaDBShop(Shop):
    """Two databases of a MariaDB, in two phases. A statement that fails is undone alone."""

    sleep = text("SELECT SLEEP(600)")
    sleeping_rows = text("SELECT SLEEP(600) FROM seq_1_to_10")
    asleep = ("SELECT SLEEP",)
    duplicate = "1062"
    refused = (
        lambda shop: shop.asyncio.execute(text("/*!50000 COMMIT */")),
        lambda shop: shop.asyncio.execute(text("CREATE TABLE t (a int)")),
        lambda shop: shop.asyncio.execute(text("SET autocommit = 1")),
        lambda shop: shop.asyncio.execute(text("LOCK TABLES orders READ")),
    )

    def __init__(self, server: MariaDB, urls: dict[str, str], tm: TransactionManager) -> None:
        self.server = server
        self.name = str(make_url(urls["shop"]).database)
        self.other = str(make_url(urls["other"]).database)
        self.tm = tm
        server.admin(f"CREATE TABLE {self.name}.orders (id integer PRIMARY KEY, words varchar(50)) ENGINE = InnoDB")
        server.admin(f"CREATE TABLE {self.other}.made (id integer PRIMARY KEY) ENGINE = InnoDB")

    async def insert_with_driver(self, session: Any, number: int, words: str) -> None:
        session.pymysql.cursor().execute("INSERT INTO orders VALUES (%s, %s)", (number, words))

    def after_a_failure(self) -> AbstractContextManager[object]:
        return nullcontext()

    def rows(self) -> list[tuple[int, str]]:
        return self.server.ask(f"SELECT id, words FROM {self.name}.orders ORDER BY id")  # noqa: S608 — a name of ours

    def made(self) -> list[int]:
        rows = self.server.ask(f"SELECT id FROM {self.other}.made ORDER BY id")  # noqa: S608 — a name of ours
        return [number for (number,) in rows]

    def at_work(self, *what: str) -> bool:
        at_work = self.server.ask("SELECT info FROM information_schema.processlist WHERE id <> CONNECTION_ID()")
        return any(str(info).startswith(what) for (info,) in at_work)

    def left(self) -> list[Any]:
        # InnoDB makes the table of its transactions anew only if nobody has read it for a tenth of a second.
        ask = "SELECT trx_mysql_thread_id, trx_query FROM information_schema.innodb_trx"
        if self.server.ask(ask):
            time.sleep(0.2)
        return [*self.server.ask("XA RECOVER"), *self.server.ask(ask)]


class PostgresShop(Shop):
    """Two databases of a PostgreSQL, one in two phases or deciding. A statement that fails ends the transaction."""

    sleep = text("SELECT pg_sleep(600)")
    sleeping_rows = text("SELECT pg_sleep(600) FROM generate_series(1, 10)")
    asleep = ("SELECT pg_sleep", "FETCH")
    duplicate = "duplicate key"
    refused = (
        lambda shop: shop.asyncio.psycopg.commit(),
        lambda shop: shop.asyncio.psycopg.rollback(),
        lambda shop: shop.asyncio.psycopg.close(),
        lambda shop: shop.asyncio.psycopg.set_autocommit(True),
        lambda shop: shop.asyncio.psycopg.execute("ROLLBACK"),
        lambda shop: shop.asyncio.psycopg.tpc_begin("x"),
        lambda shop: shop.asyncio.psycopg.tpc_prepare(),
        lambda shop: shop.asyncio.psycopg.tpc_commit(),
        lambda shop: shop.asyncio.psycopg.tpc_rollback(),
        lambda shop: shop.asyncio.psycopg.__aenter__(),
    )

    def __init__(self, urls: dict[str, str], tm: TransactionManager) -> None:
        self.urls = urls
        self.tm = tm
        self._ask("shop", "CREATE TABLE orders (id integer PRIMARY KEY, words text)")
        self._ask("other", "CREATE TABLE made (id integer PRIMARY KEY)")

    async def insert_with_driver(self, session: Any, number: int, words: str) -> None:
        await session.asyncio.psycopg.execute("INSERT INTO orders VALUES (%s, %s)", (number, words))

    def after_a_failure(self) -> AbstractContextManager[object]:
        return pytest.raises(RolledBack, match="23505")

    def rows(self) -> list[tuple[int, str]]:
        return self._ask("shop", "SELECT id, words FROM orders ORDER BY id")

    def made(self) -> list[int]:
        return [number for (number,) in self._ask("other", "SELECT id FROM made ORDER BY id")]

    def at_work(self, *what: str) -> bool:
        at_work = self._ask(
            "shop",
            "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
            " AND pid <> pg_backend_pid()",
        )
        return any(query.startswith(what) for (query,) in at_work)

    def left(self) -> list[Any]:
        return self._ask(
            "shop",
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() UNION ALL"
            " SELECT query FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND state LIKE '%transaction%'",
        )

    def _ask(self, resource: str, statement: str) -> list[Any]:
        with psycopg.connect(self.urls[resource]) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []


async def insert_other(tx: Transaction, number: int = 1) -> None:
    """Work in the other database."""
    await tx["other"].asyncio.execute(text("INSERT INTO made VALUES (:id)"), {"id": number})


async def until(happens: Callable[[], bool]) -> None:
    """Waits for it in a thread."""

    def wait() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not happens():
            assert time.monotonic() < deadline

    await asyncio.to_thread(wait)
