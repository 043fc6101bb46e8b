"""These tests check that rows are written once: by a live pipeline and a backfill, which are killed, tried again, and
meet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from tests.xabridge.pipeline.core.environment import ALERTS, TABLE
from tm.log import Decision
from xa.coroutines import drive
from xabridge.pipeline.core import Attempt, BatchRefused, Messages, Once, TableTarget
from xabridge.pipeline.core.task.once_table import make_table
from xabridge.pipeline.core.task.sink_task import SinkTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.xabridge.pipeline.core.environment import CoreEnvironment
    from xabridge.pipeline.core import SinkPlan, SinkReport

ONCE: Final = Once("number", TableTarget("shop", "public.orders_once", lock_timeout_s=0.3))


def write(env: CoreEnvironment, plan: SinkPlan, rows: Sequence[str], task: int = 0) -> SinkReport:
    """What a task writes of rows that are their own ids."""
    with SinkTask(plan, Attempt(task, task), resources=env.resources) as sink:
        first = sink.first_ones(ONCE, rows)
        kept = [row for row in dict.fromkeys(rows) if row in first]
        if kept:
            sink.write_rows(TABLE, ("body",), [(row,) for row in kept])
            sink.send(ALERTS, Messages([row.encode() for row in kept]))
        return sink.prepare()


def job(env: CoreEnvironment, rows: Sequence[str], driver: str = "driver-1") -> None:
    """A job of one task."""
    make_table(env.database, ONCE.values.table)
    writer = env.writer(driver)
    plan = writer.plan(streaming=False)
    writer.commit(plan, None, [write(env, plan, rows)])


def test_what_was_written_is_left_out_in_table_and_address(env: CoreEnvironment) -> None:
    job(env, ["1", "2", "2"])
    job(env, ["2", "3"])
    backfill = replace(env, pipeline="backfill", _opened=[])
    job(backfill, ["1", "3", "4"])
    for opened in backfill._opened:
        opened.close()
    assert sorted(env.table()) == ["1", "2", "3", "4"]
    assert sorted(env.queued("alerts")) == ["1", "2", "3", "4"]
    assert env.prepared() == []
    with psycopg.connect(env.database) as connection:
        assert connection.execute("SELECT count(*) FROM orders_once").fetchone() == (4,)


@pytest.mark.parametrize("decided", [False, True])
def test_a_backfill_that_was_killed_is_done_again(env: CoreEnvironment, decided: bool) -> None:
    """Killed when its branches are prepared, or when it is decided and nothing is committed yet."""
    make_table(env.database, ONCE.values.table)
    writer = env.writer("dies")
    plan = writer.plan(streaming=False)
    report = write(env, plan, ["1", "2"])
    if decided:
        opened = writer._opened(plan.incarnation)
        assert drive(opened.ports.log.force(Decision(plan.gtrid, report.branches))) is None
    assert env.table() == []
    job(env, ["1", "2", "3"], "driver-2")
    assert sorted(env.table()) == ["1", "2", "3"]
    assert sorted(env.queued("alerts")) == ["1", "2", "3"]
    assert env.prepared() == []


def test_an_attempt_does_not_wait_for_an_earlier_one_of_its_task(env: CoreEnvironment) -> None:
    make_table(env.database, ONCE.values.table)
    writer = env.writer()
    plan = writer.plan(streaming=False)
    write(env, plan, ["1"])  # Spark lost its report
    report = write(env, plan, ["1"])
    writer.commit(plan, None, [report])
    assert env.table() == ["1"]
    assert env.prepared() == []


def test_two_pipelines_that_meet(env: CoreEnvironment) -> None:
    """The second waits for the first one's outcome, but not for ever."""
    make_table(env.database, ONCE.values.table)
    live, backfill = env.writer(), replace(env, pipeline="backfill", _opened=[]).writer()
    first, second = live.plan(streaming=False), backfill.plan(streaming=False)
    report = write(env, first, ["1", "2"])
    with pytest.raises(BatchRefused, match="rows with the same number are just being written by another batch"):
        write(env, second, ["2", "3"])
    live.commit(first, None, [report])
    backfill.commit(second, None, [write(env, second, ["2", "3"])])
    assert sorted(env.table()) == ["1", "2", "3"]
    assert env.prepared() == []
    backfill.close()


def test_the_first_one_is_given_up(env: CoreEnvironment) -> None:
    make_table(env.database, ONCE.values.table)
    live, backfill = env.writer(), replace(env, pipeline="backfill", _opened=[]).writer()
    first, second = live.plan(streaming=False), backfill.plan(streaming=False)
    write(env, first, ["1"])
    live.abort(first, None, [None])
    backfill.commit(second, None, [write(env, second, ["1"])])
    assert env.table() == ["1"]
    backfill.close()


def test_a_value_that_is_no_text_of_postgresql_is_the_rows_fault(env: CoreEnvironment) -> None:
    make_table(env.database, ONCE.values.table)
    plan = env.writer().plan(streaming=False)
    with pytest.raises(BatchRefused) as refused:
        write(env, plan, ["a\0b"])
    assert refused.value.of_rows
    assert env.prepared() == []
