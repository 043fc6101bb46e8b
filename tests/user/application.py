"""This is a program of a user who declares an App. Type checkers check it with the wheel installed; it is never run."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from xabridge import App, Broker, Database, DeclaredConsumer, Message, Tx


@dataclass
class Order:
    """What comes."""

    number: int


class Shop(Tx):
    """What the application works with."""

    shop: Database
    broker: Broker


app = App("xabridge.toml")


@app.consumer("orders", workers=8, dead_letter="failed")
def handle(order: Order, tx: Shop) -> None:
    """Writes a row."""
    tx.shop.execute(text("INSERT INTO orders VALUES (:n)"), {"n": order.number})
    tx.send("invoices", order, id="o-1")
    tx.after_commit(print, order.number)


@app.consumer("invoices")
async def pay(order: Order, message: Message, tx: Shop) -> None:
    """Sends one."""
    await tx.asend("paid", [order.number, message.id])


@app.transactional(retries=3)
def place(number: int) -> str:
    """Places an order."""
    return str(number)


declared: DeclaredConsumer[[Order, Shop], None] = handle
placed: str = place(3)
