"""These tests check that one query has one pipeline and one checkpoint: what belongs together is decided together. What
does not belong together, or is older than what was decided, is refused before a message is taken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.pipeline.core.environment import CoreEnvironment
from xa.coroutines import drive
from xabridge.pipeline.core import (
    Attempt,
    Batch,
    BatchRefused,
    EpochGone,
    Offset,
    PipelineError,
    PipelineTaken,
    Query,
    SourcePartition,
)
from xabridge.pipeline.core.driver.query_binding import bind
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator
from xabridge.pipeline.core.protocol.ownership import GIVEN_UP

ROWS = [f"{number}" for number in range(10)]
MORE = [f"{number}" for number in range(10, 25)]


@dataclass
class TwoSources:
    """The sources of a query at two brokers, and how far each has read."""

    env: CoreEnvironment
    second: EmbeddedBroker
    starts: tuple[Offset, ...] = (Offset(), Offset())

    def restart(self, driver: str = "driver-1") -> None:
        """The query starts."""
        sources = (self.env.source(), self.env.source("second"))
        self.env.start(*sources, driver=driver)
        self.readers = tuple(self.env.joined(source, driver) for source in sources)

    def put(self, rows: Sequence[str]) -> None:
        """Some of them wait at the one broker, and the others at the other one."""
        half = len(rows) // 2
        self.env.put(rows[:half])
        self.env.put(rows[half:], broker=self.second)

    def ends(self) -> tuple[Offset, ...]:
        """How far the next batch reads."""
        return tuple(reader.latest(start) for reader, start in zip(self.readers, self.starts, strict=True))

    def parts(self, ends: tuple[Offset, ...]) -> list[SourcePartition]:
        """What its tasks read."""
        each = zip(self.readers, self.starts, ends, strict=True)
        return [part for reader, start, end in each for part in reader.plan(start, end)]


@pytest.fixture
def two(env: CoreEnvironment, second: EmbeddedBroker) -> TwoSources:
    """A query over two sources that has started. Its brokers are waited for long."""
    env.others = (("second", f"amqp://{second.address}/?timeout=20"),)
    two = TwoSources(env, second)
    two.restart()
    return two


def _read(env: CoreEnvironment, parts: Sequence[SourcePartition]) -> list[str]:
    return [row for part in parts for row in env.rows(part)]


def test_two_sources_at_two_brokers_share_one_decision(env: CoreEnvironment, two: TwoSources) -> None:
    """The driver dies behind the decision, more messages come, and the batch is read again as it was."""
    two.put(ROWS)
    ends = two.ends()
    parts = two.parts(ends)
    assert two.readers[0].plan(Offset(), ends[0]) == parts[:2], "asked twice, it is the same"
    told = [env.rows(part) for part in parts]
    assert sorted([row for rows in told for row in rows], key=int) == ROWS
    assert not env.finish(parts, 0).before
    assert len({part.xid.gtrid for part in parts}) == 1
    assert env.prepared() == ["src/1/0", "src/1/1", "src/2/0", "src/2/1"]

    two.put(MORE)
    two.restart("driver-2")
    parts = two.parts(ends)
    assert [env.rows(part) for part in parts] == told
    assert env.finish(parts, 0, driver="driver-2").before
    two.starts = ends
    following = two.ends()
    assert env.prepared() == []
    assert not env.finish(two.parts(following), 1, driver="driver-2").before
    two.starts = following
    assert two.ends() == following
    assert sorted(env.table(), key=int) == [*ROWS, *MORE]
    assert env.prepared() == []


def test_only_one_of_two_sources_has_messages(env: CoreEnvironment, two: TwoSources) -> None:
    for number, (rows, broker) in enumerate(((ROWS[:5], two.second), (ROWS[5:], env.broker), (MORE, two.second))):
        env.put(rows, broker=broker)
        ends = two.ends()
        assert not env.finish(two.parts(ends), number).before
        two.starts = ends
    assert sorted(env.table(), key=int) == [*ROWS, *MORE]
    assert two.ends() == two.starts
    assert env.prepared() == []


def test_sources_whose_sink_is_not_ours_are_decided_together(env: CoreEnvironment, two: TwoSources) -> None:
    """When Spark has logged the batch."""
    two.put(ROWS)
    ends = two.ends()
    assert sorted(_read(env, two.parts(ends)), key=int) == ROWS
    assert two.readers[0].latest(ends[0]) == ends[0]
    assert env.prepared() == [], "what one source hears of holds for both"
    assert (env.queued(), env.queued(broker=two.second)) == ([], [])


def test_a_source_that_was_planned_apart_is_never_written(env: CoreEnvironment, two: TwoSources) -> None:
    """However it came about: what it took would be written, and not be decided with it."""
    two.put(ROWS)
    ends = two.ends()
    first = two.readers[0].plan(Offset(), ends[0])
    two.readers[0]._pipeline.ledger.log.abort(first[0].xid.gtrid)
    two.readers[1].plan(Offset(), ends[1])
    with pytest.raises(PipelineError, match="the sink's decision would not contain epoch"):
        env.writer().plan()


def test_a_source_and_a_sink_of_different_pipelines_do_not_work(env: CoreEnvironment) -> None:
    """The sink's pipeline is bound to no query: its driver would have refused the query when it started."""
    env.put(ROWS)
    env.began()
    sink = SinkCoordinator(replace(env.settings, pipeline="other"), "driver-1", resources=env.resources)
    with pytest.raises(PipelineTaken, match="is not bound to this start of a query"):
        sink.plan()
    plan = env.writer().plan()
    with pytest.raises(PipelineError, match="was planned for query q, but query other wrote it"):
        env.writer().commit(plan, Batch("other", 0), [])
    for query in ("other", ""):
        with pytest.raises(PipelineError, match="was planned for query q"):
            plan.check(query)
    with pytest.raises(PipelineError, match=r"in foreachBatch, write by pipeline\.epoch"):
        replace(plan, query="").check("q")


def test_a_job_never_decides_what_a_query_reads(env: CoreEnvironment) -> None:
    """Under the same name, in the same driver, between the planning of a batch and its commit."""
    env.put(ROWS)
    reader, end, parts = env.began()
    writer, job = env.writer(), env.writer()
    plan = writer.plan()
    of_job = job.plan(streaming=False)
    assert of_job.gtrid != plan.gtrid
    assert not job.commit(of_job, None, [env.write(of_job, ["100"])]).before
    reports = env.tasks(plan, parts)
    with pytest.raises(BatchRefused, match="has to be run again"):
        writer.commit(plan, Batch("q", 0), reports)
    writer.abort(plan, Batch("q", 0), reports)
    env.batch(reader, Offset(), 0, end=end)
    assert sorted(env.table(), key=int) == [*ROWS, "100"]


def test_a_source_that_nobody_announced_takes_nothing(env: CoreEnvironment) -> None:
    env.put(ROWS)
    with pytest.raises(PipelineTaken, match=r"In the driver, call pipeline.register\(spark\)"):
        env.joined(env.source(), "driver-1")
    env.start(env.source())
    with pytest.raises(PipelineTaken, match="does not read broker: another"):
        env.joined(env.source(queues=("another",)), "driver-1")
    reader = env.joined(env.source(), "driver-1")
    ledger = reader._pipeline.ledger
    with pytest.raises(PipelineTaken, match="reads it in process"):
        ledger.claim(str(env.source()), "another process")
    with pytest.raises(PipelineTaken, match="was taken by driver driver-1"):
        env.joined(env.source(), "driver-2")
    assert reader.latest(Offset()) != Offset(), "it still has the pipeline"


def test_another_query_of_the_driver_does_not_take_the_pipeline(env: CoreEnvironment) -> None:
    """Not while the first one runs. A new start of the same query takes it, and so does another driver."""
    env.start(env.source(), query=Query("q", "run-1", 0))
    runs = {("q", "run-1")}

    def start(query: Query) -> None:
        here: dict[str, Any] = {"runs": lambda *who: who in runs, "resources": env.resources}
        bind(env.settings, "driver-1", query, [env.source()], **here)

    reader = env.joined(env.source(), "driver-1")
    with pytest.raises(PipelineTaken, match="another query of this driver"):
        start(Query("other", "run-2", -1, adopt="q"))
    start(Query("q", "run-1", 0))  # the same start, again: nothing changes
    assert reader.latest(Offset()) == Offset()
    runs.clear()
    start(Query("q", "run-3", 0))
    with pytest.raises(PipelineTaken):
        reader.latest(Offset())


def test_a_pipeline_that_was_renamed_is_refused(env: CoreEnvironment) -> None:
    """Its checkpoint names what was decided under the other name, and the other name's log knows it."""
    env.put(ROWS)
    reader = env.reader()
    env.batch(reader, Offset(), 0)
    env.pipeline = "renamed"
    with pytest.raises(PipelineError, match=r"query q has pipeline 'orders'.*start it as that pipeline again"):
        env.start(env.source(), query=Query("q", "run", 0))
    env.start(env.source(), query=Query("other", "run", -1))


# --- the checkpoint ---------------------------------------------------------------------------------------------------
def test_a_checkpoint_one_batch_old_is_refused_when_the_query_starts(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader = env.reader()
    end, _ = env.batch(reader, Offset(), 0)
    assert reader.latest(end) == end
    env.put(MORE)
    following, _ = env.batch(reader, end, 1)
    with pytest.raises(EpochGone, match="batch 1 of query q is decided, but the checkpoint ends with batch 0"):
        env.start(env.source(), driver="driver-2", query=Query("q", "run", 0))
    assert reader.latest(following) == following, "who has the pipeline was not disturbed"


def test_a_checkpoint_one_batch_old_takes_no_message(env: CoreEnvironment) -> None:
    """It was made between the offsets of a batch and its end, or is mixed from two: each part sees it by itself."""
    env.put(ROWS)
    reader = env.reader()
    end, _ = env.batch(reader, Offset(), 0)
    assert reader.latest(end) == end
    env.put(MORE)
    again = env.reader("driver-2")
    with pytest.raises(EpochGone, match="older than what was decided"):
        again.latest(Offset())
    with pytest.raises(EpochGone, match="its messages do not exist any more"):
        again.plan(Offset(), end)

    with pytest.raises(EpochGone, match="older than what was decided"):
        again.plan(Offset(), Offset(drive(again._pipeline.ledger.allot())))
    following = again.latest(end)
    (part, _) = again.plan(end, following)
    with pytest.raises(EpochGone, match="batch 0 of query q would take new messages, but it is decided"):
        part.check("q", 0)
    part.check("q", 1)
    part.check("", None)  # a thread of the application's own: Spark says nothing of the batch
    with pytest.raises(PipelineError, match="planned for query q, but query other reads it"):
        part.check("other", 1)
    with pytest.raises(PipelineError, match=r"read it by spark\.readStream"):
        replace(part, query="").check("q", 1)
    with pytest.raises(EpochGone, match="was already decided with other messages"):
        env.finish([part], 0, driver="driver-2")
    writer = env.writer("driver-2")
    writer.abort(writer.plan(), None, [])
    assert sorted(env.table(), key=int) == ROWS
    assert env.queued() == MORE


def test_a_batch_of_others_messages_that_is_not_the_decided_one_is_refused(env: CoreEnvironment) -> None:
    """The query reads something that is not ours: only the checkpoint's own log tells what."""
    env.start()

    def write(row: str, offsets: str) -> bool:
        plan = env.writer().plan()
        report = env.write(plan, [row], Attempt(0, 0))
        return env.writer().commit(plan, Batch("q", 0, offsets), [report]).before

    assert not write("1", "these")
    env.start()
    assert write("1", "these"), "Spark has not logged it, and runs it again"
    assert write("1", ""), "who can't see them believes it"
    with pytest.raises(EpochGone, match="already decided with other messages"):
        write("2", "others")
    assert env.table() == ["1"]


def test_a_new_checkpoint_is_refused_unless_it_says_whom_it_follows(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader = env.reader()
    env.batch(reader, Offset(), 0)  # decided, and not logged by Spark: the checkpoint is lost
    assert env.prepared() == ["src/1/0", "src/1/1"]
    with pytest.raises(PipelineError, match=r'belongs to query q.*option adopt = "q"'):
        env.start(env.source(), query=Query("new", "run", -1))

    with pytest.raises(PipelineError, match='option adopt = "q"'):
        env.start(env.source(), query=Query("new", "run", -1, adopt="another"))
    env.put(MORE)
    adopting = Query("new", "run-new", -1, adopt="q")
    reader = env.reader(query=adopting)
    assert env.prepared() == [], "what was decided is finished"
    parts = reader.plan(Offset(), reader.latest(Offset()))
    writer = env.writer()
    plan = writer.plan()
    assert not writer.commit(plan, Batch("new", 0), env.tasks(plan, parts)).before
    assert sorted(env.table(), key=int) == [*ROWS, *MORE]
    env.start(env.source(), query=replace(adopting, run="next", planned=0))  # the option may stay
    with pytest.raises(PipelineError, match='option adopt = "new"'):
        env.start(env.source(), query=Query("q", "run-q", 0))  # the old one comes back
    with pytest.raises(PipelineError, match='option adopt = "new"'):
        env.start(env.source(), query=Query("third", "run-3", -1, adopt="q"))  # lost once more


@pytest.mark.parametrize("decided", [True, False])
def test_a_new_checkpoint_that_reads_other_streams_gives_the_pipeline_up(
    env: CoreEnvironment, *, decided: bool
) -> None:
    """How far those were read stood in the lost checkpoint only: their rows would be written again. Nothing is left of
    the old query, whose checkpoint does not go on either."""
    env.put(ROWS)
    if decided:
        env.batch(env.reader(query=Query("q", "run-q", 0, foreign=("kafka",))), Offset(), 0)
    else:
        env.began()
        env.write(env.writer().plan(), ["lost"])
    assert env.prepared() != []
    with pytest.raises(PipelineError, match=r'once with the option adopt = "q": .*kafka and rate had been read'):
        env.start(env.source(), query=Query("new", "run", -1, "", ("kafka", "rate")))
    assert env.prepared() != []
    for again in ("q", "q", ""):
        with pytest.raises(PipelineError, match=r"given up: .*how far kafka had been read.*as a new pipeline: .* once"):
            env.start(env.source(), query=Query("new", "run", -1, again, ("kafka",)))
        assert env.prepared() == []

    with pytest.raises(PipelineError, match=f"belongs to query {GIVEN_UP}") as refused:
        env.start(env.source(), query=Query("q", "run-2", 0, foreign=()))
    (owner,) = set(re.findall(rf"{GIVEN_UP}\d+", str(refused.value)))
    with pytest.raises(PipelineError, match="is given up"):
        env.start(env.source(), query=Query("q", "run-2", 0, foreign=("kafka",)))
    reader = env.reader("driver-2", query=Query("without", "run", -1, owner))
    waiting = reader.latest(Offset())
    assert (waiting == Offset()) == decided, "what was not decided is in its queue again"


def test_a_query_of_other_streams_begins_and_goes_on(env: CoreEnvironment) -> None:
    for run, planned in (("run-1", -1), ("run-2", 0)):
        env.start(env.source(), query=Query("q", run, planned, "gone", ("kafka",)))


def test_what_was_not_decided_is_read_by_who_adopts(env: CoreEnvironment) -> None:
    env.put(ROWS)
    env.began()
    env.write(env.writer().plan(), ["lost"])
    reader = env.reader("driver-2", query=Query("new", "run-new", -1, adopt="q"))
    assert env.prepared() == []
    end = reader.latest(Offset())
    assert sorted(_read(env, reader.plan(Offset(), end)), key=int) == ROWS
