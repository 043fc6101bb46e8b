"""These tests run applications: what they declare, what their handlers get, how they are started and stopped, and how
they work through a SQLAlchemy engine of their own.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from tests.postgres import Postgres
from tests.xabridge.app.shop import NOWHERE, Invoice, Shop, rows, set_up
from xabridge import (
    App,
    Broker,
    Configuration,
    ConfigurationError,
    Database,
    Message,
    ProtocolMisuse,
    ResourceConfig,
    RolledBack,
    Transaction,
    Tx,
    take_part,
)
from xabridge.testing import TestApp
from xabridge.testing.contract.client import case


@dataclass
class Order:
    """What comes."""

    number: int
    customer: str


def shop() -> App:
    app = App(NOWHERE)

    @app.consumer("orders")
    def handle(order: Order, tx: Shop) -> None:
        tx.shop.execute(text("INSERT INTO orders VALUES (:number)"), {"number": order.number})
        tx.send("invoices", Invoice(order.number))
        if order.customer == "nobody":
            raise LookupError(order.customer)

    return app


def test_handlers_get_what_they_declare() -> None:
    """Transactions of several classes, too."""

    class Audit(Tx):
        broker: Broker

    app = shop()

    @app.consumer("audit")
    def note(what: str, tx: Audit) -> None:
        tx.broker.send("noted", Message(what))

    told: list[int] = []

    @app.consumer("told")
    def tell(number: int, tx: Shop) -> None:
        tx.after_commit(told.append, number)
        if number == 2:
            raise LookupError

    with TestApp(app) as test:
        set_up(test)
        test.deliver("orders", Order(1, "Ada"))
        test.assert_sent("invoices", Invoice(1))
        assert rows(test) == [1]
        test.deliver("audit", "a look")
        assert test.sent("noted") == ["a look"]
        test.deliver("told", 1)
        with pytest.raises(LookupError):
            test.deliver("told", 2)
        assert told == [1], "it is called when it is committed, and not otherwise"


def test_what_does_not_fit_is_a_dead_letter_and_the_handler_is_not_called() -> None:
    with TestApp(shop()) as test:
        set_up(test)
        test.deliver("orders", {"number": "one", "customer": "Ada"}, Order(2, "Boole"))
        assert test.dead("orders") == [
            "Refused: the body does not fit Order: number: expected a whole number, not 'one'"
        ]
        assert rows(test) == [2]
        assert test.waiting("orders") == 0
        counts = test._live["orders"].counts
        assert (counts.handled, counts.dead_lettered, counts.failed) == (1, 1, 0)


def test_a_batch_goes_on_without_those_that_do_not_fit() -> None:
    app = App(NOWHERE)
    seen: list[Any] = []

    @app.consumer("orders", batch=10, takes="batch")
    def handle(orders: list[Order], messages: list[Message], tx: Tx) -> None:
        seen.append(([order.number for order in orders], len(messages), tx.resources))

    @app.consumer("bad", batch=10, takes="batch")
    def none(orders: list[Order]) -> None:
        seen.append(orders)

    with TestApp(app) as test:
        test.deliver("orders", Order(1, "a"), {}, Order(2, "b"))
        assert seen == [([1, 2], 2, ("broker",))]
        assert test.dead("orders") == ["Refused: the body does not fit Order: missing customer, number"]
        test.deliver("bad", {}, 7)
        assert len(seen) == 1
        assert len(test.dead("bad")) == 2


def test_coroutine_functions_are_handlers_too() -> None:
    app = App(NOWHERE)

    @app.consumer("orders")
    async def handle(order: Order, message: Message, tx: Tx) -> None:
        await tx.asend("invoices", Invoice(order.number), id=f"invoice of {message.id!s}")

    with TestApp(app) as test:
        test.deliver("orders", Order(1, "Ada"), id="o-1")
        assert [message.id for message in test.messages("invoices")] == ["invoice of o-1"]

    async def in_a_loop() -> None:
        async with TestApp(app) as test:
            await test.adeliver("orders", Order(1, "Ada"), id="o-1")
            assert await asyncio.to_thread(test.sent, "invoices") == [Invoice(1)]

    asyncio.run(in_a_loop())


def test_a_transactional_function_needs_no_manager_before_it_is_called() -> None:
    app = App(NOWHERE)

    @app.transactional
    def place(number: int) -> int:
        app.tx.send("orders", number)
        return number

    @app.transactional(retries=2)
    async def aplace(number: int) -> int:
        await app.tx.asend("orders", number)
        return number

    with pytest.raises(ProtocolMisuse, match="does not run"):
        place(1)
    for _ in range(2):  # each time over another manager
        with TestApp(app) as test:
            assert place(1) == 1
            assert asyncio.run(aplace(2)) == 2
            assert test.sent("orders") == [1, 2]


def test_it_runs_its_consumers_until_it_is_stopped() -> None:
    app = App(NOWHERE)
    done = threading.Barrier(3)

    @app.consumer("one", idle_s=0.05)
    def one(_number: int) -> None:
        done.wait(30)

    @app.consumer("two", idle_s=0.05, workers=2)
    async def two(_number: int) -> None:
        await asyncio.to_thread(done.wait, 30)

    with TestApp(app) as test:
        elsewhere = Configuration("other", f"file://{test.folder / 'other'}", {"broker": test.broker.url})
        other = App(elsewhere)
        other.consumers = app.consumers
        with other:
            with other.begin() as tx:
                tx.send("one", 1)
                tx.send("two", 2)
            assert set(other.health()) == {"one", "two"}
            assert all(health.ok for health in other.health().values())
            done.wait(30)
        with pytest.raises(ProtocolMisuse, match="does not run"):
            other.health()
        assert test.waiting("one") == test.waiting("two") == 0


@pytest.mark.slow
def test_nothing_happens_at_import(tmp_path: Any) -> None:
    (tmp_path / "shop.py").write_text(
        "from xabridge import App, Tx\n"
        "app = App('no-such-file.toml')\n"
        "@app.consumer('orders', workers=4)\n"
        "def handle(order: dict, tx: Tx) -> None: ...\n"
        "import sys, threading\n"
        "assert threading.active_count() == 1\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not {"pydantic", "msgspec", "fastapi", "django", "sqlalchemy", "proton", "dtx.broker"} & loaded


def no_type(order, tx: Tx) -> None: ...  # type: ignore[no-untyped-def]


def two_bodies(order: Order, invoice: Invoice) -> None: ...


def no_list(order: Order) -> None: ...


def unreadable(order: threading.Thread) -> None: ...


def not_there(order: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_mistakes_are_told_when_it_is_declared() -> None:
    batch: dict[str, Any] = {"takes": "batch", "batch": 5}
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (no_type, {}, "order: say its type"),
        (two_bodies, {}, "order and invoice are both the body"),
        (no_list, batch, "it is a list"),
        (unreadable, {}, "order: Thread: no message can be made into it"),
        (not_there, {}, "Nowhere"),
    ]
    for function, settings, told in wrong:
        with case(told), pytest.raises(ConfigurationError) as refused:
            App(NOWHERE).consumer("orders", **settings)(function)
        assert told in str(refused.value)
    with pytest.raises(TypeError, match="a transaction has a send of its own"):

        class Wrong(Tx):
            send: Broker  # type: ignore[assignment]

    class Plain(Transaction):
        shop: Database

    app = App(NOWHERE)

    @app.consumer("orders")
    def handle(order: int, tx: Plain) -> None: ...

    with pytest.raises(ConfigurationError, match="is a subclass of Tx"), TestApp(app):
        pass
    with TestApp(App(NOWHERE)) as test, pytest.raises(ConfigurationError, match="did you mean batch"):
        test.manager.consumer("orders", bach=4)(lambda *_: None)  # type: ignore[call-arg]


# --- messages that share a transaction --------------------------------------------------------------------------------
@pytest.mark.parametrize(("settings", "shares"), [({}, [[1, 2, 3]]), ({"batch": 1}, [[1], [2], [3]])])
def test_messages_share_a_transaction_unless_the_application_says_otherwise(
    settings: dict[str, Any], shares: list[list[int]]
) -> None:
    app = App(NOWHERE)
    found: dict[bytes, list[int]] = {}

    @app.consumer("orders", **settings)
    def handle(number: int, tx: Tx) -> None:
        found.setdefault(tx.gtrid, []).append(number)

    assert handle.settings.batch == settings.get("batch", 50)
    with TestApp(app) as test:
        test.deliver("orders", 1, 2, 3)
        assert (list(found.values()), handle.counts.handled) == (shares, 3)


def test_what_a_handler_has_shared_a_transaction_with_is_handled_before_it_is_tried_again() -> None:
    app = App(NOWHERE)
    calls: list[int] = []

    @app.consumer("orders", max_deliveries=1)
    def handle(number: int, tx: Tx) -> None:
        calls.append(number)
        tx.send("done", number)
        if number == 2:
            raise LookupError(number)

    with TestApp(app) as test:
        with pytest.raises(LookupError):
            test.deliver("orders", 1, 2, 3)
        assert (calls, test.sent("done"), test.waiting("orders")) == ([1, 2], [], 3)
        with pytest.raises(LookupError):
            test.deliver("orders")
        assert (calls, test.sent("done")) == ([1, 2, 1, 2], [1])
        test.deliver("orders")
        assert (test.sent("done"), test.dead("orders")) == ([1, 3], ["LookupError: 2"])


# --- an engine of its own --------------------------------------------------------------------------------------------
class Base(DeclarativeBase):
    """The tables."""


class Row(Base):
    """An order."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.slow
def test_an_engine_takes_part_in_an_app_that_does_not_run_yet(postgres: Postgres) -> None:
    url = postgres.create_database()
    app = App(Configuration("n", "file:///nowhere", {"broker": "amqp://nowhere.invalid", "shop": url}))
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    take_part(engine, app, "shop")
    Base.metadata.create_all(engine)  # its own connection: the App does not run

    @app.consumer("orders")
    def handle(number: int, tx: Tx) -> None:
        with Session(engine) as session:
            session.add(Row(number=number))
            session.commit()
        tx.send("done", number)
        assert tx.resources == ("broker", "shop")

    with TestApp(app, resources={"shop": ResourceConfig(url)}) as test:
        test.deliver("orders", 1)
        test.fail("shop", at="prepare")
        with pytest.raises(RolledBack):
            test.deliver("orders", 2)
        assert test.sent("done") == [1]
        with Session(engine) as session:
            assert session.scalars(select(Row.number)).all() == [1]
        test.deliver("orders")
        with test.engine("shop").begin() as connection:
            assert connection.execute(text("SELECT number FROM orders ORDER BY number")).scalars().all() == [1, 2]
    engine.dispose()
