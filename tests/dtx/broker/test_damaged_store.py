"""Stores in a file whose octets were changed: a broker starts, or says in a sentence that it can't, and never fails
with another error; and `look_at_store`, which is `xabridge check`, says which table is damaged."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Engine, event

from dtx.amqp.encoding import encode
from dtx.amqp.messages import value_message
from dtx.broker.access.permissions import EVERYTHING, Permissions
from dtx.broker.broker import Broker, SystemClock, rehearse_start
from dtx.broker.container import Container
from dtx.broker.queues.outcomes import TAKEN_OCTETS
from dtx.broker.queues.queue import Queue
from dtx.broker.settings import Settings
from dtx.store.contract import CHUNK, PENDING, StoreDamaged, StoreError, read_held_messages
from dtx.store.sql import SqlStore
from dtx.store.sql.inspection import look_at_store
from dtx.store.sql.sqlite import PAGE_SIZE
from dtx.store.sql.tables import METADATA
from rm_amqp import Message
from tests.dtx.store.stores import Place
from tests.memory_disk import as_unprivileged, new_folder
from tests.rm_amqp.embedded import EmbeddedBroker
from tm import TransactionManager
from xa import Code, Xid

FLIPS: Final = int(os.environ.get("XABRIDGE_SCHEDULES", "80"))


@pytest.fixture
def tmp_path() -> Path:
    """A folder in memory: a store is opened some thousand times, and each time it forces."""
    return new_folder("damaged")


@pytest.fixture
def octets() -> bytes:
    return whole_store()


@cache
def whole_store() -> bytes:
    """The file of a store with rows in every table."""
    path = new_folder("whole") / "store.db"
    place = Place(f"sqlite:///{path}")
    opened = place.open()
    numbers = iter(range(opened.first, opened.first + 1000))
    queue = next(numbers)
    with opened.batch() as batch:
        batch.create_queue(queue, "orders")
        messages = [next(numbers) for _ in range(40)]
        for count, message in enumerate(messages):
            batch.enqueue(message, queue, message, value_message(encode("x" * 30 * count)))
        large = next(numbers)
        batch.enqueue(large, queue, large, value_message(encode("y" * CHUNK)))

        for number in range(4):
            posted = next(numbers)
            batch.enqueue(posted, queue, PENDING, value_message(encode("z")))
            work = {"enqueues": [posted], "dequeues": [(messages[number], TAKEN_OCTETS)]}
            batch.prepare(next(numbers), Xid(7, b"%d" % number, b"b"), "ada", 1000, **work)  # type: ignore[arg-type]
        completed = next(numbers)
        batch.prepare(completed, Xid(7, b"by hand", b"b"), "ada", 1000)
        batch.complete(completed, Code.XA_HEURCOM, 1001)
        batch.fence(b"fenced", "ada", 1000)
        batch.record(queue, "configured", json.dumps({"queue": "orders"}))
    place.close()
    return path.read_bytes()


def put(path: Path, octets: bytes) -> str:
    """The URL of a store with these octets."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    path.write_bytes(octets)
    return f"sqlite:///{path}"


def started(url: str) -> str:
    """What a broker says that opens this store; empty where it starts."""
    store = SqlStore(url, lambda _: None)
    container = Container(store, SystemClock(), Settings(), Permissions({"*": EVERYTHING}), lambda _: None)
    try:
        container.open()
    except StoreError as error:
        return str(error)
    finally:
        store.close()
    return ""


def checked(url: str) -> str:
    """What `xabridge check` says is wrong with a store; empty for nothing."""
    try:
        return "; ".join(look_at_store(url, rehearse_start).faults)
    except StoreError as error:
        return str(error)


def agreed(url: str, where: str) -> tuple[str, str]:
    """What both say, in sentences; what keeps a broker from starting is found by `xabridge check`."""
    try:
        found = checked(url)
        said = started(url)
        assert not said or "in use" not in started(url), where
    except Exception as error:
        raise AssertionError(f"{where}: {error!r}") from error
    assert not said or found, f"{where}: {said}"
    return found, said


@pytest.mark.slow
def test_a_store_with_any_octets_changed_starts_or_says_why_it_does_not(octets: bytes, tmp_path: Path) -> None:
    """In every page, one octet or many. What could not be started can be tried again in the same process."""
    seed = int(os.environ.get("XABRIDGE_SEED", random.randrange(1 << 32)))
    pages = len(octets) // PAGE_SIZE
    for number in range(FLIPS):
        drawn = random.Random(seed + number)
        damaged = bytearray(octets)
        for _ in range(drawn.choice([1, 2, 8, 64])):
            damaged[number % pages * PAGE_SIZE + drawn.randrange(PAGE_SIZE)] ^= drawn.randrange(1, 256)
        where = f"XABRIDGE_SEED={seed}, number {number} ({digest(octets)})"
        agreed(put(tmp_path / "damaged.db", bytes(damaged)), where)


def digest(octets: bytes) -> str:
    """By what another run knows that it has the same store."""
    return sha256(octets).hexdigest()[:12]


@pytest.mark.slow
def test_rows_with_any_octets_changed(octets: bytes, tmp_path: Path) -> None:
    """In the rows themselves, which a page of a small store has little of: where they stand, and what is in them."""
    seed = int(os.environ.get("XABRIDGE_SEED", random.randrange(1 << 32)))
    used = [at for at, octet in enumerate(octets) if octet and octet != ord("x") and octet != ord("y")]
    for number in range(FLIPS):
        drawn = random.Random(seed + number)
        damaged = bytearray(octets)
        for _ in range(drawn.choice([1, 1, 1, 2, 4])):
            damaged[drawn.choice(used)] = drawn.randrange(256)
        where = f"XABRIDGE_SEED={seed}, number {number} ({digest(octets)})"
        agreed(put(tmp_path / "damaged.db", bytes(damaged)), where)


VALUES: Final = (-1, 1 << 62, 1.5, "text", "", b"octets", b"", None)
UNREAD: Final = {"dtx_payload", "dtx_chunk"}
"""Tables that a start does not read."""


@pytest.mark.slow
@pytest.mark.parametrize("table", sorted(METADATA.tables))
def test_a_value_that_no_broker_wrote(octets: bytes, tmp_path: Path, table: str) -> None:
    """In every column, of one row or of all. Values of other types are refused, by both."""
    for column in METADATA.tables[table].columns:
        for value in VALUES:
            for rows in ("", f" WHERE {column.name} = (SELECT max({column.name}) FROM {table})"):  # noqa: S608
                url = put(tmp_path / "changed.db", octets)
                try:
                    with closing(sqlite3.connect(tmp_path / "changed.db")) as connection, connection:
                        connection.execute(f"UPDATE {table} SET {column.name} = ?{rows}", (value,))  # noqa: S608
                except sqlite3.Error:
                    continue  # SQLite refuses it
                where = f"{table}.{column.name} = {value!r}{rows}"
                found, said = agreed(url, where)
                of_its_type = stored_types(tmp_path / "changed.db", column) <= {column.type.python_type.__name__}
                assert of_its_type or (found and (said or table in UNREAD)), where


def stored_types(path: Path, column: Any) -> set[str]:
    """The types of the values in a column, those that SQLite has made of them."""
    with closing(sqlite3.connect(path)) as connection:
        values = connection.execute(f"SELECT {column.name} FROM {column.table.name}").fetchall()  # noqa: S608
    return {type(value).__name__ for (value,) in values if value is not None or not column.nullable}


@pytest.mark.slow
def test_what_a_schema_lacks(octets: bytes, tmp_path: Path) -> None:
    """A table or a column that has another name."""
    for table in METADATA.sorted_tables:
        for change in (
            f"RENAME TO x{table.name}",
            *(f"RENAME COLUMN {one.name} TO x{one.name}" for one in table.columns),
        ):
            url = put(tmp_path / "changed.db", octets)
            with closing(sqlite3.connect(tmp_path / "changed.db")) as connection, connection:
                connection.execute(f"ALTER TABLE {table.name} {change}")
            for said in agreed(url, change):
                assert "lacks" in said
                assert table.name in said
                assert "restore it from a copy" in said


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("DELETE FROM dtx_meta WHERE name = 'openings'", "does not say how often it was opened"),
        ("UPDATE dtx_meta SET value = 1 << 23 WHERE name = 'openings'", "does not say how often it was opened"),
        ("UPDATE dtx_meta SET value = 0 WHERE name = 'openings'", "has numbers of a later opening"),
        (
            "UPDATE dtx_message SET position = (SELECT max(position) FROM dtx_message) WHERE position > 0",
            "two messages in one place",
        ),
        ("DELETE FROM dtx_branch", "lacks branches that hold messages"),
        ("DELETE FROM dtx_message WHERE position = 0", "lacks messages that prepared branches post"),
        ("UPDATE dtx_branch SET held = x''", "lacks branches that hold messages"),
        ("UPDATE dtx_branch SET held = x'0000'", "a row of the table dtx_branch"),
        ("UPDATE dtx_branch SET held = substr(held, 1, 20) WHERE held != x''", "a row of the table dtx_branch"),
        ("UPDATE dtx_record SET kind = 'user'", "a row of the store is damaged"),
        ("UPDATE dtx_record SET kind = 'user', text = '[1, 2, 3]'", "a row of the store is damaged"),
    ],
)
def test_what_does_not_fit_together_is_refused_and_found(octets: bytes, tmp_path: Path, change: str, says: str) -> None:
    url = put(tmp_path / "changed.db", octets)
    with closing(sqlite3.connect(tmp_path / "changed.db")) as connection, connection:
        connection.execute(change)
    assert all(says in said for said in agreed(url, change))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE dtx_message SET delivery_count = -1", "has -1 in delivery_count"),
        ("UPDATE dtx_message SET delivery_count = 8589934592", "has 8589934592 in delivery_count"),
        ("UPDATE dtx_message SET expires_ms = -1", "has -1 in expires_ms"),
        ("UPDATE dtx_message SET expires_ms = 1 << 60", "in expires_ms"),
        ("UPDATE dtx_message SET due_ms = -1 WHERE position > 0", "delay has not begun"),
        ("UPDATE dtx_message SET due_ms = -1 << 60 WHERE position = 0", "in due_ms"),
        ("UPDATE dtx_message SET due_ms = 1 << 60", "in due_ms"),
        ("UPDATE dtx_message SET size = -1", "has -1 in size"),
        ("UPDATE dtx_message SET size = 1 << 61", "in size"),
        ("UPDATE dtx_message SET position = -position", "in position"),
        ("UPDATE dtx_record SET number = -1", "has -1 in number"),
        ("UPDATE dtx_branch SET prepared_ms = -1", "has -1 in prepared_ms"),
        ("UPDATE dtx_branch SET completed_ms = -1", "has -1 in completed_ms"),
        ("UPDATE dtx_branch SET completed_ms = 1 << 60 WHERE completed_ms > 0", "in completed_ms"),
        ("UPDATE dtx_fence SET fenced_ms = 1 << 60", "in fenced_ms"),
    ],
)
def test_a_number_beyond_its_bounds_is_refused_and_found(octets: bytes, tmp_path: Path, change: str, says: str) -> None:
    """Before a message is delivered that can't be encoded, say."""
    url = put(tmp_path / "changed.db", octets)
    with closing(sqlite3.connect(tmp_path / "changed.db")) as connection, connection:
        connection.execute(change)
    for said in agreed(url, change):
        assert says in said
        assert "restore it from a copy" in said


def test_payloads_without_a_message_are_found(octets: bytes, tmp_path: Path) -> None:
    """A broker deletes a message and its payload together. It can start without both."""
    url = put(tmp_path / "store.db", octets)
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute("DELETE FROM dtx_message WHERE position > 0")
    assert agreed(url, "deleted") == ("40 payloads are of no message", "")
    assert checked(url) == "40 payloads are of no message"


def test_messages_of_a_queue_that_was_deleted_are_no_damage(octets: bytes, tmp_path: Path) -> None:
    """A prepared branch took them; what it would do with them is not to be done any more."""
    url = put(tmp_path / "store.db", octets)
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        held = [read_held_messages(octets) for (octets,) in connection.execute("SELECT held FROM dtx_branch")]
        taken = [(message,) for messages in held for message, outcome in messages if outcome is not None]
        assert taken
        connection.executemany("DELETE FROM dtx_message WHERE number = ?", taken)
        connection.executemany("DELETE FROM dtx_payload WHERE message = ?", taken)
    assert agreed(url, "deleted") == ("", "")


@pytest.mark.slow
def test_the_header_of_the_file(octets: bytes, tmp_path: Path) -> None:
    for at in range(100):
        value = 255 if at % 2 and octets[at] != 255 else octets[at] ^ 1
        damaged = bytearray(octets)
        damaged[at] = value
        agreed(put(tmp_path / "damaged.db", bytes(damaged)), f"octet {at} is {value}")


# --- files that are cut off, empty or gone
def test_a_file_that_is_cut_off_is_refused_by_name(octets: bytes, tmp_path: Path) -> None:
    """Also by less than a page, which SQLite would take for zeros."""
    for size in (*range(PAGE_SIZE, len(octets), PAGE_SIZE), len(octets) - 1, len(octets) - 5000, PAGE_SIZE + 7):
        url = put(tmp_path / "cut.db", octets[:size])
        for said in agreed(url, str(size)):
            assert f"it is cut off: it has {size} of {len(octets)} octets" in said
            assert "Restore it from a copy" in said


def test_a_file_that_is_cut_off_and_has_a_log(octets: bytes, tmp_path: Path) -> None:
    """Pages that are in the log only are not missed; those that were taken over from it long ago are."""
    place = Place(put(tmp_path / "store.db", octets))
    with place.open().batch() as batch:
        for number in range(30):
            batch.enqueue((2 << 40) + number, 1 << 40, (2 << 40) + number, value_message(encode("z" * 5000)))
    for ending in ("", "-wal"):
        shutil.copy(tmp_path / f"store.db{ending}", tmp_path / f"copy.db{ending}")
    place.close()
    assert (tmp_path / "copy.db").stat().st_size < (tmp_path / "store.db").stat().st_size, (
        "some pages are in the log only"
    )

    for lost, says in ((0, ""), (PAGE_SIZE, "it is cut off")):
        for ending in ("", "-wal"):
            shutil.copy(tmp_path / f"copy.db{ending}", tmp_path / f"cut.db{ending}")
        os.truncate(tmp_path / "cut.db", len(octets) - lost)
        for said in agreed(f"sqlite:///{tmp_path / 'cut.db'}", str(lost)):
            assert says in said
            assert bool(says) == bool(said)


@pytest.mark.parametrize("left", ["-wal", ".reserve"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_is_empty_or_gone_is_not_a_new_store(tmp_path: Path, left: str, *, gone: bool) -> None:
    """What lies beside it says that there was one. SQLite would delete the log."""
    url = put(tmp_path / "store.db", b"")
    if gone:
        (tmp_path / "store.db").unlink()
    (tmp_path / f"store.db{left}").write_bytes(b"something")
    for said in (started(url), checked(url)):
        assert f"is {'gone' if gone else 'empty'}, but store.db{left} beside it is of one that was in use" in said
        assert f"remove store.db{left}" in said
    assert (tmp_path / f"store.db{left}").read_bytes() == b"something"
    (tmp_path / f"store.db{left}").unlink()
    assert started(url) == ""


@pytest.mark.parametrize("closed", ["", "-wal", "-shm", ".lock"])
def test_files_that_this_user_may_not_read(octets: bytes, closed: str) -> None:
    """The file, those beside it, and their folder: a sentence, with what to do."""
    folder = new_folder("closed")
    path = folder / "store.db"
    place = Place(put(path, octets))
    place.open()
    copies = {ending: path.with_name(f"store.db{ending}").read_bytes() for ending in ("", "-wal", "-shm", ".lock")}
    place.close()
    for ending, content in copies.items():
        path.with_name(f"store.db{ending}").write_bytes(content)
        path.with_name(f"store.db{ending}").chmod(0o666)
    path.with_name(f"store.db{closed}").chmod(0)
    folder.chmod(0o777)

    with as_unprivileged():
        found, said = checked(f"sqlite:///{path}"), started(f"sqlite:///{path}")
    assert "this user read and write" in said
    assert closed == ".lock" or "this user read and write" in found
    folder.chmod(0)
    with as_unprivileged():
        found, said = checked(f"sqlite:///{path}"), started(f"sqlite:///{path}")
    assert "this user read and write" in said
    assert "this user read and write" in found
    folder.chmod(0o755)


ENDINGS: Final = ("", "-wal", "-shm", ".reserve")


def copied(path: Path, into: Path, endings: Iterable[str] = ENDINGS) -> Path:
    """The files of a store as they are now, which is what a kill leaves, in a new folder."""
    into.mkdir(parents=True)
    for ending in endings:
        file = path.with_name(path.name + ending)
        if file.exists():
            shutil.copyfile(file, into / file.name)
    return into / path.name


@pytest.fixture
def young(tmp_path: Path) -> Path:
    """A store that was used a little, and killed: all that it has is in its log."""
    place = Place(f"sqlite:///{tmp_path / 'store.db'}")
    opened = place.open()
    with opened.batch() as batch:
        batch.create_queue(opened.first, "orders")
    with opened.batch() as batch:
        batch.enqueue(opened.first + 1, opened.first, opened.first + 1, value_message(encode("x")))
    path = copied(place.path, tmp_path / "young")
    place.close()
    return path


def damage_log(path: Path, at: int | None) -> None:
    """Changes one octet of the log of a store; None: removes the log."""
    log = path.with_name(f"{path.name}-wal")
    if at is None:
        log.unlink()
        return
    octets = bytearray(log.read_bytes())
    octets[at] ^= 1
    log.write_bytes(octets)


@pytest.mark.parametrize(
    ("at", "endings", "beside"),
    [
        (None, ENDINGS, "store.db.reserve beside it is"),
        (5, ENDINGS, "store.db.reserve and store.db-wal beside it are"),
        (5, ("", "-wal"), "store.db-wal beside it is"),
        (17, ("", "-wal", "-shm"), "store.db-wal beside it is"),
        (40, ("", "-wal"), "store.db-wal beside it is"),
        (200, ("", "-wal", "-shm"), "store.db-wal beside it is"),
    ],
)
def test_a_young_store_whose_log_is_damaged_is_not_taken_for_a_new_one(
    young: Path, tmp_path: Path, at: int | None, endings: tuple[str, ...], beside: str
) -> None:
    path = copied(young, tmp_path / "damaged", endings)
    assert started(f"sqlite:///{copied(young, tmp_path / 'whole', endings)}") == ""
    damage_log(path, at)
    for _ in range(2):  # the log is still there
        for said in (checked(f"sqlite:///{path}"), started(f"sqlite:///{path}")):
            assert f"is without any table, but {beside} of one that was in use" in said


def test_a_file_of_one_octet(octets: bytes, tmp_path: Path) -> None:
    url = put(tmp_path / "store.db", octets[:1])
    for ending in (".reserve", "-wal"):
        (tmp_path / f"store.db{ending}").write_bytes(b"x")
        for said in (checked(url), started(url)):
            assert f"is without any table, but store.db{ending} beside it is of one that was in use" in said
        (tmp_path / f"store.db{ending}").unlink()


def test_a_first_opening_that_is_killed_at_any_statement_can_be_repeated(tmp_path: Path) -> None:
    """It has stored nothing, whatever it leaves: also where the power fails in its commit."""
    found_then: dict[tuple[bytes | None, ...], Path] = {}  # most statements read, and leave what the one before left

    def killed(*_: object) -> None:
        files = [path.with_name(path.name + ending) for ending in ENDINGS]
        octets = tuple(file.read_bytes() if file.exists() else None for file in files)
        if octets not in found_then:
            found_then[octets] = copied(path, tmp_path / str(len(found_then)))

    path = tmp_path / "store.db"
    place = Place(f"sqlite:///{path}")
    for name in ("before_cursor_execute", "commit"):
        event.listen(Engine, name, killed)
    try:
        place.open()
    finally:
        for name in ("before_cursor_execute", "commit"):
            event.remove(Engine, name, killed)
    committed = copied(path, tmp_path / "committed", ("", "-wal"))
    place.close()

    images = list(found_then.values())
    assert len(images) > 2
    log = committed.with_name("store.db-wal").read_bytes()
    for size in (7, 32, 40, 1000, len(log) // 2, len(log) - 8000, len(log) - 1):
        images.append(copied(committed, tmp_path / f"cut to {size}"))
        images[-1].with_name("store.db-wal").write_bytes(log[:size])
    for at in (5, 40, 70, len(log) - 100):
        images.append(copied(committed, tmp_path / f"changed at {at}"))
        damage_log(images[-1], at)
    for image in images:
        found = checked(f"sqlite:///{image}")
        assert not found or found.startswith("there is no store"), image
        assert not started(f"sqlite:///{image}"), image


@pytest.mark.parametrize("ending", ["", ".lock", ".reserve", "-wal"])
def test_a_folder_in_the_place_of_a_file(octets: bytes, tmp_path: Path, ending: str) -> None:
    url = put(tmp_path / "store.db", octets)
    if not ending:
        (tmp_path / "store.db").unlink()
    (tmp_path / f"store.db{ending}").mkdir()
    for said in agreed(url, ending):
        assert f"store.db{ending} is not a file" in said


def test_a_file_of_something_else_is_not_a_damaged_store(tmp_path: Path) -> None:
    found, said = agreed(put(tmp_path / "store.db", b"to buy: bread, milk; " * 1000), "text")
    assert "file is not a database" in found
    assert "file is not a database" in said
    assert "dtx_" not in found


def roots(path: Path) -> dict[str, int]:
    """Table → the number of its first page, from 0."""
    with closing(sqlite3.connect(path)) as connection:  # or its files go when it is collected
        rows = connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name: page - 1 for name, page in rows}


@pytest.mark.parametrize("table", sorted(METADATA.tables))
def test_the_table_is_named(octets: bytes, tmp_path: Path, table: str) -> None:
    put(tmp_path / "damaged.db", octets)
    page = roots(tmp_path / "damaged.db")[table]
    damaged = bytearray(octets)
    damaged[page * PAGE_SIZE : page * PAGE_SIZE + 200] = b"\xff" * 200
    url = put(tmp_path / "damaged.db", bytes(damaged))
    assert f"damaged in the table {table}" in checked(url)
    assert table in {"dtx_payload", "dtx_chunk"} or "damaged" in started(url)


def test_a_store_that_can_not_be_opened_is_let_go(octets: bytes, tmp_path: Path) -> None:
    """The process can open it when it is repaired."""
    url = put(tmp_path / "store.db", octets)
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute("UPDATE dtx_branch SET outcome = 99")
    assert "a row of the store is damaged" in started(url)
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection, connection:
        connection.execute("UPDATE dtx_branch SET outcome = NULL")
    assert started(url) == ""


def test_the_error_is_of_a_damaged_store(octets: bytes, tmp_path: Path) -> None:
    url = put(tmp_path / "store.db", octets[: len(octets) // 2])
    with pytest.raises(StoreDamaged, match="damaged"):
        look_at_store(url, rehearse_start)


# --- payloads that can't be read
def unreadable_page(path: Path, *, holding: bytes) -> None:
    """Damages the first page of a file that has these octets, so that SQLite refuses to read it."""
    octets = bytearray(path.read_bytes())
    page = octets.index(holding) // PAGE_SIZE
    octets[page * PAGE_SIZE] = 0xFF
    path.write_bytes(octets)


def body(number: int) -> bytes:
    return b"<%d>" % number + b"." * 1000


def test_a_payload_that_can_not_be_read_keeps_no_other_message_from_its_consumer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It stays in its queue; the log, the figures and management say so. A large message breaks off, too."""
    broker = EmbeddedBroker(tmp_path)
    with managed(tmp_path, broker) as manager, manager.begin() as tx:
        for number in range(60):
            tx["broker"].send("orders", Message(body=body(number)))
        for letter in b"abc":
            tx["broker"].send("large", Message(body=bytes([letter]) * (3 * CHUNK)))
    broker.stop()
    unreadable_page(tmp_path / "broker.db", holding=b"<30>")
    unreadable_page(tmp_path / "broker.db", holding=b"b" * 8000)

    broker.start()
    with managed(tmp_path, broker) as manager:
        taken = [int(one.body[1 : one.body.index(b">")]) for one in everything(manager, "orders")]
        large = [one.body[:1] for one in everything(manager, "large")]
        assert taken == sorted(taken)
        lacking = set(range(60)) - set(taken)
        assert 30 in lacking
        assert len(lacking) < 10
        assert large == [b"a", b"c"]

        with manager.begin() as tx:
            tx["broker"].send("orders", Message(body=b"later"))
        assert [one.body for one in everything(manager, "orders")] == [b"later"]
    assert broker.broker.failure is None
    unread = broker.inside(lambda inner: {name: len(queue.unreadable) for name, queue in queues_of(inner).items()})
    depth = broker.inside(lambda inner: {name: queue.depth for name, queue in queues_of(inner).items()})
    assert unread == depth == {"orders": len(lacking), "large": 1}
    logged = [one for one in caplog.messages if "can't be read from the store, and is given to no one" in one]
    assert len(logged) == len(lacking) + 1
    broker.stop()


@pytest.mark.parametrize("other", ["CAST(data AS TEXT)", "1.5", "7", "'text'"])
def test_a_payload_of_another_type_is_unreadable(tmp_path: Path, other: str) -> None:
    """As a damaged one: for consumers, in the figures, and for `xabridge check`."""
    broker = EmbeddedBroker(tmp_path)
    with managed(tmp_path, broker) as manager, manager.begin() as tx:
        for number in range(3):
            tx["broker"].send("orders", Message(body=body(number)))
            tx["broker"].send("large", Message(body=b"%d" % number * (3 * CHUNK)))
    broker.stop()
    with closing(sqlite3.connect(tmp_path / "broker.db")) as connection, connection:
        for table in ("dtx_payload", "dtx_chunk"):
            second = f"message = (SELECT message FROM {table} GROUP BY message LIMIT 1 OFFSET 1)"  # noqa: S608
            connection.execute(f"UPDATE {table} SET data = {other} WHERE {second}")  # noqa: S608
    assert checked(f"sqlite:///{tmp_path / 'broker.db'}").count("1 messages have a payload of another type") == 2

    broker.start()
    with managed(tmp_path, broker) as manager:
        assert [one.body[:3] for one in everything(manager, "orders")] == [b"<0>", b"<2>"]
        assert [one.body[:1] for one in everything(manager, "large")] == [b"0", b"2"]
    assert broker.broker.failure is None
    assert broker.inside(lambda inner: inner.container.resource.unreadable) == 2
    broker.stop()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("UPDATE dtx_chunk SET number = -1 WHERE number = 0", "1 messages lack a piece"),
        ("UPDATE dtx_chunk SET number = 0.5 WHERE number = 1", "1 messages have a payload of another type"),
        ("UPDATE dtx_chunk SET number = 7 WHERE number = 1", "1 messages lack a piece"),
        ("UPDATE dtx_chunk SET data = substr(data, 1, 10) WHERE number = 0", "another size than is noted"),
        (
            "UPDATE dtx_chunk SET data = zeroblob(length(data) + 1 - 2 * number)",
            "a piece of another size than it should have",
        ),
    ],
)
def test_pieces_that_are_not_those_of_their_message_are_found(
    octets: bytes, tmp_path: Path, change: str, says: str
) -> None:
    url = put(tmp_path / "changed.db", octets)
    with closing(sqlite3.connect(tmp_path / "changed.db")) as connection, connection:
        connection.execute(change)
    assert says in checked(url)


def queues_of(broker: Broker) -> dict[str, Queue]:
    return broker.container.resource.queues


@contextmanager
def managed(folder: Path, broker: EmbeddedBroker) -> Iterator[TransactionManager]:
    url = f"amqp://{broker.address}"
    with TransactionManager("node-1", f"file://{folder}/log", {"broker": url}, background=False) as manager:
        yield manager


def everything(manager: TransactionManager, queue: str) -> list[Message]:
    """All that a consumer gets, in transactions."""
    found: list[Message] = []
    while True:
        with manager.begin() as tx:
            some = tx["broker"].receive_batch(queue, 7, timeout_s=0)
        if not some:
            return found
        found += some


def test_messages_whose_payload_can_not_be_read_can_go(octets: bytes, tmp_path: Path) -> None:
    """When they expire, and with their queue: what can't be deleted stays in the file, and belongs to no message. What
    else is in the group is durable."""
    path = tmp_path / "store.db"
    place = Place(put(path, octets))
    unreadable_page(path, holding=b"x" * 600)
    unreadable_page(path, holding=b"y" * 8000)
    opened = place.open()
    (queue,) = [one.number for one in opened.restored.queues]
    stored = {one.number: one.size for one in opened.restored.messages()}
    small = [number for number, size in stored.items() if size <= CHUNK]
    (large,) = set(stored) - set(small)
    found = opened.fetch(*small)
    lost = sorted(set(small) - set(found))
    assert 0 < len(lost) < len(small)
    assert opened.fetch_chunk(large, 0) is None

    with opened.batch() as batch:
        batch.dequeue(lost[0], stored[lost[0]])
        batch.dequeue(small[0], stored[small[0]])
        batch.dequeue(large, stored[large])
        batch.record(opened.first, "more", "text")
    opened = place.open()
    left = [one.number for one in opened.restored.messages()]
    assert left == sorted(set(stored) - {lost[0], small[0], large})
    assert opened.restored.records[-1].kind == "more"
    with opened.batch() as batch:
        batch.delete_queue(queue)
    assert list(place.open().restored.messages()) == []
    place.close()
