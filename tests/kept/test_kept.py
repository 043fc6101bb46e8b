"""These tests open what each version has left (`tests.kept.make`), and finish what is in doubt there: stores of
brokers, logs of both kinds, decisions at a broker and in a database that decide, and the ledger of a pipeline. What
0.1.0 has left is refused, and stays as it is.

The files are copied, because opening them changes them. So a log knows that it is a copy, and leaves alone what was not
decided, until it is told that it is the newest.
"""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from dtx.broker.broker import rehearse_start
from dtx.store.contract import StoreError
from dtx.store.sql import SqlStore
from dtx.store.sql.inspection import look_at_store
from rm_amqp import AmqpResource
from tests.kept.make import BATCH, LARGE, STANDING
from tests.kept.pipeline import END, batch, settings_of
from tests.kept.processes import DATABASE, DECIDED, KINDS, UNDECIDED, manager
from tests.postgres import Postgres
from tm import TransactionManager
from tm.log import LogError
from tm.log.factory import look_at_log, open_log
from xa import TMENDRSCAN, TMSTARTRSCAN
from xabridge.cli import main
from xabridge.outbox import Inbox, OutboxStore
from xabridge.pipeline.core.ledger.opener import LedgerOpener
from xabridge.testing.broker import BrokerProcess

HERE = Path(__file__).parent
REFUSED = HERE / "0.1.0"
VERSIONS = sorted(folder for folder in HERE.iterdir() if (folder / "log.db.gz").exists() and folder != REFUSED)
NAMED = "made by xabridge 0.1.0, which is not read any more: finish its work with that version"


@pytest.fixture(params=VERSIONS, ids=lambda folder: folder.name)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the files of a version."""
    unpack(request.param, tmp_path)
    return tmp_path


def unpack(version: Path, folder: Path) -> None:
    """Puts the files of a version into a folder."""
    for packed in version.rglob("*.gz"):
        file = folder / packed.relative_to(version).with_suffix("")
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(gzip.decompress(packed.read_bytes()))


def restored(postgres: Postgres, dump: str) -> str:
    """A database with what a dump has; its URL."""
    url = postgres.create_database()
    ours = [line for line in dump.splitlines() if not line.startswith(("\\", "SET ", "SELECT pg_catalog.set_config"))]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("\n".join(ours).encode())
    return url


@contextmanager
def brokers(folder: Path, database: str) -> Iterator[list[str]]:
    """Brokers of this version on the stores; their URLs."""
    started = [BrokerProcess(folder / name) for name in ("broker", "warehouse")]
    (folder / "depot").mkdir()
    started.append(BrokerProcess(folder / "depot", "--listen", "127.0.0.1:0", "--store", database))
    try:
        for broker in started:
            broker.start()
        yield [f"amqp://127.0.0.1:{broker.port}" for broker in started]
    finally:
        for broker in started:
            broker.kill()


def test_every_version_has_files() -> None:
    assert VERSIONS


def refused(*commands: Callable[[], object]) -> None:
    """Each of them says which version has made what it opens."""
    for command in commands:
        with pytest.raises((LogError, StoreError), match=NAMED):
            command()


def test_what_0_1_0_has_left_is_refused_by_its_name_and_not_changed(tmp_path: Path) -> None:
    unpack(REFUSED, tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for url, node in ((f"file://{tmp_path}/log", "kept-file"), (f"sqlite:///{tmp_path}/log.db", "kept-sql")):
        refused(lambda: open_log(url, node), lambda: look_at_log(url, node))  # noqa: B023 — called at once
    ledger = LedgerOpener(f"sqlite:///{tmp_path}/ledger.db", "kept", sleep=lambda _: None)
    refused(lambda: ledger.take("driver-2"), lambda: ledger.join("driver-1"))
    for name in ("broker", "warehouse"):
        store = f"sqlite:///{tmp_path}/{name}/store.db"
        refused(SqlStore(store, lambda call: call()).open, lambda: look_at_store(store, rehearse_start))  # noqa: B023 — as above
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.slow
def test_what_0_1_0_has_left_in_postgresql_is_refused_by_its_name_and_not_changed(
    tmp_path: Path, postgres: Postgres
) -> None:
    unpack(REFUSED, tmp_path)
    database = restored(postgres, (tmp_path / "postgres.sql").read_text())
    before = dump_of(database)
    ledger = LedgerOpener(database, "kept", sleep=lambda _: None)
    refused(
        lambda: open_log(database, "kept-postgres"),
        lambda: look_at_log(database, "kept-postgres"),
        lambda: ledger.take("driver-2"),
        lambda: ledger.join("driver-1"),
        SqlStore(database, lambda call: call()).open,
        lambda: look_at_store(database, rehearse_start),
    )
    assert dump_of(database) == before


@pytest.mark.slow
def test_commands_say_that_0_1_0_has_made_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unpack(REFUSED, tmp_path)
    config = tmp_path / "xabridge.toml"
    config.write_text(
        f'node = "kept-file"\nlog = "file://{tmp_path}/log"\n[resources]\nbroker = "amqp://127.0.0.1:1"\n'
    )
    store = f"sqlite:///{tmp_path}/broker/store.db"

    for command in (
        ["recover", "list", "--config", str(config)],
        ["recover", "run", "--config", str(config)],
        ["check", "--config", str(config), "--store", f"broker={store}"],
        ["doctor", "--config", str(config)],
        ["broker", "backup", "--store", store, str(tmp_path / "copy.db")],
        ["broker", "--store", store, "--listen", "127.0.0.1:0"],
    ):
        code = main(command)
        said = capsys.readouterr()
        assert code not in {0, None}, command
        assert NAMED in " ".join((said.out + said.err).split()), command


@pytest.mark.slow
def test_a_look_changes_nothing_and_finds_what_is_in_doubt(kept: Path) -> None:
    before = {file: file.read_bytes() for file in kept.rglob("*.*") if file.is_file()}
    image = look_at_store(f"sqlite:///{kept}/broker/store.db", rehearse_start)
    assert image.faults == ()
    assert len(image.branches) >= 2 * len(KINDS) - 2  # where the broker decides, it has no branches
    held = {(one.queue, one.sends, one.count) for branch in image.branches for one in branch.holds}
    assert {("orders-file", False, 1), ("invoices-file", True, 1), ("orders-sql", False, 1)} <= held

    config = kept / "xabridge.toml"
    config.write_text(
        f'node = "kept-file"\nlog = "file://{kept}/log"\n'
        '[resources]\nbroker = "amqp://127.0.0.1:1"\nwarehouse = "amqp://127.0.0.1:1"\n'
    )
    stores = [f"--store={name}=sqlite:///{kept}/{name}/store.db" for name in ("broker", "warehouse")]
    command = [sys.executable, "-m", "xabridge.cli", "check", "--config", str(config), *stores]
    said = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    assert "decided; recovery commits it on broker" in " ".join(said.split())
    assert "left alone on broker (2 messages: 1 from orders-file, 1 to invoices-file)" in " ".join(said.split())
    assert {file: file.read_bytes() for file in before} == before


@pytest.mark.slow
def test_a_copy_is_made_of_it(kept: Path) -> None:
    assert main(["broker", "backup", "--store", f"sqlite:///{kept}/broker/store.db", f"{kept}/copy.db"]) == 0
    assert look_at_store(f"sqlite:///{kept}/copy.db", rehearse_start).faults == ()


@pytest.mark.slow
def test_what_is_in_doubt_is_finished_and_what_stands_is_there(
    kept: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = restored(postgres, (kept / "postgres.sql").read_text())
    monkeypatch.setenv(DATABASE, database)
    with brokers(kept, database) as urls:
        broker, warehouse, depot = urls
        for kind in KINDS:
            with manager(kind, kept, broker, depot if kind == "postgres" else warehouse) as tm:
                report = tm.recover()
                if tm.log is not None:
                    assert waiting(tm, "broker", f"orders-{kind}") == [], kind
                    (incarnation,) = tm.log.incarnations.cut
                    tm.log.trust(incarnation)
                    report = tm.recover()
                assert report.clean, kind
                assert waiting(tm, "broker", f"orders-{kind}") == [UNDECIDED], kind
                assert waiting(tm, "broker", f"invoices-{kind}") == [DECIDED], kind
                assert waiting(tm, "warehouse", f"parcels-{kind}") == [DECIDED], kind
        handled_and_put_is_what_was_decided(database)
        with TransactionManager("reader", f"file://{kept}/reader", {"broker": broker}, background=False) as tm:
            *few, large = waiting(tm, "broker", "standing")
            assert tuple(few) == STANDING
            assert large == bytes(LARGE)
            assert waiting(tm, "broker", "faulty.dead") == ["refused"]

        for ledger, queue in ((f"sqlite:///{kept}/ledger.db", "orders"), (database, "orders-for-postgres")):
            assert batch(settings_of(ledger, broker), queue, "driver-2", "run-2", END).before
            with TransactionManager("reader", f"file://{kept}/reader", {"broker": broker}, background=False) as tm:
                assert waiting(tm, "broker", queue) == []
        with TransactionManager("reader", f"file://{kept}/reader", {"broker": broker}, background=False) as tm:
            assert sorted(body.decode() for body in waiting(tm, "broker", "alerts")) == sorted([*BATCH, *BATCH])
        for url in urls:
            rm = AmqpResource()
            rm.open(url, 1)
            in_doubt = rm.recover(1, TMSTARTRSCAN | TMENDRSCAN)
            rm.close("", 1)
            assert in_doubt == []


def handled_and_put_is_what_was_decided(database: str) -> None:
    """In the inbox and the outbox."""
    store = OutboxStore.at(database)
    store.open(with_inbox=True)
    assert store.figures().waiting == 1
    with store.engine.begin() as connection:
        new = [Inbox("kept").is_new(connection, str(number)) for number in (UNDECIDED, DECIDED)]
    store.close()
    assert new == [True, False]


def dump_of(database: str) -> dict[str, list[str]]:
    """The rows of each table."""
    with psycopg.connect(database) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        return {
            name: sorted(map(repr, connection.execute(sql.SQL("TABLE {}").format(sql.Identifier(name)))))
            for (name,) in names
        }


def waiting(tm: TransactionManager, resource: str, queue: str) -> list[Any]:
    """The messages of a queue, which stay there."""
    tx = tm.begin()
    try:
        return [message.body for message in tx[resource].browse(queue)]
    finally:
        tx.rollback()
