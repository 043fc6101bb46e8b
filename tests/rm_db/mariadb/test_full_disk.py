"""These tests fill the disk of a MariaDB while transactions are at work, prepared branches wait, an outbox is in use.
The server may refuse statements, or die. With room again, and started again, everything is there or nothing of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rm_db import MariaResource
from tests.dtx.test_full_disk import fill, mounted
from tm import ResourceConfig, TransactionError, TransactionManager
from xa import TMSUCCESS, Code, Xid
from xabridge import Message
from xabridge.outbox import Outbox, OutboxStore, Tables
from xabridge.testing.mariadb import MariaDB, installed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not installed(), reason="MariaDB is not installed"),
]

MEGABYTES = 160
ORPHAN = Xid(7, b"orphan", b"b")
MUCH = 300_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MariaDB]:
    """One of the test's own, on a small disk."""
    with mounted(tmp_path / "disk", MEGABYTES) as folder:
        server = MariaDB(folder=folder / "server")
        server.start()
        yield server
        server.remove()


def test_prepared_branches_and_an_outbox_survive_it(server: MariaDB, tmp_path: Path) -> None:
    urls = [server.create_database("mariadb"), server.create_database("mariadb")]
    shop, ledger = (url.rpartition("/")[2] for url in urls)
    server.admin(
        f"CREATE TABLE {shop}.orders (id integer PRIMARY KEY, body longtext) ENGINE = InnoDB",
        f"CREATE TABLE {ledger}.entries (id integer PRIMARY KEY) ENGINE = InnoDB",
    )
    outbox = Outbox()
    store = OutboxStore(sa.create_engine(urls[0].replace("mariadb:", "mariadb+pymysql:")), Tables())
    store.open(with_inbox=True)
    other = MariaResource()
    other.open(urls[0], 1)
    other.start(ORPHAN, 1)
    session: Any = other.session(1)
    session.pymysql.query("INSERT INTO orders VALUES (1000000, 'of another')")
    other.end(ORPHAN, 1, TMSUCCESS)
    assert other.prepare(ORPHAN, 1) is Code.XA_OK

    numbers = itertools.count(1)
    committed: set[int] = set()
    unsure: set[int] = set()

    def work(tm: TransactionManager, size: int) -> None:
        number = next(numbers)
        try:
            with tm.begin() as tx:
                tx["ledger"].execute(sa.text("INSERT INTO entries VALUES (:n)"), {"n": number})
                tx["shop"].execute(
                    sa.text("INSERT INTO orders VALUES (:n, repeat('x', :size))"), {"n": number, "size": size}
                )
                outbox.put(tx["shop"], "orders", Message(str(number)))
            committed.add(number)
        except (TransactionError, sa.exc.DBAPIError) as error:
            if type(error).__name__ == "OutcomeUnknown":
                unsure.add(number)

    resources = {"shop": ResourceConfig(urls[0]), "ledger": ResourceConfig(urls[1])}
    with TransactionManager("node-1", f"file://{tmp_path}/log", resources, background=False) as tm:
        for _ in range(3):
            work(tm, 100)
        assert committed == {1, 2, 3}
        filler = fill(tmp_path / "disk")
        for _ in range(12):
            work(tm, MUCH)
        assert len(committed) < 15, "the disk was not full"
        filler.unlink()
        server.stop(immediate=True)  # unless it has died
        server.start()
        for _ in range(50):
            if tm.recover().clean:
                break
        assert tm.recover().clean
        work(tm, 100)
        assert max(committed) == 16

    assert other.commit(ORPHAN, 1) is Code.XA_OK
    other.close("", 1)
    entries = {row[0] for row in server.ask(f"SELECT id FROM {ledger}.entries")}  # noqa: S608 — a name of ours
    orders = {row[0] for row in server.ask(f"SELECT id FROM {shop}.orders")}  # noqa: S608 — a name of ours
    assert orders - {1_000_000} == entries
    assert 1_000_000 in orders
    assert committed <= entries <= committed | unsure
    store.engine.dispose()  # its connection was the dead server's
    assert store.figures().waiting == len(entries)
    assert server.ask("XA RECOVER") == []
    store.engine.dispose()
