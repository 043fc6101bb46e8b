"""These fixtures give a test a place for a store of each kind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from dtx.store.memory import Disk
from tests.dtx.store.stores import Place
from tests.memory_disk import new_folder
from tests.postgres import Postgres


@pytest.fixture(scope="session")
def shared_database(postgres_server: Postgres) -> str:
    """The database of all stores in PostgreSQL; to make one takes longer than most tests."""
    postgres_server.start()
    return postgres_server.create_database()


@pytest.fixture
def emptied_database(shared_database: str) -> str:
    """The same, with nothing in it."""
    with psycopg.connect(shared_database, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return shared_database


@contextmanager
def _place(kind: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    if kind == "postgres":
        request.getfixturevalue("postgres")
        place = Place(request.getfixturevalue("emptied_database"))
    elif kind == "memory":
        place = Place(Disk())
    else:
        place = Place(f"sqlite:///{new_folder('store')}/store.db")
    try:
        yield place
    finally:
        place.close()
        if kind == "sqlite":
            shutil.rmtree(place.path.parent)


@pytest.fixture(params=["sqlite", "postgres"])
def sql_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place in a database."""
    with _place(request.param, request) as place:
        yield place


@pytest.fixture
def sqlite_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place in a file."""
    with _place("sqlite", request) as place:
        yield place


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place of any kind."""
    with _place(request.param, request) as place:
        yield place
