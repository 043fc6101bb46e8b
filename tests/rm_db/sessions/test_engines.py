"""These tests run code that uses an engine of its own and does not know our transactions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import transaction  # type: ignore[import-untyped]
import zope.sqlalchemy as zope_sqlalchemy  # type: ignore[import-untyped]
from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    insert,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from rm_db import take_part
from tm import ResourceConfig, RolledBack, TransactionManager
from tm.zope import join
from xa import XaMisuse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres import Postgres

METADATA = MetaData()
ORDERS = Table(
    "orders", METADATA, Column("id", Integer, primary_key=True), Column("words", String), Column("more", JSONB)
)


def place(engine: Engine, number: int) -> None:
    """Existing code, Core."""
    with engine.begin() as connection:
        connection.execute(insert(ORDERS).values(id=number, words="core", more={"a": [number]}))


def place_orm(engine: Engine, number: int) -> None:
    """Existing code, ORM."""
    with Session(engine) as session:
        session.execute(insert(ORDERS).values(id=number, words="orm"))
        session.commit()


def look(engine: Engine) -> list[int]:
    """Existing code that reads, and never ends its transaction."""
    with engine.connect() as connection:
        return list(connection.scalars(select(ORDERS.c.id).order_by(ORDERS.c.id)))


class Place:
    """A database, a manager, and an engine that takes part."""

    def __init__(self, url: str, manager: TransactionManager, engine: Engine) -> None:
        self.url = url
        self.manager = manager
        self.engine = engine

    def committed(self) -> list[int]:
        """The rows that everybody sees."""
        with psycopg.connect(self.url) as connection:
            return [number for (number,) in connection.execute("SELECT id FROM orders ORDER BY id")]


@pytest.fixture(params=["two-phase", "decider"])
def shop(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path) -> Iterator[Place]:
    url = postgres.create_database()
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    METADATA.create_all(engine)
    resources = {"shop": ResourceConfig(url, request.param), "other": ResourceConfig(postgres.create_database())}
    log = None if request.param == "decider" else f"file://{tmp_path}/log"
    with TransactionManager("node-1", log, resources, background=False) as manager:
        take_part(engine, manager, "shop")
        yield Place(url, manager, engine)
    with psycopg.connect(url) as connection:
        left = connection.execute("SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")
        assert left.fetchone() == (0,)
    engine.dispose()


def test_outside_of_any_transaction_it_is_the_engine_that_it_was(shop: Place) -> None:
    place(shop.engine, 1)
    assert shop.committed() == [1]
    assert look(shop.engine) == [1]


def test_its_work_is_committed_with_everything_else(shop: Place) -> None:
    with shop.manager.begin() as transaction:
        place(shop.engine, 1)
        place_orm(shop.engine, 2)
        transaction["shop"].execute(insert(ORDERS).values(id=3))
        transaction["other"].psycopg.execute("CREATE TABLE made (a int)")
        assert look(shop.engine) == [1, 2, 3]
        assert shop.committed() == []
    assert shop.committed() == [1, 2, 3]
    assert look(shop.engine) == [1, 2, 3]


def test_its_commit_is_not_the_last_word(shop: Place) -> None:
    with pytest.raises(LookupError), shop.manager.begin():
        place(shop.engine, 1)
        place_orm(shop.engine, 2)
        raise LookupError
    assert shop.committed() == []


def test_its_rollback_takes_back_its_own_piece(shop: Place) -> None:
    with shop.manager.begin():
        place(shop.engine, 1)
        with pytest.raises(IntegrityError):
            place(shop.engine, 1)
        with pytest.raises(IntegrityError):
            place_orm(shop.engine, 1)
        with shop.engine.connect() as connection:
            connection.execute(insert(ORDERS).values(id=5))  # and never commits
        raw = shop.engine.raw_connection()
        raw.cursor().execute("INSERT INTO orders VALUES (6)")
        raw.rollback()
        raw.cursor().execute("INSERT INTO orders VALUES (7)")
        raw.commit()
        raw.close()
        place(shop.engine, 2)
    assert shop.committed() == [1, 2, 7]


def test_many_small_transactions_in_one(shop: Place) -> None:
    with shop.manager.begin():
        for number in range(20):  # more often than psycopg executes a statement before it prepares it
            with shop.engine.connect() as connection:
                transaction = connection.begin()
                connection.execute(insert(ORDERS).values(id=number))
                (transaction.commit if number % 2 else transaction.rollback)()
    assert shop.committed() == list(range(1, 20, 2))


def test_overlapping_connections_that_do_not_nest_are_not_committed(shop: Place) -> None:
    """Two connections are one here. What can't be taken back by itself is not kept either."""
    with pytest.raises(RolledBack), shop.manager.begin():
        first, second = shop.engine.connect(), shop.engine.connect()
        first.execute(insert(ORDERS).values(id=1))
        second.execute(insert(ORDERS).values(id=2))
        first.commit()
        with pytest.raises(DBAPIError, match="does not exist"):
            second.rollback()
    assert shop.committed() == []


def test_the_end_of_the_transaction_stays_the_managers(shop: Place) -> None:
    with pytest.raises(RolledBack, match="'COMMIT' was refused"), shop.manager.begin():
        connection = shop.engine.connect()
        with pytest.raises(XaMisuse, match="the transaction manager ends this transaction"):
            connection.exec_driver_sql("COMMIT")
        connection.close()
        with pytest.raises(XaMisuse, match="autocommit"):
            shop.engine.connect().execution_options(isolation_level="AUTOCOMMIT")


def test_a_connection_that_is_kept_too_long_is_refused(shop: Place) -> None:
    with shop.manager.begin():
        connection = shop.engine.connect()
        connection.execute(select(ORDERS))
    with pytest.raises(XaMisuse, match="this session is over"):
        connection.execute(select(ORDERS))
    connection.close()


def test_the_engine_stays_an_engine(shop: Place) -> None:
    connected: list[object] = []
    event.listen(shop.engine, "connect", lambda connection, _: connected.append(connection))
    shop.engine.dispose()
    place(shop.engine, 1)
    assert len(connected) == 1
    assert "Pool size" in shop.engine.pool.status()
    with shop.manager.begin():
        place(shop.engine.execution_options(logging_token="x"), 2)  # noqa: S106 — no secret
    assert shop.committed() == [1, 2]


wiring = SimpleNamespace(manager=None)
"""Where an application has its transaction manager."""


def test_an_engine_takes_part_by_its_url(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres.create_database()
    monkeypatch.setitem(__import__("sys").modules, "app_wiring", wiring)
    engine = create_engine(
        f"{make_url(url).set(drivername='postgresql+psycopg')}?plugin=xabridge&xabridge_manager=app_wiring:manager"
        "&xabridge_resource=shop"
    )
    resources = {"shop": url, "other": postgres.create_database()}
    with TransactionManager("node-1", f"file://{tmp_path}/log", resources, background=False) as manager:
        wiring.manager = manager
        METADATA.create_all(engine)
        with pytest.raises(LookupError), manager.begin():
            place(engine, 1)
            raise LookupError
        with manager.begin():
            place(engine, 2)
        assert look(engine) == [2]
    engine.dispose()


@pytest.mark.parametrize(
    "settings", ["", "&xabridge_manager=app:manager", "&xabridge_manager=app&xabridge_resource=shop"]
)
def test_a_url_that_says_too_little(settings: str) -> None:
    with pytest.raises(ValueError, match="plugin=xabridge needs xabridge_manager=module:name"):
        create_engine(f"postgresql+psycopg://localhost/shop?plugin=xabridge{settings}")


def test_an_engine_of_another_kind_is_refused(tmp_path: Path) -> None:
    manager: Any = None
    with pytest.raises(ValueError, match="can't take part: make the engine with"):
        take_part(create_engine(f"sqlite:///{tmp_path}/x"), manager, "shop")


def test_a_resource_of_another_kind_is_refused(postgres: Postgres, tmp_path: Path) -> None:
    engine = create_engine(make_url(postgres.create_database()).set(drivername="postgresql+psycopg"))
    ledger = ResourceConfig(f"sqlite:///{tmp_path}/ledger.db", "decider")
    with TransactionManager("node-1", resources={"ledger": ledger}, background=False) as manager:
        take_part(engine, manager, "ledger")
        with pytest.raises(TypeError, match="ledger is SqlBranchConnection"), manager.begin():
            engine.connect()
    engine.dispose()


def test_a_session_of_zope_sqlalchemy_takes_part(shop: Place) -> None:
    """Its commit when it votes is the release of a savepoint: a no of ours takes its work back."""
    with Session(shop.engine) as session:
        zope_sqlalchemy.register(session, keep_session=True)
        for number, fails in ((1, False), (2, True)):
            transaction.begin()
            tx = join(shop.manager)
            session.execute(insert(ORDERS).values(id=number, words="zope"))
            zope_sqlalchemy.mark_changed(session)
            tx["other"].execute(text("CREATE TABLE IF NOT EXISTS made (a int PRIMARY KEY)"))
            if fails:
                tx.set_rollback_only("the test")
                with pytest.raises(RolledBack):
                    transaction.commit()
                transaction.abort()
            else:
                transaction.commit()
    assert shop.committed() == [1]


def test_attempts_try_a_serialization_failure_again_that_a_statement_raised(shop: Place) -> None:
    place(shop.engine, 1)
    for way in ("core", "psycopg", "orm"):
        tries = 0
        for attempt in transaction.manager.attempts(3):
            with attempt:
                tries += 1
                connection = join(shop.manager)["shop"].execution_options(isolation_level="SERIALIZABLE")
                connection.execute(select(ORDERS)).all()
                if tries == 1:
                    with psycopg.connect(shop.url) as somebody:
                        somebody.execute("UPDATE orders SET words = words || '!'")
                if way == "psycopg":
                    connection.psycopg.execute("UPDATE orders SET words = 'mine'")
                else:
                    (connection.orm if way == "orm" else connection).execute(update(ORDERS).values(words="mine"))
        assert tries == 2, way
    with psycopg.connect(shop.url) as connection:
        assert connection.execute("SELECT words FROM orders").fetchall() == [("mine",)]
