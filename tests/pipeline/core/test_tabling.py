"""Rows into tables, under a branch of PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from pipeline.core import Attempt, BatchRefused, Offset, PipelineError, SinkPlan, TableTarget
from pipeline.core.tabling import csv_rows
from pipeline.core.task import SinkTask

if TYPE_CHECKING:
    from tests.pipeline.core.stage import Stage

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


def test_an_attempt_does_not_wait_for_what_an_earlier_one_left_prepared(stage: Stage) -> None:
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


def test_a_lock_that_is_somebody_elses_refuses_the_attempt(stage: Stage) -> None:
    with psycopg.connect(stage.database) as other:
        other.execute("INSERT INTO totals VALUES ('tea', 1, '')")
        plan = _plan(stage)
        with SinkTask(plan, Attempt(0, 0), resources=stage.resources) as task:
            with pytest.raises(BatchRefused, match="locked"):
                task.write_rows(TOTALS, KEYED, [("tea", 2, "")])
            task.rollback()
        other.rollback()
    stage.writer().abort(plan, None, [])
    assert stage.prepared() == []


def test_what_a_table_does_not_take_refuses_the_attempt(stage: Stage) -> None:
    plan = _plan(stage)
    wrong: list[tuple[Any, ...]] = [
        (BatchRefused, "null", ORDERS, ("body",), [(None,)]),
        (PipelineError, "no column", TOTALS, ("product", "price"), [("tea", 1)]),
        (PipelineError, "in the key", TOTALS, ("total",), [(1,)]),
    ]
    for number, (error, why, target, columns, rows) in enumerate(wrong):
        with SinkTask(plan, Attempt(0, number), resources=stage.resources) as task, pytest.raises(error, match=why):
            task.write_rows(target, columns, rows)
    assert stage.prepared() == []


def test_a_server_that_can_not_prepare_every_task_is_refused_at_the_start(stage: Stage) -> None:
    stage.writer().check(20)
    with pytest.raises(PipelineError, match="max_prepared_transactions"):
        stage.writer().check(90)
    assert stage.reader().latest(Offset()) == Offset()
