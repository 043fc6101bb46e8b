"""In these tests the data of a resource manager is restored from a copy that is older than the decision log: with a log
of each kind, and with a resource that decides. A branch that is prepared in the copy was committed since.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.postgres import Postgres
from tests.tm.shop import Shop, elsewhere
from tests.tm.wrapped import hooked
from tm import ResourceConfig, Transaction
from tm.log import Branch, Decision
from tm.log.decider_record import encode_branches
from tm.log.factory import open_log
from tm.log.sql import SqlLog
from tm.recovery import Action
from tm.recovery.ownership import FINISHED
from xa import TMSUCCESS, Code, Gtrid
from xabridge.testing.reference import DecidingStore
from xabridge.testing.reference.store import BackUp

KINDS = ("file", "sqlite", "postgresql", "decider", "database that decides")


class Restorable:
    """A shop whose store `b` is copied while the transaction `old` has a prepared branch there. Then `old` commits, and
    so do others, of two threads."""

    def __init__(self, shop: Shop, open_shop: Callable[[], Any], database: Path | None = None) -> None:
        self.shop = shop
        self.database = database
        self.open = open_shop
        self.copies: list[BackUp] = []
        shop.wrap["b"] = hooked(self._copy)
        self.open()
        self.work("before")
        self.wanted = True
        with shop.tm.begin() as self.old:
            self.write(self.old, "old")

    wanted = False

    def _copy(self, when: str, verb: str) -> None:
        if self.wanted and (when, verb) == ("before", "commit"):
            self.wanted = False
            self.copies.append(self.shop["b"].backed_up())

    def write(self, tx: Transaction, key: str) -> None:
        for name in "ab":
            tx[name].write(key, 1)

    def work(self, key: str) -> None:
        """Transactions of two threads."""

        def commit() -> None:
            for number in range(10):
                with self.shop.tm.begin() as tx:
                    self.write(tx, f"{key}-{number}")

        commit()
        elsewhere(commit)

    def note(self) -> None:
        """As the manager does from time to time."""
        self.shop.tm._note_bounds()
        if self.shop.tm._lease is not None:
            self.shop.tm._lease.take()

    def kill(self) -> None:
        """The manager's process dies, and its lease runs out."""
        if self.database is None:
            self.shop.kill()
            return
        decider = self.shop.tm.resource("d")
        self.shop.kill()
        decider.close()
        self.execute("UPDATE xabridge_owner SET until = 0")

    def execute(self, statement: str, *values: object) -> None:
        """In the database that decides."""
        assert self.database is not None
        with closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute(statement, values)

    def restore(self) -> None:
        """Store `b` is put back while nothing runs, and a manager starts."""
        self.shop["b"].restore(self.copies[0])
        self.shop["b"].heal()
        self.open()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def restorable(kind: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest) -> Restorable:
    if kind == "decider":
        shop.add_decider()
        return Restorable(shop, shop.open)
    if kind == "database that decides":
        path = tmp_path / "decider.db"
        deciding = {"d": ResourceConfig(f"decider+sqlite:///{path}", mode="decider")}
        resources = {name: shop.config(name) for name in "ab"} | deciding
        return Restorable(shop, lambda: shop.open(resources=resources, log=None), path)
    url = f"file://{tmp_path}/log"
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/log.db"
    elif kind == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.create_database()
    return Restorable(shop, lambda: shop.open(log=open_log(url, "orders-1")))


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_what_was_finished_before_is_left_alone_and_told(restorable: Restorable, end: str) -> None:
    shop, old = restorable.shop, restorable.old
    if end == "closed":
        restorable.work("after")
        shop.close()
    else:
        restorable.note()
        restorable.work("after")
        restorable.kill()

    restorable.restore()
    for _ in range(2):
        report = shop.tm.recover()
        assert [(one.branch.xid, one.action, one.why) for one in report.findings] == [
            (old.xid("b"), Action.STRANDED, FINISHED)
        ]
        assert not report.clean
        assert shop["b"].in_doubt == [old.xid("b")]
    assert shop["a"].data["old"] == 1
    shop["b"].complete_heuristically(old.xid("b"), Code.XA_HEURCOM)
    shop.tm.forget("b", old.xid("b"))
    assert shop.tm.recover().clean


def test_an_outage_that_only_met_work_changes_nothing(restorable: Restorable) -> None:
    shop = restorable.shop
    with shop.tm.begin() as tx:
        restorable.write(tx, "lost")
        shop["b"].partition()
        tx.rollback()
    shop["b"].heal()
    shop.tm.recover()

    restorable.copies.clear()
    restorable.wanted = True
    with shop.tm.begin() as later:
        restorable.write(later, "later")
    restorable.note()
    restorable.kill()
    restorable.restore()
    report = shop.tm.recover()
    assert [(one.branch.xid, one.action, one.why) for one in report.findings] == [
        (later.xid("b"), Action.STRANDED, FINISHED)
    ]


def test_a_manager_at_work_notices_it_too(restorable: Restorable) -> None:
    shop, old = restorable.shop, restorable.old
    restorable.note()
    shop["b"].restore(restorable.copies[0])
    shop["b"].heal()
    assert [(one.branch.xid, one.action) for one in shop.tm.recover().findings] == [(old.xid("b"), Action.STRANDED)]
    shop["b"].complete_heuristically(old.xid("b"), Code.XA_HEURCOM)
    shop.tm.forget("b", old.xid("b"))


def test_what_comes_behind_the_floor_is_presumed_as_ever(restorable: Restorable) -> None:
    """A crash right behind the write of the floor, and of the transaction that begins next. Its branch is prepared, and
    nothing is decided: that is an honest one."""
    shop, old = restorable.shop, restorable.old
    restorable.note()
    tx = shop.tm.begin()
    restorable.write(tx, "next")
    for name in "ab":
        client = shop.clients[name]
        client.end(tx.xid(name), shop.tm.resources[name].rmid, TMSUCCESS)
        client.prepare(tx.xid(name), shop.tm.resources[name].rmid)
    assert Gtrid.decode(tx.gtrid).sequence == Gtrid.decode(old.gtrid).sequence + 1
    restorable.kill()
    restorable.open()
    assert shop.tm.last_report is not None
    assert {(one.branch.xid, one.action) for one in shop.tm.last_report.findings} == {
        (tx.xid(name), Action.ROLLED_BACK) for name in "ab"
    }


def test_what_is_decided_is_committed_wherever_the_floor_is(restorable: Restorable) -> None:
    """The END of a decision may be lost, and the floor not."""
    shop, old = restorable.shop, restorable.old
    decider = shop.stores.get("d")
    if isinstance(decider, DecidingStore):
        decider._decisions[old.gtrid] = encode_branches([Branch(name, old.xid(name)) for name in "ab"])
        decider._order = None
    elif restorable.database is not None:
        record = encode_branches([Branch(name, old.xid(name)) for name in "ab"])
        insertion = "INSERT INTO xabridge_decision (gtrid, state, record) VALUES (?, 'decided', ?)"
        shop.tm.resource("d").decider._driver.backend.table.flush()  # type: ignore[attr-defined]
        restorable.execute(insertion, old.gtrid.hex(), record)
    else:
        if isinstance(shop.log, SqlLog):
            shop.log._ends.clear()
        shop.log.decide(Decision(old.gtrid, tuple(Branch(name, old.xid(name)) for name in "ab")))

    restorable.note()
    restorable.kill()
    restorable.restore()
    assert shop.tm.last_report is not None
    found = [(one.branch.xid, one.action) for one in shop.tm.last_report.findings if one.branch.xid.gtrid == old.gtrid]
    assert found == [(old.xid("b"), Action.COMMITTED), (old.xid("a"), Action.NOT_THERE)]
    others = {one.action for one in shop.tm.last_report.findings if one.branch.xid.gtrid != old.gtrid}
    assert others <= {Action.NOT_THERE}, "those whose END was lost with the process"
    assert shop["b"].data["old"] == 1
