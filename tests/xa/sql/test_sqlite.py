"""These tests open SQLite files: every connection forces its commits, several may be open at the same time, and a file
without a write-ahead log is refused.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.pool import NullPool

from xa.sql.sqlite import descriptor_of, force_commits, is_in_memory

PATIENCE_S = 30.0


def opened(url: str) -> Engine:
    engine = create_engine(url, poolclass=NullPool)
    force_commits(engine, PATIENCE_S, lambda mode: LookupError(f"it is in {mode} mode"))
    return engine


def test_every_connection_forces_its_commits(tmp_path: Path) -> None:
    engine = opened(f"sqlite:///{tmp_path / 'a.db'}")
    for _ in range(2):
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2


def test_six_open_a_new_file_at_the_same_time(tmp_path: Path) -> None:
    """They wait for each other: SQLite itself refuses to change the journal's mode in one of some hundred openings."""
    together = threading.Barrier(6)

    def open_it(path: Path) -> None:
        engine = opened(f"sqlite:///{path}")
        together.wait(PATIENCE_S)
        engine.connect().close()

    with ThreadPoolExecutor(6) as pool:
        for number in range(20):
            for done in [pool.submit(open_it, tmp_path / f"{number}.db") for _ in range(6)]:
                done.result()


def test_a_database_without_a_write_ahead_log_is_refused() -> None:
    with pytest.raises(LookupError, match="it is in memory mode"):
        opened("sqlite://").connect()


def test_a_descriptor_costs_no_locks(tmp_path: Path) -> None:
    """It is the same one each time, and another one for another file in its place."""
    path = tmp_path / "a.db"
    opened(f"sqlite:///{path}").connect().close()
    first = descriptor_of(str(path))
    assert descriptor_of(str(path)) == first
    path.rename(tmp_path / "b.db")
    path.touch()
    assert descriptor_of(str(path)) != first
    assert descriptor_of(str(tmp_path / "b.db")) == first


def test_what_names_no_file() -> None:
    for url in (
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///x?mode=memory&uri=true",
    ):
        assert is_in_memory(make_url(url)), url
    assert not is_in_memory(make_url("sqlite:////var/lib/log.db"))
