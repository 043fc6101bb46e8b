"""These tests run code that uses an engine of its own over MariaDB, and does not know our transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, func, insert, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from rm_db import take_part
from tm import ResourceConfig, TransactionManager
from xa import XaMisuse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres import Postgres
    from xabridge.testing.mariadb import MariaDB

METADATA = MetaData()
ORDERS = Table(
    "orders", METADATA, Column("id", Integer, primary_key=True, autoincrement=False), Column("words", String(50))
)


def place(engine: Engine, number: int) -> None:
    """Existing code, Core."""
    with engine.begin() as connection:
        connection.execute(insert(ORDERS).values(id=number, words="core"))


def place_orm(engine: Engine, number: int) -> None:
    """Existing code, ORM."""
    with Session(engine) as session:
        session.execute(insert(ORDERS).values(id=number, words="orm"))
        session.commit()


def place_and_give_up(engine: Engine, number: int) -> None:
    """Existing code that takes its work back."""
    with Session(engine) as session:
        session.execute(insert(ORDERS).values(id=number, words="given up"))
        session.rollback()


class Site:
    """A manager over a MariaDB and a PostgreSQL, and engines for the first."""

    def __init__(self, url: str, other: str, manager: TransactionManager) -> None:
        self.manager = manager
        self.other = other
        self.plain = create_engine(url)
        self.engine = create_engine(url)
        take_part(self.engine, manager, "shop")

    def ids(self) -> list[int]:
        """What is committed."""
        with self.plain.connect() as connection:
            return list(connection.scalars(select(ORDERS.c.id).order_by(ORDERS.c.id)))


@pytest.fixture(params=["mariadb+pymysql", "mysql+pymysql"])
def site(request: pytest.FixtureRequest, mariadb: MariaDB, postgres: Postgres, tmp_path: Path) -> Iterator[Site]:
    url, other = mariadb.create_database(request.param), postgres.create_database()
    with psycopg.connect(other) as connection:
        connection.execute("CREATE TABLE made (a integer)")
    resources = {"shop": ResourceConfig(url), "other": ResourceConfig(other)}
    with TransactionManager("node-1", f"file://{tmp_path}/log", resources, background=False) as manager:
        site = Site(url, other, manager)
        METADATA.create_all(site.plain)
        yield site
        assert manager.recover().clean
        site.engine.dispose()
        site.plain.dispose()


@pytest.mark.parametrize("code", [place, place_orm])
def test_its_commit_is_the_managers(site: Site, code: object) -> None:
    assert callable(code)
    with site.manager.begin() as tx:
        code(site.engine, 1)
        assert site.ids() == []
        tx["other"].psycopg.execute("INSERT INTO made VALUES (1)")
    assert site.ids() == [1]
    with pytest.raises(LookupError), site.manager.begin():
        code(site.engine, 2)
        raise LookupError
    assert site.ids() == [1]
    code(site.engine, 3)  # outside of any transaction: its own commit
    assert site.ids() == [1, 3]


def test_its_rollback_is_of_this_piece_only(site: Site) -> None:
    with site.manager.begin() as tx:
        place(site.engine, 1)
        place_and_give_up(site.engine, 2)
        with pytest.raises(IntegrityError):
            place(site.engine, 1)
        tx["shop"].execute(insert(ORDERS).values(id=4, words="ours"))
        place_orm(site.engine, 5)
    assert site.ids() == [1, 4, 5]


def test_connections_that_nest(site: Site) -> None:
    with site.manager.begin(), site.engine.begin() as outer:
        outer.execute(insert(ORDERS).values(id=1, words="outer"))
        place(site.engine, 2)
        assert outer.scalar(select(func.count()).select_from(ORDERS)) == 2
    assert site.ids() == [1, 2]


def test_a_stream(site: Site) -> None:
    for number in range(100):
        place(site.engine, number)
    with site.manager.begin(), site.engine.connect() as connection:
        rows = connection.execution_options(stream_results=True).execute(select(ORDERS.c.id).order_by(ORDERS.c.id))
        assert [row.id for row in rows] == list(range(100))


def test_implicit_commits_are_refused(site: Site) -> None:
    with pytest.raises(XaMisuse, match="TRUNCATE"), site.manager.begin() as tx:
        place(site.engine, 1)
        tx["other"].psycopg.execute("INSERT INTO made VALUES (1)")
        with site.engine.connect() as connection:
            connection.execute(text("TRUNCATE orders"))
    assert site.ids() == []


def test_an_engine_of_another_driver(site: Site) -> None:
    theirs = create_engine(site.other.replace("postgresql:", "postgresql+psycopg:"))
    take_part(theirs, site.manager, "shop")
    with pytest.raises(TypeError, match="pymysql"), site.manager.begin(), theirs.connect():
        pass
    theirs.dispose()
    with pytest.raises(ValueError, match="can't take part"):
        take_part(create_engine("sqlite://"), site.manager, "shop")


def test_in_the_url_of_the_engine(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.rm_db.mariadb.test_engines.MANAGER", site.manager, raising=False)
    query = {
        "plugin": "xabridge",
        "xabridge_manager": "tests.rm_db.mariadb.test_engines:MANAGER",
        "xabridge_resource": "shop",
    }
    engine = create_engine(site.plain.url.update_query_dict(query))
    with pytest.raises(LookupError), site.manager.begin():
        place(engine, 1)
        raise LookupError
    assert site.ids() == []
    engine.dispose()
