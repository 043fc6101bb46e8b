"""What the tests of the resource managers for databases share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.client import RMID, Client
from tests.rm_db.harness import PostgresHarness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres import Postgres


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
