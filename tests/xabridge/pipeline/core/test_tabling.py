"""Rows into tables, under a branch of PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from xabridge.pipeline.core import Attempt, BatchRefused, Offset, PipelineError, SinkPlan, TableTarget
from xabridge.pipeline.core.driver import Writer
from xabridge.pipeline.core.tabling import csv_rows
from xabridge.pipeline.core.task import SinkTask

if TYPE_CHECKING:
    from tests.xabridge.pipeline.core.stage import Stage

ORDERS = TableTarget("shop", "public.orders", lock_timeout_s=0.2)
TOTALS = TableTarget("shop", "totals", ("product",), lock_timeout_s=0.2)
ADDED = TableTarget("shop", "totals", ("product",), "total = totals.total + excluded.total", 0.2)
KEYED = ("product", "total", "note")


def _plan(stage: Stage) -> SinkPlan:
    return stage.writer().plan(streaming=False)


def _written(stage: Stage, plan: SinkPlan, *writes: tuple[Any, ...]) -> None:
    """A batch of one task."""
    with SinkTask(plan, Attempt(0, 0), resources=stage.resources) as task:
        for target, columns, what in writes:
            if isinstance(what, bytes):
                task.write_csv(target, columns, what, what.count(b"\n"))
            else:
                task.write_rows(target, columns, what)
        report = task.prepare()
    stage.writer().commit(plan, None, [report])


def _rows(stage: Stage, query: str) -> list[Any]:
    with psycopg.connect(stage.database) as connection:
        return connection.execute(query).fetchall()


def test_rows_in_csv_keep_nulls_quotes_and_lines(stage: Stage) -> None:
    _written(stage, _plan(stage), (ORDERS, ("body",), b'plain\n"with ""quotes"", and\na line"\n""\n'))
    assert stage.table() == ["plain", 'with "quotes", and\na line', ""]
    assert csv_rows('a,"b,""c""",,""\r\n1,2,3,') == [["a", 'b,"c"', None, ""], ["1", "2", "3", None]]


def test_a_key_replaces_what_is_there_and_the_last_row_of_a_key_counts(stage: Stage) -> None:
    _written(stage, _plan(stage), (TOTALS, KEYED, [("tea", 1, "a"), ("jam", 2, None), ("tea", 3, "b")]))
    _written(stage, _plan(stage), (TOTALS, KEYED, b'"tea",4,\n"new",5,"x"\n'))
    assert _rows(stage, "SELECT product, total, note FROM totals ORDER BY product") == [
        ("jam", 2, None),
        ("new", 5, "x"),
        ("tea", 4, None),
    ]


def test_an_update_clause_says_how_rows_meet(stage: Stage) -> None:
    for _ in range(2):
        _written(stage, _plan(stage), (ADDED, ("product", "total"), [("tea", 3), ("jam", 1)]))
    assert _rows(stage, "SELECT product, total FROM totals ORDER BY product") == [("jam", 2), ("tea", 6)]


def _added(stage: Stage, tasks: int, rows: list[tuple[Any, ...]], target: TableTarget = ADDED) -> None:
    """A batch of so many tasks, each of which writes the same rows."""
    plan = _plan(stage)
    reports = []
    for number in range(tasks):
        with SinkTask(plan, Attempt(number, number), resources=stage.resources) as task:
            task.write_rows(target, ("product", "total"), rows)
            reports.append(task.prepare())
    stage.writer().commit(plan, None, reports)


@pytest.mark.parametrize(("tasks", "times"), [(1, 1000), (7, 150), (40, 3)])
def test_rows_of_one_key_are_combined_as_if_written_one_after_the_other(stage: Stage, tasks: int, times: int) -> None:
    """However many there are, and in however many tasks."""
    _added(stage, tasks, [("tea", 1)] * times + [("jam", 2)])
    assert _rows(stage, "SELECT product, total FROM totals ORDER BY product") == [
        ("jam", 2 * tasks),
        ("tea", tasks * times),
    ]
    assert stage.prepared() == []
    assert _rows(stage, "SELECT count(*) FROM xabridge_staged") == [(0,)]


def test_the_last_row_of_a_key_counts_in_the_order_of_tasks_and_rows(stage: Stage) -> None:
    """Not in that in which the tasks are done; and an update clause sees what stood there."""
    appended = TableTarget("shop", "totals", ("product",), "note = totals.note || '%,' || excluded.note")
    for target, expected in ((TOTALS, "3b"), (appended, "3b%,0a%,0b%,1a%,1b%,2a%,2b%,3a%,3b")):
        plan = _plan(stage)
        reports = []
        for number in (2, 0, 3, 1):
            with SinkTask(plan, Attempt(number, 10 - number), resources=stage.resources) as task:
                task.write_rows(target, ("product", "note"), [("tea", f"{number}a"), ("tea", f"{number}b")])
                reports.append(task.prepare())
        stage.writer().commit(plan, None, reports)
        assert _rows(stage, "SELECT product, note FROM totals") == [("tea", expected)]


def test_keys_are_one_where_the_index_says_so_and_nulls_are_none(stage: Stage) -> None:
    """Of numerics, 1.0 and 1 are one key; null is never the key of a row that is there."""
    with psycopg.connect(stage.database) as connection:
        connection.execute("CREATE TABLE sizes (size numeric(6,2) UNIQUE, name varchar(3))")
    sizes = TableTarget("shop", "sizes", ("size",))
    _written(stage, _plan(stage), (sizes, ("size", "name"), [("1.0", "a"), ("1", "b"), (None, "c"), (None, "d")]))
    assert _rows(stage, "SELECT size::text, name FROM sizes ORDER BY name") == [("1.00", "b"), (None, "c"), (None, "d")]
    with pytest.raises(BatchRefused, match="too long"):
        _written(stage, _plan(stage), (sizes, ("size", "name"), [("2", "long")]))


def test_rows_by_key_of_attempts_that_were_not_taken_are_nowhere(stage: Stage) -> None:
    """Neither do they keep anybody waiting: the attempt that was taken, a later batch, other pipelines."""
    plan = _plan(stage)
    with SinkTask(plan, Attempt(0, 0), resources=stage.resources) as orphan:
        orphan.write_rows(TOTALS, KEYED, [("tea", 1, "lost")])
        orphan.prepare()
    with SinkTask(plan, Attempt(0, 1), resources=stage.resources) as task:
        task.write_rows(ORDERS, ("body",), [("before",)])
        task.write_rows(TOTALS, KEYED, [("tea", 2, "kept")])
        report = task.prepare()
    stage.writer().commit(plan, None, [report])
    assert _rows(stage, "SELECT product, total, note FROM totals") == [("tea", 2, "kept")]
    assert stage.table() == ["before"]
    assert stage.prepared() == []
    assert _rows(stage, "SELECT count(*) FROM xabridge_staged") == [(0,)]


def test_staged_rows_that_a_crash_of_the_server_took_away_refuse_the_batch(stage: Stage) -> None:
    plan = _plan(stage)
    with SinkTask(plan, Attempt(0, 0), resources=stage.resources) as task:
        task.write_rows(TOTALS, KEYED, [("tea", 1, ""), ("jam", 1, "")])
        report = task.prepare()
    with psycopg.connect(stage.database) as connection:
        connection.execute("DELETE FROM xabridge_staged WHERE number = 1")
    with pytest.raises(BatchRefused, match="2 rows were staged, and 1 are there"):
        stage.writer().commit(plan, None, [report])
    stage.writer().abort(plan, None, [report])
    assert stage.prepared() == []
    assert _rows(stage, "SELECT * FROM totals") == []


def test_a_lock_that_is_somebody_elses_is_waited_for_and_then_refuses_the_batch(stage: Stage) -> None:
    with psycopg.connect(stage.database) as other:
        other.execute("INSERT INTO totals VALUES ('tea', 1, '')")
        plan = _plan(stage)
        with SinkTask(plan, Attempt(0, 0), resources=stage.resources) as task:
            task.write_rows(TOTALS, KEYED, [("tea", 2, "")])
            report = task.prepare()
        with pytest.raises(BatchRefused, match="locked"):
            stage.writer().commit(plan, None, [report])
        other.rollback()
    stage.writer().abort(plan, None, [])
    assert stage.prepared() == []


def test_what_a_table_does_not_take_refuses_the_attempt(stage: Stage) -> None:
    plan = _plan(stage)
    wrong: list[tuple[Any, ...]] = [
        (BatchRefused, "null", ORDERS, ("body",), [(None,)]),
        (PipelineError, "in the key", TOTALS, ("total",), [(1,)]),
    ]
    for number, (error, why, target, columns, rows) in enumerate(wrong):
        with SinkTask(plan, Attempt(0, number), resources=stage.resources) as task, pytest.raises(error, match=why):
            task.write_rows(target, columns, rows)
    with pytest.raises(PipelineError, match="no column price"):
        _written(stage, plan, (TOTALS, ("product", "price"), [("tea", 1)]))
    assert stage.prepared() == []


def test_a_server_that_can_not_prepare_every_task_is_refused_at_the_start(stage: Stage) -> None:
    opened = stage.resources.of(stage.settings.resources)
    Writer.checked(opened, 90)
    with pytest.raises(PipelineError, match="max_prepared_transactions"):
        Writer.checked(opened, 200)
    assert stage.reader().latest(Offset()) == Offset()
