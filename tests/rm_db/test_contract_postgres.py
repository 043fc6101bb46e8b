"""The contract suite over PostgresResource."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.resource_manager import *  # noqa: F403 — the suite: pytest finds its classes here
from tests.rm_db.harness import PostgresHarness

if TYPE_CHECKING:
    from tests.postgres import Postgres


@pytest.fixture
def harness(postgres: Postgres) -> PostgresHarness:
    """A new database on the PostgreSQL that the tests start."""
    return PostgresHarness(postgres)
