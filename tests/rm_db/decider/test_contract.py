"""This module runs the contract suite for deciders over DecidingDatabase: on PostgreSQL, on one without prepared
transactions behind a pooler in transaction mode, on MariaDB, and on SQLite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rm_db.harness import (
    MariaDeciderHarness,
    PooledDeciderHarness,
    PostgresDeciderHarness,
    SqliteDeciderHarness,
)
from xabridge.testing.contract.deciding import TestDeciding

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres import Postgres
    from tests.rm_db.pooler import Pooler
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


@pytest.fixture(scope="module")
def unprepared_database(postgres_unprepared: Postgres) -> str:
    """A database of a server without prepared transactions."""
    return postgres_unprepared.create_database()


@pytest.fixture(params=["postgresql", "pooled", "mariadb", "sqlite"])
def harness(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[PostgresDeciderHarness | MariaDeciderHarness | SqliteDeciderHarness]:
    """A new database."""
    if request.param == "mariadb":
        mariadb: MariaDB = request.getfixturevalue("mariadb")
        maria = MariaDeciderHarness(mariadb, mariadb.create_database())
        yield maria
        maria.close()
        return
    if request.param == "sqlite":
        if request.node.originalname in NOT_ON_SQLITE:
            pytest.skip(NOT_ON_SQLITE[request.node.originalname])
        yield SqliteDeciderHarness(tmp_path)
        return
    harness: PostgresDeciderHarness
    if request.param == "pooled":
        pooler: Pooler = request.getfixturevalue("pooler")
        url: str = request.getfixturevalue("unprepared_database")
        server: Postgres = request.getfixturevalue("postgres_unprepared")
        server.start()
        harness = PooledDeciderHarness(server, url, pooler.url(url))
    else:
        server = request.getfixturevalue("postgres")
        harness = PostgresDeciderHarness(server, request.getfixturevalue("database"))
    yield harness
    harness.close()
