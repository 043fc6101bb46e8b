"""In these tests a log or a decider is replaced by an older copy that looks like the original: overwritten in place. A
branch that is in doubt was begun after the copy was made: its transaction may have been decided in what is lost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg import sql

from tests.postgres import Postgres
from tests.tm.shop import Shop, elsewhere
from tm import ManagerUnusable, OutcomeUnknown, ResourceConfig, Transaction
from tm.log import DecisionLog
from tm.log.contract import LogFull
from tm.log.factory import open_log
from tm.recovery import Action
from tm.sequences import AHEAD
from xa import Code
from xabridge.testing.reference import DecidingStore, NetworkFault

RUN_OUT: Final = "UPDATE xabridge_node SET lease_until = 0"
KINDS: Final = ("file", "sqlite", "postgresql", "decider", "database that decides")


class Files:
    """Files that are copied, and overwritten in place: each keeps its identity."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self._folder = folder
        self._pattern = pattern
        self._kept: dict[str, bytes] = {}

    def copy(self) -> None:
        self._kept = {path.name: path.read_bytes() for path in self._folder.glob(self._pattern)}

    def restore(self) -> None:
        files = sorted(self._folder.glob(self._pattern))
        left = list(files)
        for name, octets in sorted(self._kept.items()):
            path = self._folder / name
            if not path.exists() and left:
                left[0].rename(path)  # a segment has its number in its name
            left = [other for other in left if other != path and other.exists()]
            with path.open("r+b" if path.exists() else "w+b") as file:
                file.write(octets)
                file.truncate()
        for path in left:
            path.unlink()


class SqlFile(Files):
    """A database in a file; `run_out` is the statement after which the leases in the restored copy have run out, as
    those of yesterday's copy have."""

    def __init__(self, folder: Path, name: str, run_out: str) -> None:
        super().__init__(folder, f"{name}*")
        self._file = folder / name
        self._run_out = run_out

    def restore(self) -> None:
        super().restore()
        with closing(sqlite3.connect(self._file)) as connection, connection:
            connection.execute(self._run_out)


class Rows:
    """The rows of a log in PostgreSQL; the lease in the restored copy has run out."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._kept: dict[str, list[tuple[Any, ...]]] = {}

    def copy(self) -> None:
        with psycopg.connect(self._url) as connection:
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            for (name,) in tables:
                self._kept[name] = connection.execute(sql.SQL("TABLE {}").format(sql.Identifier(name))).fetchall()

    def restore(self) -> None:
        with psycopg.connect(self._url) as connection:
            for name, rows in self._kept.items():
                connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(name)))
                for row in rows:
                    values = sql.SQL(", ").join(map(sql.Literal, row))
                    connection.execute(sql.SQL("INSERT INTO {} VALUES ({})").format(sql.Identifier(name), values))
            connection.execute(RUN_OUT)


class Store:
    """A resource that decides, in memory."""

    def __init__(self, store: DecidingStore) -> None:
        self._store = store

    def copy(self) -> None:
        self._copy = self._store.backed_up()

    def restore(self) -> None:
        self._store.restore(self._copy)
        self._store.heal()


class Older:
    """A shop that has a place for its decisions, which can be copied and restored."""

    def __init__(self, shop: Shop, start: Callable[[], Any], place: Any) -> None:
        self.shop = shop
        self.start = start
        self.place = place
        start()

    def work(self, key: str, count: int = 10) -> None:
        """Transactions of two threads."""

        def commit() -> None:
            for number in range(count):
                with self.shop.tm.begin() as tx:
                    for name in "ab":
                        tx[name].write(f"{key}-{number}", 1)

        commit()
        elsewhere(commit)

    def left_in_doubt(self) -> Transaction:
        """It is decided, and `b` did not hear of that; then its process dies."""
        self.shop["b"].script.plan("commit", None, NetworkFault.REQUEST_LOST, times=3)
        with pytest.raises(OutcomeUnknown, match="is durable"), self.shop.tm.begin() as tx:
            for name in "ab":
                tx[name].write("late", 1)
        self.kill()
        self.shop["b"].script.clear()
        return tx

    def kill(self) -> None:
        """Its process dies, and its lease runs out."""
        tm = self.shop.tm
        deciders = [resource for resource in tm.resources.values() if resource.decides]
        lease = tm._lease
        self.shop.kill()
        if lease is not None and not isinstance(self.shop.stores.get("d"), DecidingStore):
            lease.end()
            for decider in deciders:
                decider.close()


@pytest.fixture(params=KINDS)
def older(request: pytest.FixtureRequest, shop: Shop, tmp_path: Path) -> Older:
    kind = str(request.param)
    if kind == "decider":
        return Older(shop, shop.open, Store(shop.add_decider()))
    if kind == "database that decides":
        deciding = {"d": ResourceConfig(f"decider+sqlite:///{tmp_path}/decider.db", mode="decider")}
        resources = {name: shop.config(name) for name in "ab"} | deciding
        place = SqlFile(tmp_path, "decider.db", "UPDATE xabridge_owner SET until = 0")
        return Older(shop, lambda: shop.open(resources=resources, log=None), place)

    if kind == "postgresql":
        postgres: Postgres = request.getfixturevalue("postgres")
        url = postgres.create_database()
        return Older(shop, lambda: shop.open(log=open_log(url, "orders-1")), Rows(url))
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/log.db"
        return Older(shop, lambda: shop.open(log=open_log(url, "orders-1")), SqlFile(tmp_path, "log.db", RUN_OUT))
    url = f"file://{tmp_path}/log"
    return Older(shop, lambda: shop.open(log=open_log(url, "orders-1")), Files(tmp_path / "log", "*"))


def test_what_was_begun_later_is_left_alone(older: Older) -> None:
    shop = older.shop
    older.work("before")
    older.place.copy()
    older.work("after", 2 * AHEAD)
    late = older.left_in_doubt()
    older.place.restore()
    older.start()

    for _ in range(2):
        report = shop.tm.recover()
        (finding,) = [one for one in report.findings if one.branch.xid == late.xid("b")]
        assert finding.action is Action.STRANDED
        assert "began it later than" in finding.why
        assert "is an old copy" in finding.why
        assert not report.clean
    assert shop["b"].in_doubt == [late.xid("b")]
    older.work("again")
    shop["b"].complete_heuristically(late.xid("b"), Code.XA_HEURCOM)
    shop.tm.forget("b", late.xid("b"))


def test_an_incarnation_that_began_later_is_left_alone(older: Older) -> None:
    shop = older.shop
    older.work("before")
    shop.close()
    older.place.copy()
    older.start()
    late = older.left_in_doubt()
    older.place.restore()
    older.start()
    (finding,) = [one for one in shop.tm.recover().findings if one.branch.xid == late.xid("b")]
    assert finding.action is Action.STRANDED
    assert "old copy" in finding.why
    shop["b"].complete_heuristically(late.xid("b"), Code.XA_HEURCOM)
    shop.tm.forget("b", late.xid("b"))


def test_the_newest_one_carries_out_what_it_has(older: Older) -> None:
    """A copy that has everything: nothing is left in doubt."""
    shop = older.shop
    older.work("before", 3 * AHEAD)
    late = older.left_in_doubt()
    older.place.copy()
    older.place.restore()
    older.start()
    assert shop.tm.last_report is not None
    done = {one.branch.xid: one.action for one in shop.tm.last_report.findings}
    assert done[late.xid("b")] is Action.COMMITTED
    assert shop["b"].data["late"] == 1


def test_a_log_that_takes_nothing_begins_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than a transaction that nobody could tell from one that is missing in an older copy."""
    log: DecisionLog = shop.tm.log  # type: ignore[assignment]  # it has one

    def full(_: int) -> None:
        raise LogFull("no space")

    monkeypatch.setattr(log, "note_ceiling", full)
    with pytest.raises(ManagerUnusable, match="no space"):
        shop.tm.begin()
    monkeypatch.undo()
    shop.tm.begin().rollback()
    assert shop.tm._sequences.floor() == 3, "what could not begin is over"
