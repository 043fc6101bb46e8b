"""A service of orders on FastAPI, with a consumer beside it. The tests start and call it."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import text

from xabridge import App, Broker, Database, Tx
from xabridge.frameworks.fastapi import connect, transaction

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
