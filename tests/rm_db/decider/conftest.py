"""These fixtures are shared by the tests of DecidingDatabase: each kind of database that decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import Postgres
from tests.rm_db.harness import (
    MariaDeciderHarness,
    PooledDeciderHarness,
    PostgresDeciderHarness,
    SqliteDeciderHarness,
)
from tests.rm_db.pooler import Pooler
from xabridge.testing.mariadb import MariaDB


@pytest.fixture
def sqlite_harness(tmp_path: Path) -> SqliteDeciderHarness:
    """A new file."""
    return SqliteDeciderHarness(tmp_path)


@pytest.fixture
def postgres_harness(postgres: Postgres) -> Iterator[PostgresDeciderHarness]:
    """A new database."""
    harness = PostgresDeciderHarness(postgres, postgres.create_database())
    yield harness
    harness.close()


@pytest.fixture
def mariadb_harness(mariadb: MariaDB) -> Iterator[MariaDeciderHarness]:
    """A new database."""
    harness = MariaDeciderHarness(mariadb, mariadb.create_database())
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def unprepared_database(postgres_unprepared: Postgres) -> str:
    """A database of a server without prepared transactions."""
    return postgres_unprepared.create_database()


@pytest.fixture
def pooled_harness(
    pooler: Pooler, postgres_unprepared: Postgres, unprepared_database: str
) -> Iterator[PooledDeciderHarness]:
    """PostgreSQL as it is by default, behind a pooler in transaction mode that has eight connections."""
    postgres_unprepared.start()
    harness = PooledDeciderHarness(postgres_unprepared, unprepared_database, pooler.url(unprepared_database))
    yield harness
    harness.close()
