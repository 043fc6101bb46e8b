"""These fixtures are shared by the tests of sessions for asyncio: a shop over each kind of database."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeAlias

import pytest

from tests.rm_db.sessions.shops import MariaDBShop, PostgresShop, Shop
from tm import ResourceConfig, TransactionManager

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres import Postgres
    from xabridge.testing.mariadb import MariaDB

Mode: TypeAlias = Literal["two-phase", "decider"]


@contextmanager
def _opened(urls: dict[str, str], mode: Mode, tmp_path: Path) -> Iterator[TransactionManager]:
    resources = {"shop": ResourceConfig(urls["shop"], mode), "other": ResourceConfig(urls["other"])}
    log = None if mode == "decider" else f"file://{tmp_path}/log"
    with TransactionManager("node-1", log, resources, background=False) as manager:
        yield manager


@contextmanager
def _postgres_shop(postgres: Postgres, mode: Mode, tmp_path: Path) -> Iterator[PostgresShop]:
    urls = {"shop": postgres.create_database(), "other": postgres.create_database()}
    with _opened(urls, mode, tmp_path) as manager:
        yield PostgresShop(urls, manager)


@contextmanager
def _mariadb_shop(mariadb: MariaDB, tmp_path: Path) -> Iterator[MariaDBShop]:
    urls = {"shop": mariadb.create_database("mariadb"), "other": mariadb.create_database("mysql")}
    with _opened(urls, "two-phase", tmp_path) as manager:
        yield MariaDBShop(mariadb, urls, manager)


def _assert_nothing_is_left(shop: Shop) -> None:
    assert shop.tm.recover().clean
    assert shop.left() == []


@pytest.fixture(params=["two-phase", "decider"])
def postgres_shop(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path) -> Iterator[PostgresShop]:
    """A shop in PostgreSQL; nothing is left in it."""
    with _postgres_shop(postgres, request.param, tmp_path) as shop:
        yield shop
        _assert_nothing_is_left(shop)


@pytest.fixture
def mariadb_shop(mariadb: MariaDB, tmp_path: Path) -> Iterator[MariaDBShop]:
    """A shop in MariaDB; nothing is left in it."""
    with _mariadb_shop(mariadb, tmp_path) as shop:
        yield shop
        _assert_nothing_is_left(shop)


@pytest.fixture(params=["postgres two-phase", "postgres decider", "mariadb two-phase"])
def any_shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A shop in each kind of database; nothing is left in it."""
    kind, _, mode = request.param.partition(" ")
    server = request.getfixturevalue(kind)
    with _mariadb_shop(server, tmp_path) if kind == "mariadb" else _postgres_shop(server, mode, tmp_path) as shop:
        yield shop
        _assert_nothing_is_left(shop)
