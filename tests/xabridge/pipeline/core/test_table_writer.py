"""These tests write rows into each kind of database, whatever becomes of the batch: every input must be once in table
and output. What only one that decides has is in `test_deciding_rows.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import make_url

from tests.xabridge.pipeline.core.environment import CoreEnvironment
from tests.xabridge.pipeline.core.sink_database import SinkDatabase
from xabridge.pipeline.core import Attempt, Batch, BatchRefused, Offset, PipelineError, TableTarget
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.core.task.table_writer import csv_rows
from xabridge.testing.mariadb import MariaDB

ROWS = [f"{number}" for number in range(10)]
ORDERS = TableTarget("shop", "public.orders")
TOTALS = TableTarget("shop", "totals", ("product",))
KEYED = ("product", "total", "note")
SUMS = ("product", "total")
only = pytest.mark.parametrize


# --- whole batches ----------------------------------------------------------------------------------------------------
def test_a_batch_is_in_the_table_and_at_the_address(env: CoreEnvironment, sink: SinkDatabase) -> None:
    """Over several tasks, with attempts that do not count; and when the batch is repeated, not again."""
    env.put(ROWS)
    reader, end, partitions = env.began()
    writer = env.writer()
    plan = writer.plan()
    env.tasks(plan, partitions, write=sink.write, first=100)
    reports = env.tasks(plan, partitions, write=sink.write)
    assert sink.table() == []
    in_postgresql = env.ask("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    assert bool(in_postgresql) is (sink.kind == "shop"), "who decides prepares nothing"

    decided = writer.commit(plan, Batch("q", 0), reports)
    assert (decided.rows, decided.left, decided.before) == (20, 0, False)
    sink.check(ROWS)
    assert writer.commit(plan, Batch("q", 0), reports).before
    sink.check(ROWS)
    assert env.queued() == []
    assert env.prepared() == ["src/1/0", "src/1/1"], "Spark may want to read them again"
    assert reader.latest(end) == end
    assert env.prepared() == []
    if sink.kind != "maria":  # whose rows the next batch deletes
        assert env.ask("SELECT count(*) FROM xabridge_staged") == [(0,)]


def test_an_abort_gives_everything_back_and_nothing_comes_late(env: CoreEnvironment, sink: SinkDatabase) -> None:
    env.put(ROWS)
    reader, end, partitions = env.began()
    writer = env.writer()
    plan = writer.plan()
    reports = env.tasks(plan, partitions, write=sink.write)
    writer.abort(plan, Batch("q", 0), reports)

    for late in (
        lambda: writer.commit(plan, Batch("q", 0), reports),
        lambda: env.rows(partitions[0]),
        lambda: env.write(plan, ["late"]),
    ):
        with pytest.raises(BatchRefused):
            late()
    assert sink.table() == []
    assert sorted(env.queued()) == ROWS
    assert env.prepared() == []
    again = reader.plan(Offset(), end)
    plan = writer.plan()
    writer.commit(plan, Batch("q", 0), env.tasks(plan, again, write=sink.write))
    sink.check(ROWS)


def test_a_driver_that_is_killed_right_after_its_decision(env: CoreEnvironment, sink: SinkDatabase) -> None:
    """The next one finishes the batch, and Spark's repetition of it writes nothing. What the killed one has prepared
    itself may be bound to its session, which the next one ends."""
    env.put(ROWS)
    _, end, partitions = env.began()
    writer = env.writer()
    plan = writer.plan()
    first = [env.rows(part) for part in partitions]
    reports = [sink.write(plan, rows, Attempt(index, index)) for index, rows in enumerate(first)]
    env.decide_and_die(writer, plan, reports)
    assert sink.table() == (ROWS if sink.kind == "decider" else [])
    assert env.queued("alerts") == []
    killed, env.resources = env.resources, Resources()

    again = env.reader("driver-2")
    env.put(["late"])
    replayed = again.plan(Offset(), end)
    for _ in range(2):
        assert [env.rows(part) for part in replayed] == first
    plan = env.writer("driver-2").plan()
    assert plan.decided
    assert env.writer("driver-2").commit(plan, Batch("q", 0), env.tasks(plan, replayed, write=sink.write)).before
    sink.check(ROWS)
    again.logged(end)
    assert env.prepared() == []
    killed.close()


# --- rows by key ------------------------------------------------------------------------------------------------------
def test_rows_of_one_key_are_combined_as_if_written_one_after_the_other(
    env: CoreEnvironment, sink: SinkDatabase
) -> None:
    """However many there are, and in however many tasks."""
    expected: dict[str, int] = {}
    for tasks, times in ((1, 1000), (7, 150), (40, 3)):
        tea = f"tea of {tasks}"
        env.job(*[[(sink.added, SUMS, [(tea, 1)] * times + [(f"jam of {tasks}", 2)])]] * tasks)
        expected |= {tea: tasks * times, f"jam of {tasks}": 2 * tasks}
    assert dict(sink.ask("SELECT product, total FROM totals")) == expected
    assert env.prepared() == []
    ((batches,),) = sink.ask("SELECT count(DISTINCT gtrid) FROM xabridge_staged")
    assert batches == (sink.kind == "maria"), "the next batch deletes them"


def test_the_last_row_of_a_key_counts_in_the_order_of_tasks_and_rows(env: CoreEnvironment, sink: SinkDatabase) -> None:
    """Not in that in which the tasks are done; and an update clause sees what stood there."""
    appends = "note = CONCAT(totals.note, '%,', excluded.note)"
    for update, expected in (("", "3b"), (appends, "3b%,0a%,0b%,1a%,1b%,2a%,2b%,3a%,3b")):
        plan = env.writer().plan(streaming=False)
        reports = [
            env.task(
                plan,
                Attempt(number, 10 - number),
                (sink.totals(update), ("product", "note"), [("tea", f"{number}a"), ("tea", f"{number}b")]),
            )
            for number in (2, 0, 3, 1)
        ]
        env.writer().commit(plan, None, reports)
        assert sink.ask("SELECT product, note FROM totals") == [("tea", expected)]


def test_what_stands_in_a_row_does_not_matter(env: CoreEnvironment, sink: SinkDatabase) -> None:
    odd = "o'clock; COMMIT \\'"
    env.job(
        [(sink.totals(), KEYED, [("tea", 1, "a"), ("jam", 2, None), ("tea", 3, "\n\"'")])],
        [(sink.totals(), KEYED, [("tea", 4, None), (odd, 5, "'")])],
    )
    assert sorted(sink.ask("SELECT product, total, note FROM totals")) == [
        ("jam", 2, None), (odd, 5, "'"), ("tea", 4, None),
    ]  # fmt: skip
    if sink.kind == "maria":
        env.job([(sink.totals(), ("product", "raw"), [("tea", b"\x00\xff'")])])
        assert sink.ask("SELECT raw FROM totals WHERE product = 'tea'") == [(b"\x00\xff'",)]


# --- what is refused --------------------------------------------------------------------------------------------------
def test_a_lock_that_is_somebody_elses_is_waited_for_and_then_refuses_the_batch(
    env: CoreEnvironment, sink: SinkDatabase
) -> None:
    sink = replace(sink, patience_s=0.1)
    writer = env.writer()
    plan = writer.plan(streaming=False)
    report = sink.write(plan, ["1"], Attempt(0, 0))
    with sink.connect() as other, other.cursor() as cursor:
        cursor.execute("INSERT INTO totals (product, total) VALUES ('tea', 1)")
        with pytest.raises(BatchRefused, match="lock"):
            writer.commit(plan, None, [report])
        other.rollback()

    if sink.kind == "decider":
        assert not writer.commit(plan, None, [report]).before, "nothing was decided"
        sink.check(["1"])
        return
    writer.abort(plan, None, [report])
    assert env.prepared() == []
    assert sink.table() == []


def test_staged_rows_that_a_crash_of_the_server_took_away_refuse_the_batch(
    env: CoreEnvironment, sink: SinkDatabase
) -> None:
    plan = env.writer().plan(streaming=False)
    report = env.task(plan, Attempt(0, 0), (sink.totals(), SUMS, [("tea", 1), ("jam", 1)]))
    sink.change("DELETE FROM xabridge_staged WHERE number = 1")
    with pytest.raises(BatchRefused, match="2 rows were staged, but only 1 are there"):
        env.writer().commit(plan, None, [report])
    env.writer().abort(plan, None, [report])
    assert env.prepared() == []
    assert sink.ask("SELECT * FROM totals") == []


def test_a_row_that_can_never_be_written_is_the_messages_fault(env: CoreEnvironment, sink: SinkDatabase) -> None:
    """Also where a server without strict mode would cut it off."""
    if sink.kind == "maria":
        sink.change("ALTER TABLE orders MODIFY body varchar(20) NOT NULL")
    else:
        env.change(
            "ALTER TABLE orders ALTER body TYPE varchar(20)", "ALTER TABLE totals ALTER product TYPE varchar(20)"
        )

    wrong: list[tuple[TableTarget, tuple[str, ...], tuple[Any, ...]]] = [
        (sink.rows, ("body",), ("x" * 21,)),
        (sink.rows, ("body",), (None,)),
        (sink.totals(), SUMS, ("y" * 21, 1)),
        (sink.totals(), SUMS, ("tea", "many")),
    ]
    for target, columns, row in wrong:
        with pytest.raises(BatchRefused) as refused:
            env.job([(target, columns, [row])])
        assert refused.value.of_rows
        assert not refused.value.outage
    assert env.prepared() == []
    assert sink.table() == []


# --- PostgreSQL -------------------------------------------------------------------------------------------------------
def test_rows_in_csv_keep_nulls_quotes_and_lines(env: CoreEnvironment) -> None:
    env.job(
        [
            (ORDERS, ("body",), b'plain\n"with ""quotes"", and\na line"\n""\n'),
            (TOTALS, KEYED, b'"tea",4,\n"new",5,"x"\n'),
        ]
    )
    assert env.table() == ["plain", 'with "quotes", and\na line', ""]
    assert sorted(env.ask("SELECT product, total, note FROM totals")) == [("new", 5, "x"), ("tea", 4, None)]
    assert csv_rows('a,"b,""c""",,""\r\n1,2,3,') == [["a", 'b,"c"', None, ""], ["1", "2", "3", None]]


def test_keys_are_one_where_the_index_says_so_and_nulls_are_none(env: CoreEnvironment) -> None:
    """Of numerics, 1.0 and 1 are one key; null is never the key of a row that is there."""
    env.change("CREATE TABLE sizes (size numeric(6,2) UNIQUE, name varchar(3))")
    sizes = TableTarget("shop", "sizes", ("size",))
    env.job([(sizes, ("size", "name"), [("1.0", "a"), ("1", "b"), (None, "c"), (None, "d")])])
    assert env.ask("SELECT size::text, name FROM sizes ORDER BY name") == [("1.00", "b"), (None, "c"), (None, "d")]


def test_a_name_means_what_it_means_in_sql(env: CoreEnvironment) -> None:
    """Without quotes it is folded to lower case, with them it may have a dot."""
    env.change('CREATE TABLE "Odd.Name" (product text PRIMARY KEY, total bigint)')
    for key in ((), ("product",)):
        odd, folded = (TableTarget("shop", name, key) for name in ('public."Odd.Name"', "PUBLIC.Totals"))
        row = (f"tea{len(key)}", 1)
        env.job([(odd, SUMS, [row]), (folded, SUMS, [row])])
    assert env.ask('SELECT * FROM "Odd.Name" ORDER BY product') == [("tea0", 1), ("tea1", 1)]
    assert env.ask("SELECT product FROM totals ORDER BY product") == [("tea0",), ("tea1",)]


def test_rows_by_key_of_several_tables_are_written_by_a_statement_for_each(env: CoreEnvironment) -> None:
    env.change("CREATE TABLE others (product text PRIMARY KEY, total bigint)")
    added, others = (
        TableTarget("shop", table, ("product",), f"total = {table}.total + excluded.total")
        for table in ("totals", "others")
    )
    env.job(
        *[
            [
                (added, SUMS, [("tea", 1)]),
                (others, SUMS, [("tea", 10), ("jam", index)]),
                (TOTALS, ("product", "note"), [("tea", f"of {index}")]),
            ]
            for index in range(3)
        ]
    )

    assert env.ask("SELECT product, total, note FROM totals") == [("tea", 3, "of 2")]
    assert env.ask("SELECT product, total FROM others ORDER BY product") == [("jam", 3), ("tea", 30)]
    assert env.prepared() == []


def test_columns_that_a_table_or_its_key_has_not(env: CoreEnvironment) -> None:
    with pytest.raises(PipelineError, match="in the key"):
        env.job([(TOTALS, ("total",), [(1,)])])
    with pytest.raises(PipelineError, match="no column price"):
        env.job([(TOTALS, ("product", "price"), [("tea", 1)])])
    assert env.prepared() == []


def test_a_server_that_can_not_prepare_every_task_is_refused_at_the_start(env: CoreEnvironment) -> None:
    opened = env.resources.of(env.settings.resources)
    SinkCoordinator.checked(opened, 90)
    with pytest.raises(PipelineError, match="max_prepared_transactions"):
        SinkCoordinator.checked(opened, 200)
    assert env.reader().latest(Offset()) == Offset()


# --- MariaDB ----------------------------------------------------------------------------------------------------------
@only("sink", ["maria"], indirect=True)
def test_a_row_longer_than_a_packet_is_refused_and_loses_no_connection(
    env: CoreEnvironment, sink: SinkDatabase
) -> None:
    with pytest.raises(BatchRefused, match="max_allowed_packet") as refused:
        env.job([(sink.rows, ["a", "x" * (1 << 24)])])
    assert refused.value.of_rows
    env.job([(sink.rows, ["x" * (1 << 19)] * 5)])
    assert sink.ask("SELECT count(*), sum(length(body)) FROM orders") == [(5, 5 << 19)]


@only("sink", ["maria"], indirect=True)
def test_a_row_that_somebody_else_has_locked_refuses_the_attempt(env: CoreEnvironment, sink: SinkDatabase) -> None:
    """And an attempt that does not count is in nobody's way: it is rolled back by the next one of its task."""
    sink.change("ALTER TABLE orders MODIFY body varchar(20) NOT NULL UNIQUE")
    writer = env.writer()
    plan = writer.plan(streaming=False)
    with sink.connect() as other, other.cursor() as cursor:
        cursor.execute("INSERT INTO orders (body) VALUES ('1')")
        with pytest.raises(BatchRefused, match="locked"):
            env.task(plan, Attempt(0, 0), (sink.rows, ["1"]))
    env.task(plan, Attempt(0, 100), (sink.rows, ["1"]))
    writer.commit(plan, None, [env.task(plan, Attempt(0, 1), (sink.rows, ["1"]))])
    assert sink.table() == ["1"]
    assert env.prepared() == []


@only("sink", ["maria"], indirect=True)
def test_many_tasks_and_two_databases_of_one_server(env: CoreEnvironment, sink: SinkDatabase, mariadb: MariaDB) -> None:
    second = mariadb.create_database("mariadb")
    mariadb.admin(f"USE {make_url(second).database}", "CREATE TABLE copies (body varchar(20))")
    env.others = (*env.others, ("second", second))
    copies = TableTarget("second", "copies")
    env.job(*[[(sink.rows, [str(index)]), (copies, [str(index)])] for index in range(30)])
    assert len(sink.table()) == len(mariadb.ask(f"SELECT * FROM {make_url(second).database}.copies")) == 30  # noqa: S608
    assert env.prepared() == []
