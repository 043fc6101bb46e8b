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
from contextlib import ExitStack, closing
from typing import Any, Final

import pytest

from tests.xabridge.pipeline.cluster import Cluster
from tests.xabridge.pipeline.environment import ROOT, Driver, DriverFailed, SparkEnvironment
from tests.xabridge.pipeline.faults import GENERATION, VARIABLE, await_until
from xabridge.pipeline.core import Query, Shard, Source
from xabridge.pipeline.core.driver.query_binding import bind
from xabridge.pipeline.core.process_ids import process_id
from xabridge.pipeline.settings import settings_from
from xabridge.shards import shard_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
FULL: Final = os.environ.get("XABRIDGE_SPARK_FAULTS") == "all"
APART: Final = pytest.mark.skipif(not FULL, reason="takes minutes: XABRIDGE_SPARK_FAULTS=all")
N: Final = 700 if FULL else 200
RESTARTS: Final = 30
BOTH: Final = {"table": "rows", "address": "out"}
EXECUTOR: Final = {"spark.master": "local-cluster[1,2,512]", "spark.executor.memory": "512m"}
"""A cluster of one executor in a process of its own, with two tasks at the same time; master and worker are in the
driver."""
EXECUTORS: Final = EXECUTOR | {"spark.master": "local-cluster[2,1,512]"}

READING: Final = ("looked", "planned", "taken", "taken and prepared", "yielded")
WRITING: Final = ("sink planned", "written", "written and prepared", "sent", "sent and prepared", "prepared")
DECIDING: Final = ("commit", "undecided", "decided", "database committed", "broker committed", "committed")
AFTERWARDS: Final = ("logged", "finished")
EVERYWHERE: Final = READING + WRITING + DECIDING + AFTERWARDS


def chain(points: tuple[str, ...], action: str) -> tuple[tuple[str, str], ...]:
    """The same fault at each point."""
    return tuple((point, action) for point in points)


def run(
    env: SparkEnvironment,
    last: Driver,
    points: tuple[tuple[str, str], ...],
    query: str,
    sink: dict[str, str],
    *settings: dict[str, str],
    **how: Any,
) -> list[str]:
    """Runs a query under these faults: in new drivers, with these settings, as long as a fault kills them, and to its
    end in the last one; the errors of the starts that failed there."""
    env.schedule(*points)
    how["restarts"] = RESTARTS
    for number in range(sum(action == "kill driver" for _, action in points)):
        env.kill("stream", (*settings, *[{}] * len(points))[number], **env.asked(query, sink, **how))
    errors = env.stream(last, query, sink, **how)
    assert env.fired() == len(points)
    return errors


@pytest.mark.long
def test_state_is_right_although_the_driver_is_killed(env: SparkEnvironment, spark: Driver) -> None:
    """The query reads two brokers, which share each decision; more messages than a batch reads wait in both. The driver
    dies behind its decision."""
    totals_of_two_brokers(env, spark, (("decided", "kill driver"),))


@pytest.mark.long
def test_state_is_right_although_executors_and_the_driver_are_killed(env: SparkEnvironment, spark: Driver) -> None:
    """The driver has an executor in a process of its own."""
    points = (("taken and prepared", "kill executor"), ("decided", "kill driver"))
    totals_of_two_brokers(env, spark, points, EXECUTOR)


@APART
@pytest.mark.parametrize("point", [point for point in WRITING + DECIDING + AFTERWARDS if "sent" not in point])
def test_state_is_right_whenever_the_driver_is_killed(env: SparkEnvironment, spark: Driver, point: str) -> None:
    totals_of_two_brokers(env, spark, chain((point,) * 2, "kill driver"))


def totals_of_two_brokers(
    env: SparkEnvironment, last: Driver, points: tuple[tuple[str, str], ...], *settings: dict[str, str]
) -> None:
    with env.second_broker() as second:
        env.send(range(N))
        env.send(range(N, 2 * N), "in", second)
        sources = [{}, {"resource": "second"}]
        run(
            env,
            last,
            points,
            "totals",
            {"table": "totals", "key": "product"},
            *settings,
            source=sources,
            mode="complete",
        )
        env.check_totals(range(2 * N))


COPIED: Final[dict[str, list[tuple[tuple[str, str], ...]]]] = {
    "drivers": [chain((point,) * 2, "kill driver") for point in EVERYWHERE],
    "servers": [
        ((point, f"server {server}{how}"),) * 2
        for point in EVERYWHERE
        for server in ("broker", "postgres")
        for how in ("", " restart")
    ],
    "workers": [
        chain(("taken", "taken and prepared", "yielded", "written", "written and prepared", "sent"), "kill worker"),
        chain(("looked", "planned", "sink planned", "commit", "decided"), "kill worker"),
    ],
    "errors": [
        chain(("yielded", "prepared", "looked", "planned", "sink planned", "commit"), "raise"),
        chain(("undecided", "decided", "database committed", "broker committed", "committed"), "raise"),
        chain(("logged", "finished", "logged", "finished"), "raise"),
    ],
}
ABSORBED: Final = frozenset({"yielded", "prepared", "database committed", "broker committed"})
"""What is raised there fails no query: tasks are repeated, and what is decided is told again."""
SOME_OF_EACH: Final = (
    ("taken and prepared", "kill worker"),
    ("decided", "raise"),
    ("written and prepared", "server postgres"),
    ("database committed", "raise"),
    ("taken", "server broker"),
    ("planned", "kill worker"),
)


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(SOME_OF_EACH, id="some of each"),
        pytest.param((("decided", "kill driver"),), id="the driver dies behind its decision"),
        *(
            pytest.param(points, id=f"{what}: {points[0][0]}: {points[0][1]}", marks=APART)
            for what, chains in COPIED.items()
            for points in chains
        ),
    ],
)
def test_each_message_is_written_once_whatever_fails(
    env: SparkEnvironment, spark: Driver, request: pytest.FixtureRequest, points: tuple[tuple[str, str], ...]
) -> None:
    if "kill driver" not in points[0]:
        request.getfixturevalue("surviving")
    env.send(range(N))
    env.serve_faults()
    most = N // (6 if len(points) > 1 else 2)  # more batches than the faults need, of which one may come a batch later
    errors = run(env, spark, points, "copied", BOTH, source={"maxRowsPerBatch": str(most)})
    env.check_copies(Counter(range(N)))
    told = [int(number) for error in errors for number in re.findall(r"Injected: fault (\d)", error)[:1]]
    wanted = [number for number, (at, does) in enumerate(points) if does == "raise" and at not in ABSORBED]
    assert told == wanted, errors


ON_A_CLUSTER: Final = (
    ("taken and prepared", "kill executor"),
    ("decided", "raise"),
    *chain(("written and prepared", "taken", "yielded", "sent and prepared", "prepared"), "kill executor"),
    ("prepared", "raise"),
)
SHARDS: Final = 4


@pytest.mark.long
@pytest.mark.parametrize("hosts", [0, pytest.param(3, marks=APART)])
def test_queues_of_two_brokers_keep_their_order_on_a_cluster(env: SparkEnvironment, hosts: int) -> None:
    """Executors, which may be on hosts of their own, read the shards of a queue at two brokers, and write to shards at
    both: the messages of each key come out in the order in which they went in."""
    with env.second_broker() as second, ExitStack() as stack:
        settings = EXECUTORS
        if hosts:
            faulty = {VARIABLE: str(env.faults), GENERATION: "1", "PYTHONPATH": str(ROOT)}
            settings = stack.enter_context(closing(Cluster(env.folder / "cluster", faulty, hosts))).settings

        ports = [env.port, second]
        shards = [[number for number in range(N) if shard_of(number, SHARDS) == shard] for shard in range(SHARDS)]
        for shard, numbers in enumerate(shards):
            env.send(numbers, f"in#{shard}", ports[shard % 2])
        env.reads = (Source((Shard("broker", ("in#*",)), Shard("second", ("in#*",))), by_queue=True),)
        source = {"resource": "broker, second", "queue": "in#*", "order": "queue"}
        sink = {"table": "rows", "address": "broker:out, second:out", "shards": f"{SHARDS}", "shard_key": "id"}
        with closing(env.driver(settings)) as driver:
            run(env, driver, ON_A_CLUSTER, "copied", sink, source=source)
        env.check_copies(Counter(range(N)), address=False)
        out = [env.received(f"out#{shard}", ports[shard % 2]) for shard in range(SHARDS)]
    assert out == [[f"{number}" for number in numbers] for numbers in shards]


@pytest.mark.long
def test_a_driver_whose_pipeline_was_taken_decides_nothing_any_more(env: SparkEnvironment, spark: Driver) -> None:
    """It hears of it, and says so. What the query does then is what it would have done anywhere else."""
    half = range(N // 2)
    env.send(half)
    asked = env.asked("copied", BOTH)
    spark.ask("stream", processingTime="100 milliseconds", **asked)
    env.await_rows(len(half))
    await_until(lambda: env.idle(env.checkpoint))  # a commit that fails tells no cause
    settings = settings_from(env.pipeline, env.database, env.resources)
    bind(settings, process_id(), Query(env.query(), "elsewhere", 0), [Source((Shard("broker", ("in",)),))])
    with pytest.raises(DriverFailed, match=r"pipeline 'test' was taken by .*Run one driver for a pipeline"):
        spark.answer()
    env.send(range(len(half), N))
    spark.call("stream", **asked)
    env.check_copies(Counter(range(N)))


@APART
def test_foreach_batch_under_faults(env: SparkEnvironment, spark: Driver) -> None:
    points = (("prepared", "raise"), ("undecided", "kill driver"), ("decided", "raise"), ("decided", "kill driver"))
    env.send(range(N))
    env.schedule(*points)
    asked: dict[str, Any] = {"source": env.source(), "shared": env.shared, "checkpoint": env.checkpoint}
    for _ in range(2):
        env.kill("foreach", **asked, restarts=RESTARTS)
    spark.call("foreach", **asked, restarts=RESTARTS)
    assert env.fired() == len(points)
    assert env.rows("SELECT sum(n) FROM counts") == [(N,)]
    env.check_copies(Counter(range(N)))
