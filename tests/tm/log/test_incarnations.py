"""What a log knows of its incarnations: of former versions, in copies, and after many of them.

`former/` holds a FileLog and a SqlLog that the version before incarnations wrote: of node orders-1, opened twice, never
closed the second time, with a decision of each opening, and a heuristic outcome, in doubt.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.tm.log.disk import Disk
from tests.tm.log.samples import decision
from tm.log import FileLog, LogError
from tm.log.incarnations import INCARNATION, MOST, Incarnations, IncarnationVerb, Standing, succeeded
from tm.log.opening import look_at_log, open_log
from tm.log.sql import SqlLog
from xa import Gtrid

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.log import DecisionLog

FORMER = Path(__file__).parent / "former"
NODE = "orders-1"
SMALL = 5120


@pytest.fixture(params=["file", "sql"])
def former_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A log of the former version."""
    if request.param == "file":
        folder = tmp_path / "log"
        folder.mkdir()
        shutil.copy(FORMER / "segment-0000000000000002", folder)
        return f"file://{folder}"
    return former_database(tmp_path / "log.db")


def former_database(path: Path) -> str:
    connection = sqlite3.connect(path)
    connection.executescript((FORMER / "version-1.sql").read_text())
    connection.close()
    return f"sqlite:///{path}"


def openings(log: DecisionLog) -> list[int | bytes]:
    """Of the decisions, the incarnations that made them."""
    return [Gtrid.decode(made.gtrid).incarnation for made in log.decisions()]


# --- former versions --------------------------------------------------------------------------------------------------
def test_a_log_of_the_former_version_is_read_with_what_is_in_doubt(former_url: str) -> None:
    image = look_at_log(former_url, NODE)
    assert image.incarnations == Incarnations(counted=2)
    assert (image.openings, len(image.decisions), len(image.heuristics)) == (2, 2, 1)
    for _ in range(2):
        log = open_log(former_url, NODE)
        assert openings(log) == [1, 2]
        assert len(log.heuristics()) == 1
        why_not = log.incarnations.why_not
        assert [why_not(1), why_not(2), why_not(log.incarnation)] == [None, None, None]
        assert "opening 3, and this log knows openings up to 2" in str(why_not(3)), "an old copy of it may lack one"
        log.close()
    log = open_log(former_url, NODE)
    for made in log.decisions():
        log.end(made.gtrid)
    log.close()
    assert look_at_log(former_url, NODE).decisions == ()


def test_every_node_of_a_former_database_moves_on(tmp_path: Path) -> None:
    url = former_database(tmp_path / "log.db")
    SqlLog(url, NODE).close()
    other = SqlLog(url, "orders-2")
    assert other.epoch == 2
    assert other.incarnations.why_not(1) is None
    assert other.incarnations.why_not(2) is not None, "the former version can't open it any more"
    other.close()


def test_tables_of_a_version_that_is_not_known_are_refused(tmp_path: Path) -> None:
    url = former_database(tmp_path / "log.db")
    connection = sqlite3.connect(tmp_path / "log.db")
    connection.execute("UPDATE xabridge_schema SET version = 3")
    connection.commit()
    connection.close()
    with pytest.raises(LogError, match="have version 3, this program knows version 2"):
        SqlLog(url, NODE)


# --- copies -----------------------------------------------------------------------------------------------------------
def copied_on_disk(disk: Disk) -> Disk:
    return disk.copied()


def moved(disk: Disk) -> Disk:
    disk.locked = False
    return disk


@pytest.mark.parametrize(
    ("way", "standing"), [(copied_on_disk, Standing.CUT), (moved, Standing.WHOLE)], ids=["copied", "moved"]
)
def test_a_copy_of_a_log_at_work_presumes_nothing_about_it(
    way: Callable[[Disk], Disk], standing: Standing, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Disk()
    FileLog("", NODE, segment_size=SMALL, files=disk).close()
    first = FileLog("", NODE, segment_size=SMALL, files=disk)
    first.decide(decision(1))
    after = way(disk)
    for _ in range(3):
        log = FileLog("", NODE, segment_size=SMALL, files=after)
        assert list(log.incarnations.noted.values())[:2] == [Standing.WHOLE, standing]
        assert list(log.decisions()) == [decision(1)], "what is in the copy is decided"
        assert (log.incarnations.why_not(first.incarnation) is None) == (standing is Standing.WHOLE)
        log.close()
    warned = [record.message for record in caplog.records if "is a copy" in record.message]
    assert len(warned) == (standing is Standing.CUT)
    if warned:
        assert f"xabridge recover run --newest {first.incarnation.hex()}" in warned[0]


def test_a_copy_that_is_trusted_presumes_again() -> None:
    disk = Disk()
    first = FileLog("", NODE, segment_size=SMALL, files=disk)
    copy = disk.copied()
    log = FileLog("", NODE, segment_size=SMALL, files=copy)
    assert log.incarnations.cut == (first.incarnation,)
    log.trust(first.incarnation)
    assert not log.incarnations.cut
    log = FileLog("", NODE, segment_size=SMALL, files=copy.crashed(random.Random(1)))
    assert log.incarnations.why_not(first.incarnation) is None, "it is durable"


def test_a_copy_that_was_made_between_two_openings_presumes_about_both_sides_of_it() -> None:
    disk = Disk()
    first = FileLog("", NODE, segment_size=SMALL, files=disk)
    first.close()
    log = FileLog("", NODE, segment_size=SMALL, files=disk.copied())
    assert log.incarnations.why_not(first.incarnation) is None
    assert not log.incarnations.cut


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
    with sqlite3.connect(tmp_path / "log.db") as source, sqlite3.connect(tmp_path / "copy.db") as target:
        source.backup(target)
    if not first._database.place():
        pytest.skip("the file system of the temporary folder has no identities of files")
    first.decide(decision(2))
    copy = SqlLog(f"sqlite:///{tmp_path}/copy.db", NODE, take_over=True)
    assert copy.incarnations.cut == (first.incarnation,)
    assert list(copy.decisions()) == [decision(1)]
    copy.trust(first.incarnation)
    assert not copy.incarnations.cut
    copy.close()
    same = SqlLog(f"sqlite:///{tmp_path}/log.db", NODE, take_over=True)
    assert not same.incarnations.cut
    assert not first.held(), "another one has taken the node"
    same.close()
    first.close()


# --- how many ---------------------------------------------------------------------------------------------------------
def test_the_oldest_are_dropped_where_there_are_too_many() -> None:
    noted = {number.to_bytes(8, "big"): Standing.WHOLE for number in range(MOST + 5)}
    assert list(succeeded(noted, copied=False)) == list(noted)[6:]


@pytest.mark.parametrize("kind", ["file", "sql"])
def test_a_log_that_is_opened_again_and_again_keeps_a_bounded_number(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tm.log.incarnations.MOST", 4)
    monkeypatch.setattr("tm.log.sql_incarnations.MOST", 4)
    url = f"file://{tmp_path}/log" if kind == "file" else f"sqlite:///{tmp_path}/log.db"
    seen = []
    for _ in range(7):
        log = open_log(url, NODE)
        seen.append(log.incarnation)
        known = log.incarnations
        log.close()
    assert list(known.noted) == seen[-4:]
    assert known.why_not(seen[0]) is not None


def test_the_table_of_an_incarnation_is_total() -> None:
    for standing in Standing:
        for verb in IncarnationVerb:
            legal = INCARNATION.refusal(standing, verb) is None
            assert legal == any((standing, verb) == (at, by) for at, by, *_ in INCARNATION.transitions())
