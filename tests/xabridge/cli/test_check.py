"""These tests run `check` over restored sets: a log, the store of a broker that does not run, and another resource."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from dtx.store.contract import PENDING, Batch
from dtx.store.sql import SqlStore
from tests.dtx.store.stores import Loop, Opened
from tests.xabridge.cli.field import OTHERS, xid_of
from tm.log import Branch, Decision
from xabridge.cli import main
from xabridge.cli.check import older_than_the_log

if TYPE_CHECKING:
    from tests.xabridge.cli.field import Field, Xabridge

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
    assert found(checks, "ok", "decisions") == ["1 decision of which no branch is found: carried out everywhere | "]
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
    assert "broker is older than the log: what was not committed there before is lost there" in gone
    assert older_than_the_log(["broker", "shop"]) == "broker and shop are older than the log"


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
        ("DELETE FROM dtx_message", "messages of branches are missing"),
        ("DELETE FROM dtx_branch", "held by branches that are missing"),
        ("DELETE FROM dtx_queue", "in queues that are missing"),
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
    assert said.out.endswith("it fits together\n")
    restored.file.unlink()
    said = xabridge("check", "--store", f"broker=sqlite:///{restored.file}")
    assert said.code == 1
    assert said.out.endswith("it does not fit together: start no manager before that is settled\n")
    assert max(map(len, said.out.splitlines())) <= 80
    said = xabridge("check", "--store", f"warehouse=sqlite:///{restored.file}")
    assert said.code == 2
    assert "there is no such resource in the configuration" in said.err
