"""This module runs the contract suite for deciders over DecidingDatabase: on PostgreSQL, on one without prepared
transactions behind a pooler in transaction mode, on MariaDB, and on SQLite.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.postgres import Postgres
from tests.rm_db.harness import MariaDeciderHarness, PostgresDeciderHarness
from xabridge.testing.contract.deciding import TestDeciding
from xabridge.testing.mariadb import MariaDB

__all__ = ["TestDeciding"]

_ONE_WRITER = "SQLite has one writer at a time: a branch that has written and not ended keeps all others waiting"
NOT_ON_SQLITE = {
    "test_a_connection_that_is_lost_while_it_decides": "a file has no connection to lose",
    "test_a_settled_transaction_is_not_decided_any_more": _ONE_WRITER,
    "test_decisions_in_pages": _ONE_WRITER,
    "test_ended_decisions_are_gone": _ONE_WRITER,
    "test_the_final_word_needs_no_lease_and_heeds_none": _ONE_WRITER,
}
"""Test → why it can't be; what SQLite does instead is in test_deciding.py."""


@pytest.fixture
def postgres_harness(postgres: Postgres, database: str) -> Iterator[PostgresDeciderHarness]:
    """A database that all tests share."""
    harness = PostgresDeciderHarness(postgres, database)
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def maria_database(mariadb_server: MariaDB) -> str:
    """The same in MariaDB."""
    mariadb_server.start()
    return mariadb_server.create_database()


@pytest.fixture
def mariadb_harness(mariadb: MariaDB, maria_database: str) -> Iterator[MariaDeciderHarness]:
    """The same in MariaDB."""
    harness = MariaDeciderHarness(mariadb, maria_database)
    yield harness
    harness.close()


@pytest.fixture(params=["postgres", "pooled", "mariadb", "sqlite"])
def harness(request: pytest.FixtureRequest) -> Any:
    """Each kind."""
    if request.param == "sqlite" and request.node.originalname in NOT_ON_SQLITE:
        pytest.skip(NOT_ON_SQLITE[request.node.originalname])
    return request.getfixturevalue(f"{request.param}_harness")
