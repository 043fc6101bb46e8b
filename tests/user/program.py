"""This is a program as a user may write it. Type checkers check it with the wheel installed; it is never run."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from xabridge import Broker, Message, OutcomeUnknown, ResourceConfig, RolledBack, Transaction, TransactionManager

manager = TransactionManager(
    "orders-1", "file:///var/lib/orders", {"broker": "amqp://localhost", "shop": ResourceConfig("postgresql://db/shop")}
)


@manager.transactional(retries=3)
def place(number: int) -> int:
    """Sends an order."""
    broker: Broker = manager["broker"]
    broker.send("orders", Message({"number": number}))
    return number


@manager.consumer("orders", workers=8, max_deliveries=5)
def handle(message: Message, tx: Transaction) -> None:
    """Writes an order's row."""
    body: Any = message.body
    tx["shop"].execute(text("INSERT INTO orders VALUES (:n)"), {"n": body["number"]})


async def later() -> None:
    """Receives one."""
    async with manager.begin(timeout_s=3) as tx:
        received: Message = await tx["broker"].aio.receive("orders", timeout_s=1)
        print(received.id)


def main() -> None:
    """Works until it is told to stop."""
    try:
        print(place(1) + 1)
    except (RolledBack, OutcomeUnknown) as error:
        print(error.outcome and error.outcome.verdict)
    counts = handle.run()
    print(counts.handled + counts.failed, handle.health().ok)
    report = manager.recover()
    print([finding.why for finding in report.findings if not report.clean])
