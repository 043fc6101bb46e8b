"""This is a program of a user who declares the types of the resources. Type checkers check it with the wheel installed;
it is never run.
"""

from __future__ import annotations

from sqlalchemy import text

from xabridge import Broker, Database, Message, Transaction, TransactionManager

NUMBER = text("SELECT max(number) FROM orders")


class Shop(Transaction):
    """A transaction of the shop."""

    shop: Database
    broker: Broker


manager = TransactionManager(
    "orders-1",
    "file:///var/lib/orders",
    {"broker": "amqp://localhost", "shop": "postgresql://db/shop"},
    transaction=Shop,
)
configured = TransactionManager.from_config("xabridge.toml", transaction=Shop)
plain = TransactionManager("orders-2", "file:///var/lib/others")


@manager.consumer("orders", workers=8)
def handle(message: Message, tx: Shop) -> None:
    """Writes an order's row."""
    tx.shop.execute(text("INSERT INTO orders VALUES (:n)"), {"n": message.body})
    tx.shop.orm.flush()
    tx.broker.send("invoices", Message(message.body))


@configured.consumer("orders")
async def handle_later(message: Message, tx: Shop) -> None:
    """Does so in a task."""
    await tx.broker.aio.send("invoices", message)


def number() -> int:
    """The last order's."""
    with manager.begin(timeout_s=3) as tx:
        last: int = tx.shop.execute(NUMBER).scalar_one()
        tx["shop"].whatever_it_has()
    return last + len(manager.get_transaction().broker.receive_batch("orders", 1, 0.0))


async def later() -> None:
    """Receives one, and sends it on."""
    async with configured.begin() as tx:
        shop = await tx.aenlist(Shop.shop)
        shop.orm.flush()
        (await tx.aenlist("shop")).whatever_it_has()
        received = await tx.broker.aio.receive("orders", timeout_s=1)
        await tx.broker.aio.send("invoices", received)


def others(anybody: TransactionManager) -> Transaction:
    """Takes every manager."""
    return anybody.begin()


others(manager)
others(plain)
