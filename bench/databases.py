"""`python -m bench db` compares PostgreSQL through the database resource managers with psycopg by itself.

A client is a thread of this process, which has a connection while it works, for psycopg and for us alike. This is how
a transaction manager is used; all clients share one interpreter lock. A transaction is one INSERT of one row.
Everything runs against one throw-away PostgreSQL with default forcing, one after the other within a round; ratios are
taken within a round, and the figures are medians.

raw_commit_per_s_N       psycopg: execute, commit
raw_autocommit_per_s_N   psycopg: execute with autocommit, one round trip; for comparison
decider_per_s_N          DecidingDatabase: start, execute, end, decide; and end_decisions, which deletes in batches
raw_two_phase_per_s_N    psycopg: tpc_begin, execute, tpc_prepare, tpc_commit
resource_per_s_N         PostgresResource: start, execute, end, prepare, commit
tm_resource_per_s_N      the same through the TransactionManager, beside a reference resource manager in memory, so
                         that there are two branches and a forced decision
tm_decider_per_s_N       DecidingDatabase through the TransactionManager, beside the same
"""

from __future__ import annotations

import itertools
import statistics
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from bench.transactions import rate
from rm_db import DecidingDatabase, PostgresResource
from tm import ResourceConfig, TransactionManager
from xa import FORMAT_ID, TMSUCCESS, Gtrid, Xid
from xabridge.testing.postgres import Postgres
from xabridge.testing.reference import ReferenceFactory, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUMMARY: Final = "one-insert transactions on PostgreSQL, through the resource managers and by psycopg alone"

CLIENTS: Final = (1, 16)
RMID: Final = 1
INSERT: Final = "INSERT INTO bench (number, words) VALUES (%s, %s)"
WORDS: Final = "a row of the usual length, as an order might have it, give or take"

_RATIOS: Final = {
    "resource_ratio": ("resource", "raw_two_phase"),
    "decider_ratio": ("decider", "raw_commit"),
    "tm_resource_ratio": ("tm_resource", "raw_two_phase"),
    "tm_decider_ratio": ("tm_decider", "raw_commit"),
}


def measure(*, quick: bool) -> dict[str, Any]:
    seconds, rounds = (0.3, 2) if quick else (2.0, 7)
    rates: dict[str, list[float]] = {}
    server = Postgres()
    with ExitStack() as stack:
        stack.callback(server.remove)
        server.start()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xabridge-bench-", dir=Path.cwd())))
        url = server.create_database()
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE bench (number bigint, words text)")
        ways = {name: stack.enter_context(way(url, folder)) for name, way in _WAYS.items()}
        for number in range(rounds):
            for clients in CLIENTS:
                for name, work in ways.items():
                    rates.setdefault(f"{name}_per_s_{clients}", []).append(rate(work, clients, seconds))
            shown = ", ".join(f"{name} {values[-1]:,.0f}" for name, values in rates.items())
            print(f"  round {number + 1}: {shown}", file=sys.stderr)
            with psycopg.connect(url, autocommit=True) as connection:
                _check(connection)

    return {name: round(statistics.median(values), 1) for name, values in rates.items()} | {
        f"{ratio}_{clients}": _median_ratio(rates[f"{ours}_per_s_{clients}"], rates[f"{raw}_per_s_{clients}"])
        for ratio, (ours, raw) in _RATIOS.items()
        for clients in CLIENTS
    }


def _median_ratio(ours: list[float], raw: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(ours, raw, strict=True)), 3)


def _check(connection: psycopg.Connection[Any]) -> None:
    """What every round leaves behind is nothing but rows, and those are not in the next one's way."""
    (prepared,) = connection.execute("SELECT count(*) FROM pg_prepared_xacts").fetchone() or (None,)
    if prepared != 0:
        raise AssertionError(f"{prepared} prepared transactions were left behind")
    connection.execute("TRUNCATE bench")
    connection.execute("CHECKPOINT")


def _gtrids() -> Callable[[], bytes]:
    """What makes global transaction ids, for the verbs that are called without a manager."""
    numbers = itertools.count(1)
    prefix = Gtrid("bench", bytes(8), 1, 0).encode()[:-8]
    return lambda: prefix + next(numbers).to_bytes(8, "big")


# --- psycopg by itself ------------------------------------------------------------------------------------------
class _Connections:
    """Connections, as many as there are transactions at once."""

    def __init__(self, url: str, *, autocommit: bool = False) -> None:
        self._url = url
        self._autocommit = autocommit
        self._idle: list[psycopg.Connection[Any]] = []

    def take(self) -> psycopg.Connection[Any]:
        """One that is free, to be given back."""
        try:
            return self._idle.pop()
        except IndexError:
            return psycopg.connect(self._url, autocommit=self._autocommit)

    def give_back(self, connection: psycopg.Connection[Any]) -> None:
        """Lets it be used again."""
        self._idle.append(connection)

    def close(self) -> None:
        """Closes all of them."""
        for connection in self._idle:
            connection.close()


@contextmanager
def _raw_commit(url: str, _folder: Path) -> Iterator[Callable[[], None]]:
    connections = _Connections(url)

    def work() -> None:
        connection = connections.take()
        connection.execute(INSERT, (1, WORDS))
        connection.commit()
        connections.give_back(connection)

    yield work
    connections.close()


@contextmanager
def _raw_autocommit(url: str, _folder: Path) -> Iterator[Callable[[], None]]:
    connections = _Connections(url, autocommit=True)

    def work() -> None:
        connection = connections.take()
        connection.execute(INSERT, (1, WORDS))
        connections.give_back(connection)

    yield work
    connections.close()


@contextmanager
def _raw_two_phase(url: str, _folder: Path) -> Iterator[Callable[[], None]]:
    connections = _Connections(url)
    gtrid = _gtrids()

    def work() -> None:
        connection = connections.take()
        connection.tpc_begin(connection.xid(FORMAT_ID, gtrid().hex(), "raw"))
        connection.execute(INSERT, (1, WORDS))
        connection.tpc_prepare()
        connection.tpc_commit()
        connections.give_back(connection)

    yield work
    connections.close()


# --- through the XA verbs -----------------------------------------------------------------------------------------
@contextmanager
def _resource(url: str, _folder: Path) -> Iterator[Callable[[], None]]:
    rm = PostgresResource()
    rm.open(url, RMID)
    gtrid = _gtrids()

    def work() -> None:
        xid = Xid(FORMAT_ID, gtrid(), b"shop")
        rm.start(xid, RMID)
        rm.session(RMID).psycopg.execute(INSERT, (1, WORDS))
        rm.end(xid, RMID, TMSUCCESS)
        rm.prepare(xid, RMID)
        rm.commit(xid, RMID)

    yield work
    rm.close("", RMID)


@contextmanager
def _decider(url: str, _folder: Path) -> Iterator[Callable[[], None]]:
    rm = DecidingDatabase()
    rm.open(url, RMID)
    gtrid = _gtrids()
    record = bytes(60)  # as long as the manager's for one other branch

    def work() -> None:
        xid = Xid(FORMAT_ID, gtrid(), b"shop")
        rm.start(xid, RMID)
        rm.session(RMID).psycopg.execute(INSERT, (1, WORDS))
        rm.end(xid, RMID, TMSUCCESS)
        rm.decide(xid, RMID, record)
        rm.end_decisions([xid.gtrid], RMID)

    yield work
    rm.close("", RMID)


# --- through the manager ------------------------------------------------------------------------------------------
@contextmanager
def _tm_resource(url: str, folder: Path) -> Iterator[Callable[[], None]]:
    with _manager(f"file://{folder}/log", ResourceConfig(url)) as manager:
        yield lambda: _transact(manager)


@contextmanager
def _tm_decider(url: str, _folder: Path) -> Iterator[Callable[[], None]]:
    with _manager(None, ResourceConfig(url, "decider")) as manager:
        yield lambda: _transact(manager)


def _manager(log: str | None, shop: ResourceConfig) -> TransactionManager:
    store = ReferenceStore("other")
    other = ResourceConfig(store.url, factory=ReferenceFactory(store))
    return TransactionManager("bench", log, {"shop": shop, "other": other}, background=False)


def _transact(manager: TransactionManager) -> None:
    with manager.begin() as transaction:
        transaction["shop"].psycopg.execute(INSERT, (1, WORDS))
        transaction.enlist("other")


_WAYS: Final = {
    "raw_commit": _raw_commit,
    "decider": _decider,
    "raw_autocommit": _raw_autocommit,
    "raw_two_phase": _raw_two_phase,
    "resource": _resource,
    "tm_resource": _tm_resource,
    "tm_decider": _tm_decider,
}
"""Name → what gives the work of one transaction. What is compared runs one behind the other."""
