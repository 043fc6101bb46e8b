"""These fixtures are shared by the tests of the resource managers for databases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.memory_folder import tmp_path  # noqa: F401 — logs and files of SQLite are in memory, too
from tests.postgres import Postgres
from tests.rm_db.harness import PostgresHarness
from tests.rm_db.pooler import Pooler, installed
from xabridge.testing.contract.client import RMID, Client


@pytest.fixture(scope="module")
def database(postgres_server: Postgres) -> str:
    """The URL of a database that the tests of a module share."""
    postgres_server.start()
    return postgres_server.create_database()


@pytest.fixture
def harness(postgres: Postgres, database: str) -> Iterator[PostgresHarness]:
    """The PostgreSQL that the tests start."""
    harness = PostgresHarness(postgres, database)
    yield harness
    harness.close()


@pytest.fixture
def client(harness: PostgresHarness) -> Iterator[Client]:
    """A PostgresResource, closed and seen to have left nothing behind."""
    client = Client(harness)
    yield client
    client.rm.close("", RMID)
    assert harness.leaks() == []


@pytest.fixture(scope="session")
def postgres_unprepared() -> Iterator[Postgres]:
    """A PostgreSQL as it is by default and on most managed services: without prepared transactions."""
    server = Postgres({"max_prepared_transactions": "0"})
    server.start()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def pooler(postgres_unprepared: Postgres) -> Iterator[Pooler]:
    """A pooler in transaction mode before that, with fewer connections than it has clients."""
    if not installed():
        pytest.skip("PgBouncer is not installed: .ci/run installs it")
    pooler = Pooler(postgres_unprepared, size=8)
    yield pooler
    pooler.remove()
