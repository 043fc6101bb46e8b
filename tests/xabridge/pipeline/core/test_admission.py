"""These tests check how much a micro-batch reads, and when: limits in messages and octets, a minimum with a longest
delay, and a query that ends when it has read what there was.
"""

from __future__ import annotations

import random

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import StructType

from tests.tm.shop import Clock
from tests.xabridge.pipeline.core.environment import CoreEnvironment
from xabridge.pipeline.core import Offset, Source, SourcePartition
from xabridge.pipeline.core.driver.admission import Delay, ReadLimits, shares_of
from xabridge.pipeline.core.driver.source_planner import SourcePlanner
from xabridge.pipeline.options import SourceOptions
from xabridge.pipeline.spark.amqp_format import AmqpStream, EpochPartition, limits_of

LONG = [f"{number:0100}" for number in range(20)]
"""Messages of a little more than a hundred octets."""


def planner(env: CoreEnvironment, source: Source, clock: Clock | None = None) -> SourcePlanner:
    env.start(source)
    planned = SourcePlanner(env.settings, source, "driver-1", resources=env.resources, clock=clock or Clock())
    env._opened.append(planned)
    return planned


def test_a_batch_has_no_more_octets_than_it_may(env: CoreEnvironment) -> None:
    env.put(LONG)
    reader = env.reader(octets=1000)
    sizes: list[int] = []
    start = Offset()
    while (end := reader.latest(start)) != start:
        before = len(env.table())
        start, _ = env.batch(reader, start, len(sizes), end=end)
        sizes.append(len(env.table()) - before)
    assert sum(sizes) == len(LONG)
    assert max(sizes) <= 10, "two tasks with five hundred octets each, which the fifth message reaches"
    assert sorted(env.table()) == LONG
    assert env.prepared() == []


def test_a_task_takes_a_message_that_is_larger_than_its_limit_and_sparks_own_limit_holds_too(
    env: CoreEnvironment,
) -> None:
    """Below that of the option."""
    env.put(["x" * 5000, "y" * 5000], "large")
    env.put(LONG)
    for driver, queue, octets, limits, rows in (
        ("driver-1", "large", 10, ReadLimits(), ["x" * 5000]),
        ("driver-2", "orders", 1_000_000, ReadLimits(octets=300), LONG[:3]),
    ):
        reader = env.reader(driver, queues=(queue,), octets=octets, partitions=1)
        (partition,) = reader.plan(Offset(), reader.latest(Offset(), limits))
        assert env.rows(partition) == rows


def test_a_search_for_a_poison_message_goes_by_numbers_only(env: CoreEnvironment) -> None:
    env.put(LONG)
    reader, end, first = env.began(octets=600, partitions=2)
    plan = env.writer().plan()
    taken = sum(len(env.rows(partition)) for partition in first)
    env.writer().abort(plan, None, [None])
    (again,) = reader.plan(Offset(), end)
    assert (again.share, again.octets) == ((taken + 1) // 2, 0)


def test_few_messages_wait_until_the_longest_delay_is_over(env: CoreEnvironment) -> None:
    clock = Clock()
    reader = planner(env, env.source(least=3, delay_s=60.0), clock)
    clock.now += 100  # nothing waited
    env.put(["one", "two"])
    assert reader.latest(Offset()) == Offset()
    clock.now += 59
    assert reader.latest(Offset()) == Offset()
    env.put(["three"])
    end = reader.latest(Offset())
    assert end == Offset(1), "there are three"
    end, _ = env.batch(reader, Offset(), 0, end=end)
    env.put(["four"])
    assert reader.latest(end) == end
    clock.now += 61
    assert reader.latest(end) == Offset(2)


def test_the_delay_counts_from_the_first_of_the_messages_that_wait() -> None:
    clock = Clock()
    delay = Delay(clock)
    assert not delay.is_over(1, 2, 10.0)
    clock.now += 9
    assert not delay.is_over(0, 2, 10.0), "another consumer has taken it"
    assert not delay.is_over(1, 2, 10.0)
    clock.now += 9
    assert not delay.is_over(1, 2, 10.0)
    assert not delay.is_over(1, 2, 0.0), "without end"
    clock.now += 1
    assert delay.is_over(1, 2, 10.0)


def test_each_limit_of_spark_is_understood() -> None:
    assert limits_of(ReadMaxRows(7)) == ReadLimits(rows=7)
    assert limits_of(ReadMaxBytes(8)) == ReadLimits(octets=8)
    assert limits_of(ReadMinRows(9)) == ReadLimits(least=9)
    assert limits_of(ReadMaxFiles(1)) == ReadLimits(), "there are no files: the options hold"
    assert limits_of(ReadAllAvailable()) == ReadLimits(at_once=True)


@pytest.mark.parametrize("octets", [0, 600])
def test_a_query_that_ends_reads_what_there_was_and_no_more(env: CoreEnvironment, octets: int) -> None:
    """No minimum holds it up, and limits in octets don't end it early."""
    source = env.source(rows=8, octets=octets, least=5, delay_s=3600.0)
    stream = AmqpStream(SourceOptions(env.settings, source, "binary"), StructType())
    stream._planner = planner(env, source)
    env.put(LONG)
    stream.prepareForTriggerAvailableNow()
    start, number = stream.initialOffset(), 0

    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        if number == 1:
            env.put(["late"] * 50)
        parts = [part.part for part in stream.partitions(start, end) if isinstance(part, EpochPartition)]
        env.finish([part for part in parts if isinstance(part, SourcePartition)], number)
        stream.commit(start)
        start, number = end, number + 1
        assert number < 20
    assert sorted(env.table()) == LONG
    assert env.queued() == ["late"] * 50


def test_a_limit_is_shared_by_what_waits() -> None:
    assert shares_of(10, [18, 2]) == [8, 2]
    assert shares_of(10, [5, 1]) == [7, 3], "what is over is for messages that come meanwhile"
    assert shares_of(3, [100, 0, 7]) == [1, 1, 1]
    chance = random.Random(1)
    for _ in range(2000):
        waiting = [chance.choice([0, 1, 2, 5, 40, 1000]) for _ in range(chance.randint(1, 9))]
        rows = chance.randint(len(waiting), 1500)
        shares = shares_of(rows, waiting)
        assert sum(shares) == rows
        assert min(shares) >= 1

        if sum(max(count, 1) for count in waiting) >= rows:
            even = rows // len(waiting)
            assert all(share >= min(count, even) for share, count in zip(shares, waiting, strict=True))
            assert all(share <= max(count, 1) for share, count in zip(shares, waiting, strict=True))
        else:
            assert all(share >= count for share, count in zip(shares, waiting, strict=True))
