"""These tests start a service on FastAPI and call it: what is committed when it answers, and what it answers if not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient
from pydantic import BaseModel
from sqlalchemy import create_engine, text

from tm import Configuration, ResourceConfig
from xabridge import App, Broker, Database, Tx
from xabridge.frameworks.fastapi import connect, transaction
from xabridge.testing import TestApp, TestBroker

app = App("xabridge.toml")
api = FastAPI()
connect(api, app)


class Order(BaseModel):
    """What comes."""

    number: int
    customer: str


class Shop(Tx):
    """What the service works with."""

    shop: Database
    broker: Broker


Transaction = Annotated[Shop, transaction(app)]


@api.post("/orders", status_code=201)
def place(order: Order, tx: Transaction) -> Order:
    tx.shop.execute(text("INSERT INTO orders VALUES (:number, :customer)"), order.model_dump())
    tx.send("orders", order)
    if order.customer == "nobody":
        raise HTTPException(404, "no such customer")
    return order


@api.post("/later")
async def place_later(order: Order, tx: Transaction) -> None:
    await tx.asend("orders", order)


@api.get("/invoices/{number}")
def invoice(number: int, tx: Transaction) -> list[int]:
    return list(tx.shop.execute(text("SELECT number FROM invoices WHERE number = :n"), {"n": number}).scalars())


@app.consumer("orders", idle_s=0.05)
def handle(order: Order, tx: Shop) -> None:
    tx.shop.execute(text("INSERT INTO invoices VALUES (:number)"), {"number": order.number})


TABLES = ("CREATE TABLE orders (number integer PRIMARY KEY, customer text)", "CREATE TABLE invoices (number integer)")
ADA = {"number": 1, "customer": "Ada"}


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> None:
    resources = {"broker": "amqp://nowhere.invalid", "shop": "postgresql://nowhere.invalid/shop"}
    monkeypatch.setattr(app, "configuration", Configuration("api", None, resources))


@pytest.fixture
def test(configured: None) -> Iterator[TestApp]:  # noqa: ARG001
    with TestApp(app) as test:
        with test.engine("shop").begin() as connection:
            for table in TABLES:
                connection.execute(text(table))
        yield test


@pytest.fixture
def client(test: TestApp) -> Iterator[TestClient]:  # noqa: ARG001
    with TestClient(api, raise_server_exceptions=False) as client:
        yield client


def rows(test: TestApp, table: str) -> list[Any]:
    with test.engine("shop").begin() as connection:
        return list(connection.execute(text(f"SELECT number FROM {table}")).scalars())  # noqa: S608


def test_it_is_committed_when_it_answers_and_rolled_back_by_an_exception(test: TestApp, client: TestClient) -> None:
    assert client.post("/orders", json={"number": 1, "customer": "nobody"}).status_code == 404
    assert client.post("/orders", json={"number": "one"}).status_code == 422
    assert (rows(test, "orders"), test.waiting("orders")) == ([], 0)
    assert client.post("/orders", json=ADA).status_code == 201
    assert client.post("/later", json={"number": 2, "customer": "Boole"}).status_code == 200
    assert (rows(test, "orders"), test.waiting("orders")) == ([1], 2)
    test.deliver("orders")
    assert client.get("/invoices/2").json() == [2]


def test_what_it_answers_when_it_is_not_committed(test: TestApp, client: TestClient) -> None:
    test.fail("shop", at="prepare")
    refused = client.post("/orders", json=ADA)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    assert "safe to try again" in refused.json()["detail"]
    assert (rows(test, "orders"), test.waiting("orders")) == ([], 0)

    test.fail("broker", at="commit")
    decided = client.post("/orders", json=ADA)
    assert (decided.status_code, decided.json()["detail"]) == (202, "it is decided, and will be finished")
    test.recover()
    assert (rows(test, "orders"), test.waiting("orders")) == ([1], 1)

    test.fail("shop", at="commit")
    unknown = client.post("/orders", json={"number": 2, "customer": "Boole"})
    assert (unknown.status_code, "don't try again" in unknown.json()["detail"]) == (500, True)
    test.recover()
    assert rows(test, "orders") == [1, 2]


own = App(
    Configuration("own", None, {"broker": "amqp://nowhere.invalid", "shop": "postgresql://nowhere.invalid/shop"}),
    transaction=Shop,
)
service = FastAPI()
connect(service, own)


@service.post("/orders/{number}")
def put(number: int, tx: Annotated[Shop, transaction(own)]) -> None:
    tx.shop.execute(text("INSERT INTO orders VALUES (:number, 'Ada')"), {"number": number})


def test_a_service_without_consumers_has_the_resources_of_its_class() -> None:
    """Nothing but the App says which class its transactions are of."""
    with TestApp(own) as test:
        with test.engine("shop").begin() as connection:
            connection.execute(text(TABLES[0]))
        with TestClient(service) as client:
            assert client.post("/orders/1").status_code == 200
        assert rows(test, "orders") == [1]
        with own.begin() as tx:
            assert isinstance(tx, Shop)
            assert own.tx is tx


def test_the_app_lives_as_long_as_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TestBroker() as broker:
        shop = f"sqlite:///{tmp_path}/shop.db"
        engine = create_engine(shop)
        with engine.begin() as connection:
            for table in TABLES:
                connection.execute(text(table))
        engine.dispose()
        resources: dict[str, str | ResourceConfig] = {"broker": broker.url, "shop": ResourceConfig(shop, "decider")}
        monkeypatch.setattr(app, "configuration", Configuration("api", None, resources))
        with TestClient(api) as client:
            assert client.post("/orders", json=ADA).status_code == 201
            waited = threading.Event()
            while client.get("/invoices/1").json() != [1]:
                waited.wait(0.02)
        assert not app.is_connected
