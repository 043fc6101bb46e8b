"""What every test may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a database server is slow."""
    for item in items:
        if "postgres_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """The session's PostgreSQL, which may be stopped. Use `postgres`, unless you start it yourself."""
    server = Postgres()
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres(postgres_server: Postgres) -> Postgres:
    """A PostgreSQL that runs, the same for the whole session. A test that stops it need not start it again."""
    postgres_server.start()
    return postgres_server
