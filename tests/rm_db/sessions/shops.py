"""Shops: a kind of database in a transaction manager, with another database beside it so that a transaction goes the
whole way. It says what a test of sessions has to know of the kind. Its databases are the same for the whole session.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

import pytest
from sqlalchemy import (
    JSON,
    URL,
    Engine,
    ForeignKey,
    String,
    create_engine,
    delete,
    make_url,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from tests import waiting
from tests.memory_disk import new_folder
from tests.postgres import Postgres
from tm import ResourceConfig, RolledBack, Transaction, TransactionManager
from xabridge.testing.mariadb import MariaDB

PATIENCE_S = 60
Mode: TypeAlias = Literal["two-phase", "decider"]
DRIVERS = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+pymysql"}


class Base(DeclarativeBase):
    """The tests' tables."""


class Customer(Base):
    """Has orders."""

    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(50))
    orders: Mapped[list[Order]] = relationship(back_populates="customer", cascade="all, delete-orphan")


class Order(Base):
    """A row of the resource "shop"; may be a customer's."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    words: Mapped[str | None] = mapped_column(String(50))
    more: Mapped[Any | None] = mapped_column(JSON().with_variant(JSONB(), "postgresql"))
    customer_id: Mapped[int | None] = mapped_column(ForeignKey("customers.id"))
    customer: Mapped[Customer | None] = relationship(back_populates="orders")


class Made(Base):
    """A row of the resource "other"."""

    __tablename__ = "made"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Shop:
    """The tables `orders` and `made` of two resources. `tm` is there while the shop is open."""

    kind: str
    tm: TransactionManager
    driver: str | None = None
    """That of the sessions that can be awaited, and in whose engines take part."""
    sleep: str
    """A statement that takes longer than any test."""
    asleep: tuple[str, ...]
    """What the server calls them begins with one of these."""
    duplicate: str
    """What an error says of a key that is there already."""
    close_gate: str
    """Statements `wait` wait until the session of this one has ended."""
    wait: str
    refused: Sequence[Callable[[Any], Awaitable[object]]]
    """What else ends a transaction, besides what all kinds of databases have."""

    def __init__(self, shop: str, other: str, mode: Mode) -> None:
        self.addresses = {"shop": ResourceConfig(shop, mode), "other": ResourceConfig(other)}
        self._in_file = mode != "decider"
        self.url = driver_url(shop)
        self.plain = self.engine(self.url)
        self._other = self.engine(driver_url(other))
        for engine in (self.plain, self._other):
            Base.metadata.create_all(engine)

    def engine(self, url: URL) -> Engine:
        """One that is not in any transaction of ours. It looks whether the server has been killed meanwhile."""
        return create_engine(url, pool_pre_ping=True)

    @contextmanager
    def open(self, folder: Path) -> Iterator[None]:
        """With empty tables, in a manager; nothing is left in it."""
        self.empty()
        log = f"file://{folder}/log" if self._in_file else None
        with TransactionManager("node-1", log, self.addresses, background=False) as self.tm:
            yield
            assert self.tm.recover().clean
            assert self.left() == []

    def close(self) -> None:
        """The end."""
        self.plain.dispose()
        self._other.dispose()

    def empty(self) -> None:
        """Removes every row."""
        for engine, tables in ((self.plain, (Order, Customer)), (self._other, (Made,))):
            with engine.begin() as connection:
                for table in tables:
                    connection.execute(delete(table))

    def rows(self) -> list[tuple[int, str | None]]:
        """What is committed in the shop."""
        with self.plain.connect() as connection:
            return [(row.id, row.words) for row in connection.execute(select(Order.id, Order.words).order_by(Order.id))]

    def ids(self) -> list[int]:
        """The numbers of what is committed in the shop."""
        return [number for number, _ in self.rows()]

    def made(self) -> list[int]:
        """What is committed in the other database."""
        with self._other.connect() as connection:
            return list(connection.scalars(select(Made.id).order_by(Made.id)))

    def insert_with_driver(self, session: Any, number: int, words: str) -> Awaitable[None]:
        """By the driver's own connection."""
        raise NotImplementedError

    def after_a_failure(self) -> AbstractContextManager[object]:
        """How a transaction ends in which a statement has failed."""
        raise NotImplementedError

    def at_work(self, *what: str) -> bool:
        """Whether a session carries out a statement that begins with one of these."""
        raise NotImplementedError

    def waits(self) -> bool:
        """Whether a session waits before the gate."""
        raise NotImplementedError

    def left(self) -> list[Any]:
        """What must not be left behind: branches and transactions."""
        raise NotImplementedError


class MariaDBShop(Shop):
    """Two databases of a MariaDB, in two phases. A statement that fails is undone alone."""

    sleep = "SELECT SLEEP(600) FROM seq_1_to_10"
    asleep = ("SELECT SLEEP",)
    duplicate = "1062"
    close_gate = "SELECT GET_LOCK('gate', 0)"
    wait = "SELECT GET_LOCK('gate', 600)"
    refused = (
        lambda shop: shop.asyncio.execute(text("/*!50000 COMMIT */")),
        lambda shop: shop.asyncio.execute(text("CREATE TABLE t (a int)")),
        lambda shop: shop.asyncio.execute(text("SET autocommit = 1")),
        lambda shop: shop.asyncio.execute(text("LOCK TABLES orders READ")),
    )

    def __init__(self, server: MariaDB, mode: Mode) -> None:
        self.server = server
        self.driver = "pymysql" if mode == "two-phase" else None
        super().__init__(
            server.create_database("mariadb" if self.driver else "mysql+pymysql"), server.create_database(), mode
        )

    def engine(self, url: URL) -> Engine:
        # Without TLS, because PyMySQL would read all certificates of the system for each connection.
        return create_engine(url, pool_pre_ping=True, connect_args={"ssl_disabled": True})

    async def insert_with_driver(self, session: Any, number: int, words: str) -> None:
        session.pymysql.cursor().execute("INSERT INTO orders (id, words) VALUES (%s, %s)", (number, words))

    def after_a_failure(self) -> AbstractContextManager[object]:
        return nullcontext()

    def at_work(self, *what: str) -> bool:
        at_work = self.server.ask("SELECT info FROM information_schema.processlist WHERE id <> CONNECTION_ID()")
        return any(str(info).startswith(what) for (info,) in at_work)

    def waits(self) -> bool:
        return bool(self.server.ask("SELECT 1 FROM information_schema.processlist WHERE state = 'User lock'"))

    def until_somebody_waits_for_a_lock(self) -> None:
        """Asks seldom: InnoDB makes the table anew only if nobody has read it for a tenth of a second."""
        while not self.server.ask("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"):
            time.sleep(0.15)

    def left(self) -> list[Any]:
        # InnoDB makes the table of its transactions anew only if nobody has read it for a tenth of a second.
        ask = "SELECT trx_mysql_thread_id, trx_query FROM information_schema.innodb_trx"
        if self.server.ask(ask):
            time.sleep(0.2)
        return [*self.server.ask("XA RECOVER"), *self.server.ask(ask)]


class PostgresShop(Shop):
    """Two databases of a PostgreSQL, one in two phases or deciding. A statement that fails ends the transaction."""

    driver = "psycopg"
    sleep = "SELECT pg_sleep(600) FROM generate_series(1, 10)"
    asleep = ("SELECT pg_sleep", "FETCH")
    duplicate = "duplicate key"
    close_gate = "SELECT pg_advisory_lock(4711)"
    wait = "SELECT pg_advisory_xact_lock(4711)"
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

    def __init__(self, server: Postgres, mode: Mode) -> None:
        super().__init__(server.create_database(), server.create_database(), mode)

    async def insert_with_driver(self, session: Any, number: int, words: str) -> None:
        await session.asyncio.psycopg.execute("INSERT INTO orders VALUES (%s, %s)", (number, words))

    def after_a_failure(self) -> AbstractContextManager[object]:
        return pytest.raises(RolledBack, match="23505")

    def at_work(self, *what: str) -> bool:
        at_work = self._ask(
            "SELECT query FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
            " AND pid <> pg_backend_pid()"
        )
        return any(query.startswith(what) for (query,) in at_work)

    def waits(self) -> bool:
        waiting = (
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return bool(self._ask(waiting))

    def left(self) -> list[Any]:
        return self._ask(
            "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() UNION ALL"
            " SELECT query FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND state LIKE '%transaction%'"
        )

    def _ask(self, statement: str) -> list[Any]:
        with self.plain.connect() as connection:
            return list(connection.execute(text(statement)))


class SqliteShop(Shop):
    """A file that decides, beside a database of a PostgreSQL."""

    sleep = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT count(*) FROM n"

    def __init__(self, server: Postgres, mode: Mode) -> None:
        super().__init__(f"sqlite:///{new_folder('shop')}/shop.db", server.create_database(), mode)

    def left(self) -> list[Any]:
        return []


class Gate:
    """Statements `wait` of the shop wait before it until it is opened, or the block is left."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self._holder = shop.plain.connect()
        self._holder.exec_driver_sql(shop.close_gate)

    async def until_someone_waits(self) -> None:
        """... before it."""
        await until(self._shop.waits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()

    def open(self) -> None:
        """For good."""
        if not self._holder.closed:
            self._holder.invalidate()
            self._holder.close()


async def _streamed(session: Any, statement: str) -> None:
    async with session.asyncio.stream(text(statement)) as rows:
        async for _ in rows:
            pass


async def _in_a_savepoint(session: Any, statement: str) -> None:
    async with session.asyncio.begin_nested():
        await session.asyncio.execute(text(statement))


async def _in_psycopgs_savepoint(session: Any, statement: str) -> None:
    async with session.asyncio.psycopg.transaction():
        await session.asyncio.psycopg.execute(statement)


WAYS: dict[str, Callable[[Any, str], Awaitable[object]]] = {
    "core": lambda session, statement: session.asyncio.execute(text(statement)),
    "driver sql": lambda session, statement: session.asyncio.exec_driver_sql(statement),
    "stream": _streamed,
    "savepoint": _in_a_savepoint,
    "run_sync": lambda session, statement: session.asyncio.run_sync(lambda sync: sync.execute(text(statement))),
    "orm": lambda session, statement: session.asyncio.orm.execute(text(statement)),
    "thread": lambda session, statement: asyncio.to_thread(session.execute, text(statement)),
}
"""How a task carries out a query in a session."""
WAYS_OF_PSYCOPG: dict[str, Callable[[Any, str], Awaitable[object]]] = {
    "psycopg": lambda session, statement: session.asyncio.psycopg.execute(statement),
    "psycopg in a savepoint": _in_psycopgs_savepoint,
}


def ways_of(shop: Shop) -> dict[str, Callable[[Any, str], Awaitable[object]]]:
    """Those that its database has."""
    return WAYS | (WAYS_OF_PSYCOPG if shop.driver == "psycopg" else {})


def driver_url(address: str) -> URL:
    """The URL of an engine for what a resource manager calls so."""
    url = make_url(address)
    return url.set(drivername=DRIVERS.get(url.drivername, url.drivername))


async def insert_other(tx: Transaction, number: int = 1) -> None:
    """Work in the other database."""
    await tx["other"].asyncio.execute(text("INSERT INTO made VALUES (:id)"), {"id": number})


async def until(happens: Callable[[], bool]) -> None:
    """Waits for it in a thread."""
    await asyncio.to_thread(waiting.until, happens)
