"""These tests cover what is peculiar to transactions of MariaDB, in two phases and deciding: isolation levels, errors
that undo a statement alone, and deadlocks, which undo everything whatever the application thinks of the error.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from tests.rm_db.sessions.shops import PATIENCE_S, MariaDBShop, Order
from tm import RolledBack
from xa import XaMisuse
from xabridge.testing.contract.client import case

BOTH = pytest.mark.parametrize("shop", ["mariadb two-phase", "mariadb decider"], indirect=True)
DECIDER = pytest.mark.parametrize("shop", ["mariadb decider"], indirect=True)
BEFORE = [(1, "one"), (2, "two")]


@pytest.fixture(autouse=True)
def _rows(shop: MariaDBShop) -> Iterator[None]:
    run(shop, "INSERT INTO orders (id, words) VALUES (1, 'one'), (2, 'two')")
    yield
    run(shop, "DROP PROCEDURE IF EXISTS does", "DROP TRIGGER IF EXISTS no")


def run(shop: MariaDBShop, *statements: str) -> None:
    """Somebody else's statements, each committed."""
    with shop.plain.connect() as connection:
        connection.detach()  # what it sets is not for the next
        for statement in statements:
            connection.exec_driver_sql(statement)
            connection.commit()


@BOTH
def test_the_isolation_level_is_set_before_the_first_statement(shop: MariaDBShop) -> None:
    look = sa.text("SELECT words FROM orders WHERE id = 1")
    with shop.tm.begin() as tx:
        tx["shop"].execution_options(isolation_level="SERIALIZABLE")
        tx["shop"].execute(sa.text("SELECT * FROM orders")).all()  # locks what it reads
        with pytest.raises(OperationalError, match="1205"):
            run(shop, "SET SESSION innodb_lock_wait_timeout = 0", "UPDATE orders SET words = 'x' WHERE id = 1")

    with shop.tm.begin() as tx:
        tx["shop"].execution_options(isolation_level="READ COMMITTED")
        for words in ("a", "b"):
            run(shop, f"UPDATE orders SET words = '{words}' WHERE id = 1")  # noqa: S608 — of ours
            assert tx["shop"].scalar(look) == words
        with pytest.raises((OperationalError, XaMisuse), match=r"1568|before"):
            tx["shop"].execution_options(isolation_level="SERIALIZABLE")
    with shop.tm.begin() as tx:
        assert tx["shop"].scalar(look) == "b"
        run(shop, "UPDATE orders SET words = 'c' WHERE id = 1")
        assert tx["shop"].scalar(look) == "b", "the next transaction has the level of always"


@BOTH
def test_a_statement_that_fails_is_undone_alone(shop: MariaDBShop) -> None:
    """Also one that did not get its lock in time, or that a trigger refuses: the drivers call most of what they don't
    know an OperationalError, which is no lost connection."""
    run(
        shop,
        "CREATE TRIGGER no BEFORE INSERT ON orders FOR EACH ROW"
        " IF NEW.id > 99 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'; END IF",
    )

    with shop.plain.connect() as holder:
        holder.execute(sa.text("UPDATE orders SET words = 'held' WHERE id = 2"))
        with shop.tm.begin() as tx:
            tx["shop"].exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 0")
            tx["shop"].execute(sa.text("UPDATE orders SET words = 'kept' WHERE id = 1"))
            for statement, told in {
                "INSERT INTO orders (id) VALUES (1)": "1062",
                "INSERT INTO orders (id, customer_id) VALUES (3, 77)": "1452",
                "INSERT INTO orders (id) VALUES (100)": "1644",
                "SELEC 1": "1064",
                "UPDATE orders SET words = 'x' WHERE id = 2": "1205",
            }.items():
                with pytest.raises(DBAPIError, match=told):
                    tx["shop"].execute(sa.text(statement))
        holder.rollback()
    assert shop.rows() == [(1, "kept"), (2, "two")]


@BOTH
def test_a_deadlock_whose_error_was_swallowed_commits_nothing(shop: MariaDBShop) -> None:
    """By the application, or by a procedure: InnoDB rolls the whole transaction back, what comes next would be in a new
    one, and nothing that is said makes somebody believe that it was committed."""
    run(
        shop,
        "CREATE PROCEDURE does() BEGIN DECLARE CONTINUE HANDLER FOR 1213 SET @swallowed = 1;"
        " UPDATE orders SET words = 'mine' WHERE id = 2; END",
    )

    for statement in ("UPDATE orders SET words = 'mine' WHERE id = 2", "CALL does()"):
        with case(statement), shop.plain.connect() as rival:
            rival.execute(sa.insert(Order), [{"id": n} for n in range(1000, 1050)])  # it has written more: no victim
            rival.execute(sa.text("UPDATE orders SET words = 'theirs' WHERE id = 2"))
            waits = threading.Thread(
                target=rival.execute, args=(sa.text("UPDATE orders SET words = 'theirs' WHERE id = 1"),)
            )
            with pytest.raises(RolledBack) as told, shop.tm.begin() as tx:
                tx["shop"].execute(sa.text("UPDATE orders SET words = 'mine' WHERE id = 1"))
                waits.start()
                shop.until_somebody_waits_for_a_lock()
                try:
                    tx["shop"].exec_driver_sql(statement)
                    tx["shop"].execute(sa.text("INSERT INTO orders (id) VALUES (100)"))
                except (DBAPIError, XaMisuse):
                    pass
            waits.join(PATIENCE_S)
            rival.rollback()
        if shop.driver is not None:
            assert "safe to try again" in str(told.value)
            assert "committed" not in str(told.value)
        assert shop.rows() == BEFORE


@DECIDER
def test_an_end_that_no_words_show_is_seen_before_the_decision(shop: MariaDBShop) -> None:
    """Nothing can take back what was committed so; but nothing else is committed because of it."""
    run(shop, "CREATE PROCEDURE does() COMMIT")
    ended = "has ended the transaction before it was to be committed"
    for both in (True, False):
        with case(both), pytest.raises(RolledBack, match=ended), shop.tm.begin() as tx:
            tx["shop"].execute(sa.text("UPDATE orders SET words = 'gone' WHERE id = 1"))
            if both:
                tx["other"].execute(sa.text("INSERT INTO made VALUES (1)"))
            tx["shop"].exec_driver_sql("CALL does()")
            tx["shop"].execute(sa.text("UPDATE orders SET words = 'not' WHERE id = 2"))
        assert shop.made() == []
