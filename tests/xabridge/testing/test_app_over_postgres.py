"""These tests run applications over the embedded PostgreSQL that `TestApp(app, postgres=True)` starts. It is a
server of their own, not the session's, because its start belongs to what they test.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from tests.xabridge.app.shop import Invoice, rows, set_up
from xabridge import App, Broker, Configuration, OutcomeUnknown, PostgresDatabase, ResourceConfig, RolledBack, Tx
from xabridge.testing import Killed, TestApp

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
URL = "postgresql://nowhere.invalid/shop"


class Shop(Tx):
    """What only PostgreSQL has."""

    shop: PostgresDatabase
    broker: Broker


def an_app(shop: str | ResourceConfig) -> App:
    app = App(Configuration("shop-1", "file:///nowhere", {"broker": "amqp://nowhere.invalid", "shop": shop}))

    @app.consumer("orders")
    async def handle(number: int, tx: Shop) -> None:
        await tx.shop.asyncio.execute(text("INSERT INTO orders VALUES (:n) ON CONFLICT DO NOTHING"), {"n": number})
        await tx.asend("invoices", Invoice(number))

    @app.consumer("settings", publish="found")
    def look(name: str, tx: Shop) -> str | None:
        row: Any = tx.shop.psycopg.execute("SELECT current_setting(%s)", [name]).fetchone()
        return str(row[0])

    return app


@pytest.mark.parametrize("mode", ["two-phase", "decider"])
def test_an_application_works_over_a_database_of_its_own(mode: Any) -> None:
    names = []
    for _ in range(2):
        with TestApp(an_app(ResourceConfig(URL, mode)), postgres=True) as test:
            set_up(test)  # the table is not there yet
            with test.engine("shop").connect() as connection:
                names.append(connection.execute(text("SELECT current_database()")).scalar_one())
            test.deliver("orders", 1)
            test.deliver("settings", "max_prepared_transactions")
            assert (rows(test), test.sent("invoices"), test.sent("found")) == ([1], [Invoice(1)], ["100"])

            test.fail("shop", at="prepare")
            with pytest.raises(RolledBack):
                test.deliver("orders", 2)
            test.fail("shop", at="commit")
            with pytest.raises(OutcomeUnknown):
                test.deliver("orders")
            test.recover()
            test.deliver("orders")
            test.kill("after the decision")
            with pytest.raises(Killed):
                test.deliver("orders", 3)
            assert (rows(test), len(test.sent("invoices"))) == ([1, 2, 3], 3)
            assert databases(test) & set(names) == {names[-1]}, "that of the first test is gone"
    assert names[0] != names[1]


def databases(test: TestApp) -> set[str]:
    with test.engine("shop").connect() as connection:
        return set(connection.execute(text("SELECT datname FROM pg_database")).scalars())


def test_several_databases_are_several_here() -> None:
    resources = {
        "broker": "amqp://nowhere",
        "shop": URL,
        "stock": "postgres://nowhere.invalid/stock",
        "notes": "mariadb://x/y",
    }
    with TestApp(App(Configuration("n", None, resources)), postgres=True) as test:
        with test.manager.begin() as tx:
            for name in ("shop", "stock", "notes"):
                tx[name].exec_driver_sql("CREATE TABLE orders (number integer)")
        urls = {test.engine(name).url.render_as_string() for name in ("shop", "stock", "notes")}
        assert len(urls) == 3
        assert test.engine("notes").dialect.name == "sqlite"
