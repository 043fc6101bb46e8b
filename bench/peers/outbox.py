"""The peer in Python: a consumer with an outbox, with psycopg and python-qpid-proton, and the relay beside it.

python -m bench.peers.outbox consume '{"queue": …}'   a `Job`, as JSON; it prints "begin" and "end" around the time that
                                                      counts, then what it measured
python -m bench.peers.outbox relay '{"broker": …}'    forwards rows; to each line it answers with how many so far

In one transaction of the database the consumer writes the row and puts the invoice into the table `outbox`. It accepts
the message afterwards. The relay deletes rows from the outbox, sends them, and commits when the broker has accepted
each of them. Everything is forced, but nothing is decided in common. So it is at least once: if the consumer dies
between its commit and the acceptance, the order is handled again, and there are a second row and a second invoice. If
the relay dies between an acceptance and its commit, there is a second invoice. An inbox would keep out the second row,
at the price of one more row in each transaction; the reader of the invoices would need another one.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from proton import Delivery, Message
from proton.utils import BlockingConnection

from bench.e2e_client import INSERT, Stopwatch, window
from xabridge.demo.shop.orders import INVOICES, Order

if TYPE_CHECKING:
    from collections.abc import Sequence

CREATE: Final = "CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text NOT NULL)"
PUT: Final = "INSERT INTO outbox (body) VALUES (%s)"
TAKE: Final = """
    DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
    RETURNING id, body
"""
AT_ONCE: Final = 500
"""Rows that the relay forwards in one transaction."""
IDLE_S: Final = 0.005
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """What to do, and for how long."""

    broker: str
    database: str
    queue: str = ""
    workers: int = 1
    batch: int = 1
    seconds: float = 3.0

    def text(self) -> str:
        """The JSON of it."""
        return json.dumps(asdict(self))


class Worker(threading.Thread):
    """A consumer with connections of its own. It handles a batch in each transaction."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self._job = job
        self._ahead = 20 if job.batch == 1 else 2 * job.batch
        self._finished = threading.Event()
        self.done = 0
        self.failed = False

    def finish(self) -> None:
        """Asks it to end after the transaction that it is in."""
        self._finished.set()

    def run(self) -> None:
        """The loop."""
        self.failed = True
        connection = connected(self._job)
        with psycopg.connect(self._job.database) as database:
            receiver = connection.create_receiver(self._job.queue, credit=self._ahead)
            while not self._finished.is_set():
                bodies = [self._receive(receiver) for _ in range(self._job.batch)]
                self._write(database, [Order.read(body) for body in bodies])
                for _ in bodies:
                    receiver.accept()
                self.done += len(bodies)
        connection.close()
        self.failed = False

    def _receive(self, receiver: Any) -> Any:
        there = receiver.link.credit + len(receiver.fetcher.incoming)
        if there <= self._ahead // 2:
            receiver.link.flow(self._ahead - there)
        return receiver.receive(timeout=TIMEOUT_S).body

    def _write(self, database: psycopg.Connection[Any], orders: Sequence[Order]) -> None:
        rows = [(order.number, order.customer, order.cents) for order in orders]
        bodies = [(json.dumps(order.message().body),) for order in orders]
        with database.cursor() as cursor:
            if self._job.batch == 1:
                cursor.execute(INSERT, rows[0])
                cursor.execute(PUT, bodies[0])
            else:
                cursor.executemany(INSERT, rows)
                cursor.executemany(PUT, bodies)
        database.commit()


class Relay:
    """Forwards what is in the outbox."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.stop = threading.Event()
        self.forwarded = 0

    def run(self) -> None:
        """The loop."""
        connection = connected(self._job)
        sender = connection.create_sender(INVOICES)
        with psycopg.connect(self._job.database) as database:
            while not self.stop.is_set():
                rows = database.execute(TAKE, (AT_ONCE,)).fetchall()
                self._send(connection, sender, [json.loads(body) for _, body in sorted(rows)])
                database.commit()
                self.forwarded += len(rows)
                if not rows:
                    self.stop.wait(IDLE_S)
        connection.close()

    def _send(self, connection: BlockingConnection, sender: Any, bodies: Sequence[Any]) -> None:
        """Sends without waiting for each answer, then waits for all of them."""
        sent: deque[Any] = deque()
        for body in bodies:
            if not sender.link.credit:
                connection.wait(lambda: sender.link.credit > 0, timeout=TIMEOUT_S)
            sent.append(sender.link.send(Message(body=body, id=f"order-{body['number']}", durable=True)))
        for delivery in sent:
            connection.wait(lambda: delivery.settled, timeout=TIMEOUT_S)  # noqa: B023 — called before the next turn
            if delivery.remote_state != Delivery.ACCEPTED:
                raise RuntimeError(f"a message was not accepted: {delivery.remote_state}")
            delivery.settle()


def connected(job: Job) -> BlockingConnection:
    """A connection to the broker."""
    return BlockingConnection(job.broker, allowed_mechs="ANONYMOUS", timeout=TIMEOUT_S)


def consume(job: Job) -> None:
    """The consumer's process."""
    workers = [Worker(job) for _ in range(job.workers)]
    for worker in workers:
        worker.start()
    measured = window(job.seconds, lambda: sum(worker.done for worker in workers), Stopwatch())
    for worker in workers:
        worker.finish()
    for worker in workers:
        worker.join()
    if any(worker.failed for worker in workers):
        raise RuntimeError("a worker failed: see the lines above")
    print(json.dumps(measured), flush=True)


def relay(job: Job) -> None:
    """The relay's process, until its input ends."""
    work = Relay(job)

    def answer() -> None:
        for _ in sys.stdin:
            print(work.forwarded, flush=True)
        work.stop.set()

    threading.Thread(target=answer, daemon=True).start()
    work.run()


def main() -> None:
    """`python -m bench.peers.outbox`."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    {"consume": consume, "relay": relay}[sys.argv[1]](Job(**json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
