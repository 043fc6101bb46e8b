"""This module runs the contract suite over PostgresResource: on the PostgreSQL that the tests bring along, and on the
system's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.postgres import Postgres
from tests.rm_db.harness import PostgresHarness
from xabridge.testing.contract.resource_manager import *  # noqa: F403 — the suite: pytest finds its classes here
from xabridge.testing.postgres import system_binaries

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def system_postgres() -> Iterator[tuple[Postgres, str]]:
    """A server of the system's PostgreSQL, and a database there."""
    binaries = system_binaries()
    if binaries is None:
        pytest.skip("the system has no PostgreSQL: .ci/run installs one")
    server = Postgres(binaries=binaries)
    server.start()
    yield server, server.create_database()
    server.remove()


@pytest.fixture(params=["brought along", "the system's"])
def harness(request: pytest.FixtureRequest) -> Iterator[PostgresHarness]:
    """A database on either."""
    if request.param == "the system's":
        server, url = request.getfixturevalue("system_postgres")
        server.start()
    else:
        server, url = request.getfixturevalue("postgres"), request.getfixturevalue("database")
    harness = PostgresHarness(server, url)
    yield harness
    harness.close()
