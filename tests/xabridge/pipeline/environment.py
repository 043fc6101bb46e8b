"""This is the environment of a pipeline in tests: broker, PostgreSQL, drivers that can be killed, and the checker of
all tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from proton import Message
from proton.utils import BlockingConnection

from rm_amqp import AmqpResource
from tests.postgres import Postgres
from tests.xabridge.pipeline.faults import GENERATION, VARIABLE, await_until
from xabridge.pipeline.core import Offset, Query, Source
from xabridge.pipeline.core.driver.query_binding import bind
from xabridge.pipeline.core.driver.source_planner import SourcePlanner
from xabridge.pipeline.core.process_ids import process_id
from xabridge.pipeline.core.shards import Shard
from xabridge.pipeline.settings import settings_from
from xabridge.testing.broker import BrokerProcess
from xabridge.testing.ports import free_port

ROOT: Final = Path(__file__).parents[3]
PRODUCTS: Final = 7
BEGAN_S: Final = 1000
"""When number 0 was made."""
PATIENCE_S: Final = 240.0
JAVA_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
BRIEF: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For processes that live for seconds, in which it doesn't pay to compile and to verify what they run. Nor does an
archive of their classes: to make it costs more than all drivers of a run save by it."""
TABLES: Final = """
CREATE TABLE rows (id bigint, text text);
CREATE TABLE totals (product text PRIMARY KEY, total bigint, n bigint);
CREATE TABLE counts (product text PRIMARY KEY, n bigint);
CREATE TABLE windows (second bigint, n bigint)"""


class Died(Exception):
    """The driver was killed before it answered."""


class DriverFailed(Exception):
    """What was asked of the driver failed there; the message is its error's."""


class Driver:
    """A Spark driver in a process of its own."""

    def __init__(self, folder: Path, environment: dict[str, str], settings: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._errors = (folder / "driver.err").open("a")
        reading, writing = os.pipe()

        spark = {
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.driver.memory": "512m",
            "spark.python.authenticate.socketTimeout": "10m",  # machines may be loaded
            **BRIEF,
            "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
            **settings,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.xabridge.pipeline.spark_driver", str(writing), json.dumps(spark)],
            stdin=subprocess.PIPE,
            stdout=self._errors,
            stderr=self._errors,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"} | environment,
            pass_fds=[writing],
            text=True,
        )
        os.close(writing)
        self._answers = os.fdopen(reading)
        self.java: int = self._answered()["java"]

    def _answered(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            self._process.wait(PATIENCE_S)
            raise Died
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, function: str, **arguments: Any) -> None:
        """Has the driver run a function of `tests.xabridge.pipeline.queries`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"function": function, "arguments": arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What the function returned. DriverFailed, Died."""
        answer = self._answered()
        if "error" in answer:
            raise DriverFailed(answer["error"])
        return answer["result"]

    def call(self, function: str, **arguments: Any) -> Any:
        """Both."""
        self.ask(function, **arguments)
        return self.answer()

    def close(self) -> None:
        """Kills it, and its Java."""
        for pid in (self.java, self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.communicate()
        self._answers.close()
        self._errors.close()


@dataclass
class SparkEnvironment:
    """Broker and PostgreSQL, with empty queues and tables."""

    folder: Path
    postgres: Postgres
    pipeline: str = "test"
    others: dict[str, str] = field(default_factory=dict)
    """Further resources."""
    reads: tuple[Source, ...] = ()
    """The sources of the query; by default one for each broker, of the queue `in`."""

    def __post_init__(self) -> None:
        self.faults = self.folder / "faults"
        self.faults.mkdir()
        self._over = threading.Event()
        self.port = free_port()
        self.broker = BrokerProcess(self.folder, "--listen", f"127.0.0.1:{self.port}")
        self.broker.start()
        self.database = self.postgres.create_database()
        self.drivers = 0
        with psycopg.connect(self.database) as connection:
            connection.execute(TABLES)

    # -- what drivers are told
    @property
    def resources(self) -> dict[str, str]:
        """name → open string."""
        return {"broker": f"amqp://127.0.0.1:{self.port}/", "shop": self.database, **self.others}

    @property
    def shared(self) -> dict[str, str]:
        """The options that source and sink have in common."""
        resources = {f"resource.{name}": url for name, url in self.resources.items()}
        return {"pipeline": self.pipeline, "log": self.database, **resources}

    def allow_deliveries(self, most: int) -> None:
        """Starts the broker again, whose messages are dead letters after so many deliveries."""
        file = self.folder / "broker.toml"
        file.write_text(f"[broker.queue_defaults]\nmax_deliveries = {most}\n", encoding="utf-8")
        self.broker.kill()
        self.broker = BrokerProcess(self.folder, "--listen", f"127.0.0.1:{self.port}", "--config", str(file))
        self.broker.start()

    @contextmanager
    def second_broker(self) -> Iterator[int]:
        """The resource `second`, another broker; its port."""
        port = free_port()
        folder = self.folder / "second"
        folder.mkdir()
        broker = BrokerProcess(folder, "--listen", f"127.0.0.1:{port}")
        broker.start()
        self.others["second"] = f"amqp://127.0.0.1:{port}/"
        try:
            yield port
        finally:
            broker.kill()

    def source(self, **options: str) -> dict[str, str]:
        """Options of the format amqp."""
        return {**self.shared, "resource": "broker", "queue": "in", "maxRowsPerBatch": "100", **options}

    def sink(self, **options: str) -> dict[str, str]:
        """Options of the format xa."""
        return {**self.shared, **options}

    @property
    def checkpoint(self) -> str:
        """Where Spark keeps its own."""
        return str(self.folder / "checkpoint")

    def query(self, checkpoint: str | None = None) -> str:
        """The id of the query that has the checkpoint."""
        identity: dict[str, str] = json.loads(Path(checkpoint or self.checkpoint, "metadata").read_text())
        return identity["id"]

    def asked(
        self,
        query: str,
        sink: dict[str, str],
        source: dict[str, str] | list[dict[str, str]] | None = None,
        **how: Any,
    ) -> dict[str, Any]:
        """The arguments of the function `stream`, for options beyond those that all sources and sinks have."""
        several = source if isinstance(source, list) else [source or {}]
        read = [self.source(**options) for options in several]
        checkpoint = how.pop("checkpoint", self.checkpoint)
        return {"query": query, "source": read, "sink": self.sink(**sink), "checkpoint": checkpoint, **how}

    # -- drivers
    def driver(self, settings: dict[str, str] | None = None) -> Driver:
        """A new driver, in which the faults of this test happen."""
        self.drivers += 1
        environment = {VARIABLE: str(self.faults), GENERATION: str(self.drivers)}
        given = {f"spark.executorEnv.{name}": value for name, value in environment.items()}
        given["spark.executorEnv.PYTHONPATH"] = str(ROOT)
        return Driver(self.folder / f"driver-{self.drivers}", environment, {**given, **(settings or {})})

    def stream(self, driver: Driver, query: str, sink: dict[str, str], **how: Any) -> list[str]:
        """Has the driver run a query to its end; the errors of its earlier starts."""
        errors: list[str] = driver.call("stream", **self.asked(query, sink, **how))["errors"]
        return errors

    def kill(self, function: str, settings: dict[str, str] | None = None, **arguments: Any) -> None:
        """Has a new driver run a function of `tests.xabridge.pipeline.queries`, which a fault ends by killing it."""
        with closing(self.driver(settings)) as driver, suppress(Died):
            driver.call(function, **arguments)
            raise AssertionError(f"the driver was not killed, and {self.fired()} faults have happened")

    def schedule(self, *faults: tuple[str, str]) -> None:
        """(point, action) of each fault, in their order; see `tests.xabridge.pipeline.faults`."""
        (self.faults / "schedule.json").write_text(json.dumps(faults))

    def fired(self) -> int:
        """How many of them have happened."""
        return len(list(self.faults.glob("fired-*")))

    def serve_faults(self) -> threading.Thread:
        """A thread that kills servers when the schedule says so, and starts them again a moment later."""
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        return thread

    def _serve(self) -> None:
        served: set[str] = set()
        while not self._over.wait(0.02):
            for wanted in self.faults.glob("wanted-?"):
                if wanted.name in served:
                    continue
                served.add(wanted.name)
                action = wanted.read_text()
                server: Any = self.broker if "broker" in action else self.postgres
                server.kill()
                if "restart" in action:
                    server.start()
                (self.faults / wanted.name.replace("wanted", "done")).touch()
                time.sleep(0.3)  # it is away for a while
                if not server.running:
                    server.start()

    # -- messages
    def send(self, numbers: Iterable[int], queue: str = "in", port: int | None = None) -> None:
        """Puts numbered messages into a queue."""
        messages = [
            Message(id=f"m{number}", body=str(number).encode(), properties={"product": f"p{number % PRODUCTS}"})
            for number in numbers
        ]
        for message, number in zip(messages, numbers, strict=True):
            message.creation_time = BEGAN_S + number  # 0 would be none
        self._send(messages, queue, port)

    def send_json(self, *bodies: str) -> None:
        """Puts messages with these bodies into the queue."""
        self._send([Message(body=body.encode()) for body in bodies], "in", None)

    def _send(self, messages: list[Message], queue: str, port: int | None) -> None:
        with_proton = BlockingConnection(f"127.0.0.1:{port or self.port}", allowed_mechs="ANONYMOUS", timeout=60)
        sender = with_proton.create_sender(queue)
        for message in messages:
            sender.send(message)
        with_proton.close()

    def received(self, queue: str = "out", port: int | None = None) -> list[str]:
        """Takes everything out of a queue."""
        with_proton = BlockingConnection(f"127.0.0.1:{port or self.port}", allowed_mechs="ANONYMOUS", timeout=60)
        receiver: Any = with_proton.create_receiver(queue, credit=0)
        receiver.link.drain(100_000)
        with_proton.wait(lambda: receiver.link.credit == 0)
        bodies = []
        while receiver.fetcher.has_message:
            message = receiver.receive(10)
            receiver.accept()
            bodies.append(bytes(message.body).decode())
        with_proton.close()
        return bodies

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What PostgreSQL says."""
        with psycopg.connect(self.database) as connection:
            return connection.execute(sql.encode()).fetchall()

    def await_rows(self, count: int) -> None:
        """Returns when the table has so many."""
        await_until(lambda: self.rows("SELECT count(*) FROM rows")[0][0] >= count)

    def idle(self, checkpoint: str) -> bool:
        """Whether Spark has finished every batch that it has begun there."""
        return self._last(checkpoint, "commits") == self._last(checkpoint, "offsets")

    @staticmethod
    def _last(checkpoint: str, log: str) -> int:
        return max((int(path.name) for path in Path(checkpoint, log).glob("[0-9]*")), default=-1)

    # -- the checker
    def settle(self) -> None:
        """What the next start of the query would do first: Spark has logged every batch, and is asked for no more."""
        if not Path(self.checkpoint).exists():
            return
        assert self.idle(self.checkpoint), "Spark has not finished its last batch"
        last = self._last(self.checkpoint, "offsets")
        stored = Path(self.checkpoint, "offsets", str(last)).read_text().splitlines()[2:]
        settings = settings_from(self.pipeline, self.database, self.resources)
        sources = self.reads or [Source((Shard(resource, ("in",)),)) for resource in ("broker", *self.others)]
        bind(settings, process_id(), Query(self.query(), "settle", last), sources)
        for source, text in zip(sources, stored, strict=False):  # one that is used twice stands there twice
            reader = SourcePlanner(settings, source, process_id())
            start = Offset.from_json(json.loads(text))
            assert reader.latest(start) == start, "something is left in the queue"
            reader.close()

    def left(self) -> list[str]:
        """Branches that nobody has finished, and messages that nobody has taken."""
        own = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"  # others share the server
        found = [f"postgresql: {gid}" for (gid,) in self.rows(own)]
        for name in ("broker", *self.others):
            rm = AmqpResource()
            rm.open(self.resources[name], 1)
            found += [f"{name}: {xid}" for xid in rm.prepared(1)]
            rm.close("", 1)
        return found + [f"in the queue: {body}" for body in self.received("in")]

    def check_copies(self, expected: Counter[int], *, table: bool = True, address: bool = True) -> None:
        """Each number is once a row and once a message, and nothing else is left."""
        self.settle()
        problems = self.left()
        if table:
            rows = Counter(number for (number,) in self.rows("SELECT id FROM rows"))
            problems += difference("rows", rows, expected)
        if address:
            problems += difference("messages", Counter(map(int, self.received())), expected)
        assert not problems, problems

    def check_totals(self, numbers: range) -> None:
        """The sums by product are those of `numbers`, and nothing else is left."""
        self.settle()
        expected = [
            (f"p{product}", sum(ones), len(ones))
            for product in range(PRODUCTS)
            if (ones := [number for number in numbers if number % PRODUCTS == product])
        ]
        found = self.rows("SELECT product, total, n FROM totals ORDER BY product")
        problems = self.left()
        assert found == expected, f"{found} instead of {expected}; {problems}"
        assert not problems, problems

    def close(self) -> None:
        """Ends the broker."""
        self._over.set()
        self.broker.kill()


def difference(what: str, found: Counter[int], expected: Counter[int]) -> list[str]:
    """In words."""
    return [
        f"{what}: {problem} {sorted(numbers.elements())[:10]} ({numbers.total()} in all)"
        for problem, numbers in (("missing", expected - found), ("too many", found - expected))
        if numbers
    ]
