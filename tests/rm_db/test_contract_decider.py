"""The contract suite for deciders over DecidingDatabase, on PostgreSQL and on SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.deciding import TestDeciding
from tests.rm_db.harness import PostgresDeciderHarness, SqliteDeciderHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres import Postgres

__all__ = ["TestDeciding"]

_ONE_WRITER = "SQLite has one writer at a time: a branch that has written and not ended keeps all others waiting"
NOT_ON_SQLITE = {
    "test_a_connection_that_is_lost_while_it_decides": "a file has no connection to lose",
    "test_a_settled_transaction_is_not_decided_any_more": _ONE_WRITER,
    "test_decisions_in_pages": _ONE_WRITER,
    "test_ended_decisions_are_gone": _ONE_WRITER,
}
"""Test → why it can't be; what SQLite does instead is in test_deciding.py."""


@pytest.fixture(params=["postgresql", "sqlite"])
def harness(
    request: pytest.FixtureRequest, postgres: Postgres, database: str, tmp_path: Path
) -> Iterator[PostgresDeciderHarness | SqliteDeciderHarness]:
    """A new database."""
    if request.param == "sqlite":
        if request.node.originalname in NOT_ON_SQLITE:
            pytest.skip(NOT_ON_SQLITE[request.node.originalname])
        yield SqliteDeciderHarness(tmp_path)
        return
    harness = PostgresDeciderHarness(postgres, database)
    yield harness
    harness.close()
