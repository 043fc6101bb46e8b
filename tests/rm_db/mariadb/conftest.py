"""These fixtures are shared by the tests of MariaResource."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from tests.rm_db.harness import MariaHarness
from xabridge.testing.mariadb import MariaDB


@pytest.fixture(scope="module")
def maria_database(mariadb_server: MariaDB) -> str:
    """The URL of a database that the tests of a module share."""
    mariadb_server.start()
    url = mariadb_server.create_database("mariadb")
    mariadb_server.admin(f"GRANT PROCESS ON *.* TO {make_url(url).username}@'%'")  # what branches in doubt hold
    return url


@pytest.fixture
def harness(mariadb: MariaDB, maria_database: str) -> Iterator[MariaHarness]:
    """A database."""
    harness = MariaHarness(mariadb, maria_database)
    harness.admin("CREATE OR REPLACE TABLE account (id int PRIMARY KEY, amount int CHECK (amount >= 0))")
    harness.admin("INSERT INTO account VALUES (1, 100), (2, 100)")
    yield harness
    harness.close()
