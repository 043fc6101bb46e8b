"""These tests check that a crash test can rely on the throw-away PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from xabridge.testing.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres import Postgres


def test_it_forces_to_disk_and_prepares_transactions(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url) as connection:
        settings = [
            connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
            for name in ("fsync", "synchronous_commit", "full_page_writes", "max_prepared_transactions")
        ]
    assert settings == [("on",), ("on",), ("on",), ("100",)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "immediate", "fast"])
def test_what_was_committed_and_prepared_is_there_after_it_went_down(postgres: Postgres, how: str) -> None:
    url = postgres.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (id int)")
        connection.execute("INSERT INTO kept VALUES (1)")
        connection.execute("BEGIN; INSERT INTO kept VALUES (2); PREPARE TRANSACTION 'in doubt'")
        if how == "kill":
            postgres.kill()
        else:
            postgres.stop(immediate=how == "immediate")
        assert not postgres.running
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    postgres.start()
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute("SELECT id FROM kept").fetchall() == [(1,)]
        assert connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall() == [("in doubt",)]
        connection.execute("ROLLBACK PREPARED 'in doubt'")


@pytest.mark.slow
def test_the_one_of_the_demo_asks_everybody_for_a_password(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "postgres")
    try:
        server.start()
        url = server.create_database()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
        for password in ("", ":guessed"):
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(f"postgresql://postgres{password}@127.0.0.1:{server.port}/postgres").close()
    finally:
        server.remove()
