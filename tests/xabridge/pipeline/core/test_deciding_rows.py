"""These tests run batches over a PostgreSQL that has the log, and writes rows in the transaction of the decision."""

from __future__ import annotations

import time

import pytest

from tests.xabridge.pipeline.core import pipeline_child
from tests.xabridge.pipeline.core.environment import CoreEnvironment
from tests.xabridge.pipeline.core.sink_database import SinkDatabase
from xabridge.pipeline.core import Attempt, BatchRefused, Offset

pytestmark = pytest.mark.parametrize("sink", ["decider"], indirect=True)
ROWS = [f"{number}" for number in range(10)]


@pytest.mark.parametrize(
    ("constraint", "rows"),
    [("CHECK (body <> 'bad')", ["good", "bad"]), ("UNIQUE (body) DEFERRABLE INITIALLY DEFERRED", ["twice", "twice"])],
)
def test_a_constraint_that_the_decision_would_break(
    env: CoreEnvironment, sink: SinkDatabase, constraint: str, rows: list[str]
) -> None:
    """Also one that is checked at the commit: nothing is decided."""
    env.change(f"ALTER TABLE orders ADD {constraint}")
    writer = env.writer()
    plan = writer.plan(streaming=False)
    report = sink.write(plan, rows, Attempt(0, 0))
    with pytest.raises(BatchRefused, match="can't be written with the decision") as refused:
        writer.commit(plan, None, [report])
    assert refused.value.of_rows
    assert env.prepared() == [branch.xid.bqual.decode() for branch in report.branches]
    writer.abort(plan, None, [report])
    assert sink.table() == env.queued("alerts") == env.prepared() == []


def test_a_driver_that_is_killed_in_the_transaction_of_its_decision(env: CoreEnvironment, sink: SinkDatabase) -> None:
    """It has written rows and not committed: nothing is decided, and the next driver, which is at work at once, runs
    the batch again."""
    env.change(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END $$",
        "CREATE TRIGGER wait BEFORE INSERT ON totals FOR EACH ROW EXECUTE FUNCTION wait()",
    )
    env.put(ROWS)
    _, end, partitions = env.began()
    plan = env.writer().plan()
    reports = env.tasks(plan, partitions, write=sink.write)
    with sink.connect() as holder:
        holder.execute("SELECT pg_advisory_xact_lock(7)")
        driver = pipeline_child.started(pipeline_child.commit, env.settings, plan, reports)
        while not env.ask("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted"):
            assert driver.is_alive(), "it has not reached the rows"
            time.sleep(0.01)
        driver.kill()
        driver.join()

    again = env.reader("driver-2")
    _, decided = env.batch(again, Offset(), 0, driver="driver-2", end=end)
    assert not decided.before
    env.check(ROWS)
    assert sink.ask("SELECT * FROM totals") == []
    again.logged(end)
    assert env.prepared() == []
