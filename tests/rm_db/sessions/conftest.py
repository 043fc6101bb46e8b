"""These fixtures are shared by the tests of sessions: a shop over each kind of database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rm_db.sessions.shops import MariaDBShop, PostgresShop, Shop, SqliteShop

IN_POSTGRES = ["postgres two-phase", "postgres decider"]
EVERYWHERE = [*IN_POSTGRES, "mariadb two-phase"]
"""Where sessions can be awaited, and engines take part."""
OF_EVERY_KIND = [*EVERYWHERE, "mariadb decider", "sqlite decider"]


@pytest.fixture(scope="session")
def shops() -> Iterator[dict[str, Shop]]:
    """Those of the session, by what their parameter says."""
    made: dict[str, Shop] = {}
    yield made
    for shop in made.values():
        shop.close()


def opened(request: pytest.FixtureRequest, shops: dict[str, Shop], tmp_path: Path) -> Iterator[Any]:
    """The shop that the parameter names."""
    server, _, mode = request.param.partition(" ")
    running = request.getfixturevalue("mariadb" if server == "mariadb" else "postgres")
    if request.param not in shops:
        kinds: dict[str, Any] = {"postgres": PostgresShop, "mariadb": MariaDBShop, "sqlite": SqliteShop}
        shops[request.param] = kinds[server](running, mode)
        shops[request.param].kind = request.param
    with shops[request.param].open(tmp_path):
        yield shops[request.param]


@pytest.fixture(params=IN_POSTGRES)
def postgres_shop(request: pytest.FixtureRequest, shops: dict[str, Shop], tmp_path: Path) -> Iterator[PostgresShop]:
    """A shop in PostgreSQL; nothing is left in it."""
    yield from opened(request, shops, tmp_path)


@pytest.fixture(params=EVERYWHERE[2:])
def mariadb_shop(request: pytest.FixtureRequest, shops: dict[str, Shop], tmp_path: Path) -> Iterator[MariaDBShop]:
    """A shop in MariaDB; nothing is left in it."""
    yield from opened(request, shops, tmp_path)


@pytest.fixture(params=EVERYWHERE)
def any_shop(request: pytest.FixtureRequest, shops: dict[str, Shop], tmp_path: Path) -> Iterator[Shop]:
    """A shop in each kind of database; nothing is left in it."""
    yield from opened(request, shops, tmp_path)


@pytest.fixture(params=OF_EVERY_KIND)
def shop(request: pytest.FixtureRequest, shops: dict[str, Shop], tmp_path: Path) -> Iterator[Shop]:
    """A shop in each kind of database, in two phases and deciding; nothing is left in it."""
    yield from opened(request, shops, tmp_path)
