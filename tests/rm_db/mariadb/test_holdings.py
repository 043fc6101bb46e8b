"""These tests compare what prepared branches of MariaDB are told to hold with what they do hold, and see that nothing
is told where nobody knows it.
"""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import make_url

from rm_db.mariadb.holdings import Locks, report
from tests.rm_db.harness import MariaHarness
from tests.rm_db.mariadb.test_statements import begin
from tests.waiting import until
from xa import TMENDRSCAN, TMSTARTRSCAN, Code, Xid
from xa.holdings import Holding, InDoubtBranch, Relation
from xabridge.testing.contract.client import RMID, Client, new_xid
from xabridge.testing.mariadb import MariaDB

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def rights(harness: MariaHarness, mariadb: MariaDB) -> str:
    """PROCESS is what INNODB_TRX needs. Returns the user."""
    user = str(make_url(harness.open_string).username)
    mariadb.admin(f"GRANT PROCESS ON *.* TO {user}@'%'")
    return user


def in_doubt(client: Client) -> dict[Xid, InDoubtBranch]:
    """Everything; InnoDB makes the table anew only if nobody has read it for a tenth of a second."""
    time.sleep(0.2)
    found = client.rm.in_doubt(RMID, TMSTARTRSCAN | TMENDRSCAN)  # type: ignore[attr-defined]
    return {branch.xid: branch for branch in found}


def prepared(client: Client, statement: str) -> Xid:
    """A prepared branch that has carried out one statement."""
    xid = new_xid()
    client.start(xid)
    client.rm.session(RMID).pymysql.query(statement)
    client.end(xid)
    assert client.prepare(xid) is Code.XA_OK
    return xid


def test_branches_with_their_sessions_and_without(client: Client, harness: MariaHarness) -> None:
    one = prepared(client, "UPDATE account SET amount = 1 WHERE id = 1")
    two = prepared(client, "UPDATE account SET amount = amount + 1 WHERE id = 2")
    held = Holding(Relation.LOCKED, "1 table", "row", 1, "1 change")
    assert {xid: branch.holdings for xid, branch in in_doubt(client).items()} == {one: (held,), two: (held,)}

    client.rm.close("", RMID)  # ends the sessions
    client.rm.open(harness.open_string, RMID)
    assert {xid: branch.holdings for xid, branch in in_doubt(client).items()} == {one: (), two: ()}
    client.rollback(one)
    assert in_doubt(client)[two].holdings == (held,)  # there is no other that it could be
    client.rollback(two)
    assert in_doubt(client) == {}


def test_what_somebody_waits_for_has_a_name(client: Client, harness: MariaHarness, mariadb: MariaDB) -> None:
    xid = prepared(client, "UPDATE account SET amount = 1")
    with mariadb.connect() as rival:
        rival.select_db(harness._url.database)
        waits = threading.Thread(target=rival.query, args=("UPDATE account SET amount = 2",))
        waits.start()
        until(lambda: len(in_doubt(client)[xid].holdings) == 2)
        locked = in_doubt(client)[xid].holdings[1]
        assert locked == Holding(Relation.LOCKED, f"{harness._url.database}.account", "row")
        client.rollback(xid)
        waits.join()


def test_a_server_that_was_started_again(client: Client, harness: MariaHarness) -> None:
    xid = prepared(client, "UPDATE account SET amount = 1")
    harness.go_down()
    harness.come_back()
    client.rm.close("", RMID)
    client.rm.open(harness.open_string, RMID)
    (held,) = in_doubt(client)[xid].holdings
    assert (held.count, held.note) == (None, "2 changes")
    client.rollback(xid)


def test_who_may_not_look_is_told_the_xids(client: Client, mariadb: MariaDB, rights: str) -> None:
    mariadb.admin(f"REVOKE PROCESS ON *.* FROM {rights}@'%'")
    client.rm.close("", RMID)
    client.rm.open(client.harness.open_string, RMID)
    xid, _ = begin(client)
    client.end(xid)
    client.prepare(xid)
    assert in_doubt(client)[xid].holdings == ()
    client.rollback(xid)


def test_nothing_is_guessed() -> None:
    ours, theirs, bound = (Xid(7, name, b"b") for name in (b"ours", b"theirs", b"bound"))
    lost, its = Locks(0, 1, 1, 1, ()), Locks(9, 2, 3, 4, ("d.t",))

    def told(sessions: dict[Xid, int | None], locks: list[Locks]) -> dict[Xid, int]:
        return {branch.xid: len(branch.holdings) for branch in report(sessions, locks)}

    assert told({ours: None}, [lost]) == {ours: 1}
    assert told({ours: None, theirs: None}, [lost, lost]) == {ours: 0, theirs: 0}
    assert told({ours: None}, [lost, lost]) == {ours: 0}
    assert told({ours: None}, []) == {ours: 0}
    assert told({bound: 9, ours: None}, [its, lost]) == {bound: 2, ours: 1}
    assert told({bound: 8}, [its, lost]) == {bound: 0}  # a session that has come and gone in between
