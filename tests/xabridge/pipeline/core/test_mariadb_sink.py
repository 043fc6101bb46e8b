"""These tests run whole micro-batches whose rows go into MariaDB: every input must be once in table and output."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from sqlalchemy import make_url

from xabridge.pipeline.core import (
    AddressTarget,
    Attempt,
    Batch,
    BatchRefused,
    Messages,
    SinkPlan,
    SinkReport,
    TableTarget,
)
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.core.task.mariadb_session import connect
from xabridge.pipeline.core.task.sink_task import SinkTask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.xabridge.pipeline.core.environment import CoreEnvironment
    from xabridge.testing.mariadb import MariaDB

Writes: TypeAlias = "Sequence[tuple[TableTarget, Sequence[str], Sequence[tuple[Any, ...]]]]"

ROOT = Path(__file__).parents[4]
ROWS = [f"{number}" for number in range(10)]
ORDERS = TableTarget("maria", "orders", lock_timeout_s=1.0)
TOTALS = TableTarget("maria", "totals", ("product",), lock_timeout_s=1.0)
ADDED = TableTarget("maria", "totals", ("product",), "total = total + VALUES(total)", 1.0)
ALERTS = AddressTarget("broker", "alerts")


@pytest.fixture
def maria(env: CoreEnvironment, mariadb: MariaDB) -> str:
    """The URL of the resource `maria`, with its tables."""
    url = mariadb.create_database("mariadb")
    mariadb.admin(
        f"USE {make_url(url).database}",
        "CREATE TABLE orders (id bigint AUTO_INCREMENT PRIMARY KEY, body varchar(20) NOT NULL UNIQUE)",
        "CREATE TABLE totals (product varchar(20) PRIMARY KEY, total bigint, note varbinary(9))",
    )
    env.others = (("maria", url),)
    return url


def _rows(url: str, query: str) -> list[Any]:
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def _write(env: CoreEnvironment, plan: SinkPlan, rows: Sequence[str], attempt: Attempt) -> SinkReport:
    with SinkTask(plan, attempt, resources=env.resources) as task:
        task.write_rows(ORDERS, ("body",), [(row,) for row in rows])
        task.send(ALERTS, Messages([row.encode() for row in rows]))
        return task.prepare()


def _upserted(
    env: CoreEnvironment, *tasks: Sequence[tuple[TableTarget, Sequence[str], Sequence[tuple[Any, ...]]]]
) -> None:
    """A batch of so many tasks."""
    plan = env.writer().plan(streaming=False)
    reports = []
    for index, writes in enumerate(tasks):
        with SinkTask(plan, Attempt(index, index), resources=env.resources) as task:
            for target, columns, rows in writes:
                task.write_rows(target, columns, rows)
            reports.append(task.prepare())
    env.writer().commit(plan, None, reports)


def test_a_batch_is_in_the_table_and_at_the_address(env: CoreEnvironment, maria: str) -> None:
    """Of two attempts at a task one counts, and the orphan that is in its way is rolled back."""
    env.put(ROWS)
    reader, end, partitions = env.began()
    plan = env.writer().plan()
    reports = []
    for part in partitions:
        rows = env.rows(part)
        _write(env, plan, rows, Attempt(part.index, 100 + part.index))
        reports.append(_write(env, plan, rows, Attempt(part.index, part.index)))
    decided = env.writer().commit(plan, Batch("q", 0), reports)
    assert (decided.rows, decided.left) == (10, 0)
    assert sorted(body for (body,) in _rows(maria, "SELECT body FROM orders")) == ROWS
    assert sorted(env.queued("alerts")) == ROWS
    assert reader.latest(end) == end
    assert env.prepared() == []


def test_rows_by_key_are_written_one_after_the_other(env: CoreEnvironment, maria: str) -> None:
    columns = ("product", "total", "note")
    _upserted(
        env,
        [(TOTALS, columns, [("tea", 1, b"a"), ("jam", 2, None), ("tea", 3, b"\x00\xff")])],
        [(TOTALS, columns, [("tea", 4, None), ("o'clock; COMMIT \\'", 5, b"'")])],
    )
    assert sorted(_rows(maria, "SELECT product, total, note FROM totals")) == [
        ("jam", 2, None),
        ("o'clock; COMMIT \\'", 5, b"'"),
        ("tea", 4, None),
    ]
    _upserted(env, *[[(ADDED, ("product", "total"), [("tea", 3)] * 1000)]] * 6)
    assert _rows(maria, "SELECT total FROM totals WHERE product = 'tea'") == [(4 + 18_000,)]
    assert env.prepared() == []
    (staged,) = _rows(maria, "SELECT count(*), count(DISTINCT gtrid) FROM xabridge_staged")
    assert staged == (6000, 1), "the next batch deletes them"


def test_a_row_that_can_never_be_written_is_the_messages_fault(env: CoreEnvironment, maria: str) -> None:
    """Also where a server without strict mode would cut it off."""
    plan = env.writer().plan(streaming=False)
    wrong: list[tuple[TableTarget, tuple[str, ...], tuple[Any, ...]]] = [
        (ORDERS, ("body",), ("x" * 21,)),
        (ORDERS, ("body",), (None,)),
        (ORDERS, ("id", "body"), ("many", "a")),
    ]
    for number, (target, columns, row) in enumerate(wrong):
        with (
            SinkTask(plan, Attempt(0, number), resources=env.resources) as task,
            pytest.raises(BatchRefused) as refused,
        ):
            task.write_rows(target, columns, [row])
        assert refused.value.of_rows
        assert not refused.value.outage
    with SinkTask(plan, Attempt(0, 9), resources=env.resources) as task:
        task.write_rows(TOTALS, ("product", "total"), [("y" * 21, 1)])
        report = task.prepare()
    with pytest.raises(BatchRefused, match="rows by key can't be written") as refused:
        env.writer().commit(plan, None, [report])
    assert refused.value.of_rows
    assert env.prepared() == []
    assert _rows(maria, "SELECT * FROM orders") == []


def test_a_row_longer_than_a_packet_is_refused_and_loses_no_connection(
    env: CoreEnvironment, maria: str, mariadb: MariaDB
) -> None:
    mariadb.admin(f"USE {make_url(maria).database}", "ALTER TABLE orders MODIFY body longtext, DROP INDEX body")
    plan = env.writer().plan(streaming=False)
    with SinkTask(plan, Attempt(0, 0), resources=env.resources) as task:
        with pytest.raises(BatchRefused, match="max_allowed_packet") as refused:
            task.write_rows(ORDERS, ("body",), [("a",), ("x" * (1 << 24),)])
        assert refused.value.of_rows
    many = [("x" * (1 << 19),)] * 5
    _upserted(env, [(ORDERS, ("body",), many)])
    assert _rows(maria, "SELECT count(*), sum(length(body)) FROM orders") == [(5, 5 << 19)]


@pytest.mark.slow
def test_a_lock_that_is_somebody_elses_refuses_the_attempt_and_the_batch(env: CoreEnvironment, maria: str) -> None:
    with connect(maria) as other, other.cursor() as cursor:
        cursor.execute("INSERT INTO orders (body) VALUES ('1')")
        cursor.execute("INSERT INTO totals VALUES ('tea', 1, '')")
        plan = env.writer().plan(streaming=False)
        with (
            SinkTask(plan, Attempt(0, 0), resources=env.resources) as task,
            pytest.raises(BatchRefused, match="locked"),
        ):
            task.write_rows(ORDERS, ("body",), [("1",)])
        with SinkTask(plan, Attempt(0, 1), resources=env.resources) as task:
            task.write_rows(TOTALS, ("product", "total"), [("tea", 2)])
            report = task.prepare()
        with pytest.raises(BatchRefused, match="locked"):
            env.writer().commit(plan, None, [report])
    assert env.prepared() == []


def test_staged_rows_that_are_gone_refuse_the_batch(env: CoreEnvironment, maria: str) -> None:
    plan = env.writer().plan(streaming=False)
    with SinkTask(plan, Attempt(0, 0), resources=env.resources) as task:
        task.write_rows(TOTALS, ("product", "total"), [("tea", 1), ("jam", 1)])
        report = task.prepare()
    with connect(maria) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM xabridge_staged WHERE number = 1")
        connection.commit()
    with pytest.raises(BatchRefused, match="2 rows were staged, but only 1 are there"):
        env.writer().commit(plan, None, [report])
    assert _rows(maria, "SELECT * FROM totals") == []


@pytest.mark.slow
def test_many_tasks_and_two_databases_of_one_server(env: CoreEnvironment, maria: str, mariadb: MariaDB) -> None:
    second = mariadb.create_database("mariadb")
    mariadb.admin(f"USE {make_url(second).database}", "CREATE TABLE copies (body varchar(20))")
    env.others = (*env.others, ("second", second))
    copies = TableTarget("second", "copies")
    began = time.perf_counter()
    _upserted(
        env, *[[(ORDERS, ("body",), [(str(index),)]), (copies, ("body",), [(str(index),)])] for index in range(60)]
    )
    assert time.perf_counter() - began < 60.0
    assert len(_rows(maria, "SELECT * FROM orders")) == len(_rows(second, "SELECT * FROM copies")) == 60
    assert env.prepared() == []


@pytest.mark.slow
def test_a_driver_that_comes_back_after_its_decision(env: CoreEnvironment, maria: str) -> None:
    """What the killed one has prepared itself is bound to its session, which the next one ends."""
    env.start()
    writer = env.writer()
    plan = writer.plan()
    with SinkTask(plan, Attempt(0, 0), resources=env.resources) as task:
        task.write_rows(ORDERS, ("body",), [("1",)])
        task.write_rows(TOTALS, ("product", "total"), [("tea", 1)])
        report = task.prepare()
    env.decide_and_die(writer, plan, [report])
    writer.close()
    assert len(env.prepared()) == 2
    killed, env.resources = env.resources, Resources()
    env.start(driver="driver-2")
    env.writer("driver-2").plan()
    assert env.prepared() == []
    assert _rows(maria, "SELECT body FROM orders") == [("1",)]
    assert _rows(maria, "SELECT product, total FROM totals") == [("tea", 1)]
    killed.close()
