"""These tests write rows into tables, under a branch of PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from xabridge.pipeline.core import Attempt, BatchRefused, Offset, PipelineError, SinkPlan, TableTarget
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator
from xabridge.pipeline.core.task.sink_task import SinkTask
from xabridge.pipeline.core.task.table_writer import csv_rows

if TYPE_CHECKING:
    from tests.xabridge.pipeline.core.environment import CoreEnvironment

ORDERS = TableTarget("shop", "public.orders", lock_timeout_s=0.2)
TOTALS = TableTarget("shop", "totals", ("product",), lock_timeout_s=0.2)
ADDED = TableTarget("shop", "totals", ("product",), "total = totals.total + excluded.total", 0.2)
KEYED = ("product", "total", "note")


def _plan(env: CoreEnvironment) -> SinkPlan:
    return env.writer().plan(streaming=False)


def _written(env: CoreEnvironment, plan: SinkPlan, *writes: tuple[Any, ...]) -> None:
    """A batch of one task."""
    with SinkTask(plan, Attempt(0, 0), resources=env.resources) as task:
        for target, columns, what in writes:
            if isinstance(what, bytes):
                task.write_csv(target, columns, what, what.count(b"\n"))
            else:
                task.write_rows(target, columns, what)
        report = task.prepare()
    env.writer().commit(plan, None, [report])


def _rows(env: CoreEnvironment, query: str) -> list[Any]:
    with psycopg.connect(env.database) as connection:
        return connection.execute(query).fetchall()


def test_rows_in_csv_keep_nulls_quotes_and_lines(env: CoreEnvironment) -> None:
    _written(env, _plan(env), (ORDERS, ("body",), b'plain\n"with ""quotes"", and\na line"\n""\n'))
    assert env.table() == ["plain", 'with "quotes", and\na line', ""]
    assert csv_rows('a,"b,""c""",,""\r\n1,2,3,') == [["a", 'b,"c"', None, ""], ["1", "2", "3", None]]


def test_a_key_replaces_what_is_there_and_the_last_row_of_a_key_counts(env: CoreEnvironment) -> None:
    _written(env, _plan(env), (TOTALS, KEYED, [("tea", 1, "a"), ("jam", 2, None), ("tea", 3, "b")]))
    _written(env, _plan(env), (TOTALS, KEYED, b'"tea",4,\n"new",5,"x"\n'))
    assert _rows(env, "SELECT product, total, note FROM totals ORDER BY product") == [
        ("jam", 2, None),
        ("new", 5, "x"),
        ("tea", 4, None),
    ]


def test_an_update_clause_says_how_rows_meet(env: CoreEnvironment) -> None:
    for _ in range(2):
        _written(env, _plan(env), (ADDED, ("product", "total"), [("tea", 3), ("jam", 1)]))
    assert _rows(env, "SELECT product, total FROM totals ORDER BY product") == [("jam", 2), ("tea", 6)]


def _added(env: CoreEnvironment, tasks: int, rows: list[tuple[Any, ...]], target: TableTarget = ADDED) -> None:
    """A batch of so many tasks, each of which writes the same rows."""
    plan = _plan(env)
    reports = []
    for number in range(tasks):
        with SinkTask(plan, Attempt(number, number), resources=env.resources) as task:
            task.write_rows(target, ("product", "total"), rows)
            reports.append(task.prepare())
    env.writer().commit(plan, None, reports)


@pytest.mark.parametrize(("tasks", "times"), [(1, 1000), (7, 150), (40, 3)])
def test_rows_of_one_key_are_combined_as_if_written_one_after_the_other(
    env: CoreEnvironment, tasks: int, times: int
) -> None:
    """However many there are, and in however many tasks."""
    _added(env, tasks, [("tea", 1)] * times + [("jam", 2)])
    assert _rows(env, "SELECT product, total FROM totals ORDER BY product") == [
        ("jam", 2 * tasks),
        ("tea", tasks * times),
    ]
    assert env.prepared() == []
    assert _rows(env, "SELECT count(*) FROM xabridge_staged") == [(0,)]


def test_the_last_row_of_a_key_counts_in_the_order_of_tasks_and_rows(env: CoreEnvironment) -> None:
    """Not in that in which the tasks are done; and an update clause sees what stood there."""
    appended = TableTarget("shop", "totals", ("product",), "note = totals.note || '%,' || excluded.note")
    for target, expected in ((TOTALS, "3b"), (appended, "3b%,0a%,0b%,1a%,1b%,2a%,2b%,3a%,3b")):
        plan = _plan(env)
        reports = []
        for number in (2, 0, 3, 1):
            with SinkTask(plan, Attempt(number, 10 - number), resources=env.resources) as task:
                task.write_rows(target, ("product", "note"), [("tea", f"{number}a"), ("tea", f"{number}b")])
                reports.append(task.prepare())
        env.writer().commit(plan, None, reports)
        assert _rows(env, "SELECT product, note FROM totals") == [("tea", expected)]


def test_keys_are_one_where_the_index_says_so_and_nulls_are_none(env: CoreEnvironment) -> None:
    """Of numerics, 1.0 and 1 are one key; null is never the key of a row that is there."""
    with psycopg.connect(env.database) as connection:
        connection.execute("CREATE TABLE sizes (size numeric(6,2) UNIQUE, name varchar(3))")
    sizes = TableTarget("shop", "sizes", ("size",))
    _written(env, _plan(env), (sizes, ("size", "name"), [("1.0", "a"), ("1", "b"), (None, "c"), (None, "d")]))
    assert _rows(env, "SELECT size::text, name FROM sizes ORDER BY name") == [("1.00", "b"), (None, "c"), (None, "d")]
    with pytest.raises(BatchRefused, match="too long"):
        _written(env, _plan(env), (sizes, ("size", "name"), [("2", "long")]))


def test_a_name_means_what_it_means_in_sql(env: CoreEnvironment) -> None:
    """Without quotes it is folded to lower case, with them it may have a dot."""
    with psycopg.connect(env.database) as connection:
        connection.execute('CREATE TABLE "Odd.Name" (product text PRIMARY KEY, total bigint)')
    for key in ((), ("product",)):
        odd = TableTarget("shop", 'public."Odd.Name"', key)
        folded = TableTarget("shop", "PUBLIC.Totals", key)
        row = (f"tea{len(key)}", 1)
        _written(env, _plan(env), (odd, ("product", "total"), [row]), (folded, ("product", "total"), [row]))
    assert _rows(env, 'SELECT * FROM "Odd.Name" ORDER BY product') == [("tea0", 1), ("tea1", 1)]
    assert _rows(env, "SELECT product FROM totals ORDER BY product") == [("tea0",), ("tea1",)]


def test_rows_by_key_of_several_tables_are_written_by_a_statement_for_each(env: CoreEnvironment) -> None:
    with psycopg.connect(env.database) as connection:
        connection.execute("CREATE TABLE others (product text PRIMARY KEY, total bigint)")
    others = TableTarget("shop", "others", ("product",), "total = others.total + excluded.total")
    plan = _plan(env)
    reports = []
    for index in range(3):
        with SinkTask(plan, Attempt(index, index), resources=env.resources) as task:
            task.write_rows(ADDED, ("product", "total"), [("tea", 1)])
            task.write_rows(others, ("product", "total"), [("tea", 10), ("jam", index)])
            task.write_rows(TOTALS, ("product", "note"), [("tea", f"of {index}")])
            reports.append(task.prepare())
    env.writer().commit(plan, None, reports)
    assert _rows(env, "SELECT product, total, note FROM totals") == [("tea", 3, "of 2")]
    assert _rows(env, "SELECT product, total FROM others ORDER BY product") == [("jam", 3), ("tea", 30)]
    assert env.prepared() == []


def test_rows_by_key_of_attempts_that_were_not_taken_are_nowhere(env: CoreEnvironment) -> None:
    """Neither do they keep anybody waiting: the attempt that was taken, a later batch, other pipelines."""
    plan = _plan(env)
    with SinkTask(plan, Attempt(0, 0), resources=env.resources) as orphan:
        orphan.write_rows(TOTALS, KEYED, [("tea", 1, "lost")])
        orphan.prepare()
    with SinkTask(plan, Attempt(0, 1), resources=env.resources) as task:
        task.write_rows(ORDERS, ("body",), [("before",)])
        task.write_rows(TOTALS, KEYED, [("tea", 2, "kept")])
        report = task.prepare()
    env.writer().commit(plan, None, [report])
    assert _rows(env, "SELECT product, total, note FROM totals") == [("tea", 2, "kept")]
    assert env.table() == ["before"]
    assert env.prepared() == []
    assert _rows(env, "SELECT count(*) FROM xabridge_staged") == [(0,)]


def test_staged_rows_that_a_crash_of_the_server_took_away_refuse_the_batch(env: CoreEnvironment) -> None:
    plan = _plan(env)
    with SinkTask(plan, Attempt(0, 0), resources=env.resources) as task:
        task.write_rows(TOTALS, KEYED, [("tea", 1, ""), ("jam", 1, "")])
        report = task.prepare()
    with psycopg.connect(env.database) as connection:
        connection.execute("DELETE FROM xabridge_staged WHERE number = 1")
    with pytest.raises(BatchRefused, match="2 rows were staged, but only 1 are there"):
        env.writer().commit(plan, None, [report])
    env.writer().abort(plan, None, [report])
    assert env.prepared() == []
    assert _rows(env, "SELECT * FROM totals") == []


def test_a_lock_that_is_somebody_elses_is_waited_for_and_then_refuses_the_batch(env: CoreEnvironment) -> None:
    with psycopg.connect(env.database) as other:
        other.execute("INSERT INTO totals VALUES ('tea', 1, '')")
        plan = _plan(env)
        with SinkTask(plan, Attempt(0, 0), resources=env.resources) as task:
            task.write_rows(TOTALS, KEYED, [("tea", 2, "")])
            report = task.prepare()
        with pytest.raises(BatchRefused, match="locked"):
            env.writer().commit(plan, None, [report])
        other.rollback()
    env.writer().abort(plan, None, [])
    assert env.prepared() == []


def test_what_a_table_does_not_take_refuses_the_attempt(env: CoreEnvironment) -> None:
    plan = _plan(env)
    wrong: list[tuple[Any, ...]] = [
        (BatchRefused, "null", ORDERS, ("body",), [(None,)]),
        (PipelineError, "in the key", TOTALS, ("total",), [(1,)]),
    ]
    for number, (error, why, target, columns, rows) in enumerate(wrong):
        with SinkTask(plan, Attempt(0, number), resources=env.resources) as task, pytest.raises(error, match=why):
            task.write_rows(target, columns, rows)
    with pytest.raises(PipelineError, match="no column price"):
        _written(env, plan, (TOTALS, ("product", "price"), [("tea", 1)]))
    assert env.prepared() == []


def test_a_server_that_can_not_prepare_every_task_is_refused_at_the_start(env: CoreEnvironment) -> None:
    opened = env.resources.of(env.settings.resources)
    SinkCoordinator.checked(opened, 90)
    with pytest.raises(PipelineError, match="max_prepared_transactions"):
        SinkCoordinator.checked(opened, 200)
    assert env.reader().latest(Offset()) == Offset()
