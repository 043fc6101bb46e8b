"""These tests take each thing that is stored, as this version makes it, and give it the version of 0.1.0, or of a
newer one. Whoever opens it or looks at it refuses it by that name, and not an octet of it has changed.

What 0.1.0 really left is in `0.1.0`; `test_kept` refuses that. A new thing that is stored gets a row in STORED.
"""

from __future__ import annotations

import json
import re
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import Connection, create_engine

from dtx.broker.broker import rehearse_start
from dtx.store.sql import SqlStore
from dtx.store.sql.backup import back_up as back_up_store
from dtx.store.sql.inspection import look_at_store
from dtx.store.sql.sqlite import compact
from rm_amqp import Message
from rm_db import DecidingDatabase
from rm_delta import DeltaResource
from rm_delta.lake import HOME
from tests.tm.log.samples import decision
from tm.log.backup import back_up as back_up_folder
from tm.log.factory import look_at_log, open_log
from tm.log.sql.backup import back_up_sql
from xa import Xid
from xabridge.outbox import Inbox, Outbox, Tables, TablesError
from xabridge.pipeline.core.ledger.opener import LedgerOpener
from xabridge.pipeline.core.ledger.status import look as look_at_pipelines

NODE = "orders-1"
OLD = "made by xabridge 0.1.0, which is not read any more: finish its work with that version"
NEWER = "made by a newer version: its format has version"
BESIDES = re.compile(r".*(-wal|-shm|\.lock|\.reserve|\.part)")
"""What is beside the files: locks, and space that is kept free."""


class Stored(NamedTuple):
    """`make` makes it in a folder, and `change` turns it into one of 0.1.0, or of a newer version. `opens` are the ways
    to open it and to look at it."""

    make: Callable[[Path], object]
    change: Callable[[Path, bool], object]
    opens: Sequence[Callable[[Path], object]]


def statement(*per_version: str) -> Callable[[Path, bool], None]:
    """Changes a database of SQLite: with the first statements to 0.1.0, with the last one to a newer version."""
    *old, newer = per_version

    def change(folder: Path, is_newer: bool) -> None:
        with closing(sqlite3.connect(folder / "database.db", isolation_level=None)) as connection:
            for one in [newer] if is_newer else old:
                connection.execute(one)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    return change


def url(folder: Path) -> str:
    return f"sqlite:///{folder}/database.db"


def make_log(where: str) -> None:
    log = open_log(where, NODE)
    log.decide(decision(1, node=NODE))
    log.close()


def change_segment(folder: Path, is_newer: bool) -> None:
    (segment,) = folder.glob("segment-*")
    octets = bytearray(segment.read_bytes())
    octets[:8] = b"xabrlog3" if is_newer else b"xabrlog1"
    covered = bytes(octets[12:4096])
    octets[8:12] = zlib.crc32(covered, zlib.crc32(octets[:8]) if is_newer else 0).to_bytes(4, "big")
    segment.write_bytes(octets)


def make_store(folder: Path) -> None:
    store = SqlStore(url(folder), lambda call: call())
    store.open()
    store.close()


def open_store(folder: Path) -> None:
    SqlStore(url(folder), lambda call: call()).open()


def open_decider(folder: Path) -> None:
    rm = DecidingDatabase()
    rm.open(url(folder), 1)
    rm.close("", 1)


def open_outbox(folder: Path) -> None:
    engine = create_engine(url(folder))
    try:
        Tables().create(engine)
    finally:
        engine.dispose()


def put(connection: Connection) -> object:
    return Outbox().put(connection, "orders", Message("1"))


def put_all(connection: Connection) -> object:
    return Outbox().put_all(connection, "orders", [Message("1"), Message("2")])


def is_new(connection: Connection) -> object:
    return Inbox("orders").is_new(connection, "1")


def ledger(folder: Path) -> LedgerOpener:
    return LedgerOpener(url(folder), "orders", sleep=lambda _: None)


def open_lake(folder: Path) -> None:
    DeltaResource().open(f"delta://{folder}", 1)


def make_lake(folder: Path) -> None:
    open_lake(folder)
    name = str(Xid(7, b"gtrid", b"bqual")).replace("/", ".")
    manifest = {"version": 2, "xid": str(Xid(7, b"gtrid", b"bqual")), "application": "a", "appends": []}
    (folder / HOME / "branches" / f"0~{name}.prepared").write_text(json.dumps(manifest))


def change_manifest(folder: Path, is_newer: bool) -> None:
    (path,) = (folder / HOME / "branches").iterdir()
    manifest = json.loads(path.read_text())
    if is_newer:
        manifest["version"] = 3
    else:
        del manifest["version"]
        manifest["tables"] = manifest.pop("appends")
    path.write_text(json.dumps(manifest))


WITHOUT_DECIDERS_VERSION = (
    "DROP TABLE xabridge_owner",
    "ALTER TABLE xabridge_decider DROP COLUMN version",
    "ALTER TABLE xabridge_decider ADD COLUMN incarnation BIGINT NOT NULL DEFAULT 0",
)
STORED: Mapping[str, Stored] = {
    "log in files": Stored(
        lambda folder: make_log(f"file://{folder}"),
        change_segment,
        (
            lambda folder: open_log(f"file://{folder}", NODE),
            lambda folder: look_at_log(f"file://{folder}", NODE),
            lambda folder: back_up_folder(folder, folder.with_name("copy")),
        ),
    ),
    "log in a database": Stored(
        lambda folder: make_log(url(folder)),
        statement("UPDATE xabridge_schema SET version = 2", "UPDATE xabridge_schema SET version = 4"),
        (
            lambda folder: open_log(url(folder), NODE),
            lambda folder: open_log(url(folder), "another"),
            lambda folder: look_at_log(url(folder), NODE),
            lambda folder: back_up_sql(url(folder), NODE, folder.with_name("copy.db")),
        ),
    ),
    "ledger": Stored(
        lambda folder: ledger(folder).take("driver").close(),
        statement(
            "UPDATE xabridge_schema SET version = 2",
            "DROP TABLE xabridge_pipeline_result",
            "UPDATE xabridge_schema SET version = 4",
        ),
        (
            lambda folder: ledger(folder).take("driver-2"),
            lambda folder: ledger(folder).join("driver"),
            lambda folder: ledger(folder).look("query"),
            lambda folder: look_at_pipelines(url(folder), ()),
        ),
    ),
    "log of a manager, which a pipeline opens": Stored(
        lambda folder: make_log(url(folder)),
        statement("UPDATE xabridge_schema SET version = 2", "UPDATE xabridge_schema SET version = 4"),
        (lambda folder: ledger(folder).join("driver", takes=True),),
    ),
    "store of a broker": Stored(
        make_store,
        statement(
            "UPDATE dtx_meta SET value = 1 WHERE name = 'version'",
            "DROP TABLE dtx_record",
            "UPDATE dtx_meta SET value = 3 WHERE name = 'version'",
        ),
        (
            open_store,
            lambda folder: look_at_store(url(folder), rehearse_start),
            lambda folder: back_up_store(url(folder), folder.with_name("copy.db")),
            lambda folder: compact(url(folder)),
        ),
    ),
    "database that decides": Stored(
        open_decider,
        statement(*WITHOUT_DECIDERS_VERSION, "UPDATE xabridge_decider SET version = 3"),
        (open_decider,),
    ),
    "outbox": Stored(
        open_outbox,
        statement(
            "ALTER TABLE xabridge_outbox_lane DROP COLUMN version",
            "ALTER TABLE xabridge_outbox DROP COLUMN version",
            "DROP TABLE xabridge_inbox",
            "UPDATE xabridge_outbox_lane SET version = 3",
        ),
        (open_outbox,),
    ),
    "inbox": Stored(
        open_outbox,
        statement(
            "ALTER TABLE xabridge_inbox DROP COLUMN version",
            "INSERT INTO xabridge_inbox (digest, consumer, message_id, received, version) VALUES ('0', 'c', 'm', 0, 3)",
        ),
        (open_outbox,),
    ),
    "Delta manifest": Stored(make_lake, change_manifest, (open_lake,)),
}


def octets(folder: Path) -> dict[str, bytes]:
    """The files in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not BESIDES.fullmatch(path.name)
    }


@pytest.mark.parametrize("is_newer", [False, True], ids=["0.1.0", "newer"])
@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
def test_another_version_is_refused_by_its_name_and_nothing_is_changed(
    stored: Stored, tmp_path: Path, *, is_newer: bool
) -> None:
    folder = tmp_path / "stored"
    folder.mkdir()
    stored.make(folder)
    stored.change(folder, is_newer)
    before = octets(folder)
    for opens in stored.opens:
        with pytest.raises(Exception, match=re.escape(NEWER if is_newer else OLD)) as refused:
            opens(folder)
        assert type(refused.value).__module__.partition(".")[0] in {"dtx", "rm_db", "tm", "xa", "xabridge"}, "ours"
        assert octets(folder) == before
    assert not list(tmp_path.glob("copy*")), "nothing is left of a copy that was refused"


@pytest.mark.parametrize(("name", "writes"), [("outbox", put), ("outbox", put_all), ("inbox", is_new)])
def test_a_row_for_a_table_of_0_1_0_is_refused_by_that_name(
    name: str, writes: Callable[[Connection], object], tmp_path: Path
) -> None:
    """An application puts and asks without opening the tables first."""
    folder = tmp_path / "stored"
    folder.mkdir()
    STORED[name].make(folder)
    STORED[name].change(folder, False)
    before = octets(folder)

    engine = create_engine(url(folder))
    with pytest.raises(TablesError, match=re.escape(OLD)), engine.begin() as connection:
        writes(connection)
    engine.dispose()
    assert octets(folder) == before


LOST: Mapping[str, tuple[str, str]] = {
    "log in a database": ("DROP TABLE xabridge_schema", r"lacks the table xabridge_schema"),
    "store of a broker": ("DROP TABLE dtx_meta", "lacks the table dtx_meta"),
    "database that decides": ("DROP TABLE xabridge_decider", "the table xabridge_decider is missing"),
}


@pytest.mark.parametrize("name", LOST)
def test_tables_that_have_lost_their_version_are_not_taken_for_new(name: str, tmp_path: Path) -> None:
    stored, (lost, said) = STORED[name], LOST[name]
    folder = tmp_path / "stored"
    folder.mkdir()
    stored.make(folder)
    statement(lost)(folder, True)
    before = octets(folder)
    with pytest.raises(Exception, match=said):
        stored.opens[0](folder)
    assert octets(folder) == before
