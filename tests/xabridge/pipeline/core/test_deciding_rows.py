"""These tests run whole micro-batches over a PostgreSQL that prepares no transactions: it has the log, and writes the
rows in the transaction of the decision.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.postgres import Postgres
from tests.xabridge.pipeline.core.environment import ALERTS, TABLE, CoreEnvironment, new_environment
from xabridge.pipeline.core import Attempt, Batch, BatchRefused, Messages, Offset, SinkPlan, SinkReport, TableTarget
from xabridge.pipeline.core.task.sink_task import SinkTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


ROOT = Path(__file__).parents[4]
ROWS = [f"{number}" for number in range(10)]
TOTALS = TableTarget("shop", "totals", ("product",), "total = totals.total + excluded.total", 0.3)


@pytest.fixture(scope="module")
def managed() -> Iterator[Postgres]:
    """A server that prepares nothing."""
    server = Postgres({"max_prepared_transactions": "0"})
    server.start()
    yield server
    server.remove()


@pytest.fixture
def env(tmp_path: Path, managed: Postgres) -> Iterator[CoreEnvironment]:
    """An environment over it."""
    with new_environment(managed, tmp_path) as env:
        env.log, env.decides = env.database, True
        yield env


def _written(env: CoreEnvironment, plan: SinkPlan, rows: Sequence[str], attempt: Attempt) -> SinkReport:
    """Rows, upserts and messages of one attempt."""
    with SinkTask(plan, attempt, resources=env.resources) as task:
        task.write_rows(TABLE, ("body",), [(row,) for row in rows])
        task.write_rows(TOTALS, ("product", "total"), [("tea", 1) for _ in rows])
        task.send(ALERTS, Messages([row.encode() for row in rows]))
        return task.prepare()


def _asked(env: CoreEnvironment, query: str) -> list[Any]:
    with psycopg.connect(env.database) as connection:
        return connection.execute(query).fetchall()


def _done(env: CoreEnvironment, rows: Sequence[str], table: Sequence[str] | None = None) -> None:
    assert sorted(env.table()) == sorted(rows if table is None else table)
    assert sorted(env.queued("alerts")) == sorted(rows)
    assert _asked(env, "SELECT product, total FROM totals") == [("tea", len(rows))]
    assert _asked(env, "SELECT count(*) FROM xabridge_staged") == [(0,)]


def test_rows_are_written_with_the_decision(env: CoreEnvironment) -> None:
    """Over several tasks, with an attempt that does not count; and when the batch is repeated, not again."""
    env.put(ROWS)
    reader, end, partitions = env.began()
    writer = env.writer()
    plan = writer.plan()
    reports = []
    for part in partitions:
        rows = env.rows(part)
        _written(env, plan, rows, Attempt(part.index, 100 + part.index))
        reports.append(_written(env, plan, rows, Attempt(part.index, part.index)))
    assert env.table() == []
    decided = writer.commit(plan, Batch("q", 0), reports)
    assert (decided.rows, decided.left, decided.before) == (20, 0, False)
    _done(env, ROWS)
    assert writer.commit(plan, Batch("q", 0), reports).before
    _done(env, ROWS)
    assert reader.latest(end) == end
    assert env.prepared() == []


def test_an_abort_gives_everything_back(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader = env.reader()
    partitions = reader.plan(Offset(), reader.latest(Offset()))
    writer = env.writer()
    plan = writer.plan()
    reports = [_written(env, plan, env.rows(part), Attempt(part.index, part.index)) for part in partitions]
    writer.abort(plan, Batch("q", 0), reports)
    with pytest.raises(BatchRefused, match="was aborted"):
        writer.commit(plan, Batch("q", 0), reports)
    assert env.table() == []
    assert sorted(env.queued()) == ROWS
    assert env.prepared() == []


def test_a_row_that_is_refused_decides_nothing(env: CoreEnvironment) -> None:
    with psycopg.connect(env.database) as connection:
        connection.execute("ALTER TABLE orders ADD CHECK (body <> 'bad')")
    env.start()
    writer = env.writer()
    plan = writer.plan()
    report = _written(env, plan, ["good", "bad"], Attempt(0, 0))
    with pytest.raises(BatchRefused, match="can't be written with the decision") as refused:
        writer.commit(plan, Batch("q", 0), [report])
    assert refused.value.of_rows
    writer.abort(plan, Batch("q", 0), [report])
    assert env.table() == []
    assert env.queued("alerts") == []
    assert env.prepared() == []


def test_a_constraint_that_is_checked_at_the_commit_decides_nothing(env: CoreEnvironment) -> None:
    with psycopg.connect(env.database) as connection:
        connection.execute("ALTER TABLE orders ADD UNIQUE (body) DEFERRABLE INITIALLY DEFERRED")
    env.start()
    writer = env.writer()
    plan = writer.plan()
    report = _written(env, plan, ["twice", "twice"], Attempt(0, 0))
    with pytest.raises(BatchRefused, match="can't be written with the decision") as refused:
        writer.commit(plan, Batch("q", 0), [report])
    assert refused.value.of_rows
    assert env.table() == []
    assert env.prepared() == [branch.xid.bqual.decode() for branch in report.branches]


def test_rows_that_a_crash_took_away_decide_nothing(env: CoreEnvironment) -> None:
    env.start()
    writer = env.writer()
    plan = writer.plan()
    report = _written(env, plan, ["1", "2"], Attempt(0, 0))
    with psycopg.connect(env.database) as connection:
        connection.execute("TRUNCATE xabridge_staged")
    with pytest.raises(BatchRefused, match="2 rows were staged, but only 0 are there"):
        writer.commit(plan, Batch("q", 0), [report])
    assert env.table() == []


def test_a_lock_that_is_somebody_elses_refuses_the_batch(env: CoreEnvironment) -> None:
    env.start()
    writer = env.writer()
    plan = writer.plan()
    report = _written(env, plan, ["1"], Attempt(0, 0))
    with psycopg.connect(env.database) as other:
        other.execute("INSERT INTO totals VALUES ('tea', 1, '')")
        with pytest.raises(BatchRefused, match="lock"):
            writer.commit(plan, Batch("q", 0), [report])
        other.rollback()
    assert not writer.commit(plan, Batch("q", 0), [report]).before
    _done(env, ["1"])


def test_a_driver_that_is_killed_right_after_its_decision(env: CoreEnvironment) -> None:
    """The next one sends the messages, and Spark's repetition of the batch writes nothing."""
    env.put(ROWS)
    _, end, partitions = env.began()
    writer = env.writer()
    plan = writer.plan()
    first = [env.rows(part) for part in partitions]
    reports = [_written(env, plan, rows, Attempt(index, index)) for index, rows in enumerate(first)]
    env.decide_and_die(writer, plan, reports)
    assert sorted(env.table()) == ROWS
    assert env.queued("alerts") == []
    again = env.reader("driver-2")
    replayed = [env.rows(part) for part in again.plan(Offset(), end)]
    assert replayed == first
    plan = env.writer("driver-2").plan()
    assert plan.decided
    reports = [_written(env, plan, rows, Attempt(index, index)) for index, rows in enumerate(replayed)]
    assert env.writer("driver-2").commit(plan, Batch("q", 0), reports).before
    _done(env, ROWS)
    again.logged(end)
    assert env.prepared() == []


DRIVER = """
import pickle, sys
from xabridge.pipeline.core import Batch
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator

settings, plan, reports = pickle.loads(sys.stdin.buffer.read())
SinkCoordinator(settings, "driver-1").commit(plan, Batch("q", 0), reports)
"""


@pytest.mark.slow
def test_a_driver_that_is_killed_in_the_transaction_of_its_decision(env: CoreEnvironment) -> None:
    """It has written rows and not committed: nothing is decided, and the next driver, which is at work at once, runs
    the batch again."""
    with psycopg.connect(env.database) as connection:
        connection.execute("CREATE TABLE slow AS SELECT true AS is_slow")
        connection.execute(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF (SELECT is_slow FROM slow) THEN PERFORM pg_advisory_xact_lock(7), pg_sleep(2); END IF; "
            "RETURN NEW; END $$"
        )
        connection.execute("CREATE TRIGGER wait BEFORE INSERT ON totals FOR EACH ROW EXECUTE FUNCTION wait()")
    env.put(ROWS)
    _, end, partitions = env.began()
    plan = env.writer().plan()
    reports = [_written(env, plan, env.rows(part), Attempt(part.index, part.index)) for part in partitions]
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        stdin=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert driver.stdin is not None
    driver.stdin.write(pickle.dumps((env.settings, plan, reports)))
    driver.stdin.close()
    with psycopg.connect(env.database, autocommit=True) as connection:
        locked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7"
        while connection.execute(locked).fetchone() == (0,):
            assert driver.poll() is None, "it has not reached the rows"
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        connection.execute("UPDATE slow SET is_slow = false")
    again = env.reader("driver-2")
    _, decided = env.batch(again, Offset(), 0, driver="driver-2", end=end)
    assert not decided.before
    assert sorted(env.table()) == ROWS
    assert sorted(env.queued("alerts")) == ROWS
    assert _asked(env, "SELECT * FROM totals") == []
    again.logged(end)
    assert env.prepared() == []
