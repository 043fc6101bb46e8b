"""These fixtures give a test logs of each kind."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Final

import pytest

from tests.postgres import Postgres

_NUMBERS: Final = count(1)


@pytest.fixture
def node() -> str:
    """A node id that no other test has, so that they can share a database."""
    return f"orders-{next(_NUMBERS)}"


@pytest.fixture(scope="session")
def postgres_url(postgres_server: Postgres) -> str:
    """A database for the session; it need not be empty, and the server need not run."""
    postgres_server.start()
    return postgres_server.create_database()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database that can hold a log, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'decisions.db'}"
    url: str = request.getfixturevalue("postgres_url")
    request.getfixturevalue("postgres")
    return url


@pytest.fixture(params=["file", "sqlite", "postgresql"])
def log_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a log, of each kind."""
    if request.param == "file":
        return f"file://{tmp_path / 'log'}"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'decisions.db'}"
    url: str = request.getfixturevalue("postgres_url")
    request.getfixturevalue("postgres")
    return url
