"""These tests check that rows are written once: by a live pipeline and a backfill, which are killed, tried again, and
meet. The table that remembers, and that of the rows, are in PostgreSQL or in MariaDB.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from sqlalchemy import make_url

from tests.xabridge.pipeline.core.environment import ALERTS, TABLE
from tm.log import Decision
from xa.coroutines import drive
from xabridge.pipeline.core import Attempt, BatchRefused, Messages, Once, TableTarget
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.core.task.databases import database_of
from xabridge.pipeline.core.task.mariadb_session import connect
from xabridge.pipeline.core.task.once_table import LONGEST
from xabridge.pipeline.core.task.sink_task import SinkTask

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.xabridge.pipeline.core.environment import CoreEnvironment
    from xabridge.pipeline.core import SinkPlan, SinkReport
    from xabridge.testing.mariadb import MariaDB

ROOT = Path(__file__).parents[4]
SEEN: Final = TableTarget("shop", "public.orders_once", lock_timeout_s=0.3)
WAITING: Final = {
    "shop": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "maria": "SELECT count(*) FROM information_schema.processlist WHERE info LIKE 'INSERT%orders_once%'",
}


@dataclass
class Place:
    """A database with both tables, for the pipeline of `env`."""

    env: CoreEnvironment
    url: str
    rows: TableTarget
    once: Once

    @property
    def name(self) -> str:
        """The resource."""
        return self.rows.resource

    def ask(self, query: str) -> Any:
        """The rows that a query finds."""
        if self.name == "maria":
            with connect(self.url) as connection, connection.cursor() as cursor:
                cursor.execute(query)
                return list(cursor.fetchall())
        with psycopg.connect(self.url) as reading:
            return reading.execute(query).fetchall()

    def make(self) -> bool:
        """Makes the table that remembers."""
        return database_of(self.name, self.url).once.make(self.url, self.once.values.table)

    def table(self) -> list[str]:
        """The rows that were written."""
        return sorted(body for (body,) in self.ask("SELECT body FROM orders"))

    def remembered(self) -> list[str]:
        """What is remembered."""
        found = self.ask("SELECT id FROM orders_once")
        return sorted(key.decode() if isinstance(key, bytes) else key for (key,) in found)

    def with_timeout(self, seconds: float) -> Place:
        """The same, with another time that locks are waited for."""
        values = replace(self.once.values, lock_timeout_s=seconds)
        return replace(self, once=replace(self.once, values=values))

    def write(self, plan: SinkPlan, rows: Sequence[str], task: int = 0, resources: Resources | None = None) -> Any:
        """What a task writes of rows that are their own ids."""
        with SinkTask(plan, Attempt(task, task), resources=resources or self.env.resources) as sink:
            first = sink.first_ones(self.once, rows)
            kept = [row for row in dict.fromkeys(rows) if row in first]
            if kept:
                sink.write_rows(self.rows, ("body",), [(row,) for row in kept])
                sink.send(ALERTS, Messages([row.encode() for row in kept]))
            return sink.prepare()

    def job(self, rows: Sequence[str], driver: str = "driver-1", env: CoreEnvironment | None = None) -> None:
        """A job of one task."""
        self.make()
        writer = (env or self.env).writer(driver)
        plan = writer.plan(streaming=False)
        writer.commit(plan, None, [self.write(plan, rows)])


@pytest.fixture(params=["shop", "maria"])
def place(env: CoreEnvironment, request: pytest.FixtureRequest) -> Place:
    """Each kind of database."""
    if request.param == "shop":
        return Place(env, env.database, TABLE, Once("number", SEEN))
    server: MariaDB = request.getfixturevalue("mariadb")
    url = server.create_database("mariadb")
    name = make_url(url).database
    server.admin(
        f"CREATE TABLE {name}.orders (id bigint AUTO_INCREMENT PRIMARY KEY, "
        "body longtext CHARACTER SET utf8mb4 NOT NULL)"
    )
    env.others = (("maria", url),)
    return Place(
        env,
        url,
        TableTarget("maria", "orders", lock_timeout_s=1.0),
        Once("number", TableTarget("maria", f"{name}.orders_once", lock_timeout_s=1.0)),
    )


def test_what_was_written_is_left_out_in_table_and_address(env: CoreEnvironment, place: Place) -> None:
    place.job(["1", "2", "2"])
    place.job(["2", "3"])
    backfill = replace(env, pipeline="backfill", _opened=[])
    place.job(["1", "3", "4"], env=backfill)
    for opened in backfill._opened:
        opened.close()
    assert place.table() == ["1", "2", "3", "4"]
    assert sorted(env.queued("alerts")) == ["1", "2", "3", "4"]
    assert env.prepared() == []
    assert place.remembered() == ["1", "2", "3", "4"]


def test_values_are_compared_exactly(env: CoreEnvironment, place: Place) -> None:
    """Databases may take texts for equal that differ in capitals, accents, spaces, forms of a letter or the end."""
    long = "x" * (LONGEST - 1)
    values = ["", " ", "a", "A", "a ", "A ", " a", "ä", "a\u0308", "ß", "ss", "\U0001f600", "\U0001f601", "1", "01"]
    values += ["'", "\\", "\\'", "a\tb", "%", "é" * 256, "é" * 257, "\U0001f600" * 300]
    values += [long, long + "y", long + "z", long + "yy", long + "yz", long + "é", "x" * 5000, "x" * 5001]
    for several in (values, [*reversed(values), "new"], values):
        place.job(several)
    assert place.table() == sorted([*values, "new"])
    assert len(place.remembered()) == len(values) + 1
    assert env.prepared() == []


def test_many_values_of_one_task(env: CoreEnvironment, place: Place) -> None:
    values = [f"{number:04}-{'é' * (number % 300)}" for number in range(1000)]
    place.job(values[::3])
    place.job(values)
    assert place.table() == sorted(values)
    assert env.prepared() == []


def test_several_claims_of_one_task(env: CoreEnvironment, place: Place) -> None:
    """A value that the task has claimed counts as written when it claims again."""
    place.make()
    writer = env.writer()
    plan = writer.plan(streaming=False)
    with SinkTask(plan, Attempt(0, 0), resources=env.resources) as sink:
        found = [sink.first_ones(place.once, some) for some in (["2", "1", "2"], ["3", "2"], ["1"])]
        report = sink.prepare()
    writer.commit(plan, None, [report])
    assert found == [{"1", "2"}, {"3"}, frozenset()]
    assert place.remembered() == ["1", "2", "3"]


@pytest.mark.parametrize("decided", [False, True])
def test_a_backfill_that_was_killed_is_done_again(env: CoreEnvironment, place: Place, decided: bool) -> None:
    """Killed when its branches are prepared, or when it is decided and nothing is committed yet."""
    place.make()
    writer = env.writer("dies")
    plan = writer.plan(streaming=False)
    report = place.write(plan, ["1", "2"])
    if decided:
        opened = writer._opened(plan.incarnation)
        assert drive(opened.ports.log.force(Decision(plan.gtrid, report.branches))) is None
    assert place.table() == []
    place.job(["1", "2", "3"], "driver-2")
    assert place.table() == ["1", "2", "3"]
    assert sorted(env.queued("alerts")) == ["1", "2", "3"]
    assert env.prepared() == []


TASK = """
import os, pickle, signal, sys
from xabridge.pipeline.core import Attempt
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.core.task.sink_task import SinkTask

plan, once, rows = pickle.loads(sys.stdin.buffer.read())
with SinkTask(plan, Attempt(0, 0), resources=Resources()) as task:
    assert task.first_ones(once, ["1", "2"]) == {"1", "2"}
    if "claimed" not in sys.argv:
        task.write_rows(rows, ("body",), [("1",), ("2",)])
    if "prepared" in sys.argv:
        sys.stdout.buffer.write(pickle.dumps(task.prepare()))
        sys.stdout.buffer.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "reported"), [("claimed", False), ("written", False), ("prepared", False), ("prepared", True)]
)
def test_a_task_that_is_killed(env: CoreEnvironment, place: Place, when: str, reported: bool) -> None:
    """What it has claimed counts if it is decided, and only then. What it has prepared and nobody has heard of is in
    the way of its next attempt, which rolls it back."""
    place.make()
    writer = env.writer()
    plan = writer.plan(streaming=False)
    ran = subprocess.run(
        [sys.executable, "-c", TASK, when],
        input=pickle.dumps((plan, place.once, place.rows)),
        capture_output=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=120,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr.decode()
    assert len(env.prepared()) == (when == "prepared")
    heard = pickle.loads(ran.stdout) if reported else None  # noqa: S301 — our own
    writer.commit(plan, None, [heard or place.write(plan, ["1", "2"])])
    assert place.table() == place.remembered() == ["1", "2"]
    assert env.prepared() == []
    place.job(["1", "2"])
    assert place.table() == ["1", "2"]


def test_an_attempt_does_not_wait_for_an_earlier_one_of_its_task(env: CoreEnvironment, place: Place) -> None:
    place.make()
    writer = env.writer()
    plan = writer.plan(streaming=False)
    place.write(plan, ["1"])  # Spark lost its report
    report = place.write(plan, ["1"])
    writer.commit(plan, None, [report])
    assert place.table() == ["1"]
    assert env.prepared() == []


def test_two_pipelines_that_meet(env: CoreEnvironment, place: Place) -> None:
    """The second waits for the first one's outcome, but not for ever."""
    place.make()
    live, backfill = env.writer(), replace(env, pipeline="backfill", _opened=[]).writer()
    first, second = live.plan(streaming=False), backfill.plan(streaming=False)
    report = place.write(first, ["1", "2"])
    with pytest.raises(BatchRefused, match="rows with the same number are just being written by another batch"):
        place.write(second, ["2", "3"])
    live.commit(first, None, [report])
    backfill.commit(second, None, [place.write(second, ["2", "3"])])
    assert place.table() == ["1", "2", "3"]
    assert env.prepared() == []
    backfill.close()


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["rolled back", "given up", "committed"])
def test_the_second_waits_for_the_outcome_of_the_first(env: CoreEnvironment, place: Place, ends: str) -> None:
    """Of a task that is at work, or of a batch that is prepared."""
    place = place.with_timeout(30.0)
    place.make()
    live, backfill = env.writer(), replace(env, pipeline="backfill", _opened=[]).writer()
    first, second = live.plan(streaming=False), backfill.plan(streaming=False)
    others = Resources()
    with ThreadPoolExecutor(1) as pool, SinkTask(first, Attempt(0, 0), resources=env.resources) as sink:
        assert sink.first_ones(place.once, ["2", "1"]) == {"1", "2"}
        sink.write_rows(place.rows, ("body",), [("1",), ("2",)])
        report = sink.prepare() if ends != "rolled back" else None
        waits = pool.submit(place.write, second, ["0", "1", "2", "3"], resources=others)
        _until(lambda: place.ask(WAITING[place.name])[0][0] > 0)
        if report is None:
            sink.rollback()
        elif ends == "given up":
            live.abort(first, None, [report])
        else:
            live.commit(first, None, [report])
        later = waits.result(60)
    assert later.rows == (2 if ends == "committed" else 4)
    backfill.commit(second, None, [later])
    assert place.table() == place.remembered() == ["0", "1", "2", "3"]
    assert env.prepared() == []
    backfill.close()
    others.close()


@pytest.mark.slow
def test_two_that_wait_for_each_other(env: CoreEnvironment, place: Place) -> None:
    """The database ends it: one of the two is refused, and the other goes on, long before the time is over."""
    place = place.with_timeout(60.0)
    place.make()
    backfill = replace(env, pipeline="backfill", _opened=[])
    writers = env.writer(), backfill.writer()
    plans = [writer.plan(streaming=False) for writer in writers]
    others = Resources()
    both = threading.Barrier(2)

    def claim(number: int) -> Any:
        resources = (env.resources, others)[number]
        with SinkTask(plans[number], Attempt(0, 0), resources=resources) as sink:
            assert sink.first_ones(place.once, "ab"[number]) == {"ab"[number]}
            both.wait(30)
            try:
                assert sink.first_ones(place.once, "ba"[number]) == {"ba"[number]}
            except BatchRefused as error:
                return error
            return sink.prepare()

    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        answers = [done.result(50) for done in [pool.submit(claim, number) for number in (0, 1)]]
    assert time.monotonic() - began < 30
    (lost,) = [number for number, answer in enumerate(answers) if isinstance(answer, BatchRefused)]
    assert not answers[lost].of_rows
    assert "eadlock" in str(answers[lost])
    writers[1 - lost].commit(plans[1 - lost], None, [answers[1 - lost]])
    writers[lost].commit(plans[lost], None, [place.write(plans[lost], ["a", "b", "c"])])
    assert place.remembered() == ["a", "b", "c"]
    assert place.table() == ["c"], "the other one has written no rows here"
    assert env.prepared() == []
    backfill.close()
    others.close()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [10, 20])
def test_pipelines_that_write_the_same_values_in_other_orders(env: CoreEnvironment, place: Place, seed: int) -> None:
    """Each claims its values in pieces, so that they wait for each other in circles. Whoever fails tries again, and in
    the end all of them have finished, and each value is written once."""
    place.make()
    refused: list[BatchRefused] = []
    start = threading.Barrier(4)

    def run(number: int) -> None:
        chance = random.Random(seed + number)
        mine = replace(env, pipeline=f"backfill-{number}", _opened=[], resources=Resources())
        values = [str(value) for value in chance.sample(range(40), 20)]
        deadline = time.monotonic() + 120
        start.wait(60)
        while True:
            assert time.monotonic() < deadline, f"pipeline {number} never ends"
            writer = mine.writer()
            plan = writer.plan(streaming=False)
            chance.shuffle(values)
            reports: list[SinkReport] = []
            try:
                for task in (0, 1):  # which has claimed when the second one begins
                    with SinkTask(plan, Attempt(task, task), resources=mine.resources) as sink:
                        for at in range(task * 10, task * 10 + 10, 5):
                            first = sink.first_ones(place.once, values[at : at + 5])
                            sink.write_rows(place.rows, ("body",), [(value,) for value in sorted(first)])
                        reports.append(sink.prepare())
                writer.commit(plan, None, reports)
                break
            except BatchRefused as error:
                refused.append(error)
                writer.abort(plan, None, [])
                time.sleep(chance.random())
        mine.close()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(run, number) for number in range(4)]:
            done.result()
    assert not any(error.of_rows for error in refused), refused
    expected = set[str]()
    for number in range(4):
        expected |= {str(v) for v in random.Random(seed + number).sample(range(40), 20)}
    assert place.table() == place.remembered() == sorted(expected)
    assert env.prepared() == []


def test_the_first_one_is_given_up(env: CoreEnvironment, place: Place) -> None:
    place.make()
    live, backfill = env.writer(), replace(env, pipeline="backfill", _opened=[]).writer()
    first, second = live.plan(streaming=False), backfill.plan(streaming=False)
    place.write(first, ["1"])
    live.abort(first, None, [None])
    backfill.commit(second, None, [place.write(second, ["1"])])
    assert place.table() == ["1"]
    backfill.close()


@pytest.mark.parametrize("place", ["shop"], indirect=True)
def test_a_value_that_is_no_text_of_postgresql_is_the_rows_fault(env: CoreEnvironment, place: Place) -> None:
    place.make()
    plan = env.writer().plan(streaming=False)
    with pytest.raises(BatchRefused) as refused:
        place.write(plan, ["a\0b"])
    assert refused.value.of_rows
    assert env.prepared() == []


WRONG: Final = {
    "shop": [
        "id varchar(600)",
        "id bigint PRIMARY KEY",
        "id text, part int, PRIMARY KEY (id, part)",
        "key text PRIMARY KEY",
    ],
    "maria": [
        "id varchar(600) PRIMARY KEY",
        "id varbinary(600)",
        "id varbinary(600), part int, PRIMARY KEY (id, part)",
        "id varbinary(600) PRIMARY KEY) ENGINE = (Aria",
        "code varbinary(600) PRIMARY KEY",
    ],
}


def test_a_table_that_can_not_tell_values_is_refused(env: CoreEnvironment, place: Place, mariadb: MariaDB) -> None:
    for columns in WRONG[place.name]:
        if place.name == "maria":
            name = place.once.values.table
            statement = f"CREATE TABLE {name} ({columns})".replace("(Aria)", "Aria")
            mariadb.admin(f"DROP TABLE IF EXISTS {name}", statement)
        else:
            with psycopg.connect(env.database, autocommit=True) as connection:
                connection.execute("DROP TABLE IF EXISTS orders_once")
                connection.execute(f"CREATE TABLE orders_once ({columns})")
        assert not place.make(), columns
