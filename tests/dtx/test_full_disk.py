"""A disk that is really full: a file system of a few MB, mounted for the test; skipped where it can't be."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dtx.store.databases import compact
from rm_amqp import Message
from tests.rm_amqp.embedded import EmbeddedBroker
from tm import RolledBack, TransactionManager

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

MEGABYTES = 16
BODY = b"x" * 40_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 16 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a file system can't be mounted here")
    yield folder
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


def manager_over(broker: EmbeddedBroker, folder: Path) -> TransactionManager:
    return TransactionManager(
        "node-1", f"file://{folder}/log", {"broker": f"amqp://{broker.address}"}, background=False
    )


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


def consume(manager: TransactionManager, most: int) -> int:
    consumed = 0
    while consumed < most:
        with manager.begin() as tx:
            found = tx["broker"].receive_batch("orders", min(20, most - consumed), timeout_s=0.3)
        if not found:
            break
        consumed += len(found)
    return consumed


def test_it_refuses_posts_and_goes_on_with_all_that_frees_space(small: Path, tmp_path: Path) -> None:
    broker = EmbeddedBroker(small)
    try:
        with manager_over(broker, tmp_path) as manager:
            taken = post(manager, 1000)
            assert 20 < taken < 1000, "the disk is full"
            fill(small)
            taken += post(manager, 1000)
            assert consume(manager, 40) == 40
            assert post(manager, 1) == 0, "as long as somebody else has the space"
            assert consume(manager, 1000) == taken - 40
            (small / "somebody-elses").unlink()
            consume(manager, 1)
            for _ in range(100):
                if post(manager, 1):
                    break
                broker.broker._store._open.writer._look_at = 0.0
            else:
                pytest.fail("nothing is taken again")
            assert consume(manager, 10) == 1
        assert broker.broker.failure is None
    finally:
        broker.stop()


def test_it_can_be_started_to_be_emptied(small: Path, tmp_path: Path) -> None:
    broker = EmbeddedBroker(small)
    with manager_over(broker, tmp_path) as manager:
        taken = post(manager, 1000)
    broker.stop()
    fill(small)
    broker.start()
    try:
        with manager_over(broker, tmp_path) as manager:
            assert post(manager, 1) == 0
            assert consume(manager, 1000) == taken
    finally:
        broker.stop()


def test_space_is_given_back_after_a_backlog(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path)
    path = tmp_path / "broker.db"
    try:
        with manager_over(broker, tmp_path) as manager:
            assert post(manager, 40, b"x" * 1_000_000) == 40
            assert consume(manager, 40) == 40
            with closing(sqlite3.connect(path)) as other:
                for _ in range(1000):
                    (unused,) = other.execute("PRAGMA freelist_count").fetchone()
                    if unused < 1100:
                        break
                    assert post(manager, 1) == consume(manager, 1) == 1
                else:
                    pytest.fail(f"{unused} pages are not used, and not given back")
    finally:
        broker.stop()
    assert path.stat().st_size < 20_000_000
    before, after = compact(f"sqlite:///{path}")
    assert after < 500_000 < before
    assert path.stat().st_size == after
