"""These tests part an application: several consumers of one queue, and Routers, which are its parts in other files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import pytest

from tests.xabridge.app.shop import NOWHERE, Shop
from xabridge import App, Broker, ConfigurationError, Depends, Router, Tx
from xabridge.testing import TestApp


def take(number: int) -> None:
    """A handler."""


def take_too(number: int) -> None:
    """Another one."""


def test_two_consumers_of_one_queue_need_names() -> None:
    app = App(NOWHERE)
    app.consumer("orders")(take)
    with pytest.raises(ConfigurationError) as refused:
        app.consumer("orders")(take_too)
    assert str(refused.value) == (
        "take_too and take are both the consumer 'orders': give one of them a name of its own, as in "
        "consumer('orders', name=\"…\")"
    )
    other = app.consumer("orders", name="others", publish=None)(take_too)
    with pytest.raises(ConfigurationError, match="both the consumer 'others'"):
        app.consumer("invoices", name="others")(take)
    with pytest.raises(ConfigurationError, match="name is '': expected the name of a consumer"):
        app.consumer("invoices", name="")
    assert [one.name for one in app.consumers] == ["orders", "others"]
    assert repr(other) == "<take_too, others, consumer of orders>"

    with TestApp(app) as test:
        test.deliver("orders", 1)
        test.deliver("others", 2, 3)
        assert [one.counts.handled for one in app.consumers] == [1, 2]
        assert (test.waiting("orders"), test.dead("others")) == (0, [])
        assert repr(app) == "<App, node shop-1, orders, others, connected>"
        with app.manager.begin():
            pass
    assert repr(App("shop.toml")) == "<App, shop.toml, no consumer, not running>"


def test_what_a_router_declares_is_the_apps() -> None:
    class Audit(Tx):
        broker: Broker

    router = Router("audit")
    order: list[str] = []

    def name() -> str:
        return "Ada"

    @router.middleware
    def around() -> Iterator[None]:
        order.append("router")
        yield

    @router.consumer("audit")
    def note(what: str, tx: Audit, by: Annotated[str, Depends(name)]) -> None:
        tx.send("noted", f"{what} by {by}")

    @router.schedule("* * * * *")
    def remind(due: datetime, tx: Audit) -> None:
        tx.send("reminders", due.minute)

    app = App(NOWHERE)
    app.include(router)
    app.consumer("orders")(take)
    assert repr(router) == "<Router audit, audit>"

    @app.middleware
    def outside() -> Iterator[None]:
        order.append("app")
        yield

    app.dependency_overrides[name] = lambda: "Boole"
    with TestApp(app) as test:
        test.deliver("audit", "a look")
        test.deliver("orders", 1)
        test.assert_sent("noted", "a look by Boole")
        assert order == ["app", "router", "app"]
        for minute in (0, 1, 1):
            test.run_schedule(remind, datetime(2026, 11, 23, 12, minute, 1, tzinfo=UTC))
        assert test.sent("reminders") == [1]
        with app.begin() as tx:
            assert isinstance(tx, Audit)


class Lines:
    """A codec."""

    def encode(self, value: Any) -> bytes:
        return "\n".join(value).encode()

    def decode(self, octets: bytes, wanted: Any) -> Any:
        return wanted(octets.decode().split("\n"))


def test_a_router_reads_and_writes_with_the_codecs_of_its_app() -> None:
    def fresh() -> Router:
        router = Router("letters")

        @router.consumer("letters")
        def read(_lines: threading.local) -> None:
            """Gets what no codec of ours makes."""

        return router

    with pytest.raises(ConfigurationError, match="_lines: _local: no message can be made into it"):
        App(NOWHERE).include(fresh())
    app = App(NOWHERE, codecs={"text/plain": Lines()})
    app.include(fresh())

    router = Router("more")

    @router.consumer("more")
    def more(lines: list[str], tx: Shop) -> None:
        tx.send("answers", lines[::-1], content_type="text/plain")

    app.include(router)
    with TestApp(app) as test:
        with app.begin() as tx:
            tx.send("more", ["a", "b"], content_type="text/plain")
        test.deliver("more")
        assert test.messages("answers")[0].body == b"b\na"


def test_a_router_is_a_part_of_one_app_and_complete_when_it_becomes_one() -> None:
    router = Router("orders")
    router.consumer("orders")(take)
    assert repr(router) == "<Router orders, orders, in no App>"

    taken = App(NOWHERE)
    taken.consumer("orders")(take_too)
    with pytest.raises(ConfigurationError, match="take and take_too are both the consumer 'orders'"):
        taken.include(router)
    assert len(taken.consumers) == 1

    app = App(NOWHERE)
    app.include(router)  # what was refused has left nothing
    for include in (app.include, App(NOWHERE).include):
        with pytest.raises(ConfigurationError, match="Router orders: an App has it already"):
            include(router)
    for declare in (router.consumer("later"), router.schedule("* * * * *")):
        with pytest.raises(ConfigurationError, match="take_too is declared after the App has included it"):
            declare(take_too)

    with pytest.raises(ConfigurationError, match="is no Router"):
        app.include(App(NOWHERE))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="name is 5: expected the name of a part of an application, a str"):
        Router(5)  # type: ignore[arg-type]
