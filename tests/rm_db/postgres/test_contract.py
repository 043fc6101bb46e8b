"""This module runs the contract suite over PostgresResource: on the PostgreSQL that the tests bring along; and on the
system's, which is an older one, what talks to the server most, or all with XABRIDGE_LONG=all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.postgres import Postgres
from tests.rm_db.harness import PostgresHarness
from xabridge.testing.contract.resource_manager import *  # noqa: F403 — the suite: pytest finds its classes here
from xabridge.testing.postgres import system_binaries


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


ON_BOTH: Final = (TestCompletion, TestRecovery, TestFailures)  # noqa: F405


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Which server: what is left out on the system's has been tested on the other."""
    if "harness" in metafunc.fixturenames:
        marks = () if metafunc.cls in ON_BOTH else (pytest.mark.long,)
        servers = ["brought along", pytest.param("the system's", marks=marks)]
        metafunc.parametrize("harness", servers, indirect=True)


@pytest.fixture
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
