"""This is a program of a user who declares an App. Type checkers check it with the wheel installed; it is never run."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from xabridge import App, Broker, Database, DeclaredConsumer, Message, Router, Tx


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


@app.consumer("totals", name="sums", reply=True, publish="sums")
def add(order: Order) -> int | None:
    """Returns what is sent."""
    return order.number or None


router = Router("returns")


@router.consumer("returns")
def take_back(order: Order, tx: Shop) -> None:
    """Sends it later."""
    tx.send("later", order, delay=60, dely=60)  # type: ignore[call-arg]


app.include(router)


@app.transactional(retries=3)
def place(number: int) -> str:
    """Places an order."""
    return str(number)


service = App("xabridge.toml", transaction=Shop)


def serve(number: int) -> int:
    """Completes what the class of the App's transactions says."""
    with service.begin() as tx:
        rows: int = tx.shop.execute(text("SELECT count(*) FROM orders")).scalar_one()
        service.tx.broker.send("orders", Message(b"an order"))
        tx.send("invoices", number)
    return rows


async def serve_tasks() -> Message:
    """The same in a task."""
    async with service.begin() as tx:
        return await tx.broker.aio.receive("orders")


declared: DeclaredConsumer[[Order, Shop], None] = handle
placed: str = place(3)
