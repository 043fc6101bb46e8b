"""These tests run whole micro-batches over a real broker, PostgreSQL and decision log: every input must be once in
table and output. What differs from database to database is in `test_table_writer.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.xabridge.pipeline.core.environment import CoreEnvironment
from xa import TMFAIL
from xabridge.pipeline.core import Attempt, Batch, BatchRefused, Offset, PipelineError, PipelineTaken
from xabridge.pipeline.core.driver.admission import ReadLimits
from xabridge.pipeline.core.driver.source_planner import SourcePlanner
from xabridge.pipeline.core.resources import Resources

ROWS = [f"{number}" for number in range(10)]


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
    env.check(ROWS)


def test_writers_that_are_kept(env: CoreEnvironment) -> None:
    """Spark's processes keep them from batch to batch, and when the driver starts its query again. Once another
    driver has had the pipeline they hear of it."""
    planner, committer = env.writer(), env.writer()

    def a_batch(reader: SourcePlanner, start: Offset, number: int) -> Offset:
        end = reader.latest(start)
        partitions = reader.plan(start, end)
        plan = planner.plan()
        assert not committer.commit(plan, Batch("q", number), env.tasks(plan, partitions)).before
        return end

    env.put(ROWS)
    reader = env.reader(rows=2)
    start = a_batch(reader, a_batch(reader, Offset(), 0), 1)
    reader.close()
    reader = env.reader(rows=4)
    start = a_batch(reader, start, 2)
    last = a_batch(reader, start, 3)
    env.check(ROWS)
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
    reader, end, _ = env.began()
    plan = env.writer().plan()
    late = [env.write(plan, ["late"], Attempt(0, 0))]
    again = env.reader("driver-2")
    end_again, decided = env.batch(again, Offset(), 0, driver="driver-2", end=end)
    assert not decided.before
    env.check(ROWS)

    for ask in (
        lambda: env.writer().commit(plan, Batch("q", 0), late),
        lambda: env.writer().plan(),
        lambda: reader.latest(Offset()),  # there is nothing to read any more, and it does not wait for it
        lambda: reader.plan(Offset(), end),
    ):
        with pytest.raises(PipelineTaken):
            ask()
    again.logged(end_again)
    assert env.prepared() == []


def test_an_abort_behind_the_decision_changes_nothing(env: CoreEnvironment) -> None:
    """The commit raised, and Spark aborts."""
    env.put(ROWS)
    reader, end, partitions = env.began()
    writer, plan, reports = env.written(partitions)
    writer.commit(plan, Batch("q", 0), reports)
    env.writer().abort(plan, Batch("q", 0), reports)
    env.check(ROWS)
    reader.logged(end)
    assert env.prepared() == []


def test_attempts_that_spark_did_not_take_are_swept(env: CoreEnvironment) -> None:
    env.put(ROWS)
    _, _, (partition,) = env.began(partitions=1)
    writer = env.writer()
    plan = writer.plan()
    env.write(plan, env.rows(partition), Attempt(0, 0))
    accepted = env.write(plan, env.rows(partition), Attempt(0, 1))
    assert writer.commit(plan, Batch("q", 0), [accepted, None]).swept == 2
    env.check(ROWS)


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
    env.check(ROWS)


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

    env.check([*ROWS, "101", "102"])
    reader = env.reader("driver-2")
    reader.logged(end)
    assert env.prepared() == []
    env.put(["200"])
    env.batch(reader, end, 3, driver="driver-2")
    env.check([*ROWS, "101", "102", "200"])


def test_a_sink_that_was_given_up_by_code_that_went_on_takes_nothing(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader, end, partitions = env.began()
    plan = env.writer().plan()
    env.write(plan, env.rows(partitions[0]))
    following = reader.latest(end)  # Spark thinks the batch went well
    assert following != end
    env.batch(reader, end, 1, end=following)
    env.check(ROWS)
    reader.logged(following)
    assert env.prepared() == []


def test_a_job_without_streaming_takes_and_writes_in_one_decision(env: CoreEnvironment) -> None:
    env.put(ROWS)
    for _ in range(2):
        reader = env.reader(streaming=False, rows=5)
        partitions = reader.plan_job()
        writer = env.writer()
        plan = writer.plan(streaming=False)
        reports = env.tasks(plan, partitions)
        assert not writer.commit(plan, None, reports).before
        assert writer.commit(plan, None, reports).before
        assert env.prepared() == []
        reader.close()
    env.check(ROWS)


def test_a_checkpoint_of_another_log_is_refused(env: CoreEnvironment) -> None:
    reader = env.reader()
    with pytest.raises(PipelineError, match="another decision log"):
        reader.latest(Offset(7))
    with pytest.raises(PipelineError, match="another decision log"):
        reader.plan(Offset(), Offset(7))


# --- delivery counts ------------------------------------------------------------------------------------------------
# A failed batch must not raise those of its messages, whichever process returns them, and in whichever way.
def _aborted(env: CoreEnvironment) -> None:
    """A batch that is written and given up."""
    reader, _, partitions = env.began()
    writer, plan, reports = env.written(partitions)
    writer.abort(plan, Batch("q", 0), reports)
    reader.close()
    writer.close()


def _planned_again(env: CoreEnvironment) -> None:
    """A driver that dies, and the next one, which rolls back what it finds prepared."""
    for partition in env.began()[2]:
        env.rows(partition)


def _broker_restarted(env: CoreEnvironment) -> None:
    """The same; and the broker is started again between the two, with what it has stored."""
    _planned_again(env)
    env.broker.stop()
    env.broker.start()


def _interrupted(env: CoreEnvironment) -> None:
    """An attempt that is interrupted in the middle of taking."""
    first, _ = env.began()[2]
    other = Resources()
    resource = other.get(first.resource, first.url)
    resource.reopen()
    resource.rm.start(first.xid, 1)
    assert len(resource.rm.session(1).gather("orders", 5)) == 5
    resource.rm.end(first.xid, 1, TMFAIL)
    other.close()


@pytest.mark.parametrize("failing", [_aborted, _planned_again, _broker_restarted, _interrupted])
def test_a_batch_that_failed_raises_no_count(env: CoreEnvironment, failing: Callable[[CoreEnvironment], None]) -> None:
    env.put(ROWS)
    for _ in range(2):
        failing(env)
    env.began()  # whatever is left is rolled back
    assert env.counts() == [0] * 10
    assert env.counts("orders.dead") == []
