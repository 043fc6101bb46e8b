"""These tests call a shop on Django: its ORM in the transactions of an App, and what is refused beside them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import IntegrityError, connection, connections, transaction
from django.db.backends.signals import connection_created
from django.db.transaction import TransactionManagementError
from django.test import Client
from django.test.utils import CaptureQueriesContext, setup_test_environment, teardown_test_environment
from psycopg import IsolationLevel
from sqlalchemy import make_url, text

from tests.postgres import Postgres
from tests.xabridge.frameworks.django_shop import Invoice, Order, app, make_tables, orm, told
from tm import Configuration, Propagation, ResourceConfig, RolledBack
from tm.consumer.failures import place_of
from xabridge import App
from xabridge.frameworks.django import DjangoOrm
from xabridge.testing import Killed, TestApp
from xabridge.testing.ports import free_port

ADA = {"number": 1, "customer": "Ada"}


both = pytest.mark.parametrize("test", ["two-phase", "decider"], indirect=True)
"""For what differs with the way in which the database takes part."""


@pytest.fixture
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
        with TestApp(app, resources={"shop": ResourceConfig(url, getattr(request, "param", "two-phase"))}) as test:
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


@both
def test_a_request_is_a_transaction(test: TestApp, client: Client) -> None:
    assert post(client, number=1, customer="nobody").status_code == 404
    assert post(client, number=1, customer="everybody").status_code == 500
    assert post(client, number="one", customer="Ada").status_code == 500
    assert client.post("/refuse", ADA, content_type="application/json").status_code == 400
    assert client.post("/swallow", ADA, content_type="application/json").status_code == 503
    assert (numbers(), test.waiting("orders"), told) == ([], 0, []), "what fails, or gives up, is rolled back"
    assert post(client, **ADA).status_code == 201
    assert (client.get("/orders").json()["numbers"], test.waiting("orders"), told) == ([1], 1, [1])
    test.deliver("orders")
    test.assert_sent("invoices", 1)
    assert Invoice.objects.get().order.customer == "Ada"
    order = Order.objects.get()
    assert order.details == {"by": "hand"}
    assert abs((datetime.now(UTC) - order.placed).total_seconds()) < 600

    with pytest.raises(RolledBack, match=r"IntegrityError: duplicate key.*django_shop.py") as refused:
        test.deliver("twice", 2)
    assert isinstance(refused.value.__cause__, IntegrityError), "what is swallowed is told"
    assert "in create_twice" in place_of(refused.value)
    assert numbers() == [1]


@both
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


@both
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


@both
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

    def more() -> None:
        Order.objects.create(number=6, customer="later")

    def complete() -> None:
        Order.objects.create(number=7, customer="Boole")
        transaction.on_commit(lambda: told.append(7))

    with orm.begin() as tx:
        Order.objects.create(number=5, customer="Ada")
        transaction.on_commit(more)  # outside of the transaction
        tx.register_synchronization(before=complete)  # in it
        tx.send("orders", ADA)
    assert (numbers(), told, test.waiting("orders")) == ([1, 3, 4, 5, 6, 7], [1, 7], 1)


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
    with suppress(TransactionManagementError), transaction.atomic():
        Order.objects.create(number=2, customer="Boole")
        with app.begin() as tx:
            tx.send("orders", ADA)
    assert (numbers(), test.waiting("orders")) == ([1], 0), "a transaction in a block of Django"
    with pytest.raises(TypeError, match="a dict of its fields"), orm.begin() as tx:
        tx.send("orders", Order(number=1, customer="Ada"))


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


def test_the_block_around_a_view_is_the_transaction(
    test: TestApp, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    refused = client.post("/refuse", ADA, content_type="application/json")
    assert (refused.status_code, refused.json()) == (400, {"detail": "invalid"})
    assert client.post("/swallow", ADA, content_type="application/json").status_code == 503
    assert post(client, number=1, customer="nobody").status_code == 404
    assert (numbers(), test.waiting("orders"), told) == ([], 0, [])
    assert post(client, **ADA).status_code == 201
    assert client.post("/apart", {"number": 2, "customer": "Boole"}, content_type="application/json").status_code == 201
    assert (numbers(), test.waiting("orders"), told) == ([1, 2], 2, [1, 2])


@both
def test_a_message_in_a_block_that_is_undone(test: TestApp) -> None:
    with pytest.raises(RolledBack, match=r"(?s)KeyError.*'broker'.*send behind the block"), orm.begin() as tx:
        with suppress(KeyError), transaction.atomic():
            Order.objects.create(number=1, customer="Ada")
            with transaction.atomic():
                tx.send("orders", ADA)
            raise KeyError("number")
        assert numbers() == []

    with pytest.raises(RolledBack, match="send behind the block"), orm.begin() as tx:
        tx.send("orders", ADA)
        savepoint = transaction.savepoint()
        tx.send("orders", ADA)
        transaction.savepoint_rollback(savepoint)
    assert (numbers(), test.waiting("orders")) == ([], 0)
    with orm.begin() as tx:
        tx.send("orders", ADA)
        with suppress(KeyError), transaction.atomic():
            tx["shop"].execute(text("INSERT INTO shop_order VALUES (7, 'undone', '{}', now())"))
            raise KeyError("number")
        tx.send("orders", ADA)
        Order.objects.create(**ADA)
    assert (numbers(), test.waiting("orders")) == ([1], 2)


def test_another_database_of_django_is_no_resource(test: TestApp, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    """In a transaction it is refused, unless it is allowed."""
    engine = connections.settings["default"] | {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    monkeypatch.setitem(connections.settings, "other", engine | {"TIME_ZONE": None})

    def ask() -> None:
        with connections["other"].cursor() as cursor:
            cursor.execute("SELECT 1")

    def close() -> None:
        connections["other"].connection.close()  # Django keeps one in memory open
        del connections["other"]

    try:
        ask()
        with orm.begin(), pytest.raises(TransactionManagementError, match=r"DjangoOrm.*other=None"):
            ask()
        ask()
        close()
        with pytest.raises(ImproperlyConfigured, match="which database is which"):
            DjangoOrm(App("nowhere.toml"), other=None)
        DjangoOrm(App("nowhere.toml"), default="shop", other=None)
        monkeypatch.setattr(orm, "_apart", {"other"})
        with orm.begin():
            ask()
    finally:
        close()


def made_tenant() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant; CREATE TABLE tenant.shop_order (LIKE shop_order INCLUDING ALL)")
    connection.close()


def in_tenant() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM tenant.shop_order")
        (count,) = cursor.fetchone()
    return int(count)


@both
def test_the_options_of_the_connection_hold(test: TestApp, monkeypatch: pytest.MonkeyPatch) -> None:
    made_tenant()
    options = {
        "options": r"-c search_path=tenant,\ public --statement-timeout=7s",
        "isolation_level": IsolationLevel.SERIALIZABLE,
    }
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)

    with orm.begin() as tx, connection.cursor() as cursor:
        Order.objects.create(**ADA)
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("7s",)
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == ("serializable",)
        tx.send("orders", ADA)
    assert (in_tenant(), numbers(), test.waiting("orders")) == (1, [1], 1)
    connection.close()
    for no in ("-c default_transaction_read_only=on", "-e", "-c"):
        monkeypatch.setitem(options, "options", no)
        with pytest.raises(ImproperlyConfigured, match="URL of the resource"), orm.begin():
            numbers()


def test_what_a_project_sets_on_its_connections_holds(test: TestApp) -> None:  # noqa: ARG001
    made_tenant()

    def choose(connection: Any, **_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET search_path TO tenant, public")

    class Tenant(type(connections["default"])):  # type: ignore[misc]  # Django has no types
        def init_connection_state(self) -> None:
            super().init_connection_state()
            choose(self)

    plain = connections["default"]
    connections["default"] = Tenant(plain.settings_dict, "default")
    try:
        with orm.begin():
            Order.objects.create(**ADA)
        assert in_tenant() == 1
    finally:
        connections["default"].close()
        connections["default"] = plain
    connection_created.connect(choose)
    try:
        with orm.begin():
            Order.objects.create(number=2, customer="Boole")
        assert in_tenant() == 2
    finally:
        connection_created.disconnect(choose)
        connection.close()
    assert numbers() == []


def test_another_name_of_the_server_and_another_server(test: TestApp, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = connections["default"].settings_dict
    name = settings["NAME"]
    monkeypatch.setitem(settings, "NAME", "another")
    with pytest.raises(ImproperlyConfigured, match="both have to be the same"), orm.begin():
        numbers()
    monkeypatch.setitem(settings, "NAME", name)
    monkeypatch.setitem(settings, "HOST", "localhost")
    with orm.begin():
        Order.objects.create(**ADA)
    with test.engine("shop").begin() as shop:
        shop.execute(text("CREATE ROLE tenant LOGIN SUPERUSER; CREATE SCHEMA tenant"))

    try:
        monkeypatch.setitem(settings, "USER", "tenant")
        with pytest.raises(ImproperlyConfigured, match=r"has the schemas {tenant,public}"), orm.begin():
            numbers()
    finally:
        with test.engine("shop").begin() as shop:
            shop.execute(text("DROP ROLE tenant"))


def test_another_server_is_refused(test: TestApp, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    settings = connections["default"].settings_dict
    server = Postgres()
    try:
        server.start()
        url = make_url(server.create_database(settings["NAME"]))
        monkeypatch.setitem(settings, "PORT", url.port)
        monkeypatch.setitem(settings, "HOST", url.host)
        with pytest.raises(ImproperlyConfigured, match="another server: both have to be the same"), orm.begin():
            numbers()
    finally:
        server.remove()


def test_a_run_of_tests_does_not_reach_the_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, postgres: Postgres
) -> None:
    client = Client()
    resources = {"broker": f"amqp://127.0.0.1:{free_port()}", "shop": postgres.create_database()}
    monkeypatch.setattr(app, "configuration", Configuration("shop", f"file://{tmp_path}", resources))
    setup_test_environment()

    try:
        with pytest.raises(ImproperlyConfigured, match="TestApp"):
            client.get("/send")
        assert not app.is_connected
        app.connect()
        try:
            with pytest.raises(ImproperlyConfigured, match="TestApp"):
                client.get("/send")
        finally:
            app.disconnect()
        with TestApp(app) as test:
            assert (client.get("/send").status_code, test.waiting("orders")) == (200, 1)
    finally:
        teardown_test_environment()


@pytest.mark.parametrize("age_s", [0, None])
def test_a_connection_that_was_lost_is_replaced(
    age_s: int | None, test: TestApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", age_s)
    connection.close()
    test.deliver("counted", 1)
    with test.engine("shop").connect() as other:
        other.execute(
            text("SELECT pg_terminate_backend(:pid)"), {"pid": connections["default"].connection.info.backend_pid}
        )
    for number in (2, 3):  # in a share of both the callbacks of both would meet the lost connection
        test.deliver("counted", number)
    assert told[-1:] == [0]
    assert len(told) >= 2


def test_a_transaction_inside_of_another(test: TestApp) -> None:  # noqa: ARG001
    @app.transactional(propagation=Propagation.REQUIRES_NEW)
    def inner() -> None:
        with pytest.raises(TransactionManagementError, match=r"orm.take_part\(app.tx\)"):
            numbers()
        with orm.take_part(app.tx):
            Order.objects.create(number=2, customer="Boole")

    with pytest.raises(KeyError), orm.begin():
        Order.objects.create(**ADA)
        inner()
        assert numbers() == [1, 2]
        raise KeyError
    assert numbers() == [2]


def test_queries_are_counted(test: TestApp, client: Client) -> None:  # noqa: ARG001
    with CaptureQueriesContext(connection) as around:
        assert client.get("/orders").status_code == 200
    assert [query["sql"] for query in around.captured_queries if "shop_order" in query["sql"]]
    seen: list[str] = []

    def see(execute: Any, sql: str, *rest: Any) -> Any:
        seen.append(sql)
        return execute(sql, *rest)

    with connection.execute_wrapper(see):
        client.get("/orders")
    assert any("shop_order" in sql for sql in seen)
    with orm.begin():
        inside = CaptureQueriesContext(connection)
        with inside:
            numbers()
    assert len(inside) == 1


def test_coroutines(test: TestApp, client: Client) -> None:
    test.deliver("awaited", 1)
    test.assert_sent("created", 1)
    assert numbers() == [1]
    for row, status in (({"number": 2, "customer": "Ada"}, 500), ({"number": 3, "customer": "teapot"}, 418)):
        assert client.post("/later", row, content_type="application/json").status_code == status
    assert (numbers(), test.waiting("orders")) == ([1, 3], 1)


@both
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
    both = threading.Barrier(2, timeout=20)

    def work(number: int) -> None:
        try:
            with orm.begin():
                Order.objects.create(number=number, customer="Ada")
                both.wait()
                assert numbers() == [number]
                both.wait()
        finally:
            connections["default"].close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (1, 2)))
    assert numbers() == [1, 2]


def test_an_app_has_one_orm_which_is_declared_before_it_runs(test: TestApp) -> None:  # noqa: ARG001
    with pytest.raises(ImproperlyConfigured, match="the App runs already"):
        DjangoOrm(app, default="shop")
    with pytest.raises(ImproperlyConfigured, match="has one already"):
        other = App("nowhere.toml")
        DjangoOrm(other, default="shop")
        DjangoOrm(other, default="shop")


def test_a_check_of_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[Any, list[str]]] = [
        (Configuration("shop", "file:///nowhere", {"shop": "postgresql://", "broker": "amqp://"}), []),
        (
            Configuration("shop", "file:///nowhere", {"store": "postgresql://", "broker": "amqp://"}),
            ['"default" is to be the resource shop, which the configuration does not have (it has: store,'],
        ),
        ("/nowhere/xabridge.toml", ["the configuration of the App can't be read: /nowhere/xabridge.toml"]),
    ]
    for configuration, expected in cases:
        before = run_checks(tags=["xabridge"])
        DjangoOrm(App(configuration), default="shop")
        found = [message.msg for message in run_checks(tags=["xabridge"]) if message not in before]
        assert len(found) == len(expected)
        assert all(part in message for message, part in zip(found, expected, strict=True)), found

    engine = connections.settings["default"] | {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nowhere/db.sqlite3"}
    monkeypatch.setitem(connections.settings, "small", engine)
    for alias, why in (
        ("small", 'the database "small" is SQLite, and the ORM takes part in transactions with PostgreSQL only'),
        ("none", 'DATABASES has no "none"; it has "default", "small"'),
    ):
        with pytest.raises(ImproperlyConfigured) as refused:
            DjangoOrm(App("nowhere.toml"), **{alias: "shop"})
        assert why in str(refused.value)
    if hasattr(connections._connections, "small"):
        del connections["small"]
