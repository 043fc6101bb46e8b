"""These tests cover SqlLog: the node and its holder, fencing, explicit begin and abort, garbage collection, and
refusals.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, text

from tests.postgres import Postgres
from tests.programs import output_of
from tests.tm.log.samples import decision, gtrid, heuristic
from tests.tm.shop import Clock
from tests.waiting import until
from tm.log import DecisionRefused, LogError, LogFull, LogLocked, LogStopped
from tm.log.sql import SqlLog, read_sql_log
from tm.log.sql.database import Database
from tm.log.sql.database import database_url as with_driver
from tm.log.sql.gtrids import NodeTakenOver
from tm.log.sql.log import ENDS
from tm.log.sql.states import GTRID, GtridState, GtridVerb
from tm.log.sql.tables import METADATA

pytestmark = pytest.mark.slow
LONG = os.environ.get("XABRIDGE_LONG") == "all"


# --- the node and its lease -----------------------------------------------------------------------------------
def test_a_node_that_somebody_holds_is_refused_and_the_holder_named(database_url: str, node: str) -> None:
    clock = Clock()
    holder = SqlLog(database_url, node, lease_s=30, clock=clock)

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        holder._renew()

    with pytest.raises(
        LogLocked,
        match=rf"'{node}' is held by process {os.getpid()} on .*incarnation 1, lease until .*\. Stop that one, ",
    ):
        SqlLog(database_url, node, lease_s=30, clock=clock, sleep=sleep)
    assert sum(clock.slept) <= 1.0, "one renewal is enough to see that it is at work"
    holder.decide(decision(1, node=node))
    holder.close()


@pytest.mark.parametrize(("lease_s", "least_s", "most_s"), [(30, 17, 20), (100_000, 0, 31)])
def test_a_node_whose_holder_died_is_taken_when_its_lease_has_run_out(
    database_url: str, node: str, lease_s: float, least_s: float, most_s: float
) -> None:
    """Nobody waits longer than a lease of their own."""
    clock = Clock()
    dead = SqlLog(database_url, node, lease_s=lease_s, clock=clock)
    dead.decide(decision(1, node=node))
    clock.now += 12
    with pytest.raises(LogLocked) if lease_s > 30 else nullcontext():
        log = SqlLog(database_url, node, lease_s=30, clock=clock, sleep=clock.sleep)
        assert log.epoch == 2
        assert log.log_id == dead.log_id
        assert list(log.decisions()) == [decision(1, node=node)]
        log.close()
    assert least_s < sum(clock.slept) <= most_s
    dead.close()


def test_a_closed_log_is_taken_at_once_and_so_is_one_by_force(database_url: str, node: str) -> None:
    clock = Clock()
    SqlLog(database_url, node, clock=clock, sleep=clock.sleep).close()
    second = SqlLog(database_url, node, clock=clock, sleep=clock.sleep)
    third = SqlLog(database_url, node, take_over=True, clock=clock, sleep=clock.sleep)
    assert (second.epoch, third.epoch) == (2, 3)
    assert clock.slept == []
    second.close()
    with pytest.raises(LogLocked):
        SqlLog(database_url, node, lease_s=1, clock=clock, sleep=clock.sleep)
    third.close()


def test_the_database_s_own_clock_counts_and_the_lease_is_renewed(database_url: str, node: str) -> None:
    """Long after the lease that it began with has run out. (It is renewed each half second; busy machines are late.)"""
    holder = SqlLog(database_url, node, lease_s=1.5)
    threading.Event().wait(2.0)
    with pytest.raises(LogLocked):
        SqlLog(database_url, node, lease_s=1.5)
    holder.decide(decision(1, node=node))
    holder.close()


def test_of_many_who_want_a_node_one_gets_it(database_url: str, node: str) -> None:
    def take(_: int) -> SqlLog | None:
        try:
            return SqlLog(database_url, node, lease_s=60, sleep=lambda _: None)
        except LogLocked:
            return None

    with ThreadPoolExecutor(6) as executor:
        taken = [log for log in executor.map(take, range(6)) if log is not None]
    assert len(taken) == 1
    assert taken[0].epoch == 1
    taken[0].close()


# --- fencing ----------------------------------------------------------------------------------------------------
def test_who_was_superseded_can_do_nothing_any_more(database_url: str, node: str) -> None:
    old = SqlLog(database_url, node)
    old.decide(decision(1, node=node))
    old.begin(gtrid(2, node=node))
    new = SqlLog(database_url, node, take_over=True)
    assert list(new.decisions()) == [decision(1, node=node)]
    taken = rf"'{node}' was taken by process {os.getpid()} on .* as incarnation 2"
    for call in (
        lambda: old.decide(decision(2, node=node)),
        lambda: old.decide(decision(3, node=node)),
        lambda: old.begin(gtrid(4, node=node)),
        lambda: old.abort(gtrid(2, node=node)),
        lambda: old.abort(gtrid(5, node=node)),
    ):
        with pytest.raises(NodeTakenOver, match=taken):
            call()

    with pytest.raises(LogStopped, match=taken):
        old.decisions()
    assert new.entry(gtrid(2, node=node)) is not None
    assert [new.entry(gtrid(sequence, node=node)) for sequence in (3, 4, 5)] == [None] * 3
    old.decide(decision(1, node=node))
    old.close()
    with pytest.raises(LogLocked):
        SqlLog(database_url, node, lease_s=1, sleep=lambda _: None)
    new.close()


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.long)])
def test_every_decision_that_was_taken_before_the_node_was_is_seen_by_the_new_holder(
    database_url: str, node: str, rounds: int
) -> None:
    """The old one decides as fast as it can, in four threads, while the node is taken from it."""
    sequence = 0
    log = SqlLog(database_url, node)
    for _ in range(rounds):
        decided: list[bytes] = []

        def decide(first: int, log: SqlLog = log, decided: list[bytes] = decided) -> None:
            for number in range(first, first + 1000):
                made = decision(number, node=node)
                try:
                    log.decide(made)
                except DecisionRefused:
                    return
                decided.append(made.gtrid)

        with ThreadPoolExecutor(4) as executor:
            futures = [executor.submit(decide, sequence + 1000 * thread) for thread in range(4)]
            until(lambda decided=decided: len(decided) >= 20)  # type: ignore[misc]
            new = SqlLog(database_url, node, take_over=True)
            seen = {made.gtrid for made in new.decisions()}
            for future in futures:
                future.result(60)
        assert set(decided) <= seen
        assert {made.gtrid for made in new.decisions()} == seen, "something came late"
        log.close()
        log = new
        sequence += 4000
    log.close()


def test_further_processes_join_an_epoch(database_url: str, node: str) -> None:
    first = SqlLog(database_url, node)
    second = SqlLog(database_url, node, epoch=first.epoch)
    assert (second.log_id, second.epoch) == (first.log_id, first.epoch)
    first.begin(gtrid(1, node=node))
    second.decide(decision(1, node=node))
    second.close()
    assert list(first.decisions()) == [decision(1, node=node)]
    first.close()
    with pytest.raises(LogLocked, match="held by"):
        SqlLog(database_url, node, epoch=7)
    with pytest.raises(LogLocked, match="was removed"):
        SqlLog(database_url, f"{node}-unknown", epoch=1)


# --- gtrids -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("verbs", [[verb for verb in GtridVerb if verb is not GtridVerb.PURGE], [GtridVerb.PURGE]])
def test_the_statements_do_what_the_table_says(database_url: str, node: str, verbs: list[GtridVerb]) -> None:
    """Every state, every verb, on the tables themselves; the state was reached under an earlier epoch."""
    log = SqlLog(database_url, node)
    cases = list(enumerate(product(GtridState, verbs)))
    for sequence, (state, _) in cases:
        made = decision(sequence, node=node)
        if state is GtridState.ACTIVE:
            log.begin(made.gtrid)
        elif state is GtridState.ABORTED:
            log.abort(made.gtrid)
        elif state is not GtridState.UNKNOWN:
            log.decide(made)
            if state is GtridState.DONE:
                log._gtrids.end([made.gtrid])

    log.close()
    log = SqlLog(database_url, node)
    for sequence, (state, verb) in cases:
        made, other = decision(sequence, node=node), decision(sequence, branches=4, node=node)
        calls: dict[GtridVerb, Callable[[], object]] = {
            GtridVerb.BEGIN: partial(log.begin, made.gtrid),
            GtridVerb.DECIDE: partial(log.decide, other),
            GtridVerb.ABORT: partial(log.abort, made.gtrid),
            GtridVerb.END: partial(log._gtrids.end, [made.gtrid]),
            GtridVerb.PURGE: log.purge,
        }
        legal = GTRID.refusal(state, verb) is None
        try:
            calls[verb]()
        except DecisionRefused:
            assert not legal, (state, verb)

        entry = log.entry(made.gtrid)
        after = entry.state if entry is not None else GtridState.UNKNOWN
        expected = {source: to for source, moved, _, to, _ in GTRID.transitions() if moved is verb}
        assert after is (expected[state] if legal else state), (state, verb)
        if entry is not None and after in {GtridState.COMMITTED, GtridState.DONE}:
            assert entry.decision == (other if verb is GtridVerb.DECIDE and legal else made), (state, verb)
    log.close()


@pytest.mark.parametrize("rounds", [30, pytest.param(500, marks=pytest.mark.long)])
def test_commit_and_abort_race_and_one_wins(database_url: str, node: str, rounds: int) -> None:
    """From two logs that share the incarnation, as the driver's processes do."""
    one = SqlLog(database_url, node)
    other = SqlLog(database_url, node, epoch=one.epoch)
    together = threading.Barrier(2)

    def commit(sequence: int) -> bool:
        together.wait(60)
        try:
            one.decide(decision(sequence, node=node))
        except DecisionRefused:
            return False
        return True

    def abort(sequence: int) -> bool:
        together.wait(60)
        return other.abort(gtrid(sequence, node=node)) is GtridState.ABORTED

    won = []
    with ThreadPoolExecutor(2) as executor:
        for sequence in range(rounds):
            if sequence % 2:
                one.begin(gtrid(sequence, node=node))
            committed, aborted = executor.submit(commit, sequence), executor.submit(abort, sequence)
            assert committed.result(60) != aborted.result(60)
            won.append(committed.result())
            entry = one.entry(gtrid(sequence, node=node))
            assert entry is not None
            assert entry.state is (GtridState.COMMITTED if committed.result() else GtridState.ABORTED)
    other.close()
    one.close()


def test_gtrids_are_found_by_prefix_and_state_in_pages(database_url: str, node: str) -> None:
    log = SqlLog(database_url, node)
    first, second = gtrid(0, 1, node=node)[:-8], gtrid(0, 2, node=node)[:-8]
    names = [prefix + number.to_bytes(8, "big") for prefix in (first, second) for number in (0, 1, 2, 255, 2**63)]
    for name in names:
        log.begin(name)
    log.abort(names[1])
    assert [entry.gtrid for entry in log.entries()] == names
    assert [entry.gtrid for entry in log.entries(second)] == names[5:]
    assert [entry.gtrid for entry in log.entries(first, states=(GtridState.ACTIVE,))] == [names[0], *names[2:5]]
    assert [entry.gtrid for entry in log.entries(count=4)] == names[:4]
    assert [entry.gtrid for entry in log.entries(after=names[3], count=4)] == names[4:8]
    assert list(log.entries(b"\xff" * 64)) == []
    log.close()


# --- ends and garbage -------------------------------------------------------------------------------------------
def test_ends_are_lazy_and_a_few_may_be_lost(database_url: str, node: str) -> None:
    log = SqlLog(database_url, node)
    for sequence in range(ENDS + 10):
        log.decide(decision(sequence, node=node))
    for sequence in range(ENDS + 10):
        log.end(gtrid(sequence, node=node))
    assert list(log.decisions()) == []
    again = SqlLog(database_url, node, take_over=True)
    assert len(again.decisions()) == 10
    log.close()
    assert list(again.decisions()) == [], "an end is a fact, whoever has the node"
    again.close()


def test_garbage_goes_in_batches_and_only_what_is_garbage(database_url: str, node: str) -> None:
    clock = Clock()
    log = SqlLog(database_url, node, keep_s=None, clock=clock)
    for sequence in range(20):
        log.decide(decision(sequence, node=node))
    for sequence in range(12):
        log.end(gtrid(sequence, node=node))
    log._write_ends()
    log.abort(gtrid(30, node=node))
    log.begin(gtrid(31, node=node))
    clock.now += 100

    assert log.purge(older_than_s=101) == 0
    assert log.purge(below=gtrid(3, node=node)) == 3
    assert log.purge(older_than_s=99, count=5) == 5
    assert log.purge() == 4
    assert log.purge() == 0, "a decision that is on its way may meet the tombstone of this incarnation"
    assert len(log.entries()) == 10
    log.close()
    log = SqlLog(database_url, node, keep_s=None, clock=clock)
    assert log.purge() == 1
    assert {entry.state for entry in log.entries()} == {GtridState.COMMITTED, GtridState.ACTIVE}
    assert len(log.decisions()) == 8
    log.close()


def test_garbage_is_collected_by_itself(database_url: str, node: str) -> None:
    log = SqlLog(database_url, node, lease_s=0.15, keep_s=0.0)
    gone = threading.Event()

    @event.listens_for(log._database.engine, "after_cursor_execute")
    def look(*arguments: Any) -> None:
        if arguments[2].startswith("DELETE FROM xabridge_gtrid") and arguments[1].rowcount == 2:
            gone.set()

    for sequence in (1, 2, 3):
        log.decide(decision(sequence, node=node))
    log.end(gtrid(1, node=node))
    log.end(gtrid(2, node=node))
    assert gone.wait(60)
    assert [entry.gtrid for entry in log.entries()] == [gtrid(3, node=node)]
    log.close()


# --- what can hold a log ----------------------------------------------------------------------------------------
def test_nodes_share_a_database_and_know_nothing_of_each_other(database_url: str, node: str) -> None:
    one, other = SqlLog(database_url, node), SqlLog(database_url, f"{node}-b")
    assert one.log_id != other.log_id
    one.decide(decision(1, node=node))
    one.note_heuristic(heuristic(1, node=node))
    assert list(other.decisions()) == []
    assert list(other.heuristics()) == []
    assert list(other.entries()) == []
    one.close()
    other.close()


def test_a_look_where_no_log_is(database_url: str, tmp_path: Path, node: str) -> None:
    with pytest.raises(LogError, match="no decision log"):
        read_sql_log(f"sqlite:///{tmp_path}/nothing.db", node)
    SqlLog(database_url, node).close()
    with pytest.raises(LogError, match=f"no decision log of node '{node}-x'"):
        read_sql_log(database_url, f"{node}-x")


def test_tables_of_another_version_are_refused(tmp_path: Path, node: str) -> None:
    url = f"sqlite:///{tmp_path / 'log.db'}"
    SqlLog(url, node).close()
    database = Database(url)
    with database.engine.connect() as connection:
        connection.execute(text("UPDATE xabridge_schema SET version = 99"))
    with pytest.raises(LogError, match=r"made by a newer version: its format has version 99, and this program knows 3"):
        SqlLog(url, node)
    with database.engine.connect() as connection:
        connection.execute(text("UPDATE xabridge_schema SET version = 3"))
        connection.execute(text("ALTER TABLE xabridge_gtrid RENAME COLUMN record TO something"))
    database.engine.dispose()
    with pytest.raises(LogError, match="xabridge_gtrid lacks record"):
        SqlLog(url, node)


def test_the_tables_are_made_once_by_many_that_open_at_once_and_wait_for_each_other(
    tmp_path: Path, postgres: Postgres
) -> None:
    """SQLite itself refuses a change of the journal's mode at once, in one of some hundred openings."""
    together = threading.Barrier(6)

    def open_it(url: str) -> None:
        database = Database(url)
        together.wait(30)
        database.prepare()
        database.check()
        database.engine.dispose()

    files = [f"sqlite:///{tmp_path / str(number)}.db" for number in range(60 if LONG else 15)]
    with ThreadPoolExecutor(6) as executor:
        for url in [postgres.create_database(), *files]:
            for opened in [executor.submit(open_it, url) for _ in range(6)]:
                opened.result()


def test_a_database_that_does_not_force_is_refused(postgres: Postgres, node: str) -> None:
    url = postgres.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off".encode())
    with pytest.raises(LogError, match="synchronous_commit is off"):
        SqlLog(url, node)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = on".encode())
    SqlLog(url, node).close()


def test_a_process_that_comes_and_goes_takes_no_decision_with_it(tmp_path: Path, node: str) -> None:
    """Whoever closes a SQLite file last deletes its write-ahead log, and knows by its locks who else has it open."""
    path = tmp_path / "log.db"
    log = SqlLog(f"sqlite:///{path}", node)

    def counted() -> int:
        code = (
            "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1]);"
            "print(*connection.execute('SELECT count(*) FROM xabridge_gtrid').fetchone()); connection.close()"
        )
        return int(output_of(code, str(path)))

    assert counted() == 0
    assert path.with_name("log.db-wal").exists()
    log.decide(decision(1, node=node))
    assert counted() == 1
    log.close()


def test_a_full_database_refuses_a_decision_and_takes_the_next_when_there_is_room(tmp_path: Path, node: str) -> None:
    log = SqlLog(f"sqlite:///{tmp_path / 'log.db'}", node)
    limit = [1]

    @event.listens_for(log._database.engine, "before_cursor_execute")
    def fill(*arguments: Any) -> None:
        arguments[1].connection.execute(f"PRAGMA max_page_count = {limit[0]}")

    accepted = []

    def decide_on_and_on() -> None:
        for sequence in range(1000):
            log.decide(decision(sequence, branches=30, node=node))
            accepted.append(sequence)

    with pytest.raises(LogFull, match="full"):
        decide_on_and_on()
    refused = len(accepted)
    limit[0] = 1 << 20
    log.decide(decision(refused, branches=3, node=node))
    assert len(log.decisions()) == len(accepted) + 1
    log.close()


def test_no_message_tells_a_password_and_sqlite_forces_each_commit(tmp_path: Path) -> None:
    database = Database("postgresql://me:secret@db.example/log")
    assert str(database) == "postgresql+psycopg://me:…@db.example/log"
    database.engine.dispose()
    assert with_driver("postgres://me@db/log").drivername == "postgresql+psycopg"
    database = Database(f"sqlite:///{tmp_path / 'log.db'}")
    with database.engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar_one() == 2
    database.engine.dispose()


def test_a_server_that_can_t_be_reached_opens_no_log(node: str) -> None:
    with pytest.raises(LogStopped, match="can't be opened"):  # it may be reached later
        SqlLog("postgresql://postgres@127.0.0.1:1/log", node)


def test_the_names_of_tables_and_columns_are_those_in_the_docs() -> None:
    """Operators look into them."""
    assert {table: sorted(column.name for column in METADATA.tables[table].columns) for table in METADATA.tables} == {
        "xabridge_schema": ["version"],
        "xabridge_node": ["epoch", "holder", "lease_until", "log_id", "node", "worked_at"],
        "xabridge_gtrid": ["changed_at", "epoch", "gtrid", "node", "record", "state"],
        "xabridge_heuristic": ["branch", "changed_at", "node", "record"],
        "xabridge_incarnation": ["ceiling", "epoch", "floor", "incarnation", "node", "standing"],
        "xabridge_place": ["node", "place"],
    }
