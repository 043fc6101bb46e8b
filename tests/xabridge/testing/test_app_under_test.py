"""These tests use what tests of applications use: failures on demand, time that is moved, the fixture, and a broker in
the process. And they kill an application at each point that docs/testing.md names. After each failure everything has
to be as after a real one.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rm_amqp import NoMessage
from tests.postgres import Postgres
from tests.programs import output_of
from tests.xabridge.app.shop import NOWHERE, Invoice, Shop, rows, set_up
from tm.consumer.worker import HandlerCancelled
from xa import XaError
from xabridge import (
    App,
    Broker,
    Configuration,
    ConfigurationError,
    Message,
    OutcomeUnknown,
    ProtocolMisuse,
    ResourceConfig,
    RolledBack,
    TransactionError,
    TransactionManager,
    Tx,
)
from xabridge.app.app import find_app
from xabridge.testing import Killed, TestApp, TestBroker


@dataclass
class Order:
    """What comes."""

    number: int


def an_app(shop: str | ResourceConfig = "postgresql://nowhere.invalid/shop") -> App:
    app = App(Configuration("shop-1", "file:///nowhere", {"broker": "amqps://nowhere.invalid", "shop": shop}))

    @app.consumer("orders", max_deliveries=3)
    def handle(order: Order, tx: Shop) -> None:
        tx.shop.execute(text("INSERT INTO orders VALUES (:number)"), {"number": order.number})
        tx.send("invoices", Invoice(order.number))
        if order.number < 0:
            raise LookupError(order.number)

    return app


@pytest.fixture
def test() -> Iterator[TestApp]:
    with TestApp(an_app()) as test:
        set_up(test)
        yield test


@pytest.mark.parametrize("resource", ["shop", "broker"])
@pytest.mark.parametrize("at", ["start", "prepare"])
def test_a_resource_that_votes_no_or_is_away_leaves_nothing_half_done(test: TestApp, resource: str, at: str) -> None:
    test.fail(resource, at=at)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="as the test wants") as failed:
        test.deliver("orders", Order(1))
    assert at == "start" or isinstance(failed.value, RolledBack)
    assert (rows(test), test.sent("invoices"), test.waiting("orders")) == ([], [], 1)
    test.deliver("orders")
    assert (rows(test), test.sent("invoices"), test.waiting("orders")) == ([1], [Invoice(1)], 0)


def test_what_keeps_failing_becomes_a_dead_letter(test: TestApp) -> None:
    for _ in range(3):
        with pytest.raises(LookupError):
            test.deliver("orders", *([Order(-1)] if not test.waiting("orders") else []))
    assert test.waiting("orders") == 1
    test.deliver("orders")
    assert test.dead("orders") == ["LookupError: -1"]
    assert (rows(test), test.waiting("orders")) == ([], 0)


def test_assert_sent_says_what_there_is(test: TestApp) -> None:
    test.deliver("orders", Order(1))
    with pytest.raises(AssertionError, match=r"invoices has \[Invoice\(order=1\)\], expected \[Invoice\(order=2\)\]"):
        test.assert_sent("invoices", Invoice(2))
    with pytest.raises(AssertionError):
        test.assert_sent("invoices")
    assert test.sent("invoices", dict) == [{"order": 1}]
    with test.manager.begin() as tx:
        tx.send("letters", "soon of no use", ttl=60.0)
        tx.send("letters", "of use")
    test.advance(61)
    assert test.sent("letters") == ["of use"], "time is moved"


@pytest.mark.parametrize(("order", "error"), [(1, SystemExit), (2, HandlerCancelled)])
def test_a_coroutine_that_cancels_its_task_or_exits_ends_no_loop_of_a_test(
    order: int, error: type[BaseException]
) -> None:
    app = App(NOWHERE)

    @app.consumer("orders", dead_letter="")
    async def take(number: int) -> None:
        if number == 1:
            sys.exit(3)
        if task := asyncio.current_task():
            task.cancel()
        await asyncio.sleep(0)

    async def within(test: TestApp) -> None:
        with pytest.raises(error):
            await test.adeliver("orders", order)

    with TestApp(app) as test:
        asyncio.run(within(test))
    with TestApp(app) as test, pytest.raises(error):
        test.deliver("orders", order)


def test_what_it_does_not_know_is_told(test: TestApp) -> None:
    with pytest.raises(ConfigurationError, match=r"no consumer of this name \(it has: orders\)"):
        test.deliver("invoices", 1)
    with pytest.raises(Exception, match="no resource 'shopp' is configured"):
        test.fail("shopp", at="prepare")
    with pytest.raises(ValueError, match="expected 'start' or"):
        test.fail("shop", at="vote")  # type: ignore[arg-type]
    two = {"broker": "amqp://x", "shop": "postgresql://x/y", "stock": "mariadb://x/y"}
    app = App(Configuration("n", None, two))
    with pytest.raises(ConfigurationError, match="one database can be SQLite"), TestApp(app):
        pass


@pytest.mark.parametrize("only", ["asyncio", "psycopg", "sql"])
def test_what_sqlite_does_not_have_is_named(only: str) -> None:
    app = App(NOWHERE)

    @app.consumer("orders")
    def handle(number: int, tx: Tx) -> None:
        if number == 2:
            raise LookupError
        if only == "sql":
            tx["shop"].exec_driver_sql("SELECT '1'::text")
        getattr(tx["shop"], only)

    with TestApp(app) as test:
        with pytest.raises((AttributeError, XaError, DBAPIError)) as failed:
            test.deliver("orders", 1)
        (note,) = failed.value.__notes__
        assert note.startswith("shop: SQLite in this test; ")
        assert note.endswith("TestApp(app, postgres=True)")
    with TestApp(app) as test:
        with pytest.raises(LookupError) as other:
            test.deliver("orders", 2)
        assert not hasattr(other.value, "__notes__")


def test_a_broker_in_the_process(tmp_path: Path) -> None:
    with TestBroker() as broker, TransactionManager("n", f"file://{tmp_path / 'log'}", {"broker": broker.url}) as tm:
        with tm.begin() as tx:
            tx["broker"].send("q", Message("a"))
        assert broker.waiting("q") == 1
        with tm.begin() as tx:
            assert tx["broker"].receive("q", 5).body == "a"
            with pytest.raises(NoMessage):
                tx["broker"].receive("q", 0)
        broker.stop()
        broker.start()
    with pytest.raises(RuntimeError, match="does not run"):
        _ = broker.url

    async def in_a_loop() -> None:
        async with TestBroker() as broker:
            assert broker.url.startswith("amqp://127.0.0.1:")

    asyncio.run(in_a_loop())


PLUGIN = """
from shop import Invoice, Order

def test_it(xabridge_app):
    xabridge_app.deliver("orders", Order(1))
    xabridge_app.assert_sent("invoices", Invoice(1))
"""
SHOP = """
from dataclasses import dataclass
from xabridge import App, Tx

app = App("no-such-file.toml")

@dataclass
class Order:
    number: int

@dataclass
class Invoice:
    order: int

@app.consumer("orders")
def handle(order: Order, tx: Tx) -> None:
    tx.send("invoices", Invoice(order.number))
"""
CONFIGURATION = """
node = "shop-1"
log = "file:///nowhere"
[resources]
broker = "amqps://user:${NOT_SET}@broker"
"""


def write(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP.replace("no-such-file", str(folder / "xabridge")))
    (folder / "xabridge.toml").write_text(CONFIGURATION)


@pytest.mark.slow
def test_the_fixture_of_the_plugin(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "test_shop.py").write_text(PLUGIN)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nxabridge_app = shop:app\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_an_app_that_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    (tmp_path / "shop.py").rename(tmp_path / "the_shop.py")
    monkeypatch.syspath_prepend(tmp_path)
    for told, expected in (
        ("the_shop:apo", "the_shop has no apo; it has the_shop:app"),
        ("the_shopp:app", "there is no module the_shopp"),
        ("the.shopp:app", "No module named 'the'"),
        ("the_shop", "expected module:name"),
        ("the_shop:Order", "and no App"),
    ):
        with pytest.raises(ConfigurationError, match=expected):
            find_app(told)


@pytest.mark.slow
def test_the_first_one_loads_no_driver_that_it_does_not_need(tmp_path: Path) -> None:
    """psycopg takes longer to load than all of the rest takes to start."""
    program = """
import sys
from xabridge import App, Configuration
from xabridge.testing import TestApp
resources = {"broker": "amqp://nowhere.invalid", "shop": "postgresql://nowhere.invalid/shop"}
with TestApp(App(Configuration("shop-1", None, resources))) as test, test.manager.begin() as tx:
    tx["shop"].exec_driver_sql("SELECT 1")
    tx.send("orders", 1)
print(sorted(name for name in ("psycopg", "pymysql", "opentelemetry", "cronsim", "pydantic") if name in sys.modules))
"""
    assert output_of(program, cwd=tmp_path) == "[]\n"


# --- killed at each point, where a database decides, a log over two brokers, and a broker alone is all that there is --
POINTS = ("before the decision", "after the decision")


class Over(Tx):
    """A transaction over two brokers."""

    broker: Broker
    other: Broker


class Alone(Tx):
    """A transaction at one broker."""

    broker: Broker


class Running:
    """An application under test, and what it has done."""

    def __init__(self, test: TestApp, *, has_database: bool, other: TestBroker | None) -> None:
        self.test = test
        self._has_database = has_database
        self._other = other
        self.second = "shop" if has_database else "other" if other is not None else "broker"
        """The resource that it uses last."""

    def done(self) -> int:
        """How many orders are done; half of one is none of the answers."""
        invoices = self.test.sent("invoices")
        assert len(invoices) + self.test.waiting("orders") == self.sent
        if self._has_database:
            assert len(rows(self.test)) == len(invoices)
        if self._other is not None:
            assert self._other.waiting("copies") == len(invoices)
        return len(invoices)

    sent = 1


@pytest.fixture(params=["database", "log", "alone"])
def tested(request: pytest.FixtureRequest) -> Iterator[Running]:
    broker = "amqp://nowhere.invalid"
    resources = {"database": {"shop": "postgresql://nowhere.invalid/shop"}, "log": {"other": broker}}
    names = {"broker": broker, **resources.get(request.param, {})}
    app = App(Configuration("shop-1", "file:///nowhere", names))
    if request.param == "database":

        @app.consumer("orders")
        def handle(order: Order, tx: Shop) -> None:
            tx.send("invoices", Invoice(order.number))
            tx.shop.execute(text("INSERT INTO orders VALUES (:number)"), {"number": order.number})

    elif request.param == "log":

        @app.consumer("orders")
        def handle_over(order: Order, tx: Over) -> None:
            tx.send("invoices", Invoice(order.number))
            tx.other.send("copies", Message("copy"))

    else:

        @app.consumer("orders")
        def handle_alone(order: Order, tx: Alone) -> None:
            tx.send("invoices", Invoice(order.number))

    with TestBroker() as other:
        given = {"other": other.url} if request.param == "log" else {}
        with TestApp(app, resources=given) as test:
            if request.param == "database":
                set_up(test)
            yield Running(test, has_database=request.param == "database", other=other if given else None)


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_fires_at_its_point_and_leaves_nothing_half_done(tested: Running, point: str) -> None:
    tested.test.kill(point)  # type: ignore[arg-type]
    with pytest.raises(Killed):
        tested.test.deliver("orders", Order(1))
    assert tested.done() == POINTS.index(point)
    tested.test.deliver("orders")
    assert tested.done() == 1


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_in_a_transaction_of_the_test_ends_with_a_restart(tested: Running, point: str) -> None:
    test = tested.test
    test.kill(point)  # type: ignore[arg-type]
    with pytest.raises((TransactionError, Killed)), test.manager.begin() as tx:
        test.app.consumers[0](Order(1), tx)
    test.restart()
    assert len(test.sent("invoices")) == POINTS.index(point)
    test.deliver("orders", Order(2))
    assert len(test.sent("invoices")) == POINTS.index(point) + 1


def test_a_vote_of_no_and_an_unknown_outcome(tested: Running) -> None:
    test = tested.test
    test.fail(tested.second, at="prepare")
    with pytest.raises(RolledBack):
        test.deliver("orders", Order(1))
    assert tested.done() == 0
    test.fail(tested.second, at="commit")
    with pytest.raises(OutcomeUnknown):
        test.deliver("orders")
    test.recover()
    test.deliver("orders")
    assert tested.done() == 1


@pytest.mark.parametrize("failure", ["fail", *POINTS])
def test_nothing_stays_prepared_where_a_test_forgets_to_recover(failure: str) -> None:
    """A broker or a database of the test's own outlives the application."""
    app = App(Configuration("shop-1", "file:///nowhere", {"broker": "amqp://nowhere", "other": "amqp://nowhere"}))
    with TestBroker() as other:
        with TestApp(app, resources={"other": other.url}) as test:
            if failure == "fail":
                test.fail("other", at="commit")
            else:
                test.kill(failure)  # type: ignore[arg-type]
            with pytest.raises((TransactionError, Killed)), test.manager.begin() as tx:
                tx["broker"].send("invoices", Message("one"))
                tx["other"].send("copies", Message("one"))
            assert other.inside(lambda: other.broker.container.registry.in_doubt_count) == 1
        assert other.inside(lambda: other.broker.container.registry.in_doubt_count) == 0
        assert other.waiting("copies") == (failure != "before the decision")


def test_what_can_not_be_put_under_test_is_told() -> None:
    app = App(Configuration("shop-1", "file:///nowhere", {"broker": "amqp://nowhere"}))
    told = r"at='after': expected 'before the decision' or 'after the decision'"
    with TestApp(app) as test, pytest.raises(ValueError, match=told):
        test.kill("after")  # type: ignore[arg-type]
    with TestApp(app), pytest.raises(ProtocolMisuse, match="connected already, as by a request"), TestApp(app):
        pass
    wrong: Any = {"broker": {"url": "amqp://127.0.0.1"}}
    with pytest.raises(ConfigurationError, match="broker has to be an open string"), TestApp(app, resources=wrong):
        pass


class Base(DeclarativeBase):
    """The tables."""


class OrderRow(Base):
    """A row of the shop's table."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize("by", ["statement", "orm", "set_rollback_only"])
def test_an_error_that_is_hidden_is_the_same_exception_wherever_its_message_is(postgres: Postgres, by: str) -> None:
    """Alone, the last one of its transaction, and before others: as the commit says it."""
    app = an_app()

    @app.consumer("numbers")
    def handle(number: int, tx: Shop) -> None:
        if number == 13 and by == "orm":
            tx.shop.orm.add(OrderRow(number=1))
        elif number == 13 and by == "set_rollback_only":
            tx.set_rollback_only("the till is shut")
        elif number == 13:
            with suppress(IntegrityError):
                tx.shop.execute(text("INSERT INTO orders VALUES (1)"))

    said = []
    for numbers in [13], [1, 13], [13, 2]:
        with TestApp(app, resources={"shop": postgres.create_database()}) as test:
            set_up(test)
            with test.engine("shop").begin() as connection:
                connection.execute(text("INSERT INTO orders VALUES (1)"))
            with pytest.raises(RolledBack) as raised:
                test.deliver("numbers", *numbers)
            said.append(re.sub(r"test·\w+·\d+", "T", str(raised.value)))
    assert len(set(said)) == 1, said
    assert ".." not in said[0]
