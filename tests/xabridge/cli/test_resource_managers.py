"""These tests run the commands over real databases and a broker: what prepared transactions lock there, and what doctor
reports about a server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from rm_amqp import Message
from tests.postgres import Postgres
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.traffic import Traffic
from tm import TransactionManager
from xa import FORMAT_ID, Gtrid, Xid
from xabridge.cli import main


class Shop:
    """A node with two databases, and the commands for it."""

    def __init__(self, folder: Path, urls: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
        self.config = folder / "xabridge.toml"
        self.urls = urls
        resources = "\n".join(f'{name} = "{url}"' for name, url in urls.items())
        self.config.write_text(f'node = "orders-1"\nlog = "file://{folder}/log"\n[resources]\n{resources}\n')
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str]:
        self._capsys.readouterr()
        code = main([*arguments, "--config", str(self.config)])
        return code, self._capsys.readouterr().out

    def doctor(self) -> tuple[int, dict[tuple[str, str], Any]]:
        """Its exit code, and each check by what it is of and what it checks."""
        code, out = self.run("doctor", "--json")
        return code, {(check["of"], check["check"]): check for check in json.loads(out)["checks"]}

    def sql(self, name: str, statement: str) -> list[tuple[object, ...]]:
        with psycopg.connect(self.urls[name], autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def prepare(
        self, name: str, statement: str, sequence: int, log_id: bytes = b"\x7f" * 8, incarnation: bytes | int = 1
    ) -> Xid:
        """A prepared transaction of this node's name, with another log."""
        xid = Xid(FORMAT_ID, Gtrid("orders-1", log_id, incarnation, sequence).encode(), name.encode())
        self.sql(name, f"BEGIN; {statement}; PREPARE TRANSACTION '{xid}'")
        return xid


@pytest.fixture
def shop(tmp_path: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]) -> Iterator[Shop]:
    made = Shop(tmp_path, {name: postgres.create_database() for name in ("shop", "stock")}, capsys)
    for name in made.urls:
        made.sql(name, "CREATE TABLE orders (id int PRIMARY KEY)")
        made.sql(name, 'CREATE TABLE "odd table\n" (id int)')
    yield made
    for url in made.urls.values():
        with psycopg.connect(url, autocommit=True) as connection:
            for (gid,) in connection.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            ).fetchall():
                connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())


def opened_log(shop: Shop) -> tuple[bytes, bytes]:
    """The node's log exists from here on."""
    with TransactionManager.from_config(shop.config) as tm:
        assert tm.log is not None
        return tm.log.log_id, tm.log.incarnation


def test_what_is_held_and_by_whom(shop: Shop) -> None:
    shop.prepare("shop", 'INSERT INTO orders VALUES (1), (2); SELECT FROM "odd table\n"', 1)
    shop.prepare("stock", 'TRUNCATE "odd table\n"; INSERT INTO orders VALUES (3)', 1)
    code, out = shop.run("recover", "list", "--json")
    assert code == 3
    (transaction,) = json.loads(out)["transactions"]
    branches = {branch["resource"]: branch for branch in transaction["branches"]}
    (rows,) = branches["shop"]["holds"]
    assert (rows["place"], rows["unit"], rows["count"]) == ("public.orders", "row", None)

    assert rows["note"] == "RowExclusiveLock"
    assert [held["place"] for held in branches["stock"]["holds"]] == ["public.odd table\n", "public.orders"]
    assert branches["stock"]["holds"][0]["unit"] == "table"
    assert branches["shop"]["owner"] == "postgres"
    assert 0 <= branches["shop"]["age_s"] < 3600
    code, out = shop.run("recover", "list")
    assert "    rows locked in public.orders\n" in out
    assert "tables locked in public.odd table\\n" in out


def test_doctor(shop: Shop) -> None:
    opened_log(shop)
    shop.prepare("shop", "INSERT INTO orders VALUES (1)", 1)
    code, found = shop.doctor()
    assert found["shop", "reachable"]["found"].startswith("PostgreSQL 1")
    prepared = found["shop", "max_prepared_transactions"]
    assert prepared["health"] == "ok"
    assert prepared["found"] == "max_prepared_transactions is 100, 1 in use"
    assert found["clock", "clock"]["health"] == "ok"
    assert found["node", "node id"]["health"] == "fail", "another log has the same node id"

    assert code == 1
    url = shop.urls["shop"]
    text = shop.config.read_text().replace(url, url.rpartition("/")[0] + "/nowhere")
    text += 'down = "postgresql://127.0.0.1:1/nowhere"\nodd = "postgresql://x/y?xa_nonsense=1"\n'
    shop.config.write_text(text)
    code, found = shop.doctor()
    assert code == 1
    assert 'database "nowhere" does not exist' in found["shop", "credentials"]["found"]
    assert found["down", "reachable"]["health"] == "fail"
    assert found["odd", "open string"]["health"] == "fail"
    assert found["stock", "reachable"]["health"] == "ok", "the others are looked at all the same"


def test_doctor_of_a_server_without_prepared_transactions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], postgres: Postgres
) -> None:
    del postgres  # the fixture marks this test as one that needs a server
    server = Postgres({"max_prepared_transactions": "0"})
    try:
        server.start()
        shop = Shop(tmp_path, {"shop": server.url}, capsys)
        assert shop.run("recover", "list")[0] == 4
        code, out = shop.run("doctor")
        assert code == 1

        assert "fail  shop       max_prepared_transactions is 0\n" in out
        assert 'or use mode = "decider"' in " ".join(out.split())
        text = shop.config.read_text().replace(f'"{server.url}"', f'{{ url = "{server.url}", mode = "decider" }}')
        shop.config.write_text("\n".join(line for line in text.splitlines() if not line.startswith("log")))
        code, out = shop.run("doctor")
        assert code == 0
        assert "ok    log        none: decisions live in shop\n" in out
    finally:
        server.remove()


def test_doctor_of_a_sqlite_database_that_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Shop(tmp_path, {}, capsys)
    place = f"sqlite:///{tmp_path}/ledger.db"
    shop.config.write_text(f'node = "n"\n[resources]\nledger = {{ url = "{place}", mode = "decider" }}\n')
    code, found = shop.doctor()
    assert code == 0
    assert found["ledger", "reachable"]["found"].endswith("there is none yet; the first start makes it")


def test_messages_are_counted_by_queue(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"amqp://{broker.address}/?timeout=20"
    shop = Shop(tmp_path, {"broker": url}, capsys)
    with TransactionManager.from_config(shop.config) as tm:
        with tm.begin() as tx:
            tx["broker"].send("orders", Message("order"))
        assert tm.log is not None
        tm.log.note_ceiling(2**40)
        gtrid = Gtrid("orders-1", tm.log.log_id, tm.log.incarnation, 8231).encode()
    xid = Xid(FORMAT_ID, gtrid, b"broker")
    with closing(Traffic(url)) as traffic:
        traffic.prepare(xid, "orders", "invoices")

    code, out = shop.run("recover", "list")
    assert code == 3
    assert "    2 messages: 1 from orders, 1 to invoices\n" in out
    _, found = shop.doctor()
    assert found["broker", "usable"]["health"] == "ok"
    code, out = shop.run("recover", "run")
    assert (code, out) == (0, f"{Gtrid.decode(gtrid)} rolled back on broker\n")
    assert shop.run("recover", "list")[0] == 0
    broker.stop()
    code, out = shop.run("recover", "list")
    assert code == 4
    assert "broker could not be reached: " in out
    code, out = shop.run("doctor")
    assert code == 1
    assert "start the broker, or make it reachable from this machine" in " ".join(out.split())
