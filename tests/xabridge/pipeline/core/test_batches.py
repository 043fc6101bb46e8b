"""These tests run whole micro-batches over a real broker, PostgreSQL and decision log: every input must be once in
table and output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xabridge.pipeline.core import Attempt, Batch, BatchRefused, EpochGone, Offset, PipelineError, PipelineTaken
from xabridge.pipeline.core.driver.admission import ReadLimits

if TYPE_CHECKING:
    from tests.xabridge.pipeline.core.environment import CoreEnvironment
    from xabridge.pipeline.core.driver.source_planner import SourcePlanner

ROWS = [f"{number}" for number in range(10)]


def _done(env: CoreEnvironment, rows: list[str]) -> None:
    """The checker: every row once, everywhere."""
    assert sorted(env.table(), key=int) == rows
    assert sorted(env.queued("alerts"), key=int) == rows


def test_a_batch_is_in_the_table_and_at_the_address_and_no_more_in_the_queue(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader = env.reader()
    assert reader.latest(Offset()) == Offset(1)
    end, decided = env.batch(reader, Offset(), 0, end=Offset(1))
    assert (decided.rows, decided.messages, decided.before, decided.left) == (10, 10, False, 0)
    _done(env, ROWS)
    assert env.queued() == []
    assert env.prepared() == ["src/1/0", "src/1/1"]  # Spark may want to read them again
    assert reader.latest(end) == end
    assert env.prepared() == []


def test_batches_follow_each_other_and_read_limits_hold(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader = env.reader(rows=4)
    start, number = Offset(), 0
    while (end := reader.latest(start, ReadLimits(rows=3 if number == 0 else None))) != start:
        before = len(env.table())
        start, _ = env.batch(reader, start, number, end=end)
        assert len(env.table()) - before == min(3 if number == 0 else 4, 10 - before)
        number += 1
    assert number == 3
    _done(env, ROWS)


def test_writers_that_are_kept(env: CoreEnvironment) -> None:
    """Spark's processes keep them from batch to batch, and when the driver starts its query again. Once another
    driver has had the pipeline they hear of it."""
    planner, committer = env.writer(), env.writer()

    def a_batch(reader: SourcePlanner, start: Offset, number: int) -> Offset:
        end = reader.latest(start)
        partitions = reader.plan(start, end)
        plan = planner.plan()
        reports = [env.write(plan, env.rows(part), Attempt(part.index, part.index)) for part in partitions]
        assert not committer.commit(plan, Batch("q", number), reports).before
        return end

    env.put(ROWS)
    reader = env.reader(rows=2)
    start = a_batch(reader, a_batch(reader, Offset(), 0), 1)
    reader.close()
    reader = env.reader(rows=4)
    start = a_batch(reader, start, 2)
    last = a_batch(reader, start, 3)
    _done(env, ROWS)
    assert reader.latest(last) == last
    plan = planner.plan()
    other = env.reader("driver-2")
    for ask in (
        planner.plan,
        lambda: committer.commit(plan, Batch("q", 4), []),
        lambda: committer.abort(plan, None, []),
    ):
        with pytest.raises(PipelineTaken, match="was taken by driver driver-2"):
            ask()
    other.logged(last)
    assert env.prepared() == []
    for one in (planner, committer, reader, other):
        one.close()


def test_a_driver_that_dies_before_the_decision_has_its_batch_planned_again(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader = env.reader()
    end = reader.latest(Offset())
    plan = env.writer().plan() if not reader.plan(Offset(), end) else None
    assert plan is None
    plan = env.writer().plan()
    late = [env.write(plan, ["late"], Attempt(0, 0))]
    again = env.reader("driver-2")
    end_again, decided = env.batch(again, Offset(), 0, driver="driver-2", end=end)
    assert not decided.before
    _done(env, ROWS)
    with pytest.raises(PipelineTaken):
        env.writer().commit(plan, Batch("q", 0), late)
    with pytest.raises(PipelineTaken):
        env.writer().plan()
    with pytest.raises(PipelineTaken):  # there is nothing to read any more, and it does not wait for it
        reader.latest(Offset())
    with pytest.raises(PipelineTaken):
        reader.plan(Offset(), end)
    again.logged(end_again)
    assert env.prepared() == []


def test_a_decided_batch_is_read_again_and_written_once(env: CoreEnvironment) -> None:
    env.put(ROWS)
    _, end, partitions = env.began()
    writer = env.writer()
    plan = writer.plan()
    first = [env.rows(partition) for partition in partitions]
    assert sorted(first[0] + first[1], key=int) == ROWS
    reports = [env.write(plan, rows, Attempt(index, index)) for index, rows in enumerate(first)]
    assert not writer.commit(plan, Batch("q", 0), reports).before
    env.put(["10", "11"])
    # the driver is killed before Spark's commit log
    again = env.reader("driver-2")
    partitions = again.plan(Offset(), end)
    assert [env.rows(partition) for partition in partitions] == first
    assert [env.rows(partition) for partition in partitions] == first
    writer = env.writer("driver-2")
    plan = writer.plan()
    assert plan.decided
    reports = [env.write(plan, rows, Attempt(index, index)) for index, rows in enumerate(first)]
    decided = env.writer("driver-2").commit(plan, Batch("q", 0), reports)
    assert decided.before
    assert decided.rows == 0
    _done(env, ROWS)
    following, _ = env.batch(again, end, 1, driver="driver-2")
    _done(env, [*ROWS, "10", "11"])
    with pytest.raises(EpochGone):
        again.plan(Offset(), end)
    again.logged(following)
    assert env.prepared() == []


def test_commit_that_raised_is_followed_by_abort_and_what_is_decided_stays(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader, end, partitions = env.began()
    writer, plan, reports = env.written(partitions)
    writer.commit(plan, Batch("q", 0), reports)
    env.writer().abort(plan, Batch("q", 0), reports)
    _done(env, ROWS)
    reader.logged(end)
    assert env.prepared() == []


def test_an_abort_gives_everything_back(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader, end, partitions = env.began()
    writer, plan, reports = env.written(partitions)
    writer.abort(plan, Batch("q", 0), reports)
    assert env.prepared() == []
    assert sorted(env.queued(), key=int) == ROWS
    assert env.table() == []
    with pytest.raises(BatchRefused):
        writer.commit(plan, Batch("q", 0), reports)
    with pytest.raises(BatchRefused):  # a late attempt
        env.rows(partitions[0])
    with pytest.raises(BatchRefused):
        env.write(plan, ["late"])
    assert env.prepared() == []
    env.batch(reader, Offset(), 0, end=end)
    _done(env, ROWS)


def test_attempts_that_spark_did_not_take_are_swept(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader, end, (partition,) = env.began(partitions=1)
    writer = env.writer()
    plan = writer.plan()
    rows = env.rows(partition)
    env.write(plan, rows, Attempt(0, 0))
    accepted = env.write(plan, env.rows(partition), Attempt(0, 1))
    decided = writer.commit(plan, Batch("q", 0), [accepted, None])
    assert decided.swept == 2
    _done(env, ROWS)
    reader.logged(end)
    assert env.prepared() == []


def test_a_batch_whose_branch_is_gone_is_refused(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader, end, (partition,) = env.began(partitions=1)
    writer = env.writer()
    plan = writer.plan()
    report = env.write(plan, env.rows(partition))
    rm = env.resources.get("shop", env.database).rm
    rm.rollback(next(branch.xid for branch in report.branches if branch.resource == "shop"), 1)
    with pytest.raises(BatchRefused, match="not prepared any more"):
        writer.commit(plan, Batch("q", 0), [report])
    writer.abort(plan, Batch("q", 0), [report])
    env.batch(reader, Offset(), 0, end=end)
    _done(env, ROWS)


def test_batches_that_read_nothing_are_decided_once_each(env: CoreEnvironment) -> None:
    """A stateful query writes in a batch that has no new data; it is written again when the driver dies."""
    env.put(ROWS)
    reader = env.reader()
    end, _ = env.batch(reader, Offset(), 0)
    assert reader.latest(end) == end
    for driver, number in (("driver-1", 1), ("driver-2", 1), ("driver-2", 2)):
        if (driver, number) == ("driver-2", 1):
            env.start(env.source(), driver=driver)
        writer = env.writer(driver)
        plan = writer.plan()
        assert not plan.decided
        report = env.write(plan, [f"{100 + number}"])
        before = writer.commit(plan, Batch("q", number), [report]).before
        assert before == ((driver, number) == ("driver-2", 1))
        writer.close()
    _done(env, [*ROWS, "101", "102"])
    reader = env.reader("driver-2")
    reader.logged(end)
    assert env.prepared() == []
    env.put(["200"])
    env.batch(reader, end, 3, driver="driver-2")
    _done(env, [*ROWS, "101", "102", "200"])


def test_a_source_whose_sink_is_not_ours_is_taken_when_spark_has_logged_the_batch(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader = env.reader()
    end = reader.latest(Offset())
    for partition in reader.plan(Offset(), end):
        env.rows(partition)
    assert reader.latest(end) == end
    assert env.queued() == []
    assert env.prepared() == []


def test_a_sink_that_was_given_up_by_code_that_went_on_takes_nothing(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader, end, partitions = env.began()
    plan = env.writer().plan()
    env.write(plan, env.rows(partitions[0]))
    following = reader.latest(end)  # Spark thinks the batch went well
    assert following != end
    env.batch(reader, end, 1, end=following)
    _done(env, ROWS)
    reader.logged(following)
    assert env.prepared() == []


def test_a_job_without_streaming_takes_and_writes_in_one_decision(env: CoreEnvironment) -> None:
    env.put(ROWS)
    for _ in range(2):
        reader = env.reader(streaming=False, rows=5)
        partitions = reader.plan_job()
        writer = env.writer()
        plan = writer.plan(streaming=False)
        reports = [env.write(plan, env.rows(part), Attempt(part.index, part.index)) for part in partitions]
        assert not writer.commit(plan, None, reports).before
        assert writer.commit(plan, None, reports).before
        assert env.prepared() == []
        reader.close()
    _done(env, ROWS)


def test_a_checkpoint_of_another_log_is_refused(env: CoreEnvironment) -> None:
    reader = env.reader()
    with pytest.raises(PipelineError, match="another decision log"):
        reader.latest(Offset(7))
    with pytest.raises(PipelineError, match="another decision log"):
        reader.plan(Offset(), Offset(7))
