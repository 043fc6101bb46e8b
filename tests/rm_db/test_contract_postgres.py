"""The contract suite over PostgresResource."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.resource_manager import *  # noqa: F403 — the suite: pytest finds its classes here
from tests.rm_db.harness import PostgresHarness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres import Postgres


@pytest.fixture
def harness(postgres: Postgres, database: str) -> Iterator[PostgresHarness]:
    """The PostgreSQL that the tests start."""
    harness = PostgresHarness(postgres, database)
    yield harness
    harness.close()
