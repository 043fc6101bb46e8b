"""These tests run `broker backup` and `log backup`, beside a broker or a manager that is at work, killed at every step,
and where the disk is full; use a copy in place of the log; and run `check` over restored sets: a log, the store of a
broker that does not run, and another resource.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from dtx.broker.broker import rehearse_start
from dtx.store.contract import PENDING, Batch
from dtx.store.sql import SqlStore
from dtx.store.sql.inspection import look_at_store
from rm_amqp import Message
from tests.dtx.store.stores import Loop, Opened, enqueued
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.cli.field import INCARNATION, OTHERS, Field, Xabridge, xid_of
from tm import TransactionManager
from tm.log import Branch, Decision, FileLog, Heuristic, read_log
from tm.log.factory import look_at_log, open_log
from xa import FORMAT_ID, Code, Gtrid, Xid
from xabridge.cli import main
from xabridge.testing.broker import BrokerProcess
from xabridge.testing.reference.store import BackUp

ROOT = Path(__file__).parents[3]
QUEUE = 1
KILLED = """
import os, signal, sys
from xa.sql import copying
from xabridge.cli import main

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

step = sys.argv.pop(1)
if step == "copied":
    copying.force = die
elif step == "forced":
    copying.Path = None
    force = copying.force
    copying.force = lambda path: die() if path.name.endswith(".part") and force(path) is None else force(path)
elif step == "renamed":
    force = copying.force
    copying.force = lambda path: die() if path.is_dir() else force(path)
sys.exit(main(sys.argv[1:]))
"""
FULL = """
import resource, signal, sys
from xabridge.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
sys.exit(main(sys.argv[1:]))
"""


def store_of(folder: Path, messages: int = 20) -> str:
    """A store with some messages, each of some octets, that nobody has open."""
    url = f"sqlite:///{folder}/store.db"
    opened = Opened(SqlStore(url, (loop := Loop()).deliver), loop)
    batch = Batch()
    batch.create_queue(QUEUE, "orders")
    opened.keep(batch, enqueued(range(10, 10 + messages), QUEUE, bytes(10_000)))
    opened.store.close()
    return url


@pytest.mark.slow
def test_a_copy_beside_a_broker_at_work_has_all_that_was_answered_before(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.start()
    sent: list[int] = []
    stop = threading.Event()
    url = f"amqp://127.0.0.1:{broker.port}"

    def send(first: int) -> None:
        with TransactionManager(
            f"node-{first}", f"file://{tmp_path}/log{first}", {"broker": url}, background=False
        ) as tm:
            number = first
            while not stop.is_set():
                with tm.begin() as tx:
                    tx["broker"].send("orders", Message(body=number))
                    tx["broker"].send("invoices", Message(body=number))
                sent.append(number)
                number += 2

    threads = [threading.Thread(target=send, args=(first,)) for first in (1, 2)]
    for thread in threads:
        thread.start()
    copies = []
    try:
        for number in range(2):
            before = len(sent)
            while len(sent) < before + 20:
                threading.Event().wait(0.01)
            answered = set(sent)
            source = f"sqlite:///{tmp_path}/store.db"
            assert main(["broker", "backup", "--store", source, f"{tmp_path}/copy{number}.db"]) == 0
            copies.append((tmp_path / f"copy{number}.db", answered, set(sent)))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        broker.stop()
    for copy, before_it, after_it in copies:
        folder = tmp_path / copy.stem
        folder.mkdir()
        image = look_at_store(f"sqlite:///{copy}", rehearse_start)
        assert image.faults == ()
        assert image.copied_ms is not None
        copy.rename(folder / "broker.db")
        restored = EmbeddedBroker(folder)
        url = f"amqp://{restored.address}"
        log = f"file://{folder}/log"
        with TransactionManager("node-3", log, {"broker": url}, background=False) as tm, tm.begin() as tx:
            found = {
                queue: {int(message.body) for message in tx["broker"].receive_batch(queue, 100_000, timeout_s=5)}
                for queue in ("orders", "invoices")
            }
        restored.stop()
        assert found["orders"] == found["invoices"]  # nothing is half in it
        assert before_it <= found["orders"]
        assert len(found["orders"] - after_it) <= len(threads)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["copied", "forced", "renamed"])
def test_killed_at_a_step_it_leaves_a_whole_copy_or_none(tmp_path: Path, step: str) -> None:
    url, copy = store_of(tmp_path), tmp_path / "copy.db"
    command = [sys.executable, "-c", KILLED, step, "broker", "backup", "--store", url, str(copy)]
    assert subprocess.run(command, check=False, cwd=ROOT).returncode == -9
    assert copy.exists() is (step == "renamed")
    copy.unlink(missing_ok=True)
    assert main(["broker", "backup", "--store", url, str(copy)]) == 0
    assert look_at_store(f"sqlite:///{copy}", rehearse_start).faults == ()
    assert sorted(file.name for file in tmp_path.iterdir() if "copy" in file.name) == ["copy.db"]


@pytest.mark.slow
def test_without_space_there_is_no_copy_and_it_says_so(tmp_path: Path) -> None:
    url, copy = store_of(tmp_path), tmp_path / "copy.db"
    command = [sys.executable, "-c", FULL, "broker", "backup", "--store", url, str(copy)]
    said = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert said.returncode == 1
    assert f"can't be copied to {copy}" in said.stderr
    assert "Traceback" not in said.stderr
    assert not [file.name for file in tmp_path.iterdir() if "copy" in file.name]


def test_it_says_what_it_has_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, copy = store_of(tmp_path), tmp_path / "copy.db"
    assert main(["broker", "--store", url, "backup", "--json", str(copy)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["messages"], told["branches"], told["openings"]) == (20, 0, 1)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert main(["broker", "backup", "--store", url, str(copy)]) == 1
    assert "is there already" in capsys.readouterr().err
    assert main(["broker", "backup", "--store", f"sqlite:///{tmp_path}/no.db", str(tmp_path / "x")]) == 1

    assert "there is no file" in capsys.readouterr().err
    assert not (tmp_path / "no.db").exists()
    assert main(["broker", "backup", "--store", "postgresql://me:secret@db/broker", str(tmp_path / "x")]) == 1
    said = capsys.readouterr().err
    assert f"pg_dump --format=custom --file={tmp_path}/x URL" in said
    assert "secret" not in said
    assert look_at_store(f"sqlite:///{copy}", rehearse_start).copied_ms is not None
    opened = Opened(SqlStore(f"sqlite:///{copy}", (loop := Loop()).deliver), loop)
    opened.store.close()
    assert look_at_store(f"sqlite:///{copy}", rehearse_start).copied_ms is None, (
        "one that was opened is a store like any other"
    )


def test_a_copy_of_a_log_in_sqlite_presumes_nothing_about_who_was_at_work(tmp_path: Path) -> None:
    url, copy = f"sqlite:///{tmp_path}/log.db", tmp_path / "copy.db"
    log = open_log(url, "orders-1")
    gtrid = Gtrid("orders-1", log.log_id, log.incarnation, 1).encode()
    log.decide(Decision(gtrid, (Branch("broker", Xid(FORMAT_ID, gtrid, b"broker")),)))
    config = tmp_path / "xabridge.toml"
    config.write_text(f'node = "orders-1"\nlog = "{url}"\n')
    assert main(["log", "backup", str(copy), "--config", str(config)]) == 0
    incarnation = log.incarnation

    log.close()
    assert not look_at_log(url, "orders-1").incarnations.cut
    image = look_at_log(f"sqlite:///{copy}", "orders-1")
    assert image.incarnations.cut == (incarnation,)
    assert [decision.gtrid for decision in image.decisions] == [gtrid]
    copy.rename(tmp_path / "log.db")  # in the place of the log
    restored = open_log(url, "orders-1")
    assert restored.incarnations.cut == (incarnation,)
    restored.close()


# --- a log in files ---------------------------------------------------------------------------------------------------
def backed_up(field: Field, xabridge: Xabridge) -> None:
    """A copy is made while a manager is at work, which goes on, dies, and leaves two transactions in doubt: one was
    decided before the copy was made, one after it. Then the copy takes the log's place."""
    log = field.open_log()
    early, late = field.gtrid(1), field.gtrid(2)
    for gtrid in (early, late):
        for name in ("broker", "shop"):
            field.prepare(name, gtrid, f"{name}{gtrid[-1]}")

    log.decide(Decision(early, tuple(Branch(name, xid_of(early, name)) for name in ("broker", "shop"))))
    said = xabridge("log", "backup", str(field.folder / "copy"))
    assert said.code == 0, said
    assert said.out == (
        "/field/copy: log abababababababab of orders-1, 1 decision in it\n"
        "it presumes nothing about what incarnation 3fa91c0000000001 does from now on\n"
    )
    log.decide(Decision(late, tuple(Branch(name, xid_of(late, name)) for name in ("broker", "shop"))))
    log.close()
    shutil.rmtree(field.log_folder)
    (field.folder / "copy").rename(field.log_folder)


def test_a_restored_copy_carries_out_what_it_knows_and_presumes_nothing_else(field: Field, xabridge: Xabridge) -> None:
    backed_up(field, xabridge)
    checks = json.loads(xabridge("doctor", "--json").out)["checks"]
    (content,) = [check for check in checks if check["check"] == "content"]
    assert "a copy, made while incarnation 3fa91c0000000001 was at work" in content["found"]
    for _ in range(2):
        said = xabridge("recover", "run")
        assert said.code == 3
        assert "orders-1·3fa91c·2    left in doubt on broker, shop: it was made by incarnation" in said.out
    assert field.stores["shop"].data == {"shop1": True}
    assert len(field.stores["shop"].in_doubt) == len(field.stores["broker"].in_doubt) == 1


def test_who_says_that_it_is_the_newest_has_it_presume_again(field: Field, xabridge: Xabridge) -> None:
    backed_up(field, xabridge)
    said = xabridge("recover", "run", "--newest", "00" * 8)
    assert said.code == 5
    assert "was not at work when this copy of the log was made (that was: 3fa91c0000000001)" in said.err
    assert field.stores["shop"].in_doubt
    with pytest.raises(SystemExit, match="2"):
        xabridge("recover", "run", "--newest", "3fa91")
    said = xabridge("recover", "run", "--newest", INCARNATION.hex())
    assert said.code == 0, said
    assert "orders-1·3fa91c·2    rolled back on broker, shop" in said.out
    assert not read_log(field.log_folder).incarnations.cut


def test_what_can_not_be_copied(field: Field, xabridge: Xabridge) -> None:
    said = xabridge("log", "backup", str(field.folder / "copy"))
    assert (said.code, "there is no decision log" in said.err) == (1, True)
    log = field.open_log()
    said = xabridge("log", "backup", str(field.folder / "other"), "--json")
    assert json.loads(said.out) == {
        "destination": "/field/other", "node": "orders-1", "log": "ab" * 8, "decisions": 0, "heuristics": 0,
        "at_work": [INCARNATION.hex()],
    }  # fmt: skip

    log.close()
    said = xabridge("log", "backup", str(field.folder))
    assert (said.code, "is there already" in said.err) == (1, True)
    said = xabridge("log", "backup", str(field.folder / "no" / "copy"))
    assert (said.code, "mkdir -p /field/no" in said.err) == (1, True), said.err
    text = field.config.read_text().replace(f"file://{field.log_folder}", "postgresql://db/log")
    field.config.write_text(text)
    said = xabridge("log", "backup", str(field.folder / "copy"))
    assert (said.code, "pg_dump --format=custom" in said.err) == (1, True)


# --- check -----------------------------------------------------------------------------------------------------------
ORDERS, INVOICES = 1, 2
DECIDED, UNDECIDED, GONE = 1, 2, 3


class Set:
    """A broker's store, a log and a shop: a transaction that is decided, one that is not, and a decision whose branches
    are finished."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.file = field.folder / "broker.db"
        field.configure("shop", urls=[("broker", "amqp://127.0.0.1:1")])
        store = SqlStore(f"sqlite:///{self.file}", (loop := Loop()).deliver)
        self.opened = Opened(store, loop)
        self.number = store.first_number
        batch = Batch()
        batch.create_queue(ORDERS, "orders")
        batch.create_queue(INVOICES, "invoices")
        self.opened.keep(batch)
        log = field.open_log()

        for sequence in (DECIDED, UNDECIDED):
            self.prepare(field.gtrid(sequence))
        for sequence in (DECIDED, GONE):
            gtrid = field.gtrid(sequence)
            log.decide(Decision(gtrid, tuple(Branch(name, xid_of(gtrid, name)) for name in ("broker", "shop"))))
        log.close()
        store.close()

    def prepare(self, gtrid: bytes) -> None:
        """A branch on both, which takes an order and sends an invoice."""
        self.field.prepare("shop", gtrid)
        batch, first = Batch(), self.number + 1
        self.number += 3
        batch.enqueue(first, ORDERS, first, b"order")
        batch.enqueue(first + 1, INVOICES, PENDING, b"invoice")
        branch = xid_of(gtrid, "broker")
        now_ms = time.time_ns() // 1_000_000
        batch.prepare(first + 2, branch, "me", now_ms, enqueues=[first + 1], dequeues=[(first, b"\x00\x53\x24\x45")])
        self.opened.keep(batch)

    def date_log(self, seconds: float) -> None:
        """Lets the log's files be written so much later."""
        for file in self.field.log_folder.iterdir():
            told = file.stat()
            os.utime(file, (told.st_atime, time.time() + seconds))

    def check(self, xabridge: Xabridge) -> tuple[int, list[tuple[str, str, str]]]:
        """The exit code, and of each check its health, what it is of, and what was found."""
        said = xabridge("check", "--json", "--store", f"broker=sqlite:///{self.file}")
        told = json.loads(said.out)
        assert told["fits"] is (said.code == 0)
        return said.code, [(one["health"], one["of"], f"{one['found']} | {one['mend']}") for one in told["checks"]]


@pytest.fixture
def restored(field: Field) -> Set:
    """The set."""
    return Set(field)


def found(checks: list[tuple[str, str, str]], health: str, of: str) -> list[str]:
    return [text for one, subject, text in checks if one == health and subject == of]


def test_what_fits_together_is_told_with_what_recovery_will_do(restored: Set, xabridge: Xabridge) -> None:
    code, checks = restored.check(xabridge)
    assert code == 0, checks
    decided, undecided = sorted(found(checks, "ok", "branches"))
    assert "·1: decided; recovery commits it on broker (2 messages: 1 from orders, 1 to invoices)" in decided
    assert "and shop" in decided
    assert "orders-1·3fa91c·2: not decided; recovery rolls it back on broker" in undecided
    assert found(checks, "ok", "decisions") == [
        (
            "1 decision of which no branch is found: what is not known was carried out before, or by hand, or lost on "
            "a resource that is older | "
        )
    ]
    assert "of about the same time as the log" in found(checks, "ok", "broker")[1]


def test_a_store_that_is_older_than_the_log_loses_and_doubles(restored: Set, xabridge: Xabridge) -> None:
    copy = restored.field.folder / "copy.db"
    assert main(["broker", "backup", "--store", f"sqlite:///{restored.file}", str(copy)]) == 0
    copy.replace(restored.file)
    restored.date_log(3600)
    code, checks = restored.check(xabridge)
    assert code == 1
    (age,) = found(checks, "warn", "broker")
    assert age.startswith("older than the log, by 60 m")
    assert "messages that were taken then come again, and those that were sent then are missing" in age
    (undecided,) = found(checks, "fail", "branches")
    assert "·2: not decided" in undecided
    assert "a rollback splits it" in undecided
    (gone,) = found(checks, "fail", "decisions")
    assert "broker may be older than the log: what was not committed there before is lost there" in gone


def test_what_is_noted_as_completed_on_its_own_is_not_recoverys_to_commit(restored: Set, xabridge: Xabridge) -> None:
    field = restored.field
    log = field.open_log()
    log.note_heuristic(Heuristic(Branch("shop", xid_of(field.gtrid(DECIDED), "shop")), Code.XA_HEURRB))
    log.close()
    code, checks = restored.check(xabridge)
    assert code == 1, checks
    (noted,) = found(checks, "fail", "branches")
    assert "·1: decided; recovery commits it on broker (2 messages: 1 from orders, 1 to invoices);" in noted
    assert "; completed against the decision on shop | compare the data and repair it by hand" in noted


@pytest.mark.parametrize("copied", [False, True])
def test_a_store_at_rest_is_not_called_older(restored: Set, xabridge: Xabridge, *, copied: bool) -> None:
    """The log was written later, by work on other resources. A copy of the store is from before that; a store as its
    broker left it may have been at rest."""
    if copied:
        copy = restored.field.folder / "copy.db"
        assert main(["broker", "backup", "--store", f"sqlite:///{restored.file}", str(copy)]) == 0
        copy.replace(restored.file)
    restored.date_log(3600)
    (age,) = found(restored.check(xabridge)[1], "warn", "broker")
    assert age.startswith(
        "older than the log, by 60 m at least" if copied else "changed last 59 m or more before the log"
    )
    assert copied or "was: older, or at rest since | if it is an older copy, what was committed" in age


def test_what_was_not_compared_is_said(restored: Set, xabridge: Xabridge) -> None:
    field = restored.field
    (age,) = found(restored.check(xabridge)[1], "ok", "age")
    assert age.startswith("shop: asked for what is in doubt; how old the data is, is not known | ")
    said = xabridge("check", "--store", f"broker=sqlite:///{restored.file}")
    assert said.out.endswith("nothing is found that does not fit together; not every age was compared\n")
    field.configure(urls=[("broker", "amqp://127.0.0.1:1")])
    shutil.rmtree(field.log_folder)
    field.open_log().close()
    make_store(restored.file)
    said = xabridge("check", "--store", f"broker=sqlite:///{restored.file}")
    assert said.out.endswith("it fits together\n"), said


@pytest.mark.parametrize(
    ("url", "refusal"),
    [
        ("reference-test:///s?store=broker", "broker is reference-test://, no broker of this project"),
        ("postgresql://db/shop", "broker is postgresql://, no broker of this project"),
        ("amqp010://db/shop", "broker is amqp010://, no broker of this project"),
    ],
)
def test_a_store_is_a_brokers(restored: Set, xabridge: Xabridge, url: str, refusal: str) -> None:
    restored.field.configure(urls=[("broker", url)])
    said = xabridge("check", "--store", f"broker=sqlite:///{restored.file}")
    assert (said.code, refusal in said.err) == (2, True), said


def test_what_was_finished_before_does_not_fit_and_is_left_to_people(restored: Set, xabridge: Xabridge) -> None:
    """However the ages of the parts look."""
    log = restored.field.open_log()
    log._journal.incarnation = INCARNATION
    log.note_floor(UNDECIDED + 1)
    log.close()
    code, checks = restored.check(xabridge)
    assert code == 1
    (told,) = found(checks, "fail", "branches")
    assert "·2: left alone on broker" in told
    assert "it was finished before" in told
    assert "xabridge recover commit (or rollback) orders-1·3fa91c·2 --heuristic" in told

    assert "·1: decided; recovery commits it" in found(checks, "ok", "branches")[0]
    restored.field.configure("shop")
    assert xabridge("recover", "run").code == 4, "the broker is not there, and its branch waits"
    assert xabridge("recover", "list").code == 3
    shown = xabridge("recover", "show", "orders-1:3fa91c:2").words
    assert "was finished before" in shown
    assert "look what became of it on the other resources" in shown
    assert "xabridge recover commit (or rollback) orders-1·3fa91c·2 --heuristic" in shown
    planned = xabridge("recover", "rollback", "orders-1:3fa91c:2", "--heuristic", "--dry-run").words
    assert "which is not here" not in planned, "it is this node's log, and says nothing of it any more"
    assert len(restored.field.stores["shop"].in_doubt) == 1
    rollback = ("recover", "rollback", "orders-1:3fa91c:2", "--yes")
    assert xabridge(*rollback).code == 5
    assert xabridge(*rollback, "--heuristic").code == 0
    assert not restored.field.stores["shop"].in_doubt


@pytest.mark.parametrize("apart_s", [-3600, -30, 0])
def test_the_age_of_a_log_in_a_database_is_known(restored: Set, xabridge: Xabridge, apart_s: int) -> None:
    """`broker` was last at work so long before the log, and notes that once a second."""
    field = restored.field
    url = f"sqlite:///{field.folder}/log.db"
    open_log(url, "orders-1").close()
    field.config.write_text(field.config.read_text().replace(f"file://{field.log_folder}", url))
    with closing(sqlite3.connect(field.folder / "log.db")) as connection, connection:
        connection.execute("UPDATE xabridge_node SET worked_at = worked_at - ?", (apart_s,))
    _, checks = restored.check(xabridge)
    told = [text for health in ("ok", "warn") for text in found(checks, health, "broker")]
    (age,) = [text for text in told if "the log" in text]
    said = {
        -3600: "changed last 59 m or more before the log was: older, or at rest since",
        -30: "changed last 28 s or more before the log was: older, or at rest since",
        0: "it is not known to the second",
    }
    assert said[apart_s] in age


@pytest.mark.slow
@pytest.mark.parametrize("later_s", [100, 4])
def test_a_store_that_lacks_what_was_carried_out_there_does_not_fit(
    restored: Set, xabridge: Xabridge, later_s: int
) -> None:
    """Nothing is in doubt, and the log says when it has carried out a decision there."""
    field = restored.field
    restored.field.stores["shop"].restore(BackUp({}, ()))
    restored.field.stores["shop"].heal()
    make_store(restored.file)
    for of, at_s in (("shop", time.time() + 1000), ("broker", time.time() + later_s)):
        carried_out(field, of, at_s)

    code, checks = restored.check(xabridge)
    assert code == 1
    (age,) = [text for text in found(checks, "fail", "broker") if "older" in text]
    assert "older than the log, which has carried out a decision of" in age
    assert "messages that were taken then come again, and those that were sent then are missing" in age


def test_a_store_at_rest_fits_a_log_that_went_on_elsewhere(restored: Set, xabridge: Xabridge) -> None:
    """Decisions that did not concern it, and those that it has taken part in before it was changed last."""
    field = restored.field
    for of, at_s in (("broker", time.time() - 1000), ("shop", time.time() + 1000)):
        carried_out(field, of, at_s)
    code, checks = restored.check(xabridge)
    assert code == 0, checks


@pytest.mark.slow
def test_it_changes_nothing_and_leaves_nothing_behind(restored: Set, xabridge: Xabridge) -> None:
    """A store and a log in SQLite: at rest, left by a broker and a manager that were killed, and copied from there."""
    field = restored.field
    url = f"sqlite:///{field.folder}/log.db"
    open_log(url, "orders-1").close()
    field.config.write_text(field.config.read_text().replace(f"file://{field.log_folder}", url))
    for state in ("at rest", "killed", "copied without an index"):
        if state == "killed":
            for file in (restored.file, field.folder / "log.db"):
                leave_a_write_ahead_log(file)
        elif state == "copied without an index":
            for index in field.folder.glob("*-shm"):
                index.unlink()

        before = databases(field.folder)
        code, checks = restored.check(xabridge)
        assert not found(checks, "fail", "broker") + found(checks, "fail", "log"), (code, checks)
        after = databases(field.folder)
        assert after.keys() == before.keys(), state
        assert {path for path in after if after[path] != before[path] and not path.name.endswith("-shm")} == set()


def databases(folder: Path) -> dict[Path, bytes]:
    """The files of SQLite, and those that it has beside them."""
    return {path: path.read_bytes() for path in folder.glob("*.db*")}


def make_store(file: Path) -> None:
    """A store in which nothing is in doubt, in place of another one."""
    for before in file.parent.glob(f"{file.name}*"):
        before.unlink()
    store = SqlStore(f"sqlite:///{file}", (loop := Loop()).deliver)
    opened = Opened(store, loop)
    batch = Batch()
    batch.create_queue(ORDERS, "orders")
    batch.record(store.first_number + 5, "moment", str(int(time.time() * 1000)))
    opened.keep(batch)
    store.close()


def carried_out(field: Field, of: str, at_s: float) -> None:
    """The log carries out a decision on one resource at that time."""
    log = FileLog(field.log_folder, "orders-1", segment_size=65536, wall=lambda: at_s)
    gtrid = Gtrid("orders-1", log.log_id, log.incarnation, 1).encode()
    log.decide(Decision(gtrid, (Branch(of, Xid(FORMAT_ID, gtrid, of.encode())),)))
    log.end(gtrid)
    log.close()


def leave_a_write_ahead_log(file: Path) -> None:
    """Leaves what a process leaves that is killed."""
    program = (
        "import os, sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('PRAGMA journal_mode = WAL').fetchall(); "
        "c.execute('CREATE TABLE more (x)'); c.commit(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(file)], check=True)


def test_a_copy_of_the_log_leaves_alone_what_it_can_not_know(restored: Set, xabridge: Xabridge) -> None:
    field = restored.field
    log = field.open_log()
    copy = field.folder / "copy"
    assert xabridge("log", "backup", str(copy)).code == 0
    log.close()
    shutil.rmtree(field.log_folder)
    copy.rename(field.log_folder)
    code, checks = restored.check(xabridge)
    assert code == 1
    assert "a copy, made while incarnation" in found(checks, "warn", "log")[0]
    assert "·1: decided; recovery commits it" in found(checks, "ok", "branches")[0]
    (undecided,) = found(checks, "fail", "branches")
    assert "·2: left alone on broker" in undecided
    assert "which was at work when this copy was made" in undecided


def test_what_is_elsewhere_or_missing_does_not_fit(restored: Set, xabridge: Xabridge) -> None:
    field = restored.field
    field.prepare("shop", field.gtrid(7, log_id=b"\x7f" * 8))
    field.prepare("shop", field.gtrid(8, incarnation=OTHERS))
    code, checks = restored.check(xabridge)
    assert code == 1
    told = "\n".join(found(checks, "fail", "branches"))
    assert "its decision lives in log 7f7f7f7f7f7f7f7f" in told
    assert "incarnation c07d110000000002, which is not noted in this log: an old copy" in told
    shutil.rmtree(field.log_folder)
    said = xabridge("check", "--json")
    failed = [one["of"] for one in json.loads(said.out)["checks"] if one["health"] == "fail"]
    assert said.code == 1
    assert {"log", "broker"} <= set(failed), "a log that is missing, a broker that is not reached"


def test_a_store_that_does_not_fit_together_is_told(restored: Set, xabridge: Xabridge) -> None:
    good = restored.file.read_bytes()
    for damage, told in (
        ("DELETE FROM dtx_payload", "messages have no payload"),
        ("DELETE FROM dtx_message", "lacks messages that prepared branches post"),
        ("DELETE FROM dtx_branch", "lacks branches that hold messages"),
        ("DELETE FROM dtx_queue", "and lacks that queue"),
        ("", "can't be read"),
    ):
        restored.file.write_bytes(good if damage else b"no database " * 1000)
        if damage:
            with closing(sqlite3.connect(restored.file)) as connection, connection:
                connection.execute(damage)
        code, checks = restored.check(xabridge)
        assert code == 1
        assert any(told in text for text in found(checks, "fail", "broker"))


def test_for_people_it_ends_with_what_to_do(restored: Set, xabridge: Xabridge) -> None:
    said = xabridge("check", "--store", f"broker=sqlite:///{restored.file}")
    assert said.out.endswith("nothing is found that does not fit together; not every age was compared\n")
    restored.file.unlink()
    said = xabridge("check", "--store", f"broker=sqlite:///{restored.file}")
    assert said.code == 1
    assert said.out.endswith("it does not fit together: start no manager before that is settled\n")
    assert max(map(len, said.out.splitlines())) <= 80
    said = xabridge("check", "--store", f"warehouse=sqlite:///{restored.file}")
    assert said.code == 2
    assert "there is no such resource in the configuration" in said.err
