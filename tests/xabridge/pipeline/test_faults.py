"""These tests cause faults on real Spark. Whatever is killed, and wherever, every input must be once in table and
output, no branch may be left, and the state must be right. One checker looks after all of them.

A schedule is a chain: each fault happens at the first chance after the one before it, in other micro-batches, under
drivers that come one after the other. `XABRIDGE_SPARK_FAULTS=all` runs every chain, each point apart; without it there
are a few.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.rm_delta.test_contract import rows_of
from tests.xabridge.pipeline.cluster import Cluster
from tests.xabridge.pipeline.environment import ROOT, DriverFailed
from tests.xabridge.pipeline.faults import GENERATION, VARIABLE, await_until
from xabridge.pipeline.core import Shard, Source
from xabridge.shards import shard_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.xabridge.pipeline.environment import Driver, SparkEnvironment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

FULL: Final = os.environ.get("XABRIDGE_SPARK_FAULTS") == "all"
N: Final = 700 if FULL else 200
RESTARTS: Final = 30
MINUTES: Final = "takes minutes: XABRIDGE_SPARK_FAULTS=all"

READING: Final = ("looked", "planned", "taken", "taken and prepared", "yielded")
WRITING: Final = ("sink planned", "written", "written and prepared", "sent", "sent and prepared", "prepared")
DECIDING: Final = ("commit", "undecided", "decided", "database committed", "broker committed", "committed")
AFTERWARDS: Final = ("logged", "finished")
EVERYWHERE: Final = READING + WRITING + DECIDING + AFTERWARDS


def chain(points: tuple[str, ...], action: str) -> tuple[tuple[str, str], ...]:
    """The same fault at each point."""
    return tuple((point, action) for point in points)


DRIVERS: Final = {point: chain((point,) * 2, "kill driver") for point in EVERYWHERE}
LONG_TASKS: Final = {
    "all workers": chain(
        ("taken", "taken and prepared", "yielded", "written", "written and prepared", "sent"), "kill worker"
    ),
    "errors": chain(("yielded", "prepared", "looked", "planned", "sink planned", "commit"), "raise"),
    "planners": chain(("looked", "planned", "sink planned", "commit", "decided"), "kill worker"),
    "every commit raises": chain(
        ("undecided", "decided", "database committed", "broker committed", "committed"), "raise"
    ),
    "the end": chain(("logged", "finished", "logged", "finished"), "raise"),
}
TASKS: Final = {
    "short": (
        ("taken and prepared", "kill worker"),
        ("decided", "raise"),
        ("database committed", "raise"),
        ("planned", "kill worker"),
    ),
    **(LONG_TASKS if FULL else {}),
}
ABSORBED: Final = frozenset({"yielded", "prepared", "database committed", "broker committed"})
"""What is raised there fails no query: tasks are repeated, and what is decided is told again."""
SERVERS: Final = {
    "short": (("taken", "server broker"), ("written and prepared", "server postgres"), ("decided", "server broker")),
    **(
        {
            f"{point}: {server}{how}": ((point, f"server {server}{how}"),) * 2
            for point in EVERYWHERE
            for server in ("broker", "postgres")
            for how in ("", " restart")
        }
        if FULL
        else {}
    ),
}


@pytest.mark.skipif(not FULL, reason=MINUTES)
@pytest.mark.parametrize("points", DRIVERS.values(), ids=DRIVERS)
def test_the_driver_is_killed(env: SparkEnvironment, spark: Driver, points: tuple[tuple[str, str], ...]) -> None:
    env.send(range(N))
    env.schedule(*points)
    sink = env.sink(table="rows", address="out")
    arguments: dict[str, Any] = {"source": env.source(), "sink": sink, "checkpoint": env.checkpoint}
    env.run("stream", killed=len(points), last=spark, query="copied", **arguments, restarts=RESTARTS)
    assert env.fired() == len(points)
    env.check_copies(Counter(range(N)))


STATEFUL: Final = {
    "after the decision": chain(("decided",), "kill driver"),
    **({point: chain((point,) * 2, "kill driver") for point in WRITING + DECIDING + AFTERWARDS} if FULL else {}),
}


@pytest.mark.parametrize("points", STATEFUL.values(), ids=STATEFUL)
def test_state_of_two_sources_is_right_whenever_the_driver_is_killed(
    env: SparkEnvironment, spark: Driver, points: tuple[tuple[str, str], ...]
) -> None:
    """They are at two brokers, and share each decision; more messages than a batch reads wait in both."""
    points = tuple((point, action) for point, action in points if "sent" not in point)
    with env.second_broker() as second:
        env.send(range(N))
        env.send(range(N, 2 * N), "in", second)
        env.schedule(*points)
        sink = env.sink(table="totals", key="product")
        sources = [env.source(), env.source(resource="second")]
        arguments: dict[str, Any] = {"source": sources, "sink": sink, "checkpoint": env.checkpoint}
        arguments |= {"query": "totals", "mode": "complete", "restarts": RESTARTS}
        env.run("stream", killed=len(points), last=spark, **arguments)
        assert env.fired() == len(points)
        env.check_totals(range(2 * N))


@pytest.mark.parametrize("points", TASKS.values(), ids=TASKS)
def test_tasks_fail_and_commits_raise(
    env: SparkEnvironment, surviving: Driver, points: tuple[tuple[str, str], ...]
) -> None:
    env.send(range(N))
    env.schedule(*points)
    sink = env.sink(table="rows", address="out")
    arguments: dict[str, Any] = {"source": env.source(), "sink": sink, "checkpoint": env.checkpoint}
    errors = surviving.call("stream", query="copied", **arguments, restarts=RESTARTS)["errors"]
    assert env.fired() == len(points)
    env.check_copies(Counter(range(N)))
    told = [int(number) for error in errors for number in re.findall(r"Injected: fault (\d)", error)[:1]]
    wanted = [number for number, (at, does) in enumerate(points) if does == "raise" and at not in ABSORBED]
    assert told == wanted, errors


LAKE: Final = {
    "short": (("files prepared", "kill worker"), ("decided", "kill worker"), ("lake committed", "kill worker")),
    **(
        {point: chain((point,) * 2, "kill driver") for point in ("prepared", "files written", *DECIDING)}
        if FULL
        else {}
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("points", LAKE.values(), ids=LAKE)
def test_a_delta_table_has_each_row_once(
    env: SparkEnvironment, surviving: Driver, points: tuple[tuple[str, str], ...]
) -> None:
    """Whoever commits is killed: the files are prepared, decided, or named in the table's log."""
    lake = env.folder / "lake"
    lake.mkdir()
    DeltaTable.create(lake / "orders", pa.schema([("id", pa.int64()), ("text", pa.string())]))
    env.send(range(N))
    env.schedule(*points)
    sink = env.sink(table="lake:orders", address="out", **{"resource.lake": lake.as_uri().replace("file", "delta")})
    arguments: dict[str, Any] = {"source": env.source(), "sink": sink, "checkpoint": env.checkpoint}
    if any(action == "kill driver" for _, action in points):
        env.run("stream", killed=len(points), query="copied", **arguments, restarts=RESTARTS)
    else:
        surviving.call("stream", query="copied", **arguments, restarts=RESTARTS)
    assert env.fired() == len(points)
    env.check_copies(Counter(range(N)), table=False)
    rows = rows_of(lake / "orders")
    assert Counter(row["id"] for row in rows) == Counter(range(N))
    assert {row["text"] for row in rows} == {f"v{number}" for number in range(N)}
    assert DeltaTable(lake / "orders").version() == N // 100, "a version for each micro-batch"


@pytest.mark.parametrize("points", SERVERS.values(), ids=SERVERS)
def test_servers_are_killed(env: SparkEnvironment, surviving: Driver, points: tuple[tuple[str, str], ...]) -> None:
    env.send(range(N))
    env.schedule(*points)
    env.serve_faults()
    sink = env.sink(table="rows", address="out")
    arguments: dict[str, Any] = {"source": env.source(), "sink": sink, "checkpoint": env.checkpoint}
    surviving.call("stream", query="copied", **arguments, restarts=RESTARTS)
    assert env.fired() == len(points)
    env.check_copies(Counter(range(N)))


ON_A_CLUSTER: Final = (
    ("taken and prepared", "kill executor"),
    ("decided", "raise"),
    ("written and prepared", "kill executor"),
    *(chain(("taken", "yielded", "sent and prepared", "prepared"), "kill executor") if FULL else ()),
    *((("prepared", "raise"),) if FULL else ()),
)
SHARDS: Final = 4
SMALL: Final = {"spark.master": "local-cluster[2,1,512]", "spark.executor.memory": "512m"}
"""A cluster of two executors in processes of their own, whose master and workers are in the driver."""


@pytest.mark.parametrize("hosts", [0, pytest.param(3, marks=pytest.mark.skipif(not FULL, reason=MINUTES))])
def test_queues_of_two_brokers_keep_their_order_on_a_cluster(env: SparkEnvironment, hosts: int) -> None:
    """Executors, which may be on hosts of their own, read the shards of a queue at two brokers, and write to shards at
    both: the messages of each key come out in the order in which they went in."""
    with env.second_broker() as second, ExitStack() as stack:
        environment = {VARIABLE: str(env.faults), GENERATION: "1", "PYTHONPATH": str(ROOT)}
        cluster = stack.enter_context(Cluster(env.folder / "cluster", environment, hosts)) if hosts else None
        env.settings = cluster.settings if cluster else SMALL
        ports = [env.port, second]
        shards = [[number for number in range(N) if shard_of(number, SHARDS) == shard] for shard in range(SHARDS)]
        for shard, numbers in enumerate(shards):
            env.send(numbers, f"in#{shard}", ports[shard % 2])
        env.schedule(*ON_A_CLUSTER)
        env.reads = (Source((Shard("broker", ("in#*",)), Shard("second", ("in#*",))), by_queue=True),)
        source = env.source(resource="broker, second", queue="in#*", order="queue")
        sink = env.sink(table="rows", address="broker:out, second:out", shards=f"{SHARDS}", shard_key="id")
        arguments: dict[str, Any] = {"source": source, "sink": sink, "checkpoint": env.checkpoint}
        env.run("stream", query="copied", **arguments, restarts=RESTARTS)
        assert env.fired() == len(ON_A_CLUSTER)
        env.check_copies(Counter(range(N)), address=False)
        out = [env.received(f"out#{shard}", ports[shard % 2]) for shard in range(SHARDS)]
    assert out == [[f"{number}" for number in numbers] for numbers in shards]


SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


@pytest.mark.skipif(not FULL, reason=MINUTES)
def test_slow_tasks_are_run_twice(env: SparkEnvironment, tmp_path: Path) -> None:
    """By both workers at a time: one of the two attempts counts."""
    points = chain(("taken", "yielded", "written", "prepared"), "slow")
    env.send(range(N))
    env.schedule(*points)
    environment = {VARIABLE: str(env.faults), GENERATION: "1", "PYTHONPATH": str(ROOT)}
    with Cluster(tmp_path / "cluster", environment) as cluster:
        env.settings = {**cluster.settings, **SPECULATION}
        sink = env.sink(table="rows", address="out")
        arguments: dict[str, Any] = {"source": env.source(), "sink": sink, "checkpoint": env.checkpoint}
        env.run("stream", query="copied", **arguments, restarts=RESTARTS)
    assert env.fired() == len(points)
    env.check_copies(Counter(range(N)))


def test_two_drivers_for_one_pipeline(env: SparkEnvironment, spark: Driver, surviving: Driver) -> None:
    """The second one takes the pipeline, with a checkpoint of its own that follows the first; who then hears of it and
    decides nothing any more."""
    half = range(N // 2)
    env.send(half)
    sink = env.sink(table="rows", address="out")
    first: dict[str, Any] = {"source": env.source(), "sink": sink, "query": "copied"}
    first["checkpoint"] = f"{env.checkpoint}-1"
    second = {**first, "checkpoint": env.checkpoint}
    surviving.ask("stream", processingTime="100 milliseconds", **first)
    env.await_rows(len(half))
    await_until(lambda: env.idle(first["checkpoint"]))  # a commit that fails tells no cause
    second["source"] = env.source(adopt=env.query(first["checkpoint"]))
    spark.call("stream", **second)
    with pytest.raises(DriverFailed, match=r"pipeline 'test' was taken by .*Run one driver for a pipeline"):
        surviving.answer()
    env.send(range(len(half), N))
    spark.call("stream", **second)
    env.check_copies(Counter(range(N)))


@pytest.mark.skipif(not FULL, reason=MINUTES)
def test_a_query_that_is_started_twice(env: SparkEnvironment) -> None:
    """By one driver: the second one is refused, and the first one goes on."""
    env.send(range(N))
    sink = env.sink(table="rows", address="out")
    with env.driver() as driver:
        told = driver.call("twice", source=env.source(), sink=sink, checkpoint=env.checkpoint)
    assert "is read by another query of this driver" in told
    env.check_copies(Counter(range(N)))


@pytest.mark.skipif(not FULL, reason=MINUTES)
def test_foreach_batch_under_faults(env: SparkEnvironment, spark: Driver) -> None:
    points = (("prepared", "raise"), ("undecided", "kill driver"), ("decided", "raise"), ("decided", "kill driver"))
    env.send(range(N))
    env.schedule(*points)
    arguments: dict[str, Any] = {"source": env.source(), "shared": env.shared, "checkpoint": env.checkpoint}
    env.run("foreach", killed=2, last=spark, **arguments, restarts=RESTARTS)
    assert env.fired() == len(points)
    assert env.rows("SELECT sum(n) FROM counts") == [(N,)]
    env.check_copies(Counter(range(N)))
