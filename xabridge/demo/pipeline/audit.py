"""Gauge and Audit of the demo: broker and database asked on connections of their own, while it runs and at its end."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from rm_amqp import AmqpResource
from xa import TMNOFLAGS, TMREGISTER
from xabridge.demo.pipeline.orders import ALERTS, ORDERS, Order, Revenue, checksum, revenue_of
from xabridge.testing.no_transaction import NoTransaction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_amqp import MessagingSession
    from xabridge.demo.pipeline.servers import PipelineServers

RMID: Final = 1
PAGE: Final = 200
_ROWS: Final = b"SELECT count(*) FROM enriched"
_PREPARED: Final = b"SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
_ENRICHED: Final = b"SELECT number, product, cents, extract(epoch FROM placed)::bigint FROM enriched"
_REVENUE: Final = b"SELECT extract(epoch FROM period)::bigint, product, orders, cents FROM revenue"


@dataclass(frozen=True, slots=True)
class Figures:
    """One look: rows, alerts, and prepared branches of both."""

    rows: int = 0
    alerts: int = 0
    in_doubt: int = 0


class PipelineProbe:
    """Looks at broker and database again and again."""

    def __init__(self, servers: PipelineServers) -> None:
        self._broker = servers.management()
        self._database = psycopg.connect(servers.database, autocommit=True)

    def look(self) -> Figures:
        """The present results."""
        depths, status = self._broker.depths(), self._broker.ask("status")
        return Figures(self._count(_ROWS), depths.get(ALERTS, 0), int(status["in-doubt"]) + self._count(_PREPARED))

    def _count(self, query: bytes) -> int:
        row = self._database.execute(query).fetchone()
        return int(row[0]) if row is not None else 0

    def close(self) -> None:
        """Drops both connections."""
        self._broker.close()
        self._database.close()


@dataclass(frozen=True, slots=True)
class PipelineAudit:
    """The result of an audit: each of the three results beside what it has to be. `waiting`: orders still in the
    queue."""

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
        """What `--json` prints."""
        return {"exact": self.exact, **asdict(self)}


def prove(servers: PipelineServers, placed: Sequence[Order], in_doubt: int) -> PipelineAudit:
    """Compares what was placed with what there is; nothing may be at work. The alerts are taken."""
    with psycopg.connect(servers.database) as database:
        rows = [Order(*row) for row in database.execute(_ENRICHED)]
        revenue = [Revenue(*row) for row in database.execute(_REVENUE)]
    broker = AmqpResource(NoTransaction(), TMREGISTER)
    broker.open(f"amqp://{servers.address}/", RMID)

    try:
        session = broker.session(RMID)
        waiting = len(_bodies(session, ORDERS))
        alerts = [int(json.loads(body)["number"]) for body in _bodies(session, ALERTS)]
    finally:
        broker.close("", RMID, TMNOFLAGS)

    wanted, large = revenue_of(placed), [order.number for order in placed if order.large]
    return PipelineAudit(
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


def _bodies(session: MessagingSession, queue: str) -> list[bytes | str]:
    """Takes every message of a queue to which none are added."""
    bodies: list[bytes | str] = []
    while batch := session.receive_batch(queue, PAGE, 0):
        bodies += [message.body if isinstance(message.body, bytes) else str(message.body) for message in batch]
    return bodies
