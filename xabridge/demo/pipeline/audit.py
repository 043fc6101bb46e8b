"""Gauge and Audit of the demo: broker and database asked on connections of their own, while it runs and at its end."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from proton import Message, ProtonException, Timeout
from proton.utils import BlockingConnection, SyncRequestResponse

from xabridge.demo.pipeline.orders import ALERTS, ORDERS, Order, Revenue, checksum, revenue_of
from xabridge.demo.pipeline.stage import depth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xabridge.demo.pipeline.stage import Stage

ASK_S: Final = 10.0
PREFETCH: Final = 200
_ROWS: Final = b"SELECT count(*) FROM enriched"
_PREPARED: Final = b"SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
_ENRICHED: Final = b"SELECT number, product, cents, extract(epoch FROM placed)::bigint FROM enriched"
_REVENUE: Final = b"SELECT extract(epoch FROM period)::bigint, product, orders, cents FROM revenue"
_LOST: Final = (ProtonException, Timeout, OSError)


@dataclass(frozen=True, slots=True)
class Figures:
    """One look: rows, alerts, and prepared branches of both."""

    rows: int = 0
    alerts: int = 0
    in_doubt: int = 0


class Gauge:
    """Looks at a stage again and again."""

    def __init__(self, stage: Stage) -> None:
        self._broker = BlockingConnection(stage.address, timeout=ASK_S)
        self._database = psycopg.connect(stage.database, autocommit=True)

    def look(self) -> Figures:
        """What is there now."""
        queues, status = self._asked("queues", "status")
        depths = {queue["name"]: int(queue["depth"]) for queue in queues}
        return Figures(self._count(_ROWS), depths.get(ALERTS, 0), int(status["in-doubt"]) + self._count(_PREPARED))

    def _asked(self, *operations: str) -> list[Any]:
        client: Any = SyncRequestResponse(self._broker, "$management")
        try:
            return [client.call(Message(properties={"operation": operation})).body for operation in operations]
        finally:
            client.sender.close()
            client.receiver.close()

    def _count(self, query: bytes) -> int:
        row = self._database.execute(query).fetchone()
        return int(row[0]) if row is not None else 0

    def close(self) -> None:
        """Drops both connections."""
        with suppress(*_LOST):
            self._broker.close()
        self._database.close()


@dataclass(frozen=True, slots=True)
class Proof:
    """What an audit found: each of the three results beside what it has to be. `waiting`: orders still in the queue."""

    orders: int
    rows: int
    large: int
    alerts: int
    cents: int
    revenue_cents: int
    waiting: int
    in_doubt: int
    checksums: dict[str, list[str]]

    @property
    def exact(self) -> bool:
        """Whether all is as it has to be, and nothing is left."""
        return not self.waiting and not self.in_doubt and all(one == other for one, other in self.checksums.values())

    def figures(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"exact": self.exact, **asdict(self)}


def prove(stage: Stage, placed: Sequence[Order], in_doubt: int) -> Proof:
    """Compares what was placed with what there is; nobody may be at work. The alerts are taken."""
    with psycopg.connect(stage.database) as database:
        rows = [Order(*row) for row in database.execute(_ENRICHED)]
        revenue = [Revenue(*row) for row in database.execute(_REVENUE)]
    connection = BlockingConnection(stage.address, timeout=ASK_S)
    try:
        waiting = len(_bodies(connection, ORDERS))
        alerts = [int(json.loads(body)["number"]) for body in _bodies(connection, ALERTS)]
    finally:
        connection.close()
    wanted, large = revenue_of(placed), [order.number for order in placed if order.large]
    return Proof(
        len(placed),
        len(rows),
        len(large),
        len(alerts),
        sum(order.cents for order in placed),
        sum(each.cents for each in revenue),
        waiting,
        in_doubt,
        {
            "enriched": [checksum(placed), checksum(rows)],
            "revenue": [checksum(wanted), checksum(revenue)],
            "alerts": [checksum(large), checksum(alerts)],
        },
    )


def _bodies(connection: BlockingConnection, queue: str) -> list[bytes]:
    """Every message of a queue that nobody adds to."""
    left = depth(connection, queue)
    receiver = connection.create_receiver(queue, credit=PREFETCH) if left else None
    bodies = []
    while receiver is not None and left:
        message = receiver.receive(ASK_S)
        bodies.append(bytes(message.body) if isinstance(message.body, memoryview) else str(message.body).encode())
        receiver.accept()
        left -= 1
    return bodies
