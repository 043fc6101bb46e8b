"""One query, one pipeline, one checkpoint: what belongs together is decided together, and what does not, or is older
than what was decided, is refused before a message is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from tests.rm_amqp.embedded import EmbeddedBroker
from tm.log.sql.database import Database
from xa import FORMAT_ID, Xid
from xabridge.pipeline.core import Attempt, Batch, BatchRefused, EpochGone, Offset, PipelineError, PipelineTaken, Query
from xabridge.pipeline.core import planning as planning_module
from xabridge.pipeline.core.driver import Writer, bind
from xabridge.pipeline.core.tables import ISOLATION, QUERY, SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.xabridge.pipeline.core.stage import Stage
    from xabridge.pipeline.core import SourcePartition

ROWS = [f"{number}" for number in range(10)]
MORE = [f"{number}" for number in range(10, 25)]


@pytest.fixture
def second(stage: Stage, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """The resource `second`, another broker."""
    folder = tmp_path / "second"
    folder.mkdir()
    broker = EmbeddedBroker(folder)
    stage.others = (("second", f"amqp://{broker.address}/?timeout=20"),)
    yield broker
    stage.resources.close()
    broker.stop()


def _read(stage: Stage, parts: Sequence[SourcePartition]) -> list[str]:
    return [row for part in parts for row in stage.rows(part)]


def _written(stage: Stage, writer: Writer, parts: Sequence[SourcePartition], number: int) -> bool:
    """A batch of all these parts; whether it had been decided before."""
    plan = writer.plan()
    reports = [stage.write(plan, stage.rows(part), Attempt(index, index)) for index, part in enumerate(parts)]
    return writer.commit(plan, Batch("q", number), reports).before


def test_two_sources_at_two_brokers_share_one_decision(stage: Stage, second: EmbeddedBroker) -> None:
    """The driver dies behind the decision, more messages come, and the batch is read again as it was."""
    stage.put(ROWS[:5])
    stage.put(ROWS[5:], broker=second)
    sources = (stage.source(), stage.source("second"))
    stage.start(*sources)
    one, two = (stage.joined(source) for source in sources)
    ends = [reader.latest(Offset()) for reader in (one, two)]
    parts = [*one.plan(Offset(), ends[0]), *two.plan(Offset(), ends[1])]
    assert one.plan(Offset(), ends[0]) == parts[:2], "asked twice, it is the same"
    told = [stage.rows(part) for part in parts]
    assert sorted([row for rows in told for row in rows], key=int) == ROWS
    assert not _written(stage, stage.writer(), parts, 0)
    assert len({part.xid.gtrid for part in parts}) == 1
    assert stage.prepared() == ["src/1/0", "src/1/1", "src/2/0", "src/2/1"]

    stage.put(MORE[:7])
    stage.put(MORE[7:], broker=second)
    stage.start(*sources, driver="driver-2")
    one, two = (stage.joined(source, "driver-2") for source in sources)
    parts = [*one.plan(Offset(), ends[0]), *two.plan(Offset(), ends[1])]
    assert [stage.rows(part) for part in parts] == told
    assert _written(stage, stage.writer("driver-2"), parts, 0)
    following = [reader.latest(start) for reader, start in zip((one, two), ends, strict=True)]
    assert stage.prepared() == []
    parts = [*one.plan(ends[0], following[0]), *two.plan(ends[1], following[1])]
    assert not _written(stage, stage.writer("driver-2"), parts, 1)
    for reader, end in zip((one, two), following, strict=True):
        assert reader.latest(end) == end
    assert sorted(stage.table(), key=int) == [*ROWS, *MORE]
    assert stage.prepared() == []


def test_only_the_second_source_has_messages(stage: Stage, second: EmbeddedBroker) -> None:
    sources = (stage.source(), stage.source("second"))
    stage.start(*sources)
    one, two = (stage.joined(source) for source in sources)
    starts = [Offset(), Offset()]
    for number, (rows, broker) in enumerate(((ROWS[:5], second), (ROWS[5:], stage.broker), (MORE, second))):
        stage.put(rows, broker=broker)
        ends = [reader.latest(start) for reader, start in zip((one, two), starts, strict=True)]
        parts = [
            part
            for reader, start, end in zip((one, two), starts, ends, strict=True)
            for part in reader.plan(start, end)
        ]
        assert not _written(stage, stage.writer(), parts, number)
        starts = ends
    assert sorted(stage.table(), key=int) == [*ROWS, *MORE]
    assert [reader.latest(start) for reader, start in zip((one, two), starts, strict=True)] == starts
    assert stage.prepared() == []


def test_sources_whose_sink_is_not_ours_are_decided_together(stage: Stage, second: EmbeddedBroker) -> None:
    stage.put(ROWS[:5])
    stage.put(ROWS[5:], broker=second)
    sources = (stage.source(), stage.source("second"))
    stage.start(*sources)
    readers = [stage.joined(source) for source in sources]
    ends = [reader.latest(Offset()) for reader in readers]
    for reader, end in zip(readers, ends, strict=True):
        for part in reader.plan(Offset(), end):
            stage.rows(part)
    assert readers[0].latest(ends[0]) == ends[0]
    assert stage.prepared() == [], "what one source hears of holds for both"
    assert (stage.queued(), stage.queued(broker=second)) == ([], [])


def test_a_source_that_was_planned_apart_is_never_written(stage: Stage, second: EmbeddedBroker) -> None:
    """However it came about: what it took would be written, and not be decided with it."""
    stage.put(ROWS[:5])
    stage.put(ROWS[5:], broker=second)
    sources = (stage.source(), stage.source("second"))
    stage.start(*sources)
    one, two = (stage.joined(source) for source in sources)
    ends = [reader.latest(Offset()) for reader in (one, two)]
    first = one.plan(Offset(), ends[0])
    one._shell.ledger.log.abort(first[0].xid.gtrid)
    two.plan(Offset(), ends[1])
    with pytest.raises(PipelineError, match="not part of what the sink would decide"):
        stage.writer().plan()


def test_a_source_and_a_sink_of_different_pipelines_do_not_work(stage: Stage) -> None:
    """The sink's pipeline is bound to no query: its driver would have refused the query when it started."""
    stage.put(ROWS)
    reader = stage.reader()
    reader.plan(Offset(), reader.latest(Offset()))
    sink = Writer(replace(stage.settings, pipeline="other"), "driver-1", resources=stage.resources)
    with pytest.raises(PipelineTaken, match="is not bound to this start of a query"):
        sink.plan()
    plan = stage.writer().plan()
    with pytest.raises(PipelineError, match="was planned for query q, and query other wrote it"):
        stage.writer().commit(plan, Batch("other", 0), [])
    for query in ("other", ""):
        with pytest.raises(PipelineError, match="was planned for query q"):
            plan.check(query)
    with pytest.raises(PipelineError, match=r"in foreachBatch, write by pipeline\.epoch"):
        replace(plan, query="").check("q")


def test_a_job_never_decides_what_a_query_reads(stage: Stage) -> None:
    """Under the same name, in the same driver, between the planning of a batch and its commit."""
    stage.put(ROWS)
    reader = stage.reader()
    end = reader.latest(Offset())
    parts = reader.plan(Offset(), end)
    writer, job = stage.writer(), stage.writer()
    plan = writer.plan()
    of_job = job.plan(streaming=False)
    assert of_job.gtrid != plan.gtrid
    assert not job.commit(of_job, None, [stage.write(of_job, ["100"])]).before
    reports = [stage.write(plan, stage.rows(part), Attempt(part.index, part.index)) for part in parts]
    with pytest.raises(BatchRefused, match="has to be run again"):
        writer.commit(plan, Batch("q", 0), reports)
    writer.abort(plan, Batch("q", 0), reports)
    stage.batch(reader, Offset(), 0, end=end)
    assert sorted(stage.table(), key=int) == [*ROWS, "100"]


def test_a_source_that_nobody_announced_takes_nothing(stage: Stage) -> None:
    stage.put(ROWS)
    with pytest.raises(PipelineTaken, match=r"Call pipeline.register\(spark\) in the driver"):
        stage.joined(stage.source(), "driver-1")
    stage.start(stage.source())
    with pytest.raises(PipelineTaken, match="does not read broker: another"):
        stage.joined(stage.source(queues=("another",)), "driver-1")
    reader = stage.joined(stage.source(), "driver-1")
    ledger = reader._shell.ledger
    with pytest.raises(PipelineTaken, match="reads it in process"):
        ledger.claim(str(stage.source()), "another process")
    with pytest.raises(PipelineTaken, match="was taken by driver driver-1"):
        stage.joined(stage.source(), "driver-2")
    assert reader.latest(Offset()) != Offset(), "it still has the pipeline"


def test_another_query_of_the_driver_does_not_take_the_pipeline(stage: Stage) -> None:
    """As long as the first one runs; a new start of the same query takes it, and so does another driver."""
    stage.start(stage.source(), query=Query("q", "run-1", 0))
    runs = {("q", "run-1")}

    def start(query: Query) -> None:
        bind(
            stage.settings,
            "driver-1",
            query,
            [stage.source()],
            runs=lambda *who: who in runs,
            resources=stage.resources,
        )

    reader = stage.joined(stage.source(), "driver-1")
    with pytest.raises(PipelineTaken, match="another query of this driver"):
        start(Query("other", "run-2", -1, adopt="q"))
    start(Query("q", "run-1", 0))  # the same start, again: nothing changes
    assert reader.latest(Offset()) == Offset()
    runs.clear()
    start(Query("q", "run-3", 0))
    with pytest.raises(PipelineTaken):
        reader.latest(Offset())


def test_a_pipeline_that_was_renamed_is_refused(stage: Stage) -> None:
    """Its checkpoint names what was decided under the other name, and the other name's log knows it."""
    stage.put(ROWS)
    reader = stage.reader()
    stage.batch(reader, Offset(), 0)
    stage.pipeline = "renamed"
    with pytest.raises(PipelineError, match=r"query q has pipeline 'orders'.*start it as that pipeline again"):
        stage.start(stage.source(), query=Query("q", "run", 0))
    stage.start(stage.source(), query=Query("other", "run", -1))


# --- the checkpoint ---------------------------------------------------------------------------------------------------
def test_a_checkpoint_one_batch_old_is_refused_when_the_query_starts(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader()
    end, _ = stage.batch(reader, Offset(), 0)
    assert reader.latest(end) == end
    stage.put(MORE)
    following, _ = stage.batch(reader, end, 1)
    with pytest.raises(EpochGone, match="batch 1 of query q is decided, and the checkpoint has none behind 0"):
        stage.start(stage.source(), driver="driver-2", query=Query("q", "run", 0))
    assert reader.latest(following) == following, "who has the pipeline was not disturbed"


def test_a_checkpoint_one_batch_old_takes_no_message(stage: Stage) -> None:
    """It was made between the offsets of a batch and its end, or is mixed from two: each part sees it by itself."""
    stage.put(ROWS)
    reader = stage.reader()
    end, _ = stage.batch(reader, Offset(), 0)
    assert reader.latest(end) == end
    stage.put(MORE)
    again = stage.reader("driver-2")
    with pytest.raises(EpochGone, match="older than what was decided"):
        again.latest(Offset())
    with pytest.raises(EpochGone, match="its messages are gone"):
        again.plan(Offset(), end)
    with pytest.raises(EpochGone, match="older than what was decided"):
        again.plan(Offset(), Offset(again._shell.ledger.allot()))
    following = again.latest(end)
    (part, _) = again.plan(end, following)
    with pytest.raises(EpochGone, match="batch 0 of query q would take new messages, and it is decided"):
        part.check("q", 0)
    part.check("q", 1)
    part.check("", None)  # a thread of the application's own: Spark says nothing of the batch
    with pytest.raises(PipelineError, match="planned for query q, and query other reads it"):
        part.check("other", 1)
    with pytest.raises(PipelineError, match=r"read it by spark\.readStream"):
        replace(part, query="").check("q", 1)
    writer = stage.writer("driver-2")
    with pytest.raises(EpochGone, match="was decided, with other messages than now"):
        _written(stage, writer, [part], 0)
    writer.abort(writer.plan(), None, [])
    assert sorted(stage.table(), key=int) == ROWS
    assert stage.queued() == MORE


def test_a_batch_of_others_messages_that_is_not_the_decided_one_is_refused(stage: Stage) -> None:
    """The query reads something that is not ours: only the checkpoint's own log tells what."""
    stage.start()

    def write(row: str, offsets: str) -> bool:
        plan = stage.writer().plan()
        report = stage.write(plan, [row], Attempt(0, 0))
        return stage.writer().commit(plan, Batch("q", 0, offsets), [report]).before

    assert not write("1", "these")
    stage.start()
    assert write("1", "these"), "Spark has not logged it, and runs it again"
    assert write("1", ""), "who can't see them believes it"
    with pytest.raises(EpochGone, match="with other messages than now"):
        write("2", "others")
    assert stage.table() == ["1"]


def test_a_new_checkpoint_is_refused_unless_it_says_whom_it_follows(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader()
    stage.batch(reader, Offset(), 0)  # decided, and not logged by Spark: the checkpoint is lost
    assert stage.prepared() == ["src/1/0", "src/1/1"]
    with pytest.raises(PipelineError, match=r'belongs to query q.*option adopt = "q"'):
        stage.start(stage.source(), query=Query("new", "run", -1))
    with pytest.raises(PipelineError, match='option adopt = "q"'):
        stage.start(stage.source(), query=Query("new", "run", -1, adopt="another"))
    stage.put(MORE)
    adopting = Query("new", "run-new", -1, adopt="q")
    reader = stage.reader(query=adopting)
    assert stage.prepared() == [], "what was decided is finished"
    end = reader.latest(Offset())
    writer = stage.writer()
    plan = writer.plan() if reader.plan(Offset(), end) else None
    assert plan is not None
    reports = [stage.write(plan, stage.rows(part), Attempt(part.index, 0)) for part in reader.plan(Offset(), end)]
    assert not writer.commit(plan, Batch("new", 0), reports).before
    assert sorted(stage.table(), key=int) == [*ROWS, *MORE]
    stage.start(stage.source(), query=replace(adopting, run="next", planned=0))  # the option may stay
    with pytest.raises(PipelineError, match='option adopt = "new"'):
        stage.start(stage.source(), query=Query("q", "run-q", 0))  # the old one comes back
    with pytest.raises(PipelineError, match='option adopt = "new"'):
        stage.start(stage.source(), query=Query("third", "run-3", -1, adopt="q"))  # lost once more


def test_what_was_not_decided_is_read_by_who_adopts(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader()
    plan = stage.writer().plan() if not reader.plan(Offset(), reader.latest(Offset())) else None
    assert plan is None
    reader.plan(Offset(), Offset(1))
    stage.write(stage.writer().plan(), ["lost"])
    reader = stage.reader("driver-2", query=Query("new", "run-new", -1, adopt="q"))
    assert stage.prepared() == []
    end = reader.latest(Offset())
    assert sorted(_read(stage, reader.plan(Offset(), end)), key=int) == ROWS


# --- yesterday's tables -----------------------------------------------------------------------------------------------
@pytest.fixture(params=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A log of before, whose last batch is decided, and not known to be logged: its source branches are prepared."""
    if request.param == "postgres":
        stage.log = request.getfixturevalue("postgres").create_database()

    def source_xid(gtrid: bytes, _epoch: int, index: int) -> Xid:
        return Xid(FORMAT_ID, gtrid, b"src/%d" % index)

    stage.put(ROWS)
    with monkeypatch.context() as patched:
        patched.setattr(planning_module, "source_xid", source_xid)
        reader = stage.reader()
        stage.batch(reader, Offset(), 0)
        reader.close()
    assert stage.prepared() == ["src/0", "src/1"]
    database = Database(stage.log)
    with database.engine.connect() as connection:
        for table in (QUERY, SOURCE, ISOLATION):
            connection.execute(text(f"DROP TABLE {table.name}"))
        for name, column in (("epoch", "query"), ("epoch", "place"), ("batch", "offsets")):
            connection.execute(text(f"ALTER TABLE xabridge_pipeline_{name} DROP COLUMN {column}"))
    database.engine.dispose()
    stage.put(MORE)
    return stage


def test_a_batch_of_before_is_read_again_and_finished(old: Stage) -> None:
    reader = old.reader("driver-2", query=Query("q", "run", 0))
    parts = reader.plan(Offset(), Offset(1))
    assert sorted(_read(old, parts), key=int) == ROWS
    assert _written(old, old.writer("driver-2"), parts, 0)
    following, _ = old.batch(reader, Offset(1), 1, driver="driver-2")
    assert reader.latest(following) == following
    assert old.prepared() == []
    assert sorted(old.table(), key=int) == [*ROWS, *MORE]


def test_a_checkpoint_that_lacks_a_batch_of_before_is_refused(old: Stage) -> None:
    with pytest.raises(EpochGone, match="older than what was decided"):
        old.start(old.source(), driver="driver-2", query=Query("q", "run", -1))
    reader = old.reader("driver-2", query=Query("q", "run", 0))
    with pytest.raises(EpochGone, match="older than what was decided"):
        reader.latest(Offset())


def test_a_log_of_before_is_adopted(old: Stage) -> None:
    with pytest.raises(PipelineError, match='option adopt = "q"'):
        old.start(old.source(), driver="driver-2", query=Query("new", "run", -1))
    reader = old.reader("driver-2", query=Query("new", "run", -1, adopt="q"))
    assert old.prepared() == []
    parts = reader.plan(Offset(), reader.latest(Offset()))
    assert sorted(_read(old, parts), key=int) == MORE
