"""Whole micro-batches over a real broker, PostgreSQL and decision log: every input once in table and output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xabridge.pipeline.core import Attempt, Batch, BatchRefused, EpochGone, Offset, PipelineError, PipelineTaken

if TYPE_CHECKING:
    from tests.xabridge.pipeline.core.stage import Stage
    from xabridge.pipeline.core.driver import Reader

ROWS = [f"{number}" for number in range(10)]


def _done(stage: Stage, rows: list[str]) -> None:
    """The checker: every row once, everywhere."""
    assert sorted(stage.table(), key=int) == rows
    assert sorted(stage.queued("alerts"), key=int) == rows


def test_a_batch_is_in_the_table_and_at_the_address_and_no_more_in_the_queue(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader()
    assert reader.latest(Offset()) == Offset(1)
    end, decided = stage.batch(reader, Offset(), 0, end=Offset(1))
    assert (decided.rows, decided.messages, decided.before, decided.left) == (10, 10, False, 0)
    _done(stage, ROWS)
    assert stage.queued() == []
    assert stage.prepared() == ["src/1/0", "src/1/1"]  # Spark may want to read them again
    assert reader.latest(end) == end
    assert stage.prepared() == []
    reader.close()


def test_batches_follow_each_other_and_read_limits_hold(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader(rows=4)
    start, number = Offset(), 0
    while (end := reader.latest(start, 3 if number == 0 else None)) != start:
        before = len(stage.table())
        start, _ = stage.batch(reader, start, number, end=end)
        assert len(stage.table()) - before == min(3 if number == 0 else 4, 10 - before)
        number += 1
    assert number == 3
    _done(stage, ROWS)
    reader.close()


def test_writers_that_are_kept(stage: Stage) -> None:
    """As Spark's processes keep them: from batch to batch, and when the driver starts its query again. Once another
    driver has had the pipeline they hear of it."""
    planner, committer = stage.writer(), stage.writer()

    def a_batch(reader: Reader, start: Offset, number: int) -> Offset:
        end = reader.latest(start)
        partitions = reader.plan(start, end)
        plan = planner.plan()
        reports = [stage.write(plan, stage.rows(part), Attempt(part.index, part.index)) for part in partitions]
        assert not committer.commit(plan, Batch("q", number), reports).before
        return end

    stage.put(ROWS)
    reader = stage.reader(rows=2)
    start = a_batch(reader, a_batch(reader, Offset(), 0), 1)
    reader.close()
    reader = stage.reader(rows=4)
    start = a_batch(reader, start, 2)
    last = a_batch(reader, start, 3)
    _done(stage, ROWS)
    assert reader.latest(last) == last
    plan = planner.plan()
    other = stage.reader("driver-2")
    for ask in (
        planner.plan,
        lambda: committer.commit(plan, Batch("q", 4), []),
        lambda: committer.abort(plan, None, []),
    ):
        with pytest.raises(PipelineTaken, match="was taken by driver driver-2"):
            ask()
    other.logged(last)
    assert stage.prepared() == []
    for one in (planner, committer, reader, other):
        one.close()


def test_a_driver_that_dies_before_the_decision_has_its_batch_planned_again(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader()
    end = reader.latest(Offset())
    plan = stage.writer().plan() if not reader.plan(Offset(), end) else None
    assert plan is None
    plan = stage.writer().plan()
    late = [stage.write(plan, ["late"], Attempt(0, 0))]
    again = stage.reader("driver-2")
    end_again, decided = stage.batch(again, Offset(), 0, driver="driver-2", end=end)
    assert not decided.before
    _done(stage, ROWS)
    with pytest.raises(PipelineTaken):
        stage.writer().commit(plan, Batch("q", 0), late)
    with pytest.raises(PipelineTaken):
        stage.writer().plan()
    with pytest.raises(PipelineTaken):  # there is nothing to read any more, and it does not wait for it
        reader.latest(Offset())
    with pytest.raises(PipelineTaken):
        reader.plan(Offset(), end)
    again.logged(end_again)
    assert stage.prepared() == []
    again.close()


def test_a_decided_batch_is_read_again_and_written_once(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader()
    end = reader.latest(Offset())
    partitions = reader.plan(Offset(), end)
    writer = stage.writer()
    plan = writer.plan()
    first = [stage.rows(partition) for partition in partitions]
    assert sorted(first[0] + first[1], key=int) == ROWS
    reports = [stage.write(plan, rows, Attempt(index, index)) for index, rows in enumerate(first)]
    assert not writer.commit(plan, Batch("q", 0), reports).before
    stage.put(["10", "11"])
    # the driver is killed before Spark's commit log
    again = stage.reader("driver-2")
    partitions = again.plan(Offset(), end)
    assert [stage.rows(partition) for partition in partitions] == first
    assert [stage.rows(partition) for partition in partitions] == first
    writer = stage.writer("driver-2")
    plan = writer.plan()
    assert plan.decided
    reports = [stage.write(plan, rows, Attempt(index, index)) for index, rows in enumerate(first)]
    decided = stage.writer("driver-2").commit(plan, Batch("q", 0), reports)
    assert decided.before
    assert decided.rows == 0
    _done(stage, ROWS)
    following, _ = stage.batch(again, end, 1, driver="driver-2")
    _done(stage, [*ROWS, "10", "11"])
    with pytest.raises(EpochGone):
        again.plan(Offset(), end)
    again.logged(following)
    assert stage.prepared() == []
    again.close()


def test_commit_that_raised_is_followed_by_abort_and_what_is_decided_stays(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader()
    end = reader.latest(Offset())
    partitions = reader.plan(Offset(), end)
    writer = stage.writer()
    plan = writer.plan()
    reports = [stage.write(plan, stage.rows(part), Attempt(part.index, part.index)) for part in partitions]
    writer.commit(plan, Batch("q", 0), reports)
    stage.writer().abort(plan, Batch("q", 0), reports)
    _done(stage, ROWS)
    reader.logged(end)
    assert stage.prepared() == []
    reader.close()


def test_an_abort_gives_everything_back(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader()
    end = reader.latest(Offset())
    partitions = reader.plan(Offset(), end)
    writer = stage.writer()
    plan = writer.plan()
    reports = [stage.write(plan, stage.rows(part), Attempt(part.index, part.index)) for part in partitions]
    writer.abort(plan, Batch("q", 0), reports)
    assert stage.prepared() == []
    assert sorted(stage.queued(), key=int) == ROWS
    assert stage.table() == []
    with pytest.raises(BatchRefused):
        writer.commit(plan, Batch("q", 0), reports)
    with pytest.raises(BatchRefused):  # a late attempt
        stage.rows(partitions[0])
    with pytest.raises(BatchRefused):
        stage.write(plan, ["late"])
    assert stage.prepared() == []
    stage.batch(reader, Offset(), 0, end=end)
    _done(stage, ROWS)
    reader.close()


def test_attempts_that_spark_did_not_take_are_swept(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader(partitions=1)
    end = reader.latest(Offset())
    (partition,) = reader.plan(Offset(), end)
    writer = stage.writer()
    plan = writer.plan()
    rows = stage.rows(partition)
    stage.write(plan, rows, Attempt(0, 0))
    accepted = stage.write(plan, stage.rows(partition), Attempt(0, 1))
    decided = writer.commit(plan, Batch("q", 0), [accepted, None])
    assert decided.swept == 2
    _done(stage, ROWS)
    reader.logged(end)
    assert stage.prepared() == []
    reader.close()


def test_a_batch_whose_branch_is_gone_is_refused(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader(partitions=1)
    end = reader.latest(Offset())
    (partition,) = reader.plan(Offset(), end)
    writer = stage.writer()
    plan = writer.plan()
    report = stage.write(plan, stage.rows(partition))
    rm = stage.resources.get("shop", stage.database).rm
    rm.rollback(next(branch.xid for branch in report.branches if branch.resource == "shop"), 1)
    with pytest.raises(BatchRefused, match="not prepared any more"):
        writer.commit(plan, Batch("q", 0), [report])
    writer.abort(plan, Batch("q", 0), [report])
    stage.batch(reader, Offset(), 0, end=end)
    _done(stage, ROWS)
    reader.close()


def test_batches_that_read_nothing_are_decided_once_each(stage: Stage) -> None:
    """A stateful query writes in a batch that has no new data; it is written again when the driver dies."""
    stage.put(ROWS)
    reader = stage.reader()
    end, _ = stage.batch(reader, Offset(), 0)
    assert reader.latest(end) == end
    for driver, number in (("driver-1", 1), ("driver-2", 1), ("driver-2", 2)):
        if (driver, number) == ("driver-2", 1):
            stage.start(stage.source(), driver=driver)
        writer = stage.writer(driver)
        plan = writer.plan()
        assert not plan.decided
        report = stage.write(plan, [f"{100 + number}"])
        before = writer.commit(plan, Batch("q", number), [report]).before
        assert before == ((driver, number) == ("driver-2", 1))
        writer.close()
    _done(stage, [*ROWS, "101", "102"])
    reader = stage.reader("driver-2")
    reader.logged(end)
    assert stage.prepared() == []
    stage.put(["200"])
    stage.batch(reader, end, 3, driver="driver-2")
    _done(stage, [*ROWS, "101", "102", "200"])
    reader.close()


def test_a_source_whose_sink_is_not_ours_is_taken_when_spark_has_logged_the_batch(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader()
    end = reader.latest(Offset())
    for partition in reader.plan(Offset(), end):
        stage.rows(partition)
    assert reader.latest(end) == end
    assert stage.queued() == []
    assert stage.prepared() == []
    reader.close()


def test_a_sink_that_was_given_up_by_code_that_went_on_takes_nothing(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader()
    end = reader.latest(Offset())
    partitions = reader.plan(Offset(), end)
    plan = stage.writer().plan()
    stage.write(plan, stage.rows(partitions[0]))
    following = reader.latest(end)  # Spark thinks the batch went well
    assert following != end
    stage.batch(reader, end, 1, end=following)
    _done(stage, ROWS)
    reader.logged(following)
    assert stage.prepared() == []
    reader.close()


def test_a_job_without_streaming_takes_and_writes_in_one_decision(stage: Stage) -> None:
    stage.put(ROWS)
    for _ in range(2):
        reader = stage.reader(streaming=False, rows=5)
        partitions = reader.plan_job()
        writer = stage.writer()
        plan = writer.plan(streaming=False)
        reports = [stage.write(plan, stage.rows(part), Attempt(part.index, part.index)) for part in partitions]
        assert not writer.commit(plan, None, reports).before
        assert writer.commit(plan, None, reports).before
        assert stage.prepared() == []
        reader.close()
    _done(stage, ROWS)


def test_a_checkpoint_of_another_log_is_refused(stage: Stage) -> None:
    reader = stage.reader()
    with pytest.raises(PipelineError, match="another decision log"):
        reader.latest(Offset(7))
    with pytest.raises(PipelineError, match="another decision log"):
        reader.plan(Offset(), Offset(7))
    reader.close()
