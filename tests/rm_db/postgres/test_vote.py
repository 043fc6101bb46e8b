"""These tests cover the vote of a PostgreSQL branch: every way in which its work can turn out not to be preparable.

After each of them nothing may be left in pg_prepared_xacts; the fixture `client` checks this.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from tests.rm_db.harness import PostgresHarness, vote
from xa import TMFAIL, TMONEPHASE, BranchRolledBack, Code, XaMisuse, Xid
from xabridge.testing.contract.client import RMID, Client, case, elsewhere, new_key, new_xid, refused

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def tables(harness: PostgresHarness) -> Iterator[None]:
    """An account with a deferred constraint, two rows to be locked, and a counter."""
    harness.admin(
        "CREATE TABLE account (id int PRIMARY KEY, parent int"
        " REFERENCES account DEFERRABLE INITIALLY DEFERRED, amount int CHECK (amount >= 0))"
    )
    harness.admin("INSERT INTO account VALUES (1, NULL, 100), (2, NULL, 100)")
    yield
    harness.admin("DROP TABLE account")


def begin(client: Client) -> tuple[Xid, Any]:
    """A branch at work, and its psycopg connection."""
    xid = new_xid()
    client.start(xid)
    return xid, client.rm.session(RMID).psycopg


# --- no ---------------------------------------------------------------------------------------------------------
def test_a_failed_statement(client: Client) -> None:
    """PREPARE TRANSACTION would answer ROLLBACK, with success: the trap of psycopg and SQLAlchemy."""
    xid, shop = begin(client)
    client.write(key := new_key())
    with pytest.raises(psycopg.errors.CheckViolation):
        shop.execute("UPDATE account SET amount = -1 WHERE id = 1")
    no = vote(client, xid)
    assert no.code is Code.XA_RBINTEGRITY
    assert no.message.startswith("23514 ")
    assert "account_amount_check" in no.message
    assert key not in client.harness.committed()

    xid, _ = begin(client)
    with pytest.raises(sa.exc.IntegrityError, match="UniqueViolation"):
        client.rm.session(RMID).execute(sa.text("INSERT INTO account VALUES (1, NULL, 1)"))
    with refused(Code.XA_RBINTEGRITY):
        client.end(xid)
    with refused(Code.XA_RBINTEGRITY) as raised:
        client.commit(xid, TMONEPHASE)
    assert "23505" in raised.value.message


def test_an_error_behind_a_savepoint_is_no_failure(client: Client) -> None:
    xid, shop = begin(client)
    client.write(key := new_key())
    with pytest.raises(psycopg.errors.CheckViolation), shop.transaction():
        shop.execute("UPDATE account SET amount = -1 WHERE id = 1")
    shop.execute("UPDATE account SET amount = 99 WHERE id = 1")
    client.end(xid)
    assert client.prepare(xid) is Code.XA_OK
    assert client.commit(xid) is Code.XA_OK
    assert key in client.harness.committed()


def test_the_reason_is_the_last_unrepaired_error(client: Client) -> None:
    xid, shop = begin(client)
    with pytest.raises(psycopg.errors.CheckViolation), shop.transaction():
        shop.execute("UPDATE account SET amount = -1 WHERE id = 1")
    with pytest.raises(psycopg.errors.DivisionByZero):
        shop.execute("SELECT 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        shop.execute("SELECT 1")
    no = vote(client, xid)
    assert no.code is Code.XA_RBOTHER
    assert "22012" in no.message


def test_a_deferred_constraint(client: Client) -> None:
    """It fails at the vote, or at the one-phase commit, not before."""
    for complete in (client.prepare, lambda xid: client.commit(xid, TMONEPHASE)):
        xid, shop = begin(client)
        shop.execute("INSERT INTO account VALUES (3, 4, 1)")
        client.end(xid)
        with refused(Code.XA_RBINTEGRITY) as raised:
            complete(xid)
        assert "account_parent_fkey" in raised.value.message
        with refused(Code.XAER_NOTA):
            client.rollback(xid)
    xid, shop = begin(client)
    shop.execute("INSERT INTO account VALUES (3, 4, 1)")
    shop.execute("INSERT INTO account VALUES (4, NULL, 1)")  # it is met in the end
    client.end(xid)
    assert client.prepare(xid) is Code.XA_OK
    client.rollback(xid)


def test_a_serialization_failure_at_the_vote(client: Client) -> None:
    """Write skew: each reads what the other writes. The second to prepare hears it."""
    xids = []
    for mine, others in ((1, 2), (2, 1)):
        with elsewhere():
            xid, shop = begin(client)
            shop.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            shop.execute("SELECT sum(amount) FROM account WHERE id = %s", [others])
            shop.execute("UPDATE account SET amount = 0 WHERE id = %s", [mine])
            client.end(xid)
            xids.append(xid)
    assert client.prepare(xids[0]) is Code.XA_OK
    with refused(Code.XA_RBTRANSIENT) as raised:
        client.prepare(xids[1])
    assert raised.value.message.startswith("40001 ")
    client.rollback(xids[0])


def test_a_deadlock(client: Client) -> None:
    """One of two that lock in opposite orders is chosen by the server; it hears so, the other goes on."""
    barrier = threading.Barrier(2)
    codes: list[Code] = []

    def work(first: int, second: int) -> None:
        xid, shop = begin(client)
        shop.execute("SET LOCAL deadlock_timeout = '50ms'")
        shop.execute("UPDATE account SET amount = 1 WHERE id = %s", [first])
        barrier.wait(PATIENCE_S)
        try:
            shop.execute("UPDATE account SET amount = 2 WHERE id = %s", [second])
            client.end(xid)
            codes.append(client.prepare(xid))
        except psycopg.errors.DeadlockDetected:
            with pytest.raises(BranchRolledBack) as raised:
                client.end(xid)
            codes.append(raised.value.code)
        client.rollback(xid)

    threads = [threading.Thread(target=work, args=order) for order in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [Code.XA_OK, Code.XA_RBDEADLOCK]


def test_a_lock_that_an_orphan_holds(client: Client, harness: PostgresHarness) -> None:
    other = Client(harness)
    with elsewhere():
        orphan = new_xid()
        other.start(orphan)
        other.rm.session(RMID).psycopg.execute("UPDATE account SET amount = 1 WHERE id = 1")
        other.end(orphan)
        other.prepare(orphan)

    harness.crash(other.rm)
    xid, shop = begin(client)
    shop.execute("SET LOCAL lock_timeout = '20ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        shop.execute("UPDATE account SET amount = 2 WHERE id = 1")
    no = vote(client, xid)
    assert no.code is Code.XA_RBTRANSIENT
    assert "55P03" in no.message
    xid, shop = begin(client)
    shop.execute("SET LOCAL statement_timeout = '20ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        shop.execute("UPDATE account SET amount = 2 WHERE id = 1")
    assert vote(client, xid).code is Code.XA_RBTIMEOUT
    client.rollback(orphan)


def test_a_gid_that_exists(client: Client, harness: PostgresHarness) -> None:
    xid = client.prepared(first := new_key())
    other = Client(harness)
    with elsewhere():
        other.ended(second := new_key(), xid)
        with refused(Code.XA_RBPROTO) as raised:
            other.prepare(xid)
    assert "42710" in raised.value.message
    other.rm.close("", RMID)
    client.commit(xid)
    assert first in harness.committed()
    assert second not in harness.committed()


def test_what_postgresql_can_not_prepare_is_named(client: Client) -> None:
    for statement, named in {
        "CREATE TEMPORARY TABLE scratch (a int)": "temporary objects",
        "NOTIFY somebody": "NOTIFY",
        "SELECT pg_notify('somebody', 'it happened')": "NOTIFY",
        "LISTEN somebody": "LISTEN",
        "DECLARE held CURSOR WITH HOLD FOR SELECT 1; UPDATE account SET amount = 5 WHERE id = 1": "WITH HOLD",
    }.items():
        with case(statement):
            xid, shop = begin(client)
            shop.execute(statement)
            no = vote(client, xid)
            assert no.code is Code.XA_RBOTHER
            assert no.message.startswith("0A000 ")
            assert named in no.message
            assert "keep it out of two-phase transactions" in no.message


def test_no_more_room_for_prepared_transactions(client: Client, harness: PostgresHarness) -> None:
    """max_prepared_transactions is reached: told, with the mend, and nothing is half done."""
    fillers = []
    try:
        with psycopg.connect(harness.url, autocommit=True) as connection:
            room = int(connection.execute("SHOW max_prepared_transactions").fetchone()[0])  # type: ignore[index]
            for number in range(room):
                connection.execute("BEGIN")
                connection.execute(f"PREPARE TRANSACTION 'filler {number}'")
                fillers.append(number)

        xid = client.ended(key := new_key())
        with refused(Code.XA_RBTRANSIENT) as raised:
            client.prepare(xid)
        assert "raise max_prepared_transactions" in raised.value.message
        assert key not in harness.committed()
    finally:
        for number in fillers:
            harness.admin(f"ROLLBACK PREPARED 'filler {number}'")


def leave_stream(shop: Any) -> Any:
    rows = shop.cursor().stream("SELECT generate_series(1, 1000000)")
    next(rows)
    return rows


def leave_pipeline(shop: Any) -> Any:
    block = shop.pipeline()
    block.__enter__()
    return block


def leave_copy(shop: Any) -> Any:
    block = shop.cursor().copy("COPY account FROM STDIN")
    block.__enter__()
    return block


def test_what_is_not_finished(client: Client) -> None:
    for leave in (leave_stream, leave_pipeline, leave_copy):
        with case(leave.__name__):
            xid, shop = begin(client)
            client.write(key := new_key())
            unfinished = leave(shop)
            with refused(Code.XA_RBPROTO):
                client.end(xid)
            client.retrying("rollback", xid)
            assert key not in client.harness.committed()
            with suppress(XaMisuse):
                unfinished.close() if leave is leave_stream else unfinished.__exit__(None, None, None)


# --- read-only --------------------------------------------------------------------------------------------------
READERS = {
    "nothing": [],
    "a read": ["SELECT * FROM account"],
    "an update of no row": ["UPDATE account SET amount = 1 WHERE id = 77"],
    "a held cursor": ["DECLARE held CURSOR WITH HOLD FOR SELECT 1"],
    "settings": ["SET work_mem = '5MB'", "SELECT set_config('xabridge.test', 'x', false)"],
    "session locks": ["SELECT pg_advisory_lock(77)"],
}


def test_a_branch_that_wrote_nothing_votes_read_only(client: Client) -> None:
    for what, statements in READERS.items():
        with case(what):
            xid, shop = begin(client)
            for statement in statements:
                shop.execute(statement)
            client.end(xid)
            assert client.prepare(xid) is Code.XA_RDONLY
            assert xid not in client.in_doubt()
            with refused(Code.XAER_NOTA):
                client.commit(xid)


WRITERS = {
    "an insert": "INSERT INTO account VALUES (3, NULL, 1)",
    "an insert in a WITH": "WITH i AS (INSERT INTO account VALUES (3, NULL, 1) RETURNING id) SELECT * FROM i",
    "a function": "SELECT deposit(1)",
    "a DO block": "DO $$ BEGIN UPDATE account SET amount = 1; END $$",
    "a definition": "CREATE TABLE made_here (a int)",
    "a row lock": "SELECT * FROM account WHERE id = 1 FOR UPDATE",
    "the second of two": "SELECT 1; UPDATE account SET amount = 1",
    "a large object": "SELECT lo_create(0)",
}


def insert_many(shop: Any) -> None:
    with shop.cursor() as cursor:
        cursor.executemany("INSERT INTO account VALUES (%s, NULL, 1)", [(3,), (4,)])


def copy_in(shop: Any) -> None:
    with shop.cursor() as cursor, cursor.copy("COPY account FROM STDIN") as copy:
        copy.write_row((5, None, 1))


def test_a_branch_that_wrote_anything_is_prepared(client: Client, harness: PostgresHarness) -> None:
    harness.admin(
        "CREATE OR REPLACE FUNCTION deposit(int) RETURNS int LANGUAGE sql AS"
        " 'UPDATE account SET amount = amount + 1 WHERE id = $1 RETURNING amount'"
    )
    for write in (*WRITERS.values(), insert_many, copy_in):
        with case(write):
            xid, shop = begin(client)
            write(shop) if callable(write) else shop.execute(write)
            client.end(xid)
            assert client.prepare(xid) is Code.XA_OK
            assert client.in_doubt() == {xid}
            client.rollback(xid)


def test_end_with_failure_frees_locks_at_once(client: Client, harness: PostgresHarness) -> None:
    xid, shop = begin(client)
    shop.execute("UPDATE account SET amount = 7 WHERE id = 1")
    assert client.end(xid, TMFAIL) is Code.XA_OK
    client.rollback(xid)
    with psycopg.connect(harness.url) as connection:
        connection.execute("SELECT * FROM account WHERE id = 1 FOR UPDATE NOWAIT")
