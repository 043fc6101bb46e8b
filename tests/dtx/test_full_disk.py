"""These tests fill a real disk, a file system of a few MB that the test mounts. They are skipped where it can't be
mounted.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dtx.store.sql import compact
from dtx.store.sql.disk_reserve import LEAST
from dtx.store.sql.writer import FULL_S
from rm_amqp import Message
from tests.memory_disk import new_folder
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.waiting import until
from tm import RolledBack, TransactionManager
from tm.faults import fault_of

pytestmark = pytest.mark.slow

MEGABYTES = 16
FEW_MEGABYTES = 8
BODY = b"x" * 40_000
PATIENCE_S = 60.0
"""How long a message that is there may take to come, on a machine that is busy."""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 16 MB."""
    with mounted(tmp_path / "small", MEGABYTES) as folder:
        yield folder


@pytest.fixture
def smaller(tmp_path: Path) -> Iterator[Path]:
    """A file system that is smaller than the unused pages that are usually worth giving back."""
    with mounted(tmp_path / "smaller", FEW_MEGABYTES) as folder:
        yield folder


@contextmanager
def mounted(folder: Path, megabytes: int) -> Iterator[Path]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a file system can't be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Somebody else takes all the space that is left."""
    path = folder / "somebody-elses"
    with path.open("wb", buffering=0) as file:
        for size in (65_536, 4096, 512):
            try:
                while True:
                    file.write(b"\1" * size)
            except OSError:
                continue
    return path


@contextmanager
def at_work(folder: Path, log: Path) -> Iterator[tuple[EmbeddedBroker, TransactionManager]]:
    """A broker on a store in a folder, and a manager over it. The broker has not failed in the end."""
    broker = EmbeddedBroker(folder)
    try:
        with TransactionManager(
            "node-1", f"file://{log}/log", {"broker": f"amqp://{broker.address}"}, background=False
        ) as manager:
            yield broker, manager
        assert broker.broker.failure is None
    finally:
        broker.stop()


def post(manager: TransactionManager, count: int, body: bytes = BODY) -> int:
    """How many were taken."""
    taken = 0
    for _ in range(count):
        try:
            with manager.begin() as tx:
                tx["broker"].send("orders", Message(body=body))
            taken += 1
        except RolledBack:
            return taken
    return taken


def consume(manager: TransactionManager, count: int) -> None:
    """Takes so many messages. Fails if there are fewer."""
    consumed = 0
    while consumed < count:
        with manager.begin() as tx:
            found = tx["broker"].receive_batch("orders", min(20, count - consumed), timeout_s=PATIENCE_S)
        assert found, f"{count - consumed} of {count} messages did not come"
        consumed += len(found)


def empty(manager: TransactionManager) -> bool:
    """Whether the queue has no more messages, which a transaction sees that takes none."""
    with manager.begin() as tx:
        return not tx["broker"].receive_batch("orders", 1, timeout_s=0.3)


def test_it_refuses_posts_and_goes_on_with_all_that_frees_space(small: Path, tmp_path: Path) -> None:
    with at_work(small, tmp_path) as (broker, manager):
        taken = post(manager, 1000)
        assert 20 < taken < 1000, "the disk is full"
        fill(small)
        taken += post(manager, 1000)
        consume(manager, 5)  # what they free is not enough for the reserve, and comes first to that
        taken += post(manager, 1000)  # a checkpoint may have given back what the posts took
        assert taken < 1000, "it is full as long as somebody else has the space"
        consume(manager, taken - 5)
        (small / "somebody-elses").unlink()
        assert empty(manager)

        for _ in range(100):
            if post(manager, 1):
                break
            store: Any = broker.broker._store
            store._open.writer._look_at = 0.0
        else:
            pytest.fail("nothing is taken again")
        consume(manager, 1)
        assert empty(manager)


def test_it_can_be_started_to_be_emptied_and_who_is_refused_hears_of_the_space(
    small: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In one phase too; the log is told once, however many are refused."""
    with at_work(small, tmp_path) as (_, manager):
        taken = post(manager, 1000)
    fill(small)
    caplog.clear()
    with at_work(small, tmp_path) as (_, manager):
        for _ in range(20):
            with pytest.raises(RolledBack, match="no space in the store") as raised, manager.begin() as tx:
                tx["broker"].send("orders", Message(body=BODY))
            assert fault_of(raised.value).is_excused
        consume(manager, taken)
        assert empty(manager)
    told = [one for one in caplog.messages if "no space in the store" in one and "refused" in one]
    assert len(told) == 1


def test_what_can_not_be_prepared_for_lack_of_space_is_no_fault_of_its_message(small: Path, tmp_path: Path) -> None:
    """Otherwise consumers would make dead letters of what they handle meanwhile."""
    (tmp_path / "second").mkdir()
    second = EmbeddedBroker(tmp_path / "second")
    with at_work(small, tmp_path) as (broker, _):
        urls = {"broker": f"amqp://{broker.address}", "second": f"amqp://{second.address}"}
        fill(small)
        with TransactionManager("node-2", f"file://{tmp_path}/log-2", urls, background=False) as manager:
            for _ in range(3):
                with pytest.raises(RolledBack, match="no space in the store") as raised, manager.begin() as tx:
                    for name in urls:
                        tx[name].send("orders", Message(body=BODY))
                assert fault_of(raised.value).is_excused

            (small / "somebody-elses").unlink()
            until(lambda: not broker.broker._store.full)
            with manager.begin() as tx:
                for name in urls:
                    tx[name].send("orders", Message(body=BODY))
            consume(manager, 1)
        assert broker.left() == second.left() == []
    second.stop()


def test_it_notices_by_itself_that_there_is_space_again(small: Path, tmp_path: Path) -> None:
    """Also if no one posts, because those who were refused have gone: an alarm that asks for it must end."""
    with at_work(small, tmp_path) as (broker, manager):
        store = broker.broker._store

        def is_full() -> bool:
            fill(small)  # again: the store finds space in its own files, and takes another message
            return not post(manager, 1) and store.full

        until(is_full)
        (small / "somebody-elses").unlink()
        until(lambda: not store.full)
        assert post(manager, 1) == 1


def test_it_is_full_as_long_as_large_messages_are_refused(small: Path, tmp_path: Path) -> None:
    """Also while small ones are taken between them: an alarm must not end and begin again and again."""
    large = b"x" * 500_000
    with at_work(small, tmp_path) as (broker, manager):
        store: Any = broker.broker._store
        taken = post(manager, 1000, large)
        for _ in range(3):
            assert post(manager, 1, b"small") == 1
            store._open.writer._look_at = 0.0
            store._open.writer._maintained()
            assert store.full
            taken += post(manager, 1, large)
        assert post(manager, 1, b"small") == 1
        assert store.full

        store._open.writer._clock = lambda: time.monotonic() + FULL_S
        until(lambda: not store.full)
        store._open.writer._clock = time.monotonic
        taken += post(manager, 1000, large)
        assert store.full
        consume(manager, taken)
        until(lambda: not store.full)


def test_it_can_be_started_when_no_space_was_left_and_somebody_took_what_it_gave_back(
    small: Path, tmp_path: Path
) -> None:
    """Stopped in order, with the reserve released and the disk full: a part of the reserve is there for the start."""
    with at_work(small, tmp_path) as (_, manager):
        taken = post(manager, 1000)
        fill(small)
        taken += post(manager, 1000)
        consume(manager, 5)
        fill(small)
        taken += post(manager, 1000)

    for _ in range(2):
        fill(small)
        assert free_octets(small) == 0
        with at_work(small, tmp_path) as (_, manager):
            consume(manager, 5)
    fill(small)
    with at_work(small, tmp_path) as (_, manager):
        consume(manager, taken - 15)
        assert empty(manager)


def free_octets(folder: Path) -> int:
    place = os.statvfs(folder)
    return place.f_bavail * place.f_frsize


def test_the_smallest_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """docs/broker.md says it; below it a start says what is needed."""
    for megabytes, takes in ((4, False), (5, True)):
        caplog.clear()
        with (
            mounted(tmp_path / f"of-{megabytes}-mb", megabytes) as folder,
            at_work(folder, tmp_path) as (_, manager),
        ):
            assert post(manager, 1, b"x" * 1000) == takes
            consume(manager, takes)
        refused = [one for one in caplog.messages if "the store takes only what frees space" in one]
        assert bool(refused) != takes
        assert takes or "and it needs 4194304" in refused[0]


def post_until(manager: TransactionManager, patience_s: float = 10) -> bool:
    """Posts until one is taken: the store looks for space now and then only."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if post(manager, 1, b"x" * 1000):
            return True
    return False


SIZES = (900_000, 200_000, 50_000, 20_000, 5_000, 1_000)


@pytest.mark.parametrize(
    "sizes",
    [SIZES, SIZES[3:], *(pytest.param(sizes, marks=pytest.mark.long) for sizes in (SIZES[1:], SIZES[2:], SIZES[5:]))],
)
def test_it_takes_posts_again_when_it_was_emptied(smaller: Path, tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Also where what is unused inside of its file is all the space there is."""
    with at_work(smaller, tmp_path) as (_, manager):
        taken = sum(post(manager, 100_000, b"x" * size) for size in sizes)
        consume(manager, taken)
        assert empty(manager)
        assert post_until(manager), "nothing is taken again"
        assert (smaller / "broker.db.reserve").stat().st_size >= LEAST
        consume(manager, 1)
        assert empty(manager)


@pytest.mark.parametrize(("incremental", "filled"), [(True, False), (False, False), (True, True)])
def test_a_store_whose_file_is_unused_takes_posts_after_a_start(
    smaller: Path, tmp_path: Path, *, incremental: bool, filled: bool
) -> None:
    """A broker that was ended when its file was full of unused pages, and its reserve was gone, or somebody else had
    the rest of the disk; of a store that gives no pages back (one made from a dump), they stay in the file, and count.
    """
    path = smaller / "broker.db"
    EmbeddedBroker(smaller).stop()
    if not filled:
        (smaller / "broker.db.reserve").unlink()
    with closing(sqlite3.connect(path)) as other:
        if not incremental:
            other.execute("PRAGMA journal_mode = DELETE").fetchall()
            other.execute("PRAGMA auto_vacuum = 0")
            other.execute("VACUUM")
        other.execute("CREATE TABLE backlog (body BLOB)")
        for _ in range(62):
            other.execute("INSERT INTO backlog VALUES (zeroblob(100000))")
            other.commit()
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

        for row in range(1, 63):
            other.execute("DELETE FROM backlog WHERE rowid = ?", (row,))
            other.commit()
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        other.execute("DROP TABLE backlog")
        other.commit()

    before = path.stat().st_size
    assert before > 6_000_000
    if filled:
        fill(smaller)
    with at_work(smaller, tmp_path) as (_, manager):
        assert post(manager, 1, b"x" * 1000) == 1
        consume(manager, 1)
        assert empty(manager)
        assert (smaller / "broker.db.reserve").stat().st_size >= LEAST
        assert incremental == (path.stat().st_size < before // 2)


def test_space_is_given_back_after_a_backlog(tmp_path: Path) -> None:
    folder = new_folder("broker")
    path = folder / "broker.db"
    with at_work(folder, tmp_path) as (_, manager):
        assert post(manager, 40, b"x" * 1_000_000) == 40
        consume(manager, 40)
        with closing(sqlite3.connect(path)) as other:
            deadline = time.monotonic() + PATIENCE_S  # it is given back when the writer is idle
            while (unused := other.execute("PRAGMA freelist_count").fetchone()[0]) >= 1100:
                assert time.monotonic() < deadline, f"{unused} pages are not used, and not given back"
                assert post(manager, 1) == 1
                consume(manager, 1)
    assert path.stat().st_size < 20_000_000
    before, after = compact(f"sqlite:///{path}")
    assert after < 500_000 < before
    assert path.stat().st_size == after
