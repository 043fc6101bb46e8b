"""These tests call a shop on Django: its ORM in the transactions of an App, and what is refused beside them."""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import Client
from sqlalchemy import make_url, text

from tests.xabridge.frameworks.django_shop import Invoice, Order, app, make_tables, orm, told
from tm import Configuration, ResourceConfig, RolledBack
from xabridge import App
from xabridge.frameworks.django import DjangoOrm
from xabridge.testing import Killed, TestApp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres import Postgres

ADA = {"number": 1, "customer": "Ada"}


@pytest.fixture(params=["two-phase", "decider"])
def test(request: pytest.FixtureRequest, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestApp]:
    url = postgres.create_database()
    parts = make_url(url)
    place = {"NAME": parts.database, "USER": parts.username, "HOST": parts.host, "PORT": parts.port}
    for name, value in place.items():
        monkeypatch.setitem(connections["default"].settings_dict, name, value or "")
    told.clear()
    resources = {"broker": "amqp://nowhere.invalid", "shop": url}
    monkeypatch.setattr(app, "configuration", Configuration("shop", "file:///nowhere", resources))
    connections["default"].close()
    try:
        make_tables()
        with TestApp(app, resources={"shop": ResourceConfig(url, request.param)}) as test:
            yield test
    finally:
        connections["default"].close()


@pytest.fixture
def client(test: TestApp) -> Client:  # noqa: ARG001
    return Client(raise_request_exception=False)


def post(client: Client, **row: Any) -> Any:
    return client.post("/place", row, content_type="application/json")


def numbers() -> list[int]:
    return list(Order.objects.order_by("number").values_list("number", flat=True))


def test_a_request_is_a_transaction(test: TestApp, client: Client) -> None:
    assert post(client, **ADA).status_code == 201
    assert (client.get("/orders").json()["numbers"], test.waiting("orders"), told) == ([1], 1, [1])
    test.deliver("orders")
    test.assert_sent("invoices", 1)
    assert Invoice.objects.get().order.customer == "Ada"
    order = Order.objects.get()
    assert order.details == {"by": "hand"}
    assert abs((datetime.now(UTC) - order.placed).total_seconds()) < 600


def test_what_fails_is_rolled_back(test: TestApp, client: Client) -> None:
    assert post(client, number=1, customer="nobody").status_code == 404
    assert post(client, number=1, customer="everybody").status_code == 500
    assert post(client, number="one", customer="Ada").status_code == 500
    assert (numbers(), test.waiting("orders"), told) == ([], 0, [])


def test_what_is_answered_if_it_is_not_committed(test: TestApp, client: Client) -> None:
    test.fail("shop", at="prepare")
    refused = post(client, **ADA)
    assert (refused.status_code, refused["Retry-After"]) == (503, "1")
    assert "safe to try again" in refused.json()["detail"]
    assert (numbers(), test.waiting("orders"), told) == ([], 0, [])
    test.fail("broker", at="commit")
    assert post(client, **ADA).status_code == 202
    test.recover()
    assert (numbers(), test.waiting("orders")) == ([1], 1)


def test_a_process_that_is_killed(test: TestApp) -> None:
    with orm.begin() as tx:
        Order.objects.create(number=5, customer="Ada")
        tx.send("orders", {"number": 5})
    test.kill("before the decision")
    with pytest.raises(Killed):
        test.deliver("orders")
    assert (Invoice.objects.count(), test.waiting("orders"), test.waiting("invoices")) == (0, 1, 0)
    test.kill("after the decision")
    with pytest.raises(Killed):
        test.deliver("orders")
    assert (Invoice.objects.count(), test.waiting("orders"), test.waiting("invoices")) == (1, 0, 1)


def test_an_atomic_block_is_a_savepoint(test: TestApp) -> None:
    with orm.begin() as tx:
        with transaction.atomic():
            Order.objects.create(number=1, customer="Ada")
            transaction.on_commit(lambda: told.append(1))
        with pytest.raises(IntegrityError), transaction.atomic():
            transaction.on_commit(lambda: told.append(2))
            Order.objects.create(number=1, customer="again")
        Order.objects.bulk_create([Order(number=n, customer="many") for n in (3, 4)])
        assert [order.number for order in Order.objects.order_by("number").iterator()] == [1, 3, 4]
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM shop_order")
            assert cursor.fetchone() == (3,)
            cursor.executemany("UPDATE shop_order SET customer = %s WHERE number = %s", [("Boole", 3), ("Church", 4)])
        tx.send("done", 1)
        with test.engine("shop").connect() as other:
            assert other.execute(text("SELECT count(*) FROM shop_order")).scalar_one() == 0
        assert told == []
    assert (numbers(), told) == ([1, 3, 4], [1])


def test_the_callbacks_of_a_commit_work_outside_of_it(test: TestApp) -> None:  # noqa: ARG001
    def more() -> None:
        Order.objects.create(number=2, customer="later")

    with orm.begin():
        Order.objects.create(number=1, customer="Ada")
        transaction.on_commit(more)
    assert numbers() == [1, 2]


def test_what_django_refuses_in_it(test: TestApp) -> None:
    with orm.begin():
        with pytest.raises(RuntimeError, match="durable"), transaction.atomic(durable=True):
            pass
        for refused in (transaction.commit, transaction.rollback, lambda: transaction.set_autocommit(True)):
            with pytest.raises(TransactionManagementError, match="forbidden"):
                refused()
        Order.objects.create(number=1, customer="Ada")
    for give_up in (lambda: transaction.set_rollback(True), lambda: connection.close()):  # noqa: PLW0108 — not before
        with pytest.raises(RolledBack, match="Django"), orm.begin():
            Order.objects.create(number=2, customer="Boole")
            transaction.on_commit(lambda: told.append(2))
            give_up()  # type: ignore[no-untyped-call]  # Django has no types
    with pytest.raises(RolledBack), orm.begin(), suppress(IntegrityError):
        Order.objects.create(number=1, customer="again")
    assert (numbers(), told, test.waiting("orders")) == ([1], [], 0)


def test_what_would_be_committed_apart_is_refused(test: TestApp) -> None:  # noqa: ARG001
    assert numbers() == []
    with app.begin() as tx:
        with pytest.raises(TransactionManagementError, match="take_part"):
            Order.objects.create(number=1, customer="Ada")
        with orm.take_part(tx), orm.take_part(tx):
            Order.objects.create(number=2, customer="Boole")
    with transaction.atomic(), pytest.raises(TransactionManagementError, match="apart"), orm.begin():
        pass
    assert numbers() == [2]


def test_another_database_is_refused(test: TestApp, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", "another")
    with pytest.raises(ImproperlyConfigured, match="both have to be the same"), orm.begin():
        numbers()


def test_settings_of_the_connection_are_left_with_the_transaction(test: TestApp) -> None:
    with orm.begin() as tx, connection.cursor() as cursor:
        cursor.execute("SHOW TimeZone")
        assert cursor.fetchone() == ("Asia/Tokyo",)
        Order.objects.create(number=1, customer="Ada")
        tx.send("done", 1)
    with app.begin() as tx:
        assert tx["shop"].execute(text("SHOW TimeZone")).scalar_one() != "Asia/Tokyo"
    assert test.waiting("done") == 1


def test_threads_have_their_own(test: TestApp) -> None:  # noqa: ARG001
    both, failed = threading.Barrier(2, timeout=20), []

    def work(number: int) -> None:
        try:
            with orm.begin():
                Order.objects.create(number=number, customer="Ada")
                both.wait()
                assert numbers() == [number]
                both.wait()
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            connections["default"].close()

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failed, numbers()) == ([], [1, 2])


@pytest.mark.parametrize(
    ("alias", "told"),
    [
        ("small", 'the database "small" is SQLite, and the ORM takes part in transactions with PostgreSQL only'),
        ("none", 'DATABASES has no "none"; it has "default", "small"'),
    ],
)
def test_a_database_that_can_not_take_part_is_refused_when_it_is_declared(
    alias: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = connections.settings["default"] | {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nowhere/db.sqlite3"}
    monkeypatch.setitem(connections.settings, "small", engine)
    try:
        with pytest.raises(ImproperlyConfigured) as refused:
            DjangoOrm(App("nowhere.toml"), **{alias: "shop"})
    finally:
        if hasattr(connections._connections, "small"):
            del connections["small"]
    assert told in str(refused.value)
