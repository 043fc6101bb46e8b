"""These fixtures give a test a place for a store of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dtx.store.memory import Disk
from tests.dtx.store.stores import Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["sqlite", "postgres"])
def sql_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A place in a database."""
    if request.param == "sqlite":
        place = Place(f"sqlite:///{tmp_path}/store.db")
    else:
        place = Place(request.getfixturevalue("postgres").create_database())
    yield place
    place.close()


@pytest.fixture
def sqlite_place(tmp_path: Path) -> Iterator[Place]:
    """A place in a file."""
    place = Place(f"sqlite:///{tmp_path}/store.db")
    yield place
    place.close()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A place of any kind."""
    if request.param == "memory":
        where: str | Disk = Disk()
    elif request.param == "sqlite":
        where = f"sqlite:///{tmp_path}/store.db"
    else:
        where = request.getfixturevalue("postgres").create_database()
    place = Place(where)
    yield place
    place.close()
