"""These tests check what a log knows of its incarnations: in copies, and after many openings."""

from __future__ import annotations

import itertools
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.postgres import Postgres
from tests.tm.log.disk import Disk
from tests.tm.log.samples import decision, heuristic
from tests.tm.shop import Shop
from tm.log import FileLog, LogError, LogMissing, read_log
from tm.log.backup import back_up
from tm.log.factory import look_at_log, open_log
from tm.log.incarnations import IncarnationState
from tm.log.sql import SqlLog
from tm.recovery import Action

NODE = "orders-1"
SMALL = 5120


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on a disk, since a file system in memory may have no identities of files."""
    return tmp_path_factory.mktemp("log")


# --- copies -----------------------------------------------------------------------------------------------------------
def moved(disk: Disk) -> Disk:
    disk.locked = False
    return disk


def between_openings(disk: Disk) -> Disk:
    """A copy that lacks nothing: the log was closed."""
    disk.locked = False
    FileLog("", NODE, segment_size=SMALL, files=disk).close()
    return disk.copied()


@pytest.mark.parametrize(
    ("way", "standing"),
    [(Disk.copied, IncarnationState.CUT), (moved, IncarnationState.WHOLE), (between_openings, IncarnationState.WHOLE)],
)
def test_a_copy_of_a_log_at_work_presumes_nothing_about_it(
    way: Callable[[Disk], Disk], standing: IncarnationState, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    FileLog("", NODE, segment_size=SMALL, files=disk).close()
    first = FileLog("", NODE, segment_size=SMALL, files=disk)
    first.decide(decision(1))
    after = way(disk)
    for _ in range(3):
        log = FileLog("", NODE, segment_size=SMALL, files=after)
        assert list(log.incarnations.noted.values())[:2] == [IncarnationState.WHOLE, standing]
        assert list(log.decisions()) == [decision(1)], "what is in the copy is decided"
        assert (log.incarnations.why_not(first.incarnation) is None) == (standing is IncarnationState.WHOLE)
        log.close()
    warned = [record.message for record in caplog.records if "is a copy" in record.message]
    assert len(warned) == (standing is IncarnationState.CUT)
    if warned:
        assert f"xabridge recover run --newest {first.incarnation.hex()}" in warned[0]


def test_a_copy_that_is_trusted_presumes_again() -> None:
    disk = Disk()
    first = FileLog("", NODE, segment_size=SMALL, files=disk)
    copy = disk.copied()
    log = FileLog("", NODE, segment_size=SMALL, files=copy)
    assert log.incarnations.why_not(first.incarnation) is not None
    log.trust(first.incarnation)
    assert not log.incarnations.cut
    log = FileLog("", NODE, segment_size=SMALL, files=copy.crashed(random.Random(1)))
    assert log.incarnations.why_not(first.incarnation) is None, "it is durable"


def test_a_manager_with_a_copy_that_is_one_opening_old_leaves_the_branches_of_the_lost_opening_alone(
    shop: Shop,
) -> None:
    shop.open()
    shop.kill()
    shutil.copytree(shop.folder / "log", shop.folder / "copy")
    tx = shop.in_doubt("a", "b")
    shop.kill()
    shutil.rmtree(shop.folder / "log")
    shutil.copytree(shop.folder / "copy", shop.folder / "log")
    report = shop.open().recover()
    assert {(finding.branch.xid, finding.action) for finding in report.findings} == {
        (tx.xid(name), Action.STRANDED) for name in "ab"
    }
    assert not report.clean
    assert shop["a"].in_doubt
    assert shop["b"].in_doubt


def test_a_look_at_a_copy_says_what_its_opening_would(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log", NODE, segment_size=SMALL)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    if not log._journal._header.identity:
        pytest.skip("the file system of the temporary folder has no identities of files")
    assert look_at_log(f"file://{tmp_path}/copy", NODE).incarnations.cut == (log.incarnation,)
    assert look_at_log(f"file://{tmp_path}/log", NODE).incarnations.cut == ()
    log.close()
    (tmp_path / "log").rename(tmp_path / "moved")
    log = FileLog(tmp_path / "moved", NODE, segment_size=SMALL)
    assert not log.incarnations.cut
    log.close()


def test_a_copy_of_a_database_presumes_nothing_about_what_was_open(tmp_path: Path) -> None:
    first = SqlLog(f"sqlite:///{tmp_path}/log.db", NODE)
    first.decide(decision(1))
    source, target = sqlite3.connect(tmp_path / "log.db"), sqlite3.connect(tmp_path / "copy.db")
    with closing(source), closing(target):
        source.backup(target)
    if not first._database.place():
        pytest.skip("the file system of the temporary folder has no identities of files")
    first.decide(decision(2))

    copy = SqlLog(f"sqlite:///{tmp_path}/copy.db", NODE, take_over=True)
    assert copy.incarnations.why_not(first.incarnation) is not None
    assert list(copy.decisions()) == [decision(1)]
    copy.trust(first.incarnation)
    assert not copy.incarnations.cut
    copy.close()
    same = SqlLog(f"sqlite:///{tmp_path}/log.db", NODE, take_over=True)
    assert not same.incarnations.cut
    assert not first.held(), "another one has taken the node"
    same.close()
    first.close()


# --- backups ----------------------------------------------------------------------------------------------------------
def test_a_backup_beside_a_manager_at_work(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    FileLog(tmp_path / "log", NODE, segment_size=SMALL).close()
    log = FileLog(tmp_path / "log", NODE, segment_size=SMALL)
    log.decide(decision(1))
    log.note_heuristic(heuristic(1))
    made = back_up(tmp_path / "log", tmp_path / "copy")
    assert (made.node, made.log_id, made.decisions, made.heuristics) == (NODE, log.log_id, 1, 1)
    assert made.cut == (log.incarnation,)
    log.decide(decision(2))
    log.close()
    image = read_log(tmp_path / "copy")
    assert image.incarnations.cut == (log.incarnation,)
    assert image.decisions == (decision(1),)
    caplog.clear()

    for warned in (True, False):
        copy = FileLog(tmp_path / "copy", NODE, segment_size=SMALL)
        assert copy.log_id == log.log_id
        assert list(copy.decisions()) == [decision(1)]
        assert list(copy.heuristics()) == [heuristic(1)]
        assert copy.incarnations.cut == (log.incarnation,)
        told = [record for record in caplog.records if "is a copy" in record.message]
        if copy._journal._header.identity:
            assert bool(told) == warned, "once"
        copy.close()
        caplog.clear()

    copy = FileLog(tmp_path / "copy", NODE, segment_size=SMALL)
    copy.trust(log.incarnation)
    assert not copy.incarnations.cut
    copy.close()


def test_a_backup_of_a_closed_log_lacks_nothing_and_one_of_a_backup_what_that_lacks(tmp_path: Path) -> None:
    log = FileLog(tmp_path / "log", NODE, segment_size=SMALL)
    back_up(tmp_path / "log", tmp_path / "first")
    log.close()
    assert back_up(tmp_path / "first", tmp_path / "second").cut == (log.incarnation,)
    assert back_up(tmp_path / "log", tmp_path / "copy").cut == ()
    copy = FileLog(tmp_path / "copy", NODE, segment_size=SMALL)
    assert copy.incarnations.why_not(log.incarnation) is None
    copy.close()


def test_a_backup_while_the_log_moves_on(tmp_path: Path) -> None:
    """Each copy has every decision that was durable before, and is readable."""
    log = FileLog(tmp_path / "log", NODE, segment_size=SMALL)
    stop = threading.Event()
    durable: list[int] = []

    def work() -> None:
        for sequence in itertools.count():
            log.decide(decision(sequence))
            durable.append(sequence)
            if stop.is_set():
                return

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        for number in range(10):
            least = len(durable)
            back_up(tmp_path / "log", tmp_path / f"copy{number}")
            told = read_log(tmp_path / f"copy{number}").decisions
            assert [made.gtrid for made in told] == [decision(sequence).gtrid for sequence in range(len(told))]
            assert len(told) >= least
        stop.set()
        working.result()
    log.close()


def test_a_backup_overwrites_nothing(tmp_path: Path) -> None:
    FileLog(tmp_path / "log", NODE, segment_size=SMALL).close()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    for destination in (tmp_path / "there", tmp_path / "there" / "file", tmp_path / "log"):
        with pytest.raises(LogError, match="is there already"):
            back_up(tmp_path / "log", destination)
    with pytest.raises(LogMissing):
        back_up(tmp_path / "nothing", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


# --- how many ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["file", "sql"])
def test_a_log_that_is_opened_again_and_again_keeps_a_bounded_number(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tm.log.incarnations.MOST", 4)
    monkeypatch.setattr("tm.log.sql.incarnations.MOST", 4)
    url = f"file://{tmp_path}/log" if kind == "file" else f"sqlite:///{tmp_path}/log.db"
    seen = []
    for _ in range(7):
        log = open_log(url, NODE)
        seen.append(log.incarnation)
        known = log.incarnations
        log.close()
    assert list(known.noted) == seen[-4:]
    assert known.why_not(seen[0]) is not None


# --- where a log in PostgreSQL is --------------------------------------------------------------------------------
def test_a_log_that_was_restored_into_another_cluster_is_a_copy(postgres: Postgres) -> None:
    url = postgres.create_database()
    first = SqlLog(url, NODE)
    assert first._database.place().isdecimal()
    first.decide(decision(1))
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as connection:
        connection.execute("UPDATE xabridge_place SET place = '4711'")
    restored = SqlLog(url, NODE, take_over=True)
    assert restored.incarnations.cut == (first.incarnation,)
    assert list(restored.decisions()) == [decision(1)]
    restored.close()
    again = SqlLog(url, NODE)
    assert again.incarnations.cut == (first.incarnation,)
    assert again.incarnations.why_not(restored.incarnation) is None
    again.close()
    first.close()


def test_a_user_without_rights_has_a_log_as_well(postgres: Postgres) -> None:
    url = postgres.create_database()
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as connection:
        connection.execute("CREATE ROLE keeper LOGIN")
        connection.execute("GRANT CREATE ON SCHEMA public TO keeper")
        connection.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM public")
    for _ in range(2):
        log = SqlLog(url.replace("postgres@", "keeper@"), NODE)
        assert log._database.place() == ""
        assert not log.incarnations.cut
        log.close()
