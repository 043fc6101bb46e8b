"""What the tests of the resource managers for databases share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.postgres import Postgres


@pytest.fixture(scope="module")
def database(postgres_server: Postgres) -> str:
    """The URL of a database that the tests of a module share."""
    postgres_server.start()
    return postgres_server.create_database()
