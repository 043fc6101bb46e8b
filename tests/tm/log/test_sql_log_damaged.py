"""Rows of a SqlLog that somebody has changed: it does not open, and says so, whatever stands there."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.memory_disk import as_unprivileged, new_folder
from tests.tm.log.samples import decision, gtrid, heuristic
from tm.log import LogDamaged, LogError, LogImage
from tm.log.factory import look_at_log, open_log
from tm.log.sql.tables import METADATA
from xabridge.cli.main import main

ALL = os.environ.get("XABRIDGE_LONG") == "all"
VALUES = (None, 0, -1, 2**63 - 1, 1.5, float("inf"), "", "x", "\ud7ff", "9" * 5000, b"", b"\0", b"\xff" * 30)
FLIPS = int(os.environ.get("XABRIDGE_SCHEDULES", "60"))
SQLITE_PAGE = 4096
COMMANDS = ("recover list", "doctor", "check")
COLUMNS = (
    ("xabridge_node", "log_id"), ("xabridge_node", "lease_until"), ("xabridge_gtrid", "gtrid"),
    ("xabridge_gtrid", "state"), ("xabridge_gtrid", "record"), ("xabridge_heuristic", "record"),
    ("xabridge_incarnation", "incarnation"), ("xabridge_incarnation", "standing"),
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with four decisions and a heuristic outcome."""
    path = tmp_path_factory.mktemp("logs") / "whole.db"
    log = open_log(f"sqlite:///{path}", "orders-1")
    for sequence in range(1, 5):
        log.decide(decision(sequence))
    log.note_heuristic(heuristic(3))
    log.close()
    return path


def changed(whole: Path, folder: Path, statement: str, *values: object) -> str | None:
    """The URL of a copy in which a row is changed; None where SQLite refuses that."""
    path = folder / "changed.db"
    shutil.copy(whole, path)
    connection = sqlite3.connect(path)
    try:
        connection.execute(statement, values)
        connection.commit()
    except sqlite3.IntegrityError:
        return None
    finally:
        connection.close()
    return f"sqlite:///{path}"


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "every"])
@pytest.mark.parametrize(("number", "table", "column"), [(at, *place) for at, place in enumerate(COLUMNS)])
def test_a_changed_row_is_an_error_of_the_log(
    number: int, table: str, column: str, every: bool, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One value in each column, or every value; each third is seen by one of the commands, in the long form each by
    all."""
    statement = f"UPDATE {table} SET {column} = ? WHERE rowid = (SELECT min(rowid) FROM {table})"  # noqa: S608 — ours
    for turn, value in enumerate(VALUES, number):
        if turn % len(VALUES) != 4 and not every:
            continue
        url = changed(whole, tmp_path, statement, value)
        if url is None:
            continue
        config = tmp_path / "xabridge.toml"
        config.write_text(f'node = "orders-1"\nlog = "{url}"\n[resources]\n')
        looked = turn % 9 if every else number % 3
        for command in COMMANDS if ALL else COMMANDS[looked : looked + 1]:
            main([*command.split(), "--config", str(config)])
        assert "Traceback" not in "".join(capsys.readouterr())
        if column == "lease_until" and value not in {None, 0, -1, 1.5}:
            continue  # which is waited for

        try:
            log = open_log(url, "orders-1")
        except LogError:
            continue

        try:
            decided = {one.gtrid for one in log.decisions()}
            log.heuristics()
        except LogError:
            continue
        finally:
            log.close()
        assert decided == {gtrid(sequence) for sequence in range(1, 5)}, value


def test_no_decision_is_lost_in_silence(whole: Path, tmp_path: Path) -> None:
    url = changed(whole, tmp_path, "UPDATE xabridge_gtrid SET state = 'comitted' WHERE gtrid = ?", gtrid(2))
    assert url is not None
    with pytest.raises(LogDamaged, match=f"state 'comitted' of {gtrid(2).hex()}. Restore the log from a copy"):
        open_log(url, "orders-1")
    with pytest.raises(LogDamaged, match="comitted"):
        look_at_log(url, "orders-1")


def test_a_record_of_another_transaction_is_none(whole: Path, tmp_path: Path) -> None:
    swap = "UPDATE xabridge_gtrid SET record = (SELECT record FROM xabridge_gtrid WHERE gtrid = ?) WHERE gtrid = ?"
    url = changed(whole, tmp_path, swap, gtrid(1), gtrid(2))
    assert url is not None
    log = open_log(url, "orders-1")
    with pytest.raises(LogDamaged, match=f"the record of {gtrid(2).hex()} is that of {gtrid(1).hex()}"):
        log.decisions()
    log.close()


def refusals(path: Path) -> list[str]:
    """What a look and an opening say of a log in this file, each of a copy of its own; empty where they find nothing.
    What succeeds has all decisions."""
    said = []
    for look in (look_at_log, open_log):
        for file in path.parent.glob("seen.db*"):
            file.unlink()
        for ending in ("", "-wal"):
            if path.with_name(path.name + ending).exists():
                shutil.copy(path.with_name(path.name + ending), path.with_name(f"seen.db{ending}"))

        try:
            found = look(f"sqlite:///{path.with_name('seen.db')}", "orders-1")
            try:
                decisions = found.decisions if isinstance(found, LogImage) else found.decisions()
            finally:
                if not isinstance(found, LogImage):
                    found.close()
        except LogError as error:
            said.append(str(error))
        else:
            assert {one.gtrid for one in decisions} == {gtrid(sequence) for sequence in range(1, 5)}
            said.append("")
    return said


@pytest.mark.slow
def test_a_file_with_any_octets_changed_is_an_error_of_the_log_or_none(whole: Path, tmp_path: Path) -> None:
    """In every page, one octet or many. No decision is missed in silence, and a look finds what an opening refuses."""
    seed = int(os.environ.get("XABRIDGE_SEED", random.randrange(1 << 32)))
    octets = whole.read_bytes()
    pages = len(octets) // SQLITE_PAGE
    used = [at for at, octet in enumerate(octets) if octet]
    for number in range(FLIPS):
        drawn = random.Random(seed + number)
        damaged = bytearray(octets)
        for _ in range(drawn.choice([1, 8, 64])):
            anywhere = number % pages * SQLITE_PAGE + drawn.randrange(SQLITE_PAGE)
            damaged[drawn.choice(used) if number % 2 else anywhere] ^= drawn.randrange(1, 256)
        (tmp_path / "damaged.db").write_bytes(damaged)

        where = f"XABRIDGE_SEED={seed}, number {number}"
        try:
            found, said = refusals(tmp_path / "damaged.db")
        except Exception as error:
            raise AssertionError(f"{where}: {error!r}") from error
        assert not said or found, f"{where}: {said}"


def test_an_index_that_does_not_lead_to_a_decision_is_damage(whole: Path, tmp_path: Path) -> None:
    """Decisions are found by it: recovery would presume that this transaction is rolled back."""
    path = tmp_path / "damaged.db"
    shutil.copy(whole, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'xabridge_gtrid_state'"
        ).fetchone()
    octets = bytearray(path.read_bytes())
    index = octets.index(b"committed", (page - 1) * SQLITE_PAGE)
    assert index < page * SQLITE_PAGE
    octets[index] = ord("C")
    path.write_bytes(octets)
    for said in refusals(path):
        assert "is damaged in xabridge_gtrid: " in said
        assert "Restore the log from a copy" in said


@pytest.mark.parametrize("table", sorted(METADATA.tables))
def test_a_table_that_is_missing_is_damage(whole: Path, tmp_path: Path, table: str) -> None:
    """It is not made anew, without the decisions."""
    path = tmp_path / "damaged.db"
    shutil.copy(whole, path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"DROP TABLE {table}")
    for said in refusals(path):
        assert f"lacks the table {table}" in said
        assert "Restore it from a copy" in said


def test_a_file_that_is_cut_off_or_empty_is_damage(whole: Path, tmp_path: Path) -> None:
    """Also by less than a page. Of one that was in use, its write-ahead log says that it was."""
    path = tmp_path / "damaged.db"
    octets = whole.read_bytes()
    for size in (SQLITE_PAGE, len(octets) // 2, len(octets) - 1):
        path.write_bytes(octets[:size])
        assert all(
            f"is damaged: it is cut off: it has {size} of {len(octets)} octets" in said for said in refusals(path)
        )

    path.write_bytes(b"")
    (tmp_path / "damaged.db-wal").write_bytes(b"something")
    for said in refusals(path):
        assert "the file is empty, but seen.db-wal beside it is of a decision log that was in use" in said
        assert (tmp_path / "seen.db-wal").read_bytes() == b"something"


def test_a_file_that_this_user_may_not_read(whole: Path) -> None:
    folder = new_folder("closed")
    shutil.copy(whole, folder / "log.db")
    (folder / "log.db").chmod(0)
    folder.chmod(0o777)
    for closed in (False, True):
        folder.chmod(0 if closed else 0o777)
        for look in (look_at_log, open_log):
            with as_unprivileged(), pytest.raises(LogError, match="et this user read and write"):
                look(f"sqlite:///{folder}/log.db", "orders-1")
    folder.chmod(0o755)


@pytest.mark.parametrize("begins", [b"CREATE TABLE xabri\xb7 _node", b"CREATE TABLE xabrix _node", b"CREATE TABL\x8a "])
def test_a_schema_that_is_no_sql_is_damage(begins: bytes, whole: Path, tmp_path: Path) -> None:
    """Also one that is no text, which SQLite quotes in its error."""
    path = tmp_path / "damaged.db"
    path.write_bytes(whole.read_bytes().replace(b"CREATE TABLE xabridge_node"[: len(begins)], begins))
    for look in (look_at_log, open_log):
        with pytest.raises(LogDamaged, match=r"is damaged: .*Restore the log from a copy"):
            look(f"sqlite:///{path}", "orders-1")
