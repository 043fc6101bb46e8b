"""These tests use MariaDB as the one that decides: its URLs, and the peculiarities of InnoDB and its drivers."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import psycopg
import pymysql
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from rm_db import DecidingDatabase, MariaResource
from rm_db.decider.decision_table import DecisionTable
from rm_db.decider.engine import make_engine
from tm import ConfigurationError, ResourceConfig, RolledBack, TransactionManager
from tm.resources import find_factory
from xa import Code, XaError
from xa.diagnosis import Health
from xabridge.testing.contract.client import case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres import Postgres
    from xabridge.testing.mariadb import MariaDB

PATIENCE_S = 60


class Shop:
    """A MariaDB that decides, beside a PostgreSQL."""

    def __init__(self, url: str, other: str, tm: TransactionManager) -> None:
        self.url = url
        self.other = other
        self.tm = tm
        self.engine = sa.create_engine(url)

    def run(self, *statements: str) -> None:
        """Statements of somebody else's, each committed."""
        with self.engine.connect() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
                connection.commit()

    def rows(self) -> list[tuple[int, int]]:
        """What is committed."""
        with self.engine.connect() as connection:
            return [(row.id, row.n) for row in connection.execute(sa.text("SELECT id, n FROM items ORDER BY id"))]

    def others(self) -> int:
        """How many rows are committed in the other database."""
        with psycopg.connect(self.other) as connection:
            return len(connection.execute("SELECT FROM made").fetchall())


@pytest.fixture
def shop(mariadb: MariaDB, postgres: Postgres) -> Iterator[Shop]:
    """With a table of InnoDB's, and two rows in it."""
    url, other = mariadb.create_database(), postgres.create_database()
    with psycopg.connect(other) as connection:
        connection.execute("CREATE TABLE made (a text)")
    resources = {"shop": ResourceConfig(url, "decider"), "other": ResourceConfig(other)}
    with TransactionManager("node-1", resources=resources, background=False) as manager:
        shop = Shop(url, other, manager)
        shop.run(
            "CREATE TABLE items (id integer PRIMARY KEY, n integer NOT NULL) ENGINE = InnoDB",
            "INSERT INTO items VALUES (1, 10), (2, 20)",
        )
        yield shop
        shop.engine.dispose()
        assert manager.recover().clean


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


# --- one transaction --------------------------------------------------------------------------------------------
def test_the_isolation_level_is_set_before_the_first_statement(shop: Shop) -> None:
    with shop.tm.begin() as tx:
        tx["shop"].execution_options(isolation_level="SERIALIZABLE")
        tx["shop"].execute(sa.text("SELECT * FROM items")).all()  # locks what it reads
        with pytest.raises(OperationalError, match="1205"):
            shop.run("SET SESSION innodb_lock_wait_timeout = 0", "UPDATE items SET n = 11 WHERE id = 1")
    with shop.tm.begin() as tx:
        tx["shop"].execution_options(isolation_level="READ COMMITTED")
        assert tx["shop"].scalar(sa.text("SELECT n FROM items WHERE id = 1")) == 10
        shop.run("UPDATE items SET n = 11 WHERE id = 1")
        assert tx["shop"].scalar(sa.text("SELECT n FROM items WHERE id = 1")) == 11
    with shop.tm.begin() as tx:
        tx["shop"].execute(sa.text("UPDATE items SET n = 12 WHERE id = 1"))
        with pytest.raises(OperationalError, match="1568"):
            tx["shop"].execution_options(isolation_level="SERIALIZABLE")
    assert shop.rows()[0] == (1, 12)


# --- the end of the transaction behind the manager's back ---------------------------------------------------------
def test_an_end_that_no_words_show_is_seen_before_the_decision(shop: Shop) -> None:
    """Nothing can take back what was committed so; but nothing else is committed because of it."""
    shop.run("CREATE PROCEDURE commits() COMMIT")
    ended = "has ended the transaction before it was to be committed"
    for both in (True, False):
        with case(both), pytest.raises(RolledBack, match=ended), shop.tm.begin() as tx:
            tx["shop"].execute(sa.text("UPDATE items SET n = 11 WHERE id = 1"))
            if both:
                tx["other"].psycopg.execute("INSERT INTO made VALUES ('x')")
            tx["shop"].exec_driver_sql("CALL commits()")
            tx["shop"].execute(sa.text("UPDATE items SET n = 21 WHERE id = 2"))
        assert shop.others() == 0


def test_a_deadlock_whose_error_was_swallowed_commits_nothing(shop: Shop) -> None:
    """InnoDB rolls the whole transaction back, and what comes next is in a new one."""
    first_has, second_has = threading.Event(), threading.Event()
    outcomes: list[str] = []

    def work(mine: int, other: int, has: threading.Event, other_has: threading.Event) -> None:
        try:
            with shop.tm.begin() as tx:
                connection = tx["shop"]
                connection.execute(sa.text("UPDATE items SET n = n + 1 WHERE id = :id"), {"id": mine})
                has.set()
                assert other_has.wait(PATIENCE_S)
                try:
                    connection.execute(sa.text("UPDATE items SET n = n + 1 WHERE id = :id"), {"id": other})
                except OperationalError:
                    connection.execute(sa.text("INSERT INTO items VALUES (:id, 0)"), {"id": 100 + mine})
        except RolledBack as error:
            outcomes.append("XA_RBDEADLOCK" if "Deadlock" in str(error) else str(error))
        else:
            outcomes.append("committed")

    threads = [
        threading.Thread(target=work, args=(1, 2, first_has, second_has)),
        threading.Thread(target=work, args=(2, 1, second_has, first_has)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["XA_RBDEADLOCK", "committed"]
    assert shop.rows() == [(1, 11), (2, 21)]


def test_a_lock_that_is_not_had_in_time_takes_the_statement_back_and_no_more(shop: Shop) -> None:
    with shop.engine.connect() as holder:
        holder.execute(sa.text("UPDATE items SET n = 99 WHERE id = 2"))
        with shop.tm.begin() as tx:
            connection = tx["shop"]
            connection.execute(sa.text("UPDATE items SET n = 11 WHERE id = 1"))
            connection.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 0")
            with pytest.raises(OperationalError, match="1205"):
                connection.execute(sa.text("UPDATE items SET n = 21 WHERE id = 2"))
        holder.rollback()
    assert shop.rows() == [(1, 11), (2, 20)]


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


def test_who_may_not_make_the_tables_is_told_the_statements(mariadb: MariaDB) -> None:
    url = sa.make_url(mariadb.create_database())
    mariadb.admin(
        f"REVOKE ALL ON {url.database}.* FROM {url.username}@'%'",
        f"GRANT SELECT ON {url.database}.* TO {url.username}@'%'",
    )
    with pytest.raises(XaError, match=r"Ask an administrator to create them.*CREATE TABLE") as error:
        table_of(url.render_as_string(hide_password=False)).open()
    assert error.value.code is Code.XAER_RMERR


def test_the_deletion_of_ended_decisions_and_those_that_decide_are_not_in_each_others_way(shop: Shop) -> None:
    """Under REPEATABLE READ the deletion locks what lies between, and waits for whatever is not committed there."""
    table = table_of(shop.url)
    table.open()
    ended = [bytes([n]) * 64 for n in range(1, 200, 2)]
    with shop.engine.begin() as connection:
        for gtrid in ended:
            connection.execute(table.insertion(gtrid, b"r"))
    with shop.engine.connect() as deciding:
        deciding.execute(table.insertion(b"\2" * 64, b"late"))
        table.end(ended)
        table.flush()
        with shop.engine.connect() as other:
            other.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 5")
            other.execute(table.insertion(b"\4" * 64, b"at once"))
            other.commit()
        deciding.commit()
    assert [decision.gtrid for decision in table.page(b"", 1000)] == [b"\2" * 64, b"\4" * 64]
    table.end([b"\2" * 64, b"\4" * 64])
    table.close()


def test_who_settles_waits_for_a_late_decision_and_no_longer_than_it_should(shop: Shop) -> None:
    table = table_of(shop.url)
    table.settle_wait_s = 1
    table.open()
    with shop.engine.connect() as deciding:
        deciding.execute(table.insertion(b"\5" * 64, b"late"))
        with pytest.raises(XaError) as later:
            table.settle(b"\5" * 64)
        assert later.value.code is Code.XA_RETRY
        deciding.commit()
    assert table.settle(b"\5" * 64) == b"late"
    with shop.engine.connect() as deciding:
        assert table.settle(b"\6" * 64) is None
        with pytest.raises(sa.exc.IntegrityError):
            deciding.execute(table.insertion(b"\6" * 64, b"too late"))
    table.end([b"\5" * 64, b"\6" * 64])
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


def test_the_errors_of_the_driver_are_what_they_say(shop: Shop) -> None:
    """The drivers call most of what they don't know an OperationalError, which is no lost connection."""
    shop.run("CREATE TRIGGER no BEFORE INSERT ON items FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'")
    with shop.tm.begin() as tx:
        with pytest.raises(OperationalError, match="1644"):
            tx["shop"].execute(sa.text("INSERT INTO items VALUES (3, 30)"))
        tx["shop"].execute(sa.text("UPDATE items SET n = 11 WHERE id = 1"))
    assert shop.rows() == [(1, 11), (2, 20)]
    with pytest.raises(pymysql.err.OperationalError):
        pymysql.connect(host="127.0.0.1", port=1)
