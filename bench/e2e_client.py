"""The client of `bench.e2e`, a process of its own: a consumer at work, or the plain psycopg loop that it is compared
with.

python -m bench.e2e_client '{"kind": …}'          a `Job`, as JSON; the last line of stdout is what it measured

It says "ready" when the work has warmed up, and measures from the next line of its input on: so several processes
measure the same time.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from sqlalchemy import text

from bench.crash.points import DECIDER_VERBS, VERBS, Wrapped, hooked
from tm import Configuration, Consumer, ResourceConfig, TransactionManager
from tm.log.factory import open_log
from tm.resources import find_factory
from xabridge import App, Tx
from xabridge.app.supervisor import configuration_of
from xabridge.demo.shop.orders import INVOICES, Order
from xabridge.demo.shop.shop import BROKER, DATABASE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rm_amqp import Message
    from tm import Transaction
    from tm.consumer.settings import Takes
    from tm.log import Decision, DecisionLog
    from tm.resources import Mode

INSERT: Final = "INSERT INTO orders (number, customer, cents) VALUES (%s, %s, %s)"
INSERT_NAMED: Final = text("INSERT INTO orders VALUES (:number, :customer, :cents)")
WARM_S: Final = 0.5
START_S: Final = 30.0
LOOK_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Job:
    """What to measure. `kind` is "consume"; "app", an application with the defaults; or "floor", prepared transactions
    with nothing but psycopg. `together`: the handler has a batch at once. With `steps` the time of each verb is taken
    too, which costs some. `number` says which of several processes of one configuration this one is, as in `xabridge
    run --workers`."""

    kind: str
    broker: str
    database: str
    log: str
    queue: str = ""
    mode: Mode = "two-phase"
    workers: int = 1
    batch: int = 1
    together: bool = False
    seconds: float = 3.0
    steps: bool = False
    number: int = 1

    def as_json(self) -> str:
        """Its form as an argument."""
        return json.dumps(asdict(self))


class Stopwatch:
    """Where the time of one thread goes, by step."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self.spent: dict[str, float] = {}

    def of(self, name: str) -> Callable[[str, str], None]:
        """The hook of one resource."""

        def hook(when: str, verb: str) -> None:
            step = f"{verb} {name}"
            if when == "before":
                self._began[step] = time.perf_counter()
            else:
                self.spent[step] = self.spent.get(step, 0.0) + time.perf_counter() - self._began[step]

        return hook


class TimedLog(Wrapped):
    """A decision log whose forces are timed."""

    def __init__(self, log: DecisionLog, watch: Stopwatch) -> None:
        super().__init__(log)
        self._hook = watch.of("log")

    def decide(self, decision: Decision) -> None:
        self._hook("before", "force")
        self.rm.decide(decision)
        self._hook("after", "force")


def handle(message: Message, tx: Transaction) -> None:
    """The shop's work, with psycopg as the floor has it."""
    order = Order.read(message.body)
    tx[DATABASE].psycopg.execute(INSERT, (order.number, order.customer, order.cents))
    tx[BROKER].send(INVOICES, order.message())


def handle_together(messages: Sequence[Message], tx: Transaction) -> None:
    """The same for a batch."""
    orders = [Order.read(message.body) for message in messages]
    with tx[DATABASE].psycopg.cursor() as cursor:
        cursor.executemany(INSERT, [(order.number, order.customer, order.cents) for order in orders])
    tx[BROKER].send_batch(INVOICES, (order.message() for order in orders))


def consume(job: Job) -> dict[str, Any]:
    """A consumer over the orders."""
    watch = Stopwatch()

    def resource(name: str, url: str, mode: Mode = "two-phase") -> ResourceConfig:
        made = find_factory(name, ResourceConfig(url, mode))
        verbs = VERBS + DECIDER_VERBS if mode == "decider" else VERBS
        timed = hooked(watch.of(name), verbs)
        return ResourceConfig(url, mode, lambda registrar: timed(made(registrar)) if job.steps else made(registrar))

    resources = {BROKER: resource(BROKER, job.broker), DATABASE: resource(DATABASE, job.database, job.mode)}
    own = configuration_of(Configuration("bench", job.log or None, resources), job.number)
    log: Any = open_log(own.log, own.node) if own.log else None
    if log is not None and job.steps:
        log = TimedLog(log, watch)
    with TransactionManager(own.node, log, own.resources) as manager:
        takes: Takes = "batch" if job.together else "message"
        handler = handle_together if job.together else handle
        consumer = Consumer(manager, job.queue, handler, takes=takes, workers=job.workers, batch=job.batch, idle_s=0.05)
        with consumer:
            measured = window(job.seconds, lambda: consumer.counts.handled, watch, ready)
        if consumer.counts.failed:
            raise RuntimeError(f"{consumer.counts.failed} orders failed")
    return measured


def serve(job: Job) -> dict[str, Any]:
    """An application as README.md shows it."""
    resources = {BROKER: job.broker, DATABASE: job.database}
    app = App(configuration_of(Configuration("bench", job.log, resources), job.number))

    @app.consumer(job.queue, workers=job.workers, idle_s=0.05)
    def handle(order: dict, tx: Tx) -> None:  # type: ignore[type-arg]  # as people write it
        tx[DATABASE].execute(INSERT_NAMED, order)
        tx.send(INVOICES, order)

    with app:
        measured = window(job.seconds, lambda: handle.counts.handled, Stopwatch(), ready)
        if handle.counts.failed:
            raise RuntimeError(f"{handle.counts.failed} orders failed")
    return measured


def floor(job: Job) -> dict[str, Any]:
    """INSERT, PREPARE TRANSACTION, COMMIT PREPARED, from as many threads."""
    counts = [0] * job.workers
    stop = threading.Event()

    def run(index: int) -> None:
        with psycopg.connect(job.database, autocommit=True) as connection:
            while not stop.is_set():
                gid = f"floor-{index}-{counts[index]}"
                connection.execute("BEGIN")
                connection.execute(INSERT, (counts[index], "Ada", 100))
                connection.execute(f"PREPARE TRANSACTION '{gid}'".encode())
                connection.execute(f"COMMIT PREPARED '{gid}'".encode())
                counts[index] += 1

    threads = [threading.Thread(target=run, args=(index,)) for index in range(job.workers)]
    for thread in threads:
        thread.start()
    try:
        return window(job.seconds, lambda: sum(counts), Stopwatch(), ready)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def window(
    seconds: float, count: Callable[[], int], watch: Stopwatch, ready: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """What is counted in so many seconds, once the work has warmed up, and `ready` has returned; it says "begin" and
    "end" on stdout, so that others can measure the same time."""
    tick = threading.Event()
    deadline = time.perf_counter() + START_S
    while not count():
        if time.perf_counter() > deadline:
            raise RuntimeError("nothing is done yet; see the lines above")
        tick.wait(LOOK_S)
    tick.wait(WARM_S)
    ready()
    before, spent, cpu, began = count(), dict(watch.spent), time.process_time(), time.perf_counter()
    print("begin", flush=True)
    tick.wait(seconds)
    total, took, cpu = count(), time.perf_counter() - began, time.process_time() - cpu
    steps = {name: value - spent.get(name, 0.0) for name, value in watch.spent.items()}
    print("end", flush=True)
    return {"done": total - before, "total": total, "seconds": took, "cpu_s": cpu, "steps": steps}


def ready() -> None:
    """Says so, and waits for a line: other processes are to begin at the same time."""
    print("ready", flush=True)
    sys.stdin.readline()


def main() -> None:
    """`python -m bench.e2e_client`."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    job = Job(**json.loads(sys.argv[1]))
    print(json.dumps({"consume": consume, "app": serve, "floor": floor}[job.kind](job)), flush=True)


if __name__ == "__main__":
    main()
