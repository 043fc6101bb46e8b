"""These tests check that rows are written once: by a live pipeline and a backfill, which are killed, tried again, and
meet. The table that remembers, and that of the rows, are in PostgreSQL or in MariaDB.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from sqlalchemy import make_url

from tests.xabridge.pipeline.core import pipeline_child
from tests.xabridge.pipeline.core.environment import ALERTS, CoreEnvironment
from tests.xabridge.pipeline.core.sink_database import SinkDatabase
from tests.xabridge.pipeline.faults import await_until
from tm.log import Decision
from xa.coroutines import drive
from xabridge.pipeline.core import Attempt, BatchRefused, Messages, OnceSettings, SinkPlan, SinkReport, TableTarget
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.resources import Resources, database_of
from xabridge.pipeline.core.task import mariadb, mariadb_session, staging_table
from xabridge.pipeline.core.task.once_table import LONGEST
from xabridge.pipeline.core.task.sink_task import SinkTask

pytestmark = pytest.mark.parametrize("sink", ["shop", "maria"], indirect=True)
SEEN: Final = TableTarget("shop", "public.orders_once", lock_timeout_s=0.3)
WAITING: Final = {
    "shop": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    "maria": "SELECT count(*) FROM information_schema.processlist WHERE info LIKE 'INSERT%orders_once%'",
}


@dataclass
class OnceDatabase(SinkDatabase):
    """A database with the rows, and with the table that remembers them."""

    once: OnceSettings = field(kw_only=True)

    def make(self) -> bool:
        """Makes the table that remembers."""
        return database_of(self.resource, self.url).once.make(self.url, self.once.values.table)

    def remembered(self) -> list[str]:
        """What is remembered."""
        found = self.ask("SELECT id FROM orders_once")
        return sorted(key.decode() if isinstance(key, bytes) else key for (key,) in found)

    def with_timeout(self, seconds: float) -> OnceDatabase:
        """The same, with another time that locks are waited for."""
        values = replace(self.once.values, lock_timeout_s=seconds)
        return replace(self, once=replace(self.once, values=values))

    def write_once(self, plan: SinkPlan, rows: Sequence[str], resources: Resources | None = None) -> Any:
        """What a task writes of rows that are their own ids."""
        with SinkTask(plan, Attempt(0, 0), resources=resources or self.env.resources) as task:
            first = task.first_ones(self.once, rows)
            kept = [row for row in dict.fromkeys(rows) if row in first]
            if kept:
                task.write_rows(self.rows, ("body",), [(row,) for row in kept])
                task.send(ALERTS, Messages([row.encode() for row in kept]))
            return task.prepare()

    def job(self, rows: Sequence[str], driver: str = "driver-1", env: CoreEnvironment | None = None) -> None:
        """A job of one task."""
        self.make()
        writer = (env or self.env).writer(driver)
        plan = writer.plan(streaming=False)
        writer.commit(plan, None, [self.write_once(plan, rows)])

    def check_once(self, rows: Sequence[str]) -> None:
        """Each row is there once and is remembered, and no branch is left."""
        assert self.table() == self.remembered() == sorted(rows)
        assert self.env.prepared() == []


@pytest.fixture
def place(sink: SinkDatabase) -> OnceDatabase:
    """Each kind of database."""
    seen = SEEN
    if sink.kind == "maria":
        seen = TableTarget("maria", f"{make_url(sink.url).database}.orders_once", lock_timeout_s=1.0)
    return OnceDatabase(sink.env, sink.kind, sink.url, sink.rows, once=OnceSettings("number", seen))


@pytest.fixture
def backfill(env: CoreEnvironment) -> Iterator[CoreEnvironment]:
    """A pipeline of another process, which writes to the same tables."""
    other = env.beside("backfill")
    yield other
    other.close()


def test_what_was_written_is_left_out_in_table_and_address(
    env: CoreEnvironment, place: OnceDatabase, backfill: CoreEnvironment
) -> None:
    place.job(["1", "2", "2"])
    place.job(["2", "3"])
    place.job(["1", "3", "4"], env=backfill)
    place.check_once(["1", "2", "3", "4"])
    assert sorted(env.queued("alerts")) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("table", ["orders_once", "xabridge_staged"])
def test_a_table_of_another_version_is_refused_by_its_name(place: OnceDatabase, table: str) -> None:
    def make() -> None:
        if table == "orders_once":
            place.make()
        elif place.kind == "shop":
            staging_table.make_table(place.url)
        else:
            with mariadb_session.connect(place.url) as connection:
                mariadb.make_table(connection)

    make()
    make()
    for change, said in (
        ("ALTER COLUMN version SET DEFAULT 3", "made by a newer version: its format has version 3"),
        ("DROP COLUMN version", r"made by xabridge 0\.1\.0, which is not read any more"),
    ):
        place.change(f"ALTER TABLE {table} {change}")
        with pytest.raises(PipelineError, match=f"the table .*{table}: {said}"):
            make()
    place.change(f"DROP TABLE {table}")


def test_values_are_compared_exactly(env: CoreEnvironment, place: OnceDatabase) -> None:
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


def test_many_values_of_one_task(env: CoreEnvironment, place: OnceDatabase) -> None:
    values = [f"{number:04}-{'é' * (number % 300)}" for number in range(1000)]
    place.job(values[::3])
    place.job(values)
    assert place.table() == sorted(values)
    assert env.prepared() == []


def test_several_claims_of_one_task(env: CoreEnvironment, place: OnceDatabase) -> None:
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
def test_a_backfill_that_was_killed_is_done_again(env: CoreEnvironment, place: OnceDatabase, decided: bool) -> None:
    """Killed when its branches are prepared, or when it is decided and nothing is committed yet."""
    place.make()
    writer = env.writer("dies")
    plan = writer.plan(streaming=False)
    report = place.write_once(plan, ["1", "2"])
    if decided:
        opened = writer._opened(plan.incarnation)
        assert drive(opened.ports.log.force(Decision(plan.gtrid, report.branches))) is None
    assert place.table() == []
    place.job(["1", "2", "3"], "driver-2")
    place.check_once(["1", "2", "3"])
    assert sorted(env.queued("alerts")) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("when", "reported"), [("claimed", False), ("written", False), ("prepared", False), ("prepared", True)]
)
def test_a_task_that_is_killed(env: CoreEnvironment, place: OnceDatabase, when: str, *, reported: bool) -> None:
    """What it has claimed counts if it is decided, and only then. What it has prepared and nobody has heard of is in
    the way of its next attempt, which rolls it back."""
    place.make()
    writer = env.writer()
    plan = writer.plan(streaming=False)
    hears, tells = pipeline_child.FORKED.Pipe(duplex=False)
    killed = pipeline_child.started(pipeline_child.write_once, plan, place.once, place.rows, when, tells)
    heard = hears.recv() if when == "prepared" else None
    killed.join(120)
    assert killed.exitcode == -signal.SIGKILL
    assert len(env.prepared()) == (when == "prepared")
    writer.commit(plan, None, [heard if reported else place.write_once(plan, ["1", "2"])])
    place.check_once(["1", "2"])
    place.job(["1", "2"])
    assert place.table() == ["1", "2"]


def test_an_attempt_does_not_wait_for_an_earlier_one_of_its_task(env: CoreEnvironment, place: OnceDatabase) -> None:
    place.make()
    writer = env.writer()
    plan = writer.plan(streaming=False)
    place.write_once(plan, ["1"])  # Spark lost its report
    report = place.write_once(plan, ["1"])
    writer.commit(plan, None, [report])
    place.check_once(["1"])


@dataclass
class Meeting:
    """A live pipeline and a backfill that write the same values."""

    live: SinkCoordinator
    later: SinkCoordinator
    others: Resources
    """Of the backfill."""

    def __post_init__(self) -> None:
        self.first, self.second = (writer.plan(streaming=False) for writer in (self.live, self.later))


@pytest.fixture
def meeting(env: CoreEnvironment, place: OnceDatabase, backfill: CoreEnvironment) -> Meeting:
    """Both have planned a batch."""
    place.make()
    return Meeting(env.writer(), backfill.writer(), backfill.resources)


def test_two_pipelines_that_meet(place: OnceDatabase, meeting: Meeting) -> None:
    """The second waits for the first one's outcome, but not for ever."""
    report = place.write_once(meeting.first, ["1", "2"])
    with pytest.raises(BatchRefused, match="rows with the same number are just being written by another batch"):
        place.write_once(meeting.second, ["2", "3"])
    meeting.live.commit(meeting.first, None, [report])
    meeting.later.commit(meeting.second, None, [place.write_once(meeting.second, ["2", "3"])])
    place.check_once(["1", "2", "3"])


@pytest.mark.parametrize("ends", ["rolled back", "given up", "committed"])
def test_the_second_waits_for_the_outcome_of_the_first(place: OnceDatabase, meeting: Meeting, ends: str) -> None:
    """Of a task that is at work, or of a batch that is prepared."""
    place = place.with_timeout(30.0)
    first, second = meeting.first, meeting.second
    with ThreadPoolExecutor(1) as pool, SinkTask(first, Attempt(0, 0), resources=place.env.resources) as task:
        assert task.first_ones(place.once, ["2", "1"]) == {"1", "2"}
        task.write_rows(place.rows, ("body",), [("1",), ("2",)])
        report = task.prepare() if ends != "rolled back" else None
        waits = pool.submit(place.write_once, second, ["0", "1", "2", "3"], resources=meeting.others)
        await_until(lambda: place.ask(WAITING[place.kind])[0][0] > 0)
        if report is None:
            task.rollback()
        elif ends == "given up":
            meeting.live.abort(first, None, [report])
        else:
            meeting.live.commit(first, None, [report])
        later = waits.result(60)

    assert later.rows == (2 if ends == "committed" else 4)
    meeting.later.commit(second, None, [later])
    place.check_once(["0", "1", "2", "3"])


def test_two_that_wait_for_each_other(env: CoreEnvironment, place: OnceDatabase, meeting: Meeting) -> None:
    """The database ends it: one of the two is refused, and the other goes on, long before the time is over."""
    place = place.with_timeout(60.0)
    writers, plans = (meeting.live, meeting.later), (meeting.first, meeting.second)
    both = threading.Barrier(2)

    def claim(number: int) -> Any:
        resources = (env.resources, meeting.others)[number]
        with SinkTask(plans[number], Attempt(0, 0), resources=resources) as task:
            assert task.first_ones(place.once, "ab"[number]) == {"ab"[number]}
            both.wait(30)
            try:
                assert task.first_ones(place.once, "ba"[number]) == {"ba"[number]}
            except BatchRefused as error:
                return error
            return task.prepare()

    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        answers = [done.result(50) for done in [pool.submit(claim, number) for number in (0, 1)]]
    assert time.monotonic() - began < 30
    (lost,) = [number for number, answer in enumerate(answers) if isinstance(answer, BatchRefused)]
    assert not answers[lost].of_rows
    assert "eadlock" in str(answers[lost])
    writers[1 - lost].commit(plans[1 - lost], None, [answers[1 - lost]])
    writers[lost].commit(plans[lost], None, [place.write_once(plans[lost], ["a", "b", "c"])])
    assert place.remembered() == ["a", "b", "c"]
    assert place.table() == ["c"], "the other one has written no rows here"
    assert env.prepared() == []


@pytest.mark.parametrize("seed", [10, pytest.param(20, marks=pytest.mark.long)])
def test_pipelines_that_write_the_same_values_in_other_orders(
    env: CoreEnvironment, place: OnceDatabase, seed: int
) -> None:
    """Each claims its values in pieces, so that they wait for each other in circles. Whoever fails tries again, and in
    the end all of them have finished, and each value is written once."""
    place.make()
    refused: list[BatchRefused] = []
    start = threading.Barrier(4)

    def run(number: int) -> None:
        chance = random.Random(seed + number)
        mine = env.beside(f"backfill-{number}")
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
                time.sleep(0.1 * chance.random())
        mine.close()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(run, number) for number in range(4)]:
            done.result()
    assert not any(error.of_rows for error in refused), refused
    expected = set[str]()
    for number in range(4):
        expected |= {str(v) for v in random.Random(seed + number).sample(range(40), 20)}
    place.check_once(list(expected))


def test_a_value_that_is_no_text_of_postgresql_is_the_rows_fault(env: CoreEnvironment, place: OnceDatabase) -> None:
    if place.kind == "maria":
        return
    place.make()
    plan = env.writer().plan(streaming=False)
    with pytest.raises(BatchRefused) as refused:
        place.write_once(plan, ["a\0b"])
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


def test_a_table_that_can_not_tell_values_is_refused(place: OnceDatabase) -> None:
    name = place.once.values.table
    for columns in WRONG[place.kind]:
        place.change(f"DROP TABLE IF EXISTS {name}")
        place.change(f"CREATE TABLE {name} ({columns})".replace("(Aria)", "Aria"))
        assert not place.make(), columns
