"""These tests try every way into a resource as the first one in a transaction, followed by every kind of ORM work that
is not flushed by hand. The work of the block must be committed, whichever way came first.

Each way meets one or two kinds of work in each database, and others in the next one; with XABRIDGE_POINTS=all it meets
every kind in each database.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, joinedload

from rm_db import take_part
from tests.event_loop import in_loop
from tests.rm_db.sessions.conftest import EVERYWHERE, OF_EVERY_KIND
from tests.rm_db.sessions.shops import Customer, Made, Order, Shop
from tm import Propagation, RolledBack, Transaction
from tm.zope import join
from xabridge.testing.contract.client import case

EVERY: Final = os.environ.get("XABRIDGE_POINTS") == "all"
Rows = tuple[list[tuple[int, str]], list[tuple[int, int]]]
BEFORE: Rows = ([(1, "Ada"), (2, "Boole")], [(10, 1)])


def begin_with(shop: Shop) -> None:
    """The rows that every transaction meets."""
    shop.empty()
    with shop.plain.begin() as connection:
        connection.execute(sa.insert(Customer), [{"id": 1, "name": "Ada"}, {"id": 2, "name": "Boole"}])
        connection.execute(sa.insert(Order).values(id=10, customer_id=1))


def rows(shop: Shop) -> Rows:
    """What is committed."""
    with shop.plain.connect() as connection:
        customers = connection.execute(sa.select(Customer.id, Customer.name).order_by(Customer.id)).all()
        orders = connection.execute(sa.select(Order.id, Order.customer_id).order_by(Order.id)).all()
    return [(row.id, row.name) for row in customers], [(row.id, row.customer_id or 0) for row in orders]


@dataclass(frozen=True)
class Here:
    """Where somebody comes in: a transaction that has just begun."""

    shop: Shop
    tx: Transaction


# --- the first ways in ------------------------------------------------------------------------------------------
def _listen(here: Here) -> None:
    heard: list[str] = []
    connection = here.tx["shop"]
    sa.event.listen(connection, "before_cursor_execute", lambda *args: heard.append(args[2]))
    connection.execute(sa.text("SELECT 1"))
    assert heard == ["SELECT 1"], "a listener that came before the connection was used is heard"


def _own_session(here: Here) -> None:
    session = Session(here.tx["shop"])
    assert session.get(Customer, 2) is not None
    session.commit()


def _savepoint(here: Here) -> None:
    with here.tx["shop"].begin_nested():
        here.tx["shop"].execute(sa.text("SELECT 1"))


def _engine(here: Here) -> None:
    engine = sa.create_engine(here.shop.url)
    take_part(engine, here.shop.tm, "shop")
    with Session(engine) as session:
        assert session.get(Customer, 2) is not None
        session.commit()
    engine.dispose()


def _suspended(here: Here) -> None:
    here.tx.enlist("shop")
    here.shop.tm.suspend()
    here.shop.tm.resume(here.tx)


FIRST: dict[str, Callable[[Here], object]] = {
    "nothing": lambda here: here,
    "the facade": lambda here: here.tx["shop"],
    "orm": lambda here: here.tx["shop"].orm,
    "orm in_transaction": lambda here: here.tx["shop"].orm.in_transaction(),
    "orm get": lambda here: here.tx["shop"].orm.get(Customer, 2),
    "orm connection": lambda here: here.tx["shop"].orm.connection(),
    "orm bind": lambda here: here.tx["shop"].orm.get_bind(),
    "orm execute": lambda here: here.tx["shop"].orm.execute(sa.text("SELECT 1")).all(),
    "orm begin_nested": lambda here: here.tx["shop"].orm.begin_nested().commit(),
    "execute": lambda here: here.tx["shop"].execute(sa.text("SELECT 1")).all(),
    "scalar": lambda here: here.tx["shop"].scalar(sa.text("SELECT 1")),
    "exec_driver_sql": lambda here: here.tx["shop"].exec_driver_sql("SELECT 1").all(),
    "connection": lambda here: here.tx["shop"].connection.cursor().close(),
    "engine": lambda here: here.tx["shop"].engine,
    "dialect": lambda here: here.tx["shop"].dialect,
    "info": lambda here: here.tx["shop"].info,
    "closed": lambda here: here.tx["shop"].closed,
    "in_transaction": lambda here: here.tx["shop"].in_transaction(),
    "get_transaction": lambda here: here.tx["shop"].get_transaction(),
    "execution_options": lambda here: here.tx["shop"].execution_options(stream_results=False),
    "begin_nested": _savepoint,
    "inspect": lambda here: sa.inspect(here.tx["shop"]).has_table("customers"),
    "listen": _listen,
    "a session of one's own": _own_session,
    "suspended": _suspended,
}
TWO_PHASE: dict[str, Callable[[Here], object]] = {
    "take_part": _engine,
    "asyncio": lambda here: here.tx["shop"].asyncio,
    "asyncio orm": lambda here: here.tx["shop"].asyncio.orm,
}
POSTGRES: dict[str, Callable[[Here], object]] = {
    "psycopg": lambda here: here.tx["shop"].psycopg,
    "psycopg execute": lambda here: here.tx["shop"].psycopg.execute("SELECT 1"),
    "asyncio psycopg": lambda here: here.tx["shop"].asyncio.psycopg,
}
MARIADB: dict[str, Callable[[Here], object]] = {
    "pymysql": lambda here: here.tx["shop"].pymysql,
    "pymysql execute": lambda here: here.tx["shop"].pymysql.cursor().execute("SELECT 1"),
}


def first(shop: Shop) -> dict[str, Callable[[Here], object]]:
    """The ways that this database has."""
    by_driver: dict[str | None, dict[str, Callable[[Here], object]]] = {
        "psycopg": FIRST | TWO_PHASE | POSTGRES,
        "pymysql": FIRST | TWO_PHASE | MARIADB,
    }
    return by_driver.get(shop.driver, FIRST)


# --- the work behind it -----------------------------------------------------------------------------------------
def _change(orm: Session) -> Rows:
    orm.get_one(Customer, 1).name = "changed"
    return [(1, "changed"), (2, "Boole")], [(10, 1)]


def _add(orm: Session) -> Rows:
    orm.add(Customer(id=3, name="new"))
    return [(1, "Ada"), (2, "Boole"), (3, "new")], [(10, 1)]


def _delete(orm: Session) -> Rows:
    orm.delete(orm.get_one(Customer, 2))
    return [(1, "Ada")], [(10, 1)]


def _delete_cascading(orm: Session) -> Rows:
    orm.delete(orm.get_one(Customer, 1, options=[joinedload(Customer.orders)]))
    return [(2, "Boole")], []


def _bulk(orm: Session) -> Rows:
    orm.execute(sa.insert(Customer), [{"id": 3, "name": "c"}, {"id": 4, "name": "d"}])
    orm.execute(sa.update(Customer).where(Customer.id > 2).values(name="bulk"))
    orm.execute(sa.delete(Customer).where(Customer.id == 4))
    orm.bulk_save_objects([Customer(id=5, name="e")])
    return [(1, "Ada"), (2, "Boole"), (3, "bulk"), (5, "e")], [(10, 1)]


def _relationship(orm: Session) -> Rows:
    customer = orm.get_one(Customer, 1, options=[joinedload(Customer.orders)])
    customer.orders.clear()
    customer.orders.append(Order(id=11))
    orm.add(Customer(id=3, name="with two", orders=[Order(id=12), Order(id=13)]))
    return [(1, "Ada"), (2, "Boole"), (3, "with two")], [(11, 1), (12, 3), (13, 3)]


def _in_a_savepoint(orm: Session) -> Rows:
    with orm.begin_nested():
        orm.get_one(Customer, 1).name = "in a savepoint"
    orm.add(Customer(id=3, name="behind it"))
    return [(1, "in a savepoint"), (2, "Boole"), (3, "behind it")], [(10, 1)]


def _savepoint_undone(orm: Session) -> Rows:
    orm.get_one(Customer, 1).name = "kept"
    with pytest.raises(LookupError), orm.begin_nested():
        orm.get_one(Customer, 2).name = "taken back"
        orm.flush()
        raise LookupError
    return [(1, "kept"), (2, "Boole")], [(10, 1)]


def _error_in_a_savepoint(orm: Session) -> Rows:
    orm.get_one(Customer, 1).name = "kept"
    with pytest.raises(sa.exc.IntegrityError), orm.begin_nested():
        orm.execute(sa.insert(Customer).values(id=2, name="again"))
    return [(1, "kept"), (2, "Boole")], [(10, 1)]


def _merge(orm: Session) -> Rows:
    orm.merge(Customer(id=1, name="merged", orders=[Order(id=10)]))
    return [(1, "merged"), (2, "Boole")], [(10, 1)]


WORK: dict[str, Callable[[Session], Rows]] = {
    "change": _change,
    "add": _add,
    "delete": _delete,
    "delete cascading": _delete_cascading,
    "bulk": _bulk,
    "relationship": _relationship,
    "savepoint": _in_a_savepoint,
    "savepoint undone": _savepoint_undone,
    "error in a savepoint": _error_in_a_savepoint,
    "merge": _merge,
}


def _flush_error(orm: Session) -> None:
    orm.get_one(Customer, 1).name = "never"
    orm.add(Order(id=14, customer_id=1))
    orm.add(Order(id=10, customer_id=2))


def _swallowed_flush_error(orm: Session) -> None:
    _flush_error(orm)
    with pytest.raises(sa.exc.IntegrityError):
        orm.flush()


FAILING: dict[str, Callable[[Session], None]] = {
    "an error in the flush": _flush_error,
    "one that is swallowed": _swallowed_flush_error,
}
T = TypeVar("T")


def here(shop: Shop, ways: dict[str, Callable[[Here], Any]]) -> dict[str, Callable[[Here], Any]]:
    """A third of the ways, which begins elsewhere in each database: for ends of a transaction that are the same in
    all."""
    return ways if EVERY else dict(list(ways.items())[OF_EVERY_KIND.index(shop.kind) % 3 :: 3])


def some(
    shop: Shop, ways: dict[str, Callable[[Here], Any]], of: dict[str, Callable[[Session], T]]
) -> Iterator[tuple[str, Callable[[Here], Any], Callable[[Session], T]]]:
    """Every way, with a share of the kinds of work, which begins elsewhere in each database and with each way."""
    kinds = list(of.items())
    share = len(kinds) if EVERY else 1
    for number, (way, come) in enumerate(ways.items()):
        for turn in range(share):
            kind, work = kinds[(number + share * OF_EVERY_KIND.index(shop.kind) + turn) % len(kinds)]
            yield f"{way} first, then {kind}", come, work


def _also_elsewhere(tx: Transaction, turn: int) -> None:
    """Alone, a branch is committed in one phase; with another it goes the whole way."""
    if turn % 2:
        tx["other"].execute(sa.insert(Made).values(id=turn))


# --- the matrix -------------------------------------------------------------------------------------------------
def test_what_the_orm_did_is_committed_whichever_way_came_first(shop: Shop) -> None:
    for turn, (told, come, work) in enumerate(some(shop, first(shop), WORK)):
        begin_with(shop)
        with shop.tm.begin() as tx:
            come(Here(shop, tx))
            _also_elsewhere(tx, turn)
            after = work(tx["shop"].orm)
        assert rows(shop) == after, told


def test_every_way_sees_the_session_that_is_flushed(shop: Shop) -> None:
    """The ORM comes first, then another way: it is the same session before and after."""
    for way, come in first(shop).items():
        begin_with(shop)
        with shop.tm.begin() as tx:
            orm = tx["shop"].orm
            orm.get_one(Customer, 1).name = "changed"
            come(Here(shop, tx))
            assert (tx["shop"].orm is orm) == (way != "suspended"), way
        assert rows(shop)[0][0] == (1, "changed"), way


def test_an_error_in_the_flush_rolls_everything_back(shop: Shop) -> None:
    """SQLAlchemy rolls back behind it, and the one who is told of the rollback has to know why."""
    why = "UNIQUE constraint failed|[Dd]uplicate|23505"
    begin_with(shop)
    for turn, (told, come, work) in enumerate(some(shop, here(shop, first(shop)), FAILING)):
        with case(told), pytest.raises(RolledBack, match=why), shop.tm.begin() as tx:
            come(Here(shop, tx))
            _also_elsewhere(tx, turn)
            work(tx["shop"].orm)
        assert rows(shop) == BEFORE, told


def test_a_block_that_raises_writes_nothing(shop: Shop) -> None:
    begin_with(shop)
    for way, come in here(shop, first(shop)).items():
        with pytest.raises(LookupError), shop.tm.begin() as tx:
            come(Here(shop, tx))
            _change(tx["shop"].orm)
            tx["shop"].orm.flush()
            raise LookupError
        assert rows(shop) == BEFORE, way


def test_what_the_orm_did_is_committed_in_a_transaction_of_zopes(shop: Shop) -> None:
    transaction = pytest.importorskip("transaction")
    for told, come, work in some(shop, here(shop, first(shop)), WORK):
        begin_with(shop)
        transaction.begin()
        tx = join(shop.tm)
        come(Here(shop, tx))
        after = work(tx["shop"].orm)
        transaction.commit()
        assert rows(shop) == after, told


def test_what_the_orm_did_is_committed_by_decorated_functions(shop: Shop) -> None:
    """A function with a transaction of its own suspends the caller's, in the middle of the ORM's work."""
    numbers = count()

    @shop.tm.transactional(propagation=Propagation.REQUIRES_NEW)
    def apart() -> None:
        shop.tm["other"].execute(sa.insert(Made).values(id=next(numbers)))

    @shop.tm.transactional
    def whole(come: Callable[[Here], object], work: Callable[[Session], Rows]) -> Rows:
        tx = shop.tm.get_transaction()
        come(Here(shop, tx))
        after = work(tx["shop"].orm)
        apart()
        return after

    for told, come, work in some(shop, here(shop, first(shop)), WORK):
        begin_with(shop)
        after = whole(come, work)
        assert rows(shop) == after, told


# --- asyncio ----------------------------------------------------------------------------------------------------
async def _async_engine(here: Here) -> None:
    engine = create_async_engine(here.shop.url)
    take_part(engine, here.shop.tm, "shop")
    async with engine.connect() as connection:
        await connection.execute(sa.text("SELECT 1"))
        await connection.commit()
    await engine.dispose()


async def _async_savepoint(here: Here) -> None:
    async with here.tx["shop"].asyncio.begin_nested():
        await here.tx["shop"].asyncio.execute(sa.text("SELECT 1"))


async def _raw(here: Here) -> None:
    await here.tx["shop"].asyncio.get_raw_connection()


async def _stream(here: Here) -> None:
    async with here.tx["shop"].asyncio.stream(sa.select(Customer.id)) as rows:
        assert [row.id async for row in rows] == [1, 2]


AWAITED: dict[str, Callable[[Here], Any]] = {
    "asyncio execute": lambda here: here.tx["shop"].asyncio.execute(sa.text("SELECT 1")),
    "asyncio scalar": lambda here: here.tx["shop"].asyncio.scalar(sa.text("SELECT 1")),
    "asyncio exec_driver_sql": lambda here: here.tx["shop"].asyncio.exec_driver_sql("SELECT 1"),
    "asyncio run_sync": lambda here: here.tx["shop"].asyncio.run_sync(lambda c: sa.inspect(c).has_table("orders")),
    "asyncio begin_nested": _async_savepoint,
    "asyncio get_raw_connection": _raw,
    "asyncio orm get": lambda here: here.tx["shop"].asyncio.orm.get(Customer, 2),
    "asyncio orm connection": lambda here: here.tx["shop"].asyncio.orm.connection(),
    "asyncio orm execute": lambda here: here.tx["shop"].asyncio.orm.execute(sa.text("SELECT 1")),
    "asyncio orm run_sync": lambda here: here.tx["shop"].asyncio.orm.run_sync(lambda s: s.get(Customer, 2)),
    "aenlist": lambda here: here.tx.aenlist("shop"),
}
AWAITED_POSTGRES: dict[str, Callable[[Here], Any]] = {
    "asyncio psycopg execute": lambda here: here.tx["shop"].asyncio.psycopg.execute("SELECT 1"),
    "take_part asyncio": _async_engine,
}
AWAITED_MARIADB: dict[str, Callable[[Here], Any]] = {"asyncio stream": _stream}


def awaited(shop: Shop) -> dict[str, Callable[[Here], Any]]:
    """The ways of this database that are awaited."""
    return AWAITED | (AWAITED_POSTGRES if shop.driver == "psycopg" else AWAITED_MARIADB)


async def came(come: Callable[[Here], Any], shop: Shop, tx: Transaction) -> None:
    """Comes in that way."""
    coming = come(Here(shop, tx))
    if come in awaited(shop).values():
        await coming


over_asyncio = pytest.mark.parametrize("shop", EVERYWHERE, indirect=True)
"""The sessions of the others can't be awaited."""


@over_asyncio
@in_loop
async def test_what_the_orm_did_is_committed_whichever_way_tasks_came_first(shop: Shop) -> None:
    for turn, (told, come, work) in enumerate(some(shop, first(shop) | awaited(shop), WORK)):
        begin_with(shop)
        async with shop.tm.begin() as tx:
            await came(come, shop, tx)
            _also_elsewhere(tx, turn)
            after = await tx["shop"].asyncio.orm.run_sync(work)
        assert rows(shop) == after, told


@over_asyncio
@in_loop
async def test_an_error_in_the_flush_of_a_task_rolls_everything_back(shop: Shop) -> None:
    begin_with(shop)
    for told, come, work in some(shop, here(shop, first(shop) | awaited(shop)), FAILING):
        with case(told), pytest.raises(RolledBack):
            async with shop.tm.begin() as tx:
                await came(come, shop, tx)
                await tx["shop"].asyncio.orm.run_sync(work)
        assert rows(shop) == BEFORE, told


@over_asyncio
@in_loop
async def test_what_tasks_left_to_the_flush_survives_a_suspension(shop: Shop) -> None:
    """Suspending flushes on the event loop's own thread, where nothing can be awaited."""
    numbers = count()

    @shop.tm.transactional(propagation=Propagation.REQUIRES_NEW)
    async def apart() -> None:
        await shop.tm["other"].asyncio.execute(sa.insert(Made).values(id=next(numbers)))

    for told, come, work in some(shop, here(shop, first(shop) | awaited(shop)), WORK):
        begin_with(shop)
        async with shop.tm.begin() as tx:
            await came(come, shop, tx)
            after = await tx["shop"].asyncio.orm.run_sync(work)
            await apart()
        assert rows(shop) == after, told
