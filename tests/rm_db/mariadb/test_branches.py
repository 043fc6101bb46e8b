"""These tests cover what is peculiar to prepared branches of MariaDB: they are bound to the session that prepared them,
and other sessions hear "unknown" of a branch that is there.
"""

from __future__ import annotations

import threading
from itertools import product
from typing import Any

import pymysql
import pytest
from sqlalchemy import make_url

from rm_db.mariadb import prepared_branches
from rm_db.mariadb.xid import lock_name
from tests.rm_db.harness import MariaHarness
from tests.waiting import until
from xa import BranchRolledBack, Code, ResourceUnavailable, Xid
from xabridge.testing.contract.client import RMID, Client, case, elsewhere, new_key, new_xid, refused
from xabridge.testing.mariadb import MariaDB

PATIENCE_S = 60


def holder(harness: MariaHarness, xid: Xid) -> int | None:
    """The session that has the branch."""
    ((found,),) = harness.admin("SELECT IS_USED_LOCK(%s)", lock_name(xid))
    return found if isinstance(found, int) else None


def stranger(harness: MariaHarness, name: str) -> pymysql.connections.Connection[Any]:
    """A branch of other software, in its own session."""
    connection = harness.connect()
    with connection.cursor() as cursor:
        for statement in ("XA START '{}'", "INSERT INTO work VALUES ('{}')", "XA END '{}'"):
            cursor.execute(statement.format(name))
        cursor.execute(f"XA PREPARE '{name}'")
    return connection


# --- whose a prepared branch is -----------------------------------------------------------------------------------
def test_a_session_completes_its_own_branch_and_is_used_again(client: Client, harness: MariaHarness) -> None:
    threads = set()
    for _ in range(5):
        xid = client.prepared(new_key())
        threads.add(holder(harness, xid))
        client.commit(xid)
        until(lambda xid=xid: holder(harness, xid) is None)  # type: ignore[misc]  # its lock is let go behind the reply
    assert len(threads) == 1


def test_what_other_software_has_prepared_is_waited_for(
    client: Client, harness: MariaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session has no lock of ours: it is left alone, and the branch is no unknown one."""
    monkeypatch.setattr(prepared_branches, "_TRIES", 10)
    key = new_key().replace(" ", "_")
    theirs = stranger(harness, key)
    xid = Xid(1, key.encode())
    assert xid in client.in_doubt()
    with refused(Code.XA_RETRY):
        client.commit(xid)

    with refused(Code.XA_RETRY):
        client.rollback(xid)
    assert theirs.open
    with theirs.cursor() as cursor:
        cursor.execute("SELECT 1")  # it still lives
    closer = threading.Timer(0.1, theirs.close)
    monkeypatch.setattr(prepared_branches, "_TRIES", 150)
    closer.start()
    assert client.commit(xid) is Code.XA_OK  # in the moment in which its session ends
    assert key in harness.committed()
    closer.join()


def test_a_user_is_followed_by_another_one_with_branches_in_doubt(
    harness: MariaHarness, mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of docs/operations.md, "Rotate the password of a database". A branch of a process that lives is waited
    for, because only its own user can end its session."""
    monkeypatch.setattr(prepared_branches, "_TRIES", 10)
    first = Client(harness)
    key = new_key()
    xid = first.prepared(key)
    url = make_url(harness.open_string)
    follower = f"{url.username}_2"
    mariadb.admin(
        f"CREATE USER {follower}@'%' IDENTIFIED BY 'second'", f"GRANT ALL ON {url.database}.* TO {follower}@'%'"
    )
    try:
        url = url.set(username=follower, password="second")  # noqa: S106 — of this test
        harness.open_string = url.render_as_string(hide_password=False)
        second = Client(harness)
        assert second.in_doubt() == {xid}
        with refused(Code.XA_RETRY):
            second.commit(xid)

        first.rm.close("", RMID)
        until(lambda: second.retrying("commit", xid) is Code.XA_OK)
        assert key in harness.committed()
    finally:
        mariadb.admin(f"DROP USER {follower}@'%'")


def test_unknown_while_another_session_commits_is_not_done(
    client: Client, harness: MariaHarness, mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that another session has begun may still be lost with the server."""
    monkeypatch.setattr(prepared_branches, "_TRIES", 10)
    xid = client.prepared(key := new_key())
    client.rm.driver.unit_driver.database.parked.close()  # type: ignore[attr-defined]
    other = Client(harness)
    mariadb_lock = mariadb.connect()
    mariadb_lock.query("FLUSH TABLES WITH READ LOCK")
    committing = threading.Thread(target=lambda: other.commit(xid))
    committing.start()
    while not harness.admin("SELECT id FROM information_schema.processlist WHERE info LIKE 'XA COMMIT%'"):
        pass
    for verb in (client.commit, client.rollback):
        with refused(Code.XA_RETRY):
            verb(xid)

    assert xid in client.in_doubt()
    mariadb_lock.query("UNLOCK TABLES")
    mariadb_lock.close()
    committing.join(PATIENCE_S)
    assert key in harness.committed()
    with refused(Code.XAER_NOTA):
        client.rollback(xid)
    other.rm.close("", RMID)


def test_a_branch_of_another_format_id_is_never_taken_for_ours(client: Client, harness: MariaHarness) -> None:
    """MariaDB itself looks at gtrid and bqual only."""
    key = new_key().replace(" ", "_")
    theirs = stranger(harness, key)
    theirs.close()
    for verb in (client.commit, client.rollback):
        with refused(Code.XAER_NOTA):
            verb(Xid(2, key.encode()))
    assert client.commit(Xid(1, key.encode())) is Code.XA_OK
    assert key in harness.committed()


def test_recovery_of_many_asks_for_the_list_once(
    client: Client, harness: MariaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list is as long as what is in doubt: to ask for it at each branch would take the square of that."""
    keys = {client.prepared(key): key for key in (new_key() for _ in range(10))}
    client.rm.close("", RMID)
    other = Client(harness)
    asked = []
    listed = prepared_branches.PreparedBranches._is_listed

    def counted(self: Any, *arguments: Any) -> Any:
        asked.append(arguments)
        return listed(self, *arguments)

    monkeypatch.setattr(prepared_branches.PreparedBranches, "_is_listed", counted)
    with elsewhere():
        assert other.in_doubt() >= keys.keys()
        for xid in keys:
            assert other.commit(xid) is Code.XA_OK
        assert asked == []
        with refused(Code.XAER_NOTA):
            other.commit(next(iter(keys)))
        assert len(asked) == 1
    other.rm.close("", RMID)
    assert harness.committed() >= set(keys.values())
    client.rm.open(harness.open_string, RMID, 0)


# --- the server and the network fail --------------------------------------------------------------------------------
def test_the_reply_to_prepare_is_lost(client: Client, harness: MariaHarness) -> None:
    for statement, verb in product((b"XA PREPARE", b"XA END"), ("commit", "rollback")):
        with case(statement, verb):
            xid = client.ended(key := new_key())
            harness.proxy.hold_replies_to(statement)
            with harness.proxy.cut_when_held(), pytest.raises(ResourceUnavailable):
                client.prepare(xid)
            client.reopen()
            assert getattr(client, verb)(xid) is Code.XA_OK
            assert (key in harness.committed()) is (verb == "commit")
            assert xid not in client.in_doubt()


def test_a_vote_that_was_given_up_is_not_cast_later(harness: MariaHarness, mariadb: MariaDB) -> None:
    """XA PREPARE hangs in the server; the rollback ends its session first."""
    harness.open_string += "?xa_reply_s=0.3"
    client = Client(harness)
    xid = client.ended(new_key())
    blocker = mariadb.connect()
    blocker.query("FLUSH TABLES WITH READ LOCK")
    try:
        with pytest.raises((ResourceUnavailable, BranchRolledBack)):
            client.prepare(xid)
        client.rm.open(harness.open_string, RMID, 0)
        with refused(Code.XAER_NOTA):
            client.rollback(xid)
    finally:
        blocker.query("UNLOCK TABLES")
        blocker.close()

    for _ in range(20):  # it would be there as soon as the lock is gone
        assert xid not in client.in_doubt()
    client.rm.close("", RMID)
    assert harness.leaks() == []


# --- the vote --------------------------------------------------------------------------------------------------------
def test_an_xid_that_exists(client: Client, harness: MariaHarness) -> None:
    key = new_key().replace(" ", "_")
    theirs = stranger(harness, key)
    with refused(Code.XAER_DUPID):
        client.start(Xid(1, key.encode()))
    theirs.close()
    client.rollback(Xid(1, key.encode()))


READERS: list[list[str]] = [
    [],
    ["SELECT * FROM account"],
    ["SELECT * FROM account FOR UPDATE"],
    ["SELECT amount, count(*) FROM account GROUP BY amount ORDER BY 2"],
    ["UPDATE account SET amount = 3 WHERE id = 99"],
    ["SELECT table_name FROM information_schema.tables"],
    ["SHOW TABLES", "SET @a = 1", "SAVEPOINT a", "RELEASE SAVEPOINT a"],
    ["SELECT largest()"],
    ["SELECT 1; -- "],
]


def test_a_branch_that_wrote_nothing_votes_read_only(client: Client, harness: MariaHarness) -> None:
    harness.admin("CREATE OR REPLACE FUNCTION largest() RETURNS int RETURN (SELECT max(amount) FROM account)")
    for statements, later in product(READERS, (False, True)):
        with case(statements, later):
            xid = new_xid()
            client.start(xid)
            for statement in statements:
                client.rm.session(RMID).pymysql.query(statement)
            client.end(xid)
            assert (client.wait(client.send("prepare", xid)) if later else client.prepare(xid)) is Code.XA_RDONLY
            with refused(Code.XAER_NOTA):
                client.commit(xid)


WRITERS = [
    "INSERT INTO account VALUES (3, 3)",
    "INSERT INTO account SELECT id + 2, 3 FROM account",
    "REPLACE INTO account VALUES (1, 3)",
    "UPDATE account SET amount = 3",
    "DELETE FROM account WHERE id = 1",
    "SELECT writes()",
    "CALL changes()",
    "SET @a = writes()",
    "DO writes()",
    "EXECUTE IMMEDIATE 'UPDATE account SET amount = 3'",
    "WITH x AS (SELECT 1) SELECT writes() FROM x",
    "SET STATEMENT max_statement_time = 5 FOR UPDATE account SET amount = 3",
]


def test_a_branch_that_wrote_anything_is_prepared(client: Client, harness: MariaHarness) -> None:
    harness.admin("CREATE OR REPLACE FUNCTION writes() RETURNS int BEGIN UPDATE account SET amount = 3; RETURN 1; END")
    harness.admin("CREATE OR REPLACE PROCEDURE changes() BEGIN UPDATE account SET amount = 3 WHERE id = 1; END")
    for statement in WRITERS:
        with case(statement):
            harness.admin("REPLACE INTO account VALUES (1, 100), (2, 100)")
            harness.admin("DELETE FROM account WHERE id > 2")
            xid = new_xid()
            client.start(xid)
            client.rm.session(RMID).pymysql.query(statement)
            client.end(xid)
            assert client.prepare(xid) is Code.XA_OK
            assert xid in client.in_doubt()
            client.commit(xid)
            assert harness.admin("SELECT id, amount FROM account ORDER BY id") != [(1, 100), (2, 100)]
