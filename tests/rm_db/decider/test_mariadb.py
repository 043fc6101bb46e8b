"""These tests use MariaDB as the one that decides: its URLs, and the peculiarities of InnoDB and its drivers."""

from __future__ import annotations

import logging

import pytest
import sqlalchemy as sa

from rm_db import DecidingDatabase, MariaResource
from rm_db.decider.decision_table import DecisionTable
from rm_db.decider.engine import make_engine
from tm import ConfigurationError, ResourceConfig, TransactionManager
from tm.resources import find_factory
from xa import Code, XaError
from xa.diagnosis import Health
from xabridge.testing.mariadb import MariaDB

PATIENCE_S = 60


# --- by which URLs ----------------------------------------------------------------------------------------------
def test_a_scheme_that_sqlalchemy_does_not_know_is_a_mistake_of_the_configuration() -> None:
    for url, why in {
        "mysqll+pymysql://h/d": "SQLAlchemy has no dialect for it",
        "mysql+nonesuch://h/d": "SQLAlchemy has no dialect for it",
        "sqlite+aiosqlite:///x": "asyncio driver",
    }.items():
        with pytest.raises(ConfigurationError, match=why):
            find_factory("shop", ResourceConfig(url, "decider"))
    with pytest.raises(ConfigurationError, match="no resource manager is registered for mssql"):
        find_factory("shop", ResourceConfig("mssql+pyodbc://h/d"))
    assert find_factory("shop", ResourceConfig("mssql+pyodbc://h/d", "decider")) is DecidingDatabase


def test_the_mode_tells_who_decides_from_who_prepares() -> None:
    for scheme in ("mysql+pymysql", "mariadb+pymysql"):
        assert find_factory("shop", ResourceConfig(f"{scheme}://h/d", "decider")) is DecidingDatabase
        assert find_factory("shop", ResourceConfig(f"{scheme}://h/d")) is MariaResource


# --- the tables for decisions -------------------------------------------------------------------------------------
def table_of(url: str) -> DecisionTable:
    """The table of decisions, made as the resource manager does."""
    return DecisionTable(make_engine(sa.make_url(url), 2, 10.0, isolation_level="READ COMMITTED"))


def test_the_tables_are_innodbs_whatever_the_default_is(mariadb: MariaDB) -> None:
    url = mariadb.create_database()
    mariadb.admin("SET GLOBAL default_storage_engine = MyISAM")
    try:
        table = table_of(url)
        table.open()
    finally:
        mariadb.admin("SET GLOBAL default_storage_engine = InnoDB")
    with table._engine.connect() as connection:
        engines = connection.scalars(
            sa.text("SELECT engine FROM information_schema.tables WHERE table_schema = DATABASE()")
        ).all()
    table.close()
    assert engines == ["InnoDB"] * len(engines)
    assert len(engines) >= 2


def test_a_table_without_transactions_is_refused(mariadb: MariaDB) -> None:
    url = mariadb.create_database()
    table = table_of(url)
    table.open()
    with table._engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE xabridge_decision ENGINE = MyISAM"))
    with pytest.raises(XaError, match="ALTER TABLE xabridge_decision ENGINE = InnoDB"):
        table_of(url).open()
    table.close()


def test_the_deletion_of_ended_decisions_and_those_that_decide_are_not_in_each_others_way(mariadb: MariaDB) -> None:
    """Under REPEATABLE READ the deletion locks what lies between, and waits for whatever is not committed there."""
    table = table_of(mariadb.create_database())
    table.open()
    engine = table._engine
    ended = [bytes([n]) * 64 for n in range(1, 200, 2)]
    with engine.begin() as connection:
        for gtrid in ended:
            connection.execute(table.insertion(gtrid, b"r"))

    with engine.connect() as deciding:
        deciding.execute(table.insertion(b"\2" * 64, b"late"))
        table.end(ended)
        table.flush()
        with engine.connect() as other:
            other.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 5")
            other.execute(table.insertion(b"\4" * 64, b"at once"))
            other.commit()
        deciding.commit()
    assert [decision.gtrid for decision in table.page(b"", 1000)] == [b"\2" * 64, b"\4" * 64]
    table.end([b"\2" * 64, b"\4" * 64])
    table.close()


# --- what the server has to be ------------------------------------------------------------------------------------
def test_a_server_that_answers_before_it_is_durable_is_named(
    mariadb: MariaDB, caplog: pytest.LogCaptureFixture
) -> None:
    url = mariadb.create_database()
    mariadb.admin("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    try:
        checks = DecidingDatabase().diagnose(url).checks
        with (
            caplog.at_level(logging.WARNING, "xabridge.rm_db"),
            TransactionManager("n", resources={"shop": ResourceConfig(url, "decider")}, background=False),
        ):
            pass
    finally:
        mariadb.admin("SET GLOBAL innodb_flush_log_at_trx_commit = 1")

    assert [(check.health, check.subject) for check in checks] == [
        (Health.OK, "reachable"),
        (Health.FAIL, "durability"),
    ]
    assert "innodb_flush_log_at_trx_commit is 2" in caplog.text


def test_a_server_that_is_away_is_told_from_one_that_refuses(mariadb: MariaDB) -> None:
    url = sa.make_url(mariadb.create_database())
    for changed, code in {
        url.set(port=1): Code.XAER_RMFAIL,
        url.set(username="nobody"): Code.XAER_RMERR,
        url.set(database="nonesuch"): Code.XAER_RMERR,
    }.items():
        with pytest.raises(XaError) as error:
            DecidingDatabase().open(changed.render_as_string(hide_password=False), 1)
        assert error.value.code is code, changed
