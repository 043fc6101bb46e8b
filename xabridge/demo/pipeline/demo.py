"""`xabridge pipeline demo`: run orders through a pipeline on Spark, whose driver is killed on the way; and the proof.

In a scratch folder: the embedded broker, an embedded PostgreSQL with two tables and the decisions, orders in a queue,
and a Spark application (`xabridge.demo.pipeline.application`) on this machine's cores, or on a standalone cluster of
two workers. The driver and its JVM are killed (SIGKILL) and started again. At the end rows, revenue and alerts are
compared with the orders.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from xabridge.demo.command import EXIT_USAGE, EXIT_WRONG, FolderInUse, scratch
from xabridge.demo.display import Display
from xabridge.demo.pipeline.audit import PipelineProbe, prove
from xabridge.demo.pipeline.cluster import Cluster
from xabridge.demo.pipeline.driver import Driver
from xabridge.demo.pipeline.orders import ORDERS, TABLES, orders_from
from xabridge.demo.pipeline.servers import PipelineServers
from xabridge.pipeline import PipelineError
from xabridge.pipeline.java import check_spark, find_java
from xabridge.testing.postgres import PostgresMissing
from xabridge.text import several

if TYPE_CHECKING:
    import argparse

    from xabridge.demo.pipeline.audit import Figures, PipelineAudit

SUMMARY: Final = "run orders through a pipeline on Spark, whose driver is killed on the way"
SEED: Final = 1
BATCHES: Final = 12
"""Micro-batches that the orders come in, at least."""
LOOK_S: Final = 0.2
STUCK_S: Final = 300.0
"""When nothing has moved for so long, something is wrong."""
RESTARTS: Final = 3
"""Of drivers that end by themselves: Spark gives its Python workers ten seconds to start, however busy it is."""
NEXT: Final = "next: docs/pipeline.md, how to write one and how to run it on a cluster"
CONFIG: Final = """\
node = "demo-shop"
log = "file://{folder}/log"

[resources]
broker = "amqp://{broker}"
shop = "{database}"

[pipeline]
log = "{log}"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the demo."""
    parser.add_argument("--orders", type=int, default=20_000, metavar="N", help="how many orders (default 20000)")
    parser.add_argument(
        "--cluster", action="store_true", help="on a standalone cluster of two workers, 127.0.0.2 and .3"
    )
    parser.add_argument("--no-kill", action="store_true", help="kill nothing")
    parser.add_argument("--plain", action="store_true", help="print lines instead of a live display")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object, nothing else on stdout")
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="the scratch folder (default .demo)")


def run(arguments: argparse.Namespace) -> int:
    """Runs it; the exit code."""
    if arguments.orders < 1:
        return _complain("--orders is at least 1")
    for ended in (signal.SIGTERM, signal.SIGHUP):  # stopped, or the terminal is closed: nothing is left running
        signal.signal(ended, signal.getsignal(signal.SIGINT))
    display = Display(live=sys.stdout.isatty() and not arguments.plain and not arguments.json, quiet=arguments.json)
    try:
        check_spark()
        find_java()
        with ExitStack() as stack:
            folder = stack.enter_context(scratch(arguments.folder))
            result = Demo(folder, arguments, display, stack).run()
    except (PipelineError, PostgresMissing, FolderInUse) as error:
        return _complain(str(error))
    finally:
        display.close()

    if arguments.json:
        print(json.dumps(result))
    return 0 if result["exact"] else EXIT_WRONG


def _complain(what: str) -> int:
    print(f"xabridge pipeline demo: {what}", file=sys.stderr)
    return EXIT_USAGE


class Demo:
    """One run."""

    def __init__(self, folder: Path, arguments: argparse.Namespace, display: Display, stack: ExitStack) -> None:
        self._count: int = arguments.orders
        self._kill: bool = not arguments.no_kill
        self._display = display
        self._faults: list[str] = []
        self._batches = 0
        self._restarts = 0
        where = arguments.folder if arguments.folder.is_absolute() else f"./{arguments.folder}"
        spark = "a Spark cluster of 2 workers" if arguments.cluster else "Spark on 2 cores"
        display.say(f"xabridge pipeline demo · {spark} · broker and PostgreSQL in {where}")
        display.preparing("starting the broker and PostgreSQL")
        self._servers = stack.enter_context(PipelineServers(folder))
        with psycopg.connect(self._servers.database, autocommit=True) as database:
            database.execute(TABLES.encode())
        display.preparing(f"placing {self._count:,} orders")
        self._placed = list(orders_from(SEED, self._count))
        self._servers.post(ORDERS, (order.body() for order in self._placed))
        master = "local[2,4]"
        if arguments.cluster:
            display.preparing("starting Spark's master and workers")
            master = stack.enter_context(Cluster(folder / "cluster")).url

        log = self._servers.postgres.create_database("decisions")
        config = folder / "xabridge.toml"
        facts = {"folder": folder, "log": log, "broker": self._servers.address, "database": self._servers.database}
        config.write_text(CONFIG.format(**facts), encoding="utf-8")
        self._driver = Driver(config, folder / "checkpoint", max(self._count // BATCHES, 1), master)
        stack.callback(self._driver.kill)
        self._gauge = PipelineProbe(self._servers)
        stack.callback(self._gauge.close)

    def run(self) -> dict[str, Any]:
        """Runs from the first order to the proof; the figures of the end."""
        self._display.begin()
        began = time.monotonic()
        self._driver.start()
        self._display.event("starting the driver and its JVM")
        figures = self._follow()
        seconds = time.monotonic() - began
        self._driver.stop()
        proof = prove(self._servers, self._placed, self._gauge.look().in_doubt)
        self._show(figures)
        self._display.keep()
        self._tell(proof, seconds)
        return {**proof.figures(), "faults": self._faults, "batches": self._batches, "seconds": round(seconds, 2)}

    def _follow(self) -> Figures:
        """Shows what happens, and kills, until every order is a row and nothing is in doubt."""
        tick, moved, last = threading.Event(), time.monotonic(), self._gauge.look()
        while True:
            figures = self._gauge.look()
            self._listen()
            self._show(figures)
            # in the middle of a micro-batch: some of its branches are prepared, none is decided
            if self._kill and not self._faults and figures.rows >= self._count // 2 and figures.in_doubt:
                self._kill_driver(figures)
            if figures != last:
                moved, last = time.monotonic(), figures
            if figures.rows >= self._count and not figures.in_doubt and (self._faults or not self._kill):
                return figures
            if time.monotonic() - moved > STUCK_S or not (self._driver.running or self._restarted()):
                return figures
            tick.wait(LOOK_S)

    def _restarted(self) -> bool:
        """Starts a driver that ended by itself, as any supervisor would; not for ever."""
        if self._restarts == RESTARTS:
            return False
        self._restarts += 1
        self._display.event("driver ended by itself, starting it again")
        self._driver.start()
        return True

    def _kill_driver(self, figures: Figures) -> None:
        self._driver.kill()
        self._faults.append("driver and its JVM")
        figures = self._gauge.look()
        self._show(figures)
        self._display.event(f"kill -9 driver and its JVM: {several(figures.in_doubt, 'branch')} in doubt")
        self._driver.start()

    def _listen(self) -> None:
        for event in self._driver.events():
            if event["event"] == "ready":
                self._display.event("driver back" if self._faults else "driver ready")
            elif event["event"] == "batch":
                self._batches += 1

    def _show(self, figures: Figures) -> None:
        counts = f"rows {figures.rows:,}/{self._count:,} alerts {figures.alerts:,} in doubt {figures.in_doubt}"
        self._display.show(figures.rows / self._count, counts)

    def _tell(self, proof: PipelineAudit, seconds: float) -> None:
        say = self._display.say
        if proof.exact:
            say("  every order once as a row, in the revenue of its window, and as an alert")
            say("  if it is large:")
        else:
            say("  NOT EXACT:")

        sums = {name: one if one == other else f"{one} ≠ {other}" for name, (one, other) in proof.checksums.items()}
        say(f"  orders  {_pair(proof.orders, proof.rows)} rows  {sums['enriched']}")
        say(f"  revenue {_pair(proof.cents, proof.revenue_cents)} cents  {sums['revenue']}")
        say(f"  alerts  {_pair(proof.large, proof.alerts)}  {sums['alerts']}")
        say(f"  {proof.waiting or 'nothing'} left in the queue, {proof.in_doubt or 'nothing'} in doubt")
        if not proof.exact:
            say(f"  what the driver said: {self._driver.errors_at}")
        faults = f"{len(self._faults)} × kill -9 ({', '.join(self._faults)})" if self._faults else "none"
        say(f"  faults: {faults}; {seconds:.0f} s, Spark's starts included")
        say(f"  {NEXT}")


def _pair(one: int, other: int) -> str:
    return f"{one:,} = {other:,}" if one == other else f"{one:,} ≠ {other:,}"
