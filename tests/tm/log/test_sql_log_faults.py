"""These tests lose the connection, the server or the process in the middle of a decision of SqlLog."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection

from tests.postgres import Postgres
from tests.tm.log.proxy import Loss, Proxy
from tests.tm.log.samples import decision, gtrid, heuristic
from tests.waiting import until
from tm.log import Decision, DecisionRefused, LogFull, LogStopped
from tm.log.sql import SqlLog, retry
from tm.log.sql.retry import PAUSES_S, REACTIONS, ErrorReaction, reaction_to
from tm.log.sql.states import GtridState
from xa.sql.errors import ErrorKind

pytestmark = pytest.mark.slow

INSERT = b"INSERT INTO xabridge_gtrid"


def no_sleep(_: float) -> None:
    """Time passes by itself."""


@pytest.fixture
def proxy(postgres: Postgres) -> Iterator[Proxy]:
    with Proxy(postgres.port) as between:
        yield between


def through(proxy: Proxy, url: str) -> str:
    parts = urlsplit(url)
    return f"postgresql://postgres@127.0.0.1:{proxy.port}{parts.path}"


def state_of(log: SqlLog, sequence: int) -> GtridState:
    """The state of a gtrid that the log knows."""
    entry = log.entry(gtrid(sequence, node=log.node))
    assert entry is not None
    return entry.state


# --- the network ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("loss", [Loss.REQUEST, Loss.REPLY])
def test_a_lost_connection_is_survived(postgres_url: str, proxy: Proxy, node: str, loss: Loss) -> None:
    """The decision was written or not; asked again it is, and only once."""
    log = SqlLog(through(proxy, postgres_url), node, sleep=no_sleep)
    proxy.lose(loss, INSERT, times=2)
    log.decide(decision(1, node=node))
    assert list(log.decisions()) == [decision(1, node=node)]
    assert len(log.entries()) == 1
    proxy.lose(loss, b"xabridge_heuristic", times=2)
    log.note_heuristic(heuristic(1, node=node))
    assert list(log.heuristics()) == [heuristic(1, node=node)]
    log.close()


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("loss", [Loss.REQUEST, Loss.REPLY])
def test_an_unknown_decision_is_settled_before_anything_is_told(
    postgres_url: str, proxy: Proxy, node: str, loss: Loss, *, interrupted: bool
) -> None:
    """Also one whose second try was interrupted."""

    def sleep(_: float) -> None:
        if interrupted:
            raise KeyboardInterrupt

    log = SqlLog(through(proxy, postgres_url), node, sleep=sleep)
    log.decide(decision(1, node=node))
    proxy.lose(loss, INSERT, times=1000)
    with pytest.raises(KeyboardInterrupt) if interrupted else pytest.raises(LogStopped, match="unknown"):
        log.decide(decision(2, node=node))
    for call in (log.decisions, log.entries, lambda: log.decision(gtrid(2, node=node))):
        with pytest.raises(KeyboardInterrupt if interrupted else LogStopped):
            call()
    interrupted = False
    proxy.lose(Loss.NONE, b"")
    decided = loss is Loss.REPLY
    assert (decision(2, node=node) in log.decisions()) == decided
    assert (log.decision(gtrid(2, node=node)) is not None) == decided
    assert state_of(log, 2) is (GtridState.COMMITTED if decided else GtridState.ABORTED)
    if not decided:
        with pytest.raises(DecisionRefused, match="was aborted"):
            log.decide(decision(2, node=node))
    log.decide(decision(3, node=node))
    log.close()


def test_an_unknown_decision_of_one_who_was_superseded_is_the_other_s_to_resolve(
    postgres_url: str, proxy: Proxy, node: str
) -> None:
    log = SqlLog(through(proxy, postgres_url), node, sleep=no_sleep)
    proxy.lose(Loss.REPLY, INSERT, times=1000)
    with pytest.raises(LogStopped):
        log.decide(decision(1, node=node))
    new = SqlLog(postgres_url, node, take_over=True)
    proxy.lose(Loss.NONE, b"")
    assert list(new.decisions()) == [decision(1, node=node)]
    with pytest.raises(LogStopped, match="was taken by"):
        log.decisions()
    log.close()
    new.close()


# --- rows beside the decision -----------------------------------------------------------------------------------------
@pytest.fixture
def beside(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the database, in which there is an empty table."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS beside")
        connection.execute("CREATE TABLE beside (number bigint PRIMARY KEY)")
        yield connection


def _row(connection: Any) -> None:
    connection.execute("INSERT INTO beside SELECT count(*) + 1 FROM beside")


def _rows(beside: psycopg.Connection[Any]) -> list[Any]:
    return beside.execute("SELECT * FROM beside").fetchall()


@pytest.mark.parametrize("word", [INSERT, b"INTO beside", b"COMMIT"])
@pytest.mark.parametrize("loss", [Loss.REQUEST, Loss.REPLY])
def test_rows_beside_a_decision_are_there_if_and_only_if_it_is(
    postgres_url: str, proxy: Proxy, node: str, beside: psycopg.Connection[Any], loss: Loss, word: bytes
) -> None:
    """Wherever the connection is lost: tried again, both are there, and the rows once."""
    log = SqlLog(through(proxy, postgres_url), node, sleep=no_sleep)
    proxy.lose(loss, word)
    try:
        log.decide_with(decision(1, node=node), _row)
    except psycopg.OperationalError:  # of the rows: nothing is decided, and it may be tried again
        assert word == b"INTO beside"
        assert _rows(beside) == []
        log.decide_with(decision(1, node=node), _row)
    assert list(log.decisions()) == [decision(1, node=node)]
    assert _rows(beside) == [(1,)]
    log.decide_with(decision(1, node=node), _row)
    assert _rows(beside) == [(1,)]
    log.close()


def test_an_error_that_was_swallowed_beside_a_decision_decides_nothing(postgres_url: str, node: str) -> None:
    """COMMIT would roll back then, and say so in a word that nobody reads."""

    def swallowed(connection: Any) -> None:
        with contextlib.suppress(psycopg.Error):
            connection.execute("SELECT 1 / 0")

    log = SqlLog(postgres_url, node, sleep=no_sleep)
    with pytest.raises(DecisionRefused):
        log.decide_with(decision(1, node=node), swallowed)
    assert list(log.decisions()) == []
    log.decide_with(decision(1, node=node), lambda _: None)
    assert list(log.decisions()) == [decision(1, node=node)]
    log.close()


def test_a_decision_of_one_who_was_superseded_writes_no_rows(
    postgres_url: str, node: str, beside: psycopg.Connection[Any]
) -> None:
    log = SqlLog(postgres_url, node, sleep=no_sleep)
    new = SqlLog(postgres_url, node, take_over=True)
    with pytest.raises(DecisionRefused, match="was taken by"):
        log.decide_with(decision(1, node=node), _row)
    assert new.abort(gtrid(2, node=node)) is GtridState.ABORTED
    with pytest.raises(DecisionRefused, match="was aborted"):
        new.decide_with(decision(2, node=node), _row)
    assert _rows(beside) == []
    log.close()
    new.close()


# --- the server -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["kill", pytest.param("immediate", marks=pytest.mark.long)])
def test_what_was_decided_is_there_after_the_server_went_down(
    postgres: Postgres, postgres_url: str, node: str, how: str
) -> None:
    """Threads decide when it goes down; each decision is durable, refused, or unknown until it is up again."""
    log = SqlLog(postgres_url, node, sleep=no_sleep, lease_s=3600)
    told_so: dict[str, list[Decision]] = {"decided": [], "refused": [], "unknown": []}
    down = threading.Event()

    def work(thread: int) -> None:
        sequence = thread
        while not down.is_set():
            made = decision(sequence, node=node)
            sequence += 8
            try:
                log.decide(made)
            except DecisionRefused:
                told_so["refused"].append(made)
            except LogStopped:
                told_so["unknown"].append(made)
            else:
                told_so["decided"].append(made)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(told_so["decided"]) >= 50)
    if how == "kill":
        postgres.kill()
    else:
        postgres.stop(immediate=True)
    down.set()
    for thread in threads:
        thread.join(100)
    if told_so["unknown"]:
        with pytest.raises(LogStopped):
            log.decisions()
    postgres.start()
    now = log.decisions()
    assert all(made in now for made in told_so["decided"])
    assert not any(made in now for made in told_so["refused"])
    for made in told_so["unknown"]:
        entry = log.entry(made.gtrid)
        assert entry is not None
        assert entry.state is (GtridState.COMMITTED if made in now else GtridState.ABORTED)
    assert len(now) <= len(told_so["decided"]) + len(told_so["unknown"])
    log.close()


def test_a_server_that_restarts_is_survived(postgres: Postgres, postgres_url: str, node: str) -> None:
    """The connections of the pool are stale: nobody notices."""
    log = SqlLog(postgres_url, node, sleep=no_sleep)
    log.decide(decision(1, node=node))
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datid > 0"
        )
    log.decide(decision(2, node=node))
    assert len(log.decisions()) == 2
    log.close()


# --- what errors mean -------------------------------------------------------------------------------------------
def failing(sqlstate: str | None = None, sqlite: int | None = None) -> OperationalError:
    original: Any
    if sqlite is not None:
        original = sqlite3.OperationalError("no")
        original.sqlite_errorcode = sqlite
    else:
        original = psycopg.OperationalError("no")
        original.sqlstate = sqlstate
    return OperationalError("INSERT", {}, original)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (failing(None), ErrorReaction.RETRY_IN_DOUBT),
        (failing("08006"), ErrorReaction.RETRY_IN_DOUBT),
        (failing("57014"), ErrorReaction.RETRY),
        (failing("40001"), ErrorReaction.RETRY),
        (failing("40003"), ErrorReaction.RETRY_IN_DOUBT),
        (failing("53300"), ErrorReaction.RETRY),
        (failing("53100"), ErrorReaction.FULL),
        (failing("42501"), ErrorReaction.REFUSE),
        (failing(sqlite=sqlite3.SQLITE_FULL), ErrorReaction.FULL),
        (failing(sqlite=sqlite3.SQLITE_BUSY_SNAPSHOT), ErrorReaction.RETRY),
        (failing(sqlite=sqlite3.SQLITE_READONLY), ErrorReaction.REFUSE),
        (NoConnection(), ErrorReaction.RETRY),
    ],
)
def test_the_meaning_of_an_error(error: Exception, meaning: ErrorReaction) -> None:
    assert reaction_to(error) is meaning  # type: ignore[arg-type]


def test_every_kind_of_error_has_a_reaction() -> None:
    assert set(REACTIONS) == set(ErrorKind)


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        (["40001", "40P01"], None),
        (["53100"], LogFull),
        (["42501"], DecisionRefused),
        (["08006"], None),
        (["08006", "42501", "42501", "42501", "42501", "42501", "42501", "42501"], LogStopped),
        (["08006", *["53100"] * 7], LogStopped),
        (["40001"] * 8, DecisionRefused),
        (["08006"] * 8, LogStopped),
    ],
)
def test_what_comes_of_errors_one_after_the_other(errors: list[str], outcome: type[Exception] | None) -> None:
    """A refusal after a lost connection does not say that the first attempt had no effect."""
    left = list(errors)
    slept: list[float] = []

    def action() -> str:
        if left:
            raise failing(left.pop(0))
        return "done"

    if outcome is None:
        assert retry.change(action, "a test", slept.append) == "done"
    else:
        with pytest.raises(outcome):
            retry.change(action, "a test", slept.append)
    assert left == []
    assert slept == list(PAUSES_S[: len(slept)])
    assert len(slept) == min(len(errors), len(PAUSES_S)) or outcome in {LogFull, DecisionRefused}


def test_what_can_t_be_read_is_not_told() -> None:
    def action() -> None:
        raise failing("42501")

    with pytest.raises(LogStopped):
        retry.read(action, "a test", no_sleep)


def test_a_keeper_that_can_t_reach_the_database_tries_again(tmp_path: Path, node: str) -> None:
    log = SqlLog(f"sqlite:///{tmp_path / 'log.db'}", node, lease_s=0.09)
    renewed = threading.Event()
    failures = iter(range(5))

    @event.listens_for(log._database.engine, "before_cursor_execute")
    def fail(*arguments: Any) -> None:
        if arguments[2].startswith("UPDATE xabridge_node"):
            if next(failures, None) is not None:
                raise sqlite3.OperationalError("no")
            renewed.set()

    assert renewed.wait(60)
    log.close()
