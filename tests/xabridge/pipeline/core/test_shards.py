"""These tests read one source over two brokers, under one epoch: in order by queue, by patterns, and while one of the
brokers is away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from dtx.broker.access.permissions import Coordination, Permissions, Rule
from rm_amqp import AmqpResource
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.pipeline.core.environment import CoreEnvironment
from xabridge.pipeline.core import Attempt, Batch, Offset, PipelineError, Shard, SourcePartition
from xabridge.pipeline.core.ledger.status import look
from xabridge.pipeline.core.shards import PlannedRead, matches, overlap
from xabridge.pipeline.core.values import Query
from xabridge.pipeline.options import SourceOptions
from xabridge.pipeline.spark.amqp_format import AmqpStream, EpochPartition
from xabridge.shards import shard_address, shard_of

BOTH = ("broker", "second")
KNOWN = [11, 13, 7, 1, 2, 4, 14, 8]
"""The shards of customer-0 to customer-7 of 16. Computed by other software, and never to be changed."""


ONE = "driver-1"


def _read(env: CoreEnvironment, parts: Sequence[SourcePartition]) -> dict[tuple[str, ...], list[str]]:
    """What each task reads, by the broker and queues that it was planned for."""
    return {(part.resource, *part.queues): env.rows(part) for part in parts}


def _done(env: CoreEnvironment, *rows: str) -> None:
    """The checker: every row once in the table."""
    assert Counter(env.table()) == Counter(rows)


@pytest.fixture
def second(env: CoreEnvironment, second: EmbeddedBroker) -> EmbeddedBroker:
    """The resource `second`. A broker that is away is not waited for."""
    env.outage_s = 0.1
    return second


def test_one_source_reads_two_brokers_under_one_decision(env: CoreEnvironment, second: EmbeddedBroker) -> None:
    env.put(["1", "2", "3"])
    env.put(["4", "5"], broker=second)
    reader, end, parts = env.began(ONE, *BOTH)
    assert [part.resource for part in parts] == list(BOTH)
    assert reader.plan(Offset(), end) == parts, "asked twice, it is the same"
    told = _read(env, parts)
    assert not env.finish(parts, 0).before
    assert env.prepared() == ["src/1/0", "src/1/1"]

    again = env.reader("driver-2", *BOTH)  # killed before Spark has logged it
    second.stop()
    with pytest.raises(PipelineError, match="the epoch is decided, so all of it has to be read again"):
        again.plan(Offset(), end)
    second.start()
    replayed = again.plan(Offset(), end)
    assert [env.rows(part) for part in replayed] == list(told.values())
    assert env.finish(replayed, 0, driver="driver-2").before
    assert again.latest(end) == end
    assert env.prepared() == []
    _done(env, "1", "2", "3", "4", "5")
    assert env.queued() == env.queued(broker=second) == []


def test_each_queue_is_one_partition_in_order_and_a_new_one_is_read(
    env: CoreEnvironment, second: EmbeddedBroker
) -> None:
    """But for those of dead letters."""
    places = {"a#0": env.broker, "a#1": second, "a#2": env.broker}
    for number in range(12):
        env.put([f"{number}"], f"a#{number % 3}", places[f"a#{number % 3}"])
    env.put(["no shard"], "b")
    env.put(["dead"], "a#0.dead")
    reader, end, parts = env.began(ONE, *BOTH, queues=("a#*",), by_queue=True)
    assert _read(env, parts) == {
        ("broker", "a#0"): ["0", "3", "6", "9"],
        ("broker", "a#2"): ["2", "5", "8", "11"],
        ("second", "a#1"): ["1", "4", "7", "10"],
    }

    env.put(["late"], "a#3", second)  # a queue that did not exist
    assert reader.plan(Offset(), end) == parts, "an epoch is one set of messages"
    env.finish(parts, 0)
    following = reader.latest(end)
    parts = reader.plan(end, following)
    assert _read(env, parts) == {("second", "a#3"): ["late"]}
    env.finish(parts, 1)
    assert reader.latest(following) == following
    assert (env.queued("b"), env.queued("a#0.dead")) == (["no shard"], ["dead"])
    _done(env, *map(str, range(12)), "late")


def test_a_pattern_needs_the_permission_to_look(env: CoreEnvironment, tmp_path: Path) -> None:
    folder = tmp_path / "strict"
    folder.mkdir()
    rule = Rule(("*",), ("*",), ("*",), Coordination.OWN)
    broker = EmbeddedBroker(folder, anonymous=True, permissions=Permissions({"anonymous": rule}))
    env.others = (("second", f"amqp://{broker.address}/?timeout=5"),)
    try:
        env.put(["1"], "a#0", broker)
        with pytest.raises(PipelineError, match="permission view; otherwise name the queues"):
            env.began(ONE, "second", queues=("a#*",))
        reader = env.reader("driver-2", "second", queues=("a#0",), by_queue=True)
        env.batch(reader, Offset(), 0, driver="driver-2")
        _done(env, "1")
    finally:
        broker.stop()


def test_more_queues_than_messages_have_their_turn(env: CoreEnvironment) -> None:
    queues = tuple(f"a#{number}" for number in range(5))
    for queue in queues:
        env.put([queue], queue)
    reader = env.reader(queues=queues, by_queue=True, rows=2)
    start, number = Offset(), 0
    while (end := reader.latest(start)) != start:
        parts = reader.plan(start, end)
        assert len(parts) == min(2, 5 - 2 * number)
        env.finish(parts, number)
        start, number = end, number + 1
    _done(env, *queues)


def test_uneven_queues_are_read_in_full_batches_to_the_end(env: CoreEnvironment, second: EmbeddedBroker) -> None:
    """Also where one is much longer than the others, and the last batch is the only one with fewer. A query that ends
    reads all that there was, and nothing that came later."""
    counts = [60, 3, 17, 1, 9]
    for queue, count in enumerate(counts):
        env.put([f"{queue}.{number}" for number in range(count)], f"a#{queue}", (env.broker, second)[queue % 2])
    source = env.source(*BOTH, queues=("a#*",), by_queue=True, rows=20)
    env.start(source)
    stream = AmqpStream(SourceOptions(env.settings, source, "text"), StructType())
    stream._planner = env.joined(source)
    stream.prepareForTriggerAvailableNow()
    start = Offset().as_json()
    taken: list[int] = []
    while (end := stream.latestOffset(start, ReadMaxRows(20))) != start:
        before = len(env.table())
        parts = [one.part for one in stream.partitions(start, end) if isinstance(one, EpochPartition)]
        shares = [part.share for part in parts if part is not None]
        assert min(shares) >= 1
        assert sum(shares) <= 20
        env.finish([part for part in parts if part is not None], len(taken))
        taken.append(len(env.table()) - before)
        start = end
        if len(taken) == 1:
            env.put(["later"], "a#0")

    assert taken == [20, 20, 20, 20, 10]
    _done(env, *(f"{queue}.{number}" for queue, count in enumerate(counts) for number in range(count)))
    assert env.queued("a#0") == ["later"]


# --- a broker that is away -------------------------------------------------------------------------------------------
def test_a_broker_that_is_away_is_waited_for_or_skipped_and_read_when_it_is_back(
    env: CoreEnvironment, second: EmbeddedBroker
) -> None:
    env.put(["1"])
    env.put(["2"], broker=second)
    second.stop()

    with pytest.raises(PipelineError, match="second can't be read"):
        env.began(ONE, *BOTH)
    reader, end, parts = env.began(ONE, *BOTH, skips=True)
    assert {part.resource for part in parts} == {"broker"}
    assert env.writer().plan().skipped == ("second",)
    reader.plan(Offset(), end)  # as Spark may
    (epoch,) = look(env.log, ())[0].epochs
    ((name, why),) = epoch.skipped
    assert name == "second"
    assert why.startswith("second can't be read: ")
    assert "refused" in why
    second.start()
    env.finish(parts, 0)
    _done(env, "1")
    env.put(["3"])
    end, _ = env.batch(reader, end, 1)  # it is not asked again at once
    assert look(env.log, ())[0].epochs[0].skipped == epoch.skipped, "not that it was away"
    reader._away._until.clear()  # as if some seconds had passed
    end, _ = env.batch(reader, end, 2)
    _done(env, "1", "2", "3")
    assert look(env.log, ())[0].epochs[0].skipped == ()
    second.stop()
    env.broker.stop()
    with pytest.raises(PipelineError, match=r"broker can't be read.*second can't be read"):  # which is no end
        reader.latest(end)
    second.start()
    env.broker.start()


@pytest.mark.parametrize("began", [True, False], ids=["took messages", "was about to"])
def test_an_earlier_try_takes_nothing_beside_the_next_one(
    env: CoreEnvironment, second: EmbeddedBroker, *, began: bool
) -> None:
    """A try is not decided, and its broker is away when it is given up. While that is away, others are read. Before it
    is read again, what the try had taken is in its queue again, and the late task of the try gets nothing."""
    env.put(["1"])
    env.put(["2", "3"], broker=second)
    source: dict[str, Any] = {"by_queue": True, "skips": True, "rows": 2}
    _, end, (_, late) = env.began(ONE, *BOTH, **source)
    if began:
        assert env.rows(late) == ["2"]
    env.put(["4"], broker=second)
    second.stop()

    again = env.reader("driver-2", *BOTH, **source)
    parts = again.plan(Offset(), end)
    assert [part.resource for part in parts] == ["broker"]
    env.finish(parts, 0, driver="driver-2")
    second.start()
    again._away._until.clear()
    following = again.latest(end)
    parts = again.plan(end, following)
    with pytest.raises(PipelineError):
        env.rows(late)
    assert [env.rows(part) for part in parts] == [["2", "3"]]
    env.finish(parts, 1, driver="driver-2")
    env.batch(again, following, 2, driver="driver-2")
    _done(env, "1", "2", "3", "4")


def test_a_late_attempt_that_met_no_fence_gives_back_what_it_took(env: CoreEnvironment) -> None:
    """The fence of a decided epoch could not be set, and its source branch is finished. A late attempt prepares that
    branch again, with other messages."""
    env.put(["1"])
    reader, end, (part,) = env.began(partitions=1)
    env.finish([part], 0)
    reader.logged(end)
    rm = AmqpResource()
    rm.open(f"amqp://{env.broker.address}/", 1)
    rm.lift_fence(part.xid.gtrid, 1)
    rm.close("", 1)
    env.put(["2"])
    assert env.rows(part) == ["2"]
    assert env.prepared() == ["src/1/0"]
    again = env.reader("driver-2", query=Query("q", "run", 0))
    _, decided = env.batch(again, end, 1, driver="driver-2")
    assert decided.rows == 1
    _done(env, "1", "2")


def test_a_failure_is_searched_in_one_shard(env: CoreEnvironment, second: EmbeddedBroker) -> None:
    """A poison message at one broker: the other queues are not read while it is searched, and none of their messages
    counts as delivered."""
    env.put(["1", "2"], "a#0")
    env.put(["3", "poison", "4"], "a#1", second)
    reader = env.reader("driver-1", *BOTH, queues=("a#*",), by_queue=True, skips=True)
    start, number, sizes = Offset(), 0, []
    end = reader.latest(start)
    for _ in range(40):
        parts = reader.plan(start, end)
        writer = env.writer()
        plan = writer.plan()
        read = _read(env, parts)
        sizes.append({where[-1]: len(rows) for where, rows in read.items()})
        env.put(["more"], "a#1", second)
        if any("poison" in rows for rows in read.values()):
            writer.abort(plan, None, [None])
        else:
            reports = [env.write(plan, rows, Attempt(at, at)) for at, rows in enumerate(read.values())]
            writer.commit(plan, Batch("q", number), reports)
            start, number = end, number + 1
            end = reader.latest(start)
        writer.close()
        if end == start or env.queued("a#1.dead", second):
            break

    assert env.queued("a#1.dead", second) == ["poison"]
    assert sizes[:2] == [{"a#0": 2, "a#1": 3}, {"a#0": 1}], "one shard at a time"
    assert env.queued("a#0.dead") == []
    assert {"1", "2", "3", "4"} <= set(env.table())


# --- names and plans ------------------------------------------------------------------------------------------------
def test_what_is_read_is_stored_with_why_brokers_were_skipped() -> None:
    read = PlannedRead(("a", "b"), (Shard("a", ("q",)),), (("c", "it was away"),))
    assert PlannedRead.from_text(read.as_text()) == read
    assert PlannedRead.from_text("") == PlannedRead()


def test_patterns() -> None:
    assert matches("orders#*", "orders#12")
    assert not matches("orders#*", "orders")
    assert matches("*.in", "shop.in")
    assert not matches("a.c", "abc")
    for one, other, both in (
        ("a", "a", True), ("a", "b", False), ("a*", "abc", True), ("a*", "*c", True), ("a*", "b*", False),
        ("*a*", "b*c", True), ("x#*", "x#1", True), ("*", "*", True), ("a*b", "a*c", False), ("", "*", True),
    ):  # fmt: skip
        assert overlap(one, other) is overlap(other, one) is both, (one, other)


def test_the_shard_of_a_key_never_changes() -> None:
    assert [shard_of(key, 16) for key in ("", None, "globe", b"globe", "Zoë", 7, "7", -1)] == [
        0, 0, shard_of("globe", 16), shard_of("globe", 16), shard_of("Zoë".encode(), 16), shard_of("7", 16),
        shard_of("7", 16), shard_of("-1", 16),
    ]  # fmt: skip
    assert [shard_of(f"customer-{number}", 16) for number in range(8)] == KNOWN
    assert shard_address("orders", "customer-0", 16) == f"orders#{KNOWN[0]}"
    counts = Counter(shard_of(str(Random(number).random()), 16) for number in range(16_000))
    assert all(800 < count < 1200 for count in counts.values())
    with pytest.raises(ValueError, match="one shard at least"):
        shard_of("a", 0)
