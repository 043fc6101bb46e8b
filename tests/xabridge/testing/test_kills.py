"""These tests kill an application under test at each point that docs/testing.md names, in each mode: a database
decides, a log decides over two brokers, and a broker alone is all that there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from tests.xabridge.app.shop import Invoice, Shop, rows, set_up
from tests.xabridge.testing.test_app_under_test import Order
from xabridge import (
    App,
    Broker,
    Configuration,
    ConfigurationError,
    Message,
    OutcomeUnknown,
    ProtocolMisuse,
    RolledBack,
    TransactionError,
    Tx,
)
from xabridge.testing import Killed, TestApp, TestBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

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
