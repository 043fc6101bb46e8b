"""A process of the campaign of consumers: a transaction manager and a `Consumer` whose handler does what the message
says.

    python -m bench.crash.consumers.worker '{"node": …}'          a `Post`, as JSON

Commands are those of `bench.crash.worker`. `report` says of a message when its handler begins, and when it fails.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from bench.crash.points import tell
from bench.crash.worker import BROKER, DATABASE, CrashWorker, Station, run
from tm import Consumer, ResourceConfig, TransactionManager
from tm.log import FileLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rm_amqp import Message
    from tm import Transaction

GOOD: Final = "good"
RAISES: Final = "raises"
COMMITS: Final = "commits"
CANCELS: Final = "cancels"
COUNTERS: Final = 4
"""Rows that transactions get in each other's way for."""

HANDLED: Final = text("INSERT INTO handled (number, attempt, queue) VALUES (:number, :attempt, :queue)")
LOOK: Final = text("SELECT total FROM counters WHERE number = :number")
COUNT: Final = text("UPDATE counters SET total = :total WHERE number = :number")
TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS counters (number integer NOT NULL PRIMARY KEY, total integer NOT NULL)",
    "CREATE TABLE IF NOT EXISTS handled (number integer NOT NULL, attempt text NOT NULL, queue text NOT NULL)",
)


class Poison(Exception):
    """The handler can't do it, however often it tries."""


@dataclass(frozen=True, slots=True)
class Post(Station):
    """A station with the settings of its consumer. `conflicts`: its transactions get in each other's way."""

    limit: int = 5
    waits: Any = "worker"
    style: str = "threads"
    conflicts: bool = False


class Handler:
    """The handlers. A message that is handled is a row."""

    def __init__(self, post: Post) -> None:
        self._post = post
        self.queue = ""

    def work(self, message: Message, transaction: Transaction) -> None:
        """In a thread."""
        body = self._begin(message)
        try:
            for statement, values in self._statements(body, transaction):
                found = transaction[DATABASE].execute(statement, values)
                values["total"] = found.scalar_one() + 1 if found.returns_rows else 0
            if body["kind"] == COMMITS:
                transaction.commit()
            _fail(body)
        except BaseException as error:
            _failed(body, error)
            raise

    async def awork(self, message: Message, transaction: Transaction) -> None:
        """In a task."""
        body = self._begin(message)
        try:
            shop = (await transaction.aenlist(DATABASE)).asyncio
            for statement, values in self._statements(body, transaction):
                found = await shop.execute(statement, values)
                values["total"] = found.scalar_one() + 1 if found.returns_rows else 0
            if body["kind"] == COMMITS:
                await transaction.acommit()
            _fail(body)
        except BaseException as error:
            _failed(body, error)
            raise

    @staticmethod
    def _begin(message: Message) -> dict[str, Any]:
        body: Any = message.body
        tell("report", number=int(body["number"]), what=f"begins, delivery {message.delivery_count}")
        return dict(body)

    def _statements(self, body: dict[str, Any], transaction: Transaction) -> Iterator[tuple[Any, dict[str, Any]]]:
        """What is done for a message; the answer of one that asks is in its values when the next one is wanted."""
        number = int(body["number"])
        if self._post.conflicts:
            for row in (number % COUNTERS, number // COUNTERS % COUNTERS):
                values: dict[str, Any] = {"number": row}
                yield LOOK, values
                yield COUNT, {"number": row, "total": values["total"]}
        attempt = transaction.gtrid.hex()
        yield HANDLED, {"number": number, "attempt": attempt, "queue": self.queue}


def _fail(body: dict[str, Any]) -> None:
    if body["kind"] == CANCELS:
        raise asyncio.CancelledError
    if body["kind"] == RAISES:
        raise Poison(f"number {body['number']} is poison")


def _failed(body: dict[str, Any], error: BaseException) -> None:
    tell(
        "report",
        number=int(body["number"]),
        what=f"raises {type(error).__name__}: {' '.join(str(error)[:120].split())}",
    )


class ConsumerWorker(CrashWorker):
    """The process."""

    def __init__(self, post: Post) -> None:
        super().__init__(post)
        self.post = post
        self.handler = Handler(post)

    def manager(self) -> TransactionManager:
        post = self.post
        resources = {BROKER: ResourceConfig(post.broker), DATABASE: ResourceConfig(post.database, post.mode)}
        log = FileLog(post.log, post.node) if post.log else None
        return TransactionManager(post.node, log, resources, timeout_s=20.0, recovery_interval_s=0.5)

    def _begin(self, manager: TransactionManager, orders: str, invoices: str) -> None:
        self.handler.queue = invoices
        self.consumer = Consumer(
            manager,
            orders,
            self.handler.awork if self.post.style == "asyncio" else self.handler.work,
            workers=self.post.threads,
            batch=self.post.batch,
            max_deliveries=self.post.limit,
            retry_waits=self.post.waits,
            retry_first_s=0.02,
            retry_most_s=0.2,
            idle_s=0.1,
        )
        self.consumer.start()
        tell("working")


if __name__ == "__main__":
    run(ConsumerWorker, Post(**json.loads(sys.argv[1])))
