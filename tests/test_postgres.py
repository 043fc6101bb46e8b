"""These tests check that a crash test can rely on the throw-away PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.postgres import Postgres
from xabridge.testing.postgres import EmbeddedPostgres


def test_it_forces_to_disk_and_prepares_transactions(postgres: Postgres) -> None:
    with psycopg.connect(postgres.url) as connection:
        settings = [
            connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
            for name in ("fsync", "synchronous_commit", "full_page_writes", "max_prepared_transactions")
        ]
    assert settings == [("on",), ("on",), ("on",), ("100",)]


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
