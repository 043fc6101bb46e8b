"""These tests check that every line that the manager logs about a transaction names it in the readable form.

Each line in the source is provoked and checked here or in tests/tm/concurrency, or listed in ABOUT_NO_TRANSACTION.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tm
from tests.tm.shop import Shop
from tests.tm.two_resources import TwoResources
from tests.tm.wrapped import hooked
from tm import Transaction, TransactionError
from tm.concurrency.reaper import Reaper
from tm.global_transaction import GlobalTransaction
from tm.log import Branch, Decision
from tm.recovery import unfinished
from tm.transaction import live_of
from tm.tx import TxInterface
from xa import FORMAT_ID, Code, Gtrid, Xid
from xabridge.testing.reference import (
    NetworkFault,
    ReferenceResource,
)

ABOUT_NO_TRANSACTION = {
    "the lease at %s could not be ended, it runs out: %s": "lease.py",
    "the lease at %s could not be renewed%s, will try again: %s": "lease.py",
    "%s could not be opened: %s": "a resource",
    "%s could not be closed: %s": "a resource",
    "recovery: %s can't be reached%s: %s": "a resource",
    "recovery: %s can be reached again, after %s": "a resource",
    "recovery: %d %s%s: %s; `xabridge recover list` shows %s": "many",
    "%s: %s can't be opened, and takes no part: %s": "a resource; in tx_begin the transaction is named too",
    "%s: close raised an error that its contract does not name": "a resource",
    "recovery: the decisions in %s can't be read%s: %s": "a decider",
    "recovery can't read the log%s: %s": "the log",
    "a recovery pass failed with an unexpected error; another pass will follow": "a pass",
    "the ceiling could not be noted: %s": "the log",
    "that nothing is left of %s could not be noted: %s": "an incarnation",
    "tx_open: %s": "the manager",
    "tx_begin: no transaction can begin: %s": "the manager",
    "tx_begin: a resource manager is at work outside any transaction in this thread of control": "says it itself",
}

ELSEWHERE = {
    "%s: interrupted, and waits for the end of the call that is being carried out%s",
    "%s: interrupted again; breaks its connections",
    "%s: connections could not be broken",
    "%s: a call that its caller has left failed",
    "%s: the generator that it was begun in was closed; its rollback goes on",
}
"""Provoked and looked at in tests/tm/concurrency."""


def formats() -> dict[str, str]:
    """The format of every line that tm's loggers write → where. Those of tm.log are about a log, those of
    tm.consumer are looked at in tests/tm/consumer."""
    found = {}
    root = Path(tm.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.parent.name in {"log", "consumer"}:
            continue

        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "logger"
                and node.func.attr != "isEnabledFor"
            ):
                message = node.args[1 if node.func.attr == "log" else 0]
                assert isinstance(message, ast.Constant), f"{path}:{node.lineno}: the format is no constant"
                found[str(message.value)] = f"{path.relative_to(root)}:{node.lineno}"
    return found


class Interrupted(BaseException):
    """Stands for a signal."""


def over(rm: Callable[[ReferenceResource], Any]) -> TwoResources:
    """Two resources whose managers are wrapped."""
    return TwoResources(factory=lambda store: lambda registrar: rm(ReferenceResource(store, registrar, 0)))


def interrupted(when: str, verb: str) -> None:
    raise Interrupted(when, verb)


class BrokenTransaction(GlobalTransaction):
    """Can't be rolled back."""

    __slots__ = ()

    def expire(self, now: float) -> bool:
        raise RuntimeError(f"broken at {now}")


def attempt(both: TwoResources, vote: Code | None = None, **commit: Any) -> Transaction:
    """A transaction with work at both, that ends as it may; `two` votes."""
    if vote is not None:
        both.two.script.plan("prepare", vote)
    transaction: Transaction = both.manager.begin()
    try:
        both.write()
        transaction.commit(**commit)
    except TransactionError:
        pass
    return transaction


# --- failure paths, each with the transaction that it is about ---------------------------------------------------
def recovered(both: TwoResources) -> None:
    both.two.script.plan("commit", fate=NetworkFault.REQUEST_LOST, times=3)
    attempt(both)
    both.manager.recover()


def completed_on_its_own(both: TwoResources) -> None:
    both.two.script.plan("commit", Code.XA_HEURRB)
    transaction = attempt(both)
    both.manager.recover()
    both.manager.forget("two", transaction.xid("two"))


def log_stopped(both: TwoResources) -> None:
    both.fault = "failed, lost"
    attempt(both)
    with pytest.raises(TransactionError):
        both.manager.begin()


def expired(both: TwoResources) -> None:
    transaction = both.manager.begin()
    both.write()
    live_of(transaction).expire(both.clock.now + 1e6)
    both.manager.detach(live_of(transaction))


def reaper_in_trouble(both: TwoResources) -> None:
    both.manager.begin().rollback()
    broken = BrokenTransaction(both.manager, both.manager.begin().gtrid, 0, 1, None)
    Reaper({broken.gtrid: broken}, both.clock).reap()
    both.manager.get_transaction().rollback()


def callback_failed(both: TwoResources) -> None:
    transaction = both.manager.begin()
    both.write()
    transaction.register_synchronization(after=lambda _: 1 / 0)
    transaction.commit()


def alive_at_shutdown(both: TwoResources) -> None:
    transaction = both.manager.begin()
    both.write()
    both.manager.close(timeout_s=0)
    both.manager.detach(live_of(transaction))


def interrupted_in_the_background(_: TwoResources) -> None:
    with over(hooked(interrupted, ("commit",))) as both:
        attempt(both, wait="logged")
        both.manager.close()


def end_not_noted(_: TwoResources) -> None:
    shop = Shop(Path(), "a")
    shop.add_decider().script.plan("end_decisions", fate=NetworkFault.REQUEST_LOST)
    with shop.open(node="node-1").begin() as tx:
        shop.write(tx)
    shop.close()


def through_tx(both: TwoResources) -> None:
    tx = TxInterface(both.manager)
    tx.tx_open()
    with both.manager.begin():
        tx.tx_begin()
    both.two.script.plan("start", Code.XAER_RMERR)
    both.one.script.plan("rollback", Code.XA_HEURMIX)
    tx.tx_begin()
    tx.tx_begin()
    both.write()
    both.two.script.plan("prepare", Code.XA_RBDEADLOCK)
    tx.tx_commit()


def given_up(both: TwoResources) -> None:
    """More is left to roll back than a process remembers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unfinished, "MOST", 1)
        for _ in range(2):
            transaction = both.manager.begin()
            both.manager["one"].write("key", "value")
            both.one.script.plan("rollback", None, NetworkFault.REQUEST_LOST)
            transaction.rollback()


def ended_by_hand(both: TwoResources) -> None:
    gtrid = Gtrid("node-1", both.log.log_id, both.log.incarnation, 1).encode()
    both.log.decide(Decision(gtrid, (Branch("gone", Xid(FORMAT_ID, gtrid, b"gone")),)))
    both.manager.end_decision(gtrid, gone=["gone"])


PATHS: list[Callable[[TwoResources], object]] = [
    attempt,
    partial(attempt, vote=Code.XA_RBDEADLOCK),
    partial(attempt, vote=Code.XA_RDONLY),  # with writes pending: the reference raises ValueError
    recovered,
    completed_on_its_own,
    log_stopped,
    expired,
    reaper_in_trouble,
    callback_failed,
    alive_at_shutdown,
    interrupted_in_the_background,
    end_not_noted,
    through_tx,
    given_up,
    ended_by_hand,
]


def records_of(path: Callable[[TwoResources], object], caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    with caplog.at_level(logging.DEBUG, logger="xabridge"), TwoResources() as both:
        caplog.clear()
        path(both)
        return [record for record in caplog.records if record.name.startswith("xabridge.tm")]


def test_every_line_is_looked_at_and_names_its_transaction(caplog: pytest.LogCaptureFixture) -> None:
    seen: set[str] = set()
    for path in PATHS:
        records = records_of(path, caplog)
        about = [record for record in records if record.msg not in ABOUT_NO_TRANSACTION]
        assert about, path
        for record in about:
            assert "node-1·" in record.getMessage(), (path, record.pathname, record.lineno, record.getMessage())
        seen.update(record.msg for record in records)
    written = formats()
    unseen = ABOUT_NO_TRANSACTION.keys() | ELSEWHERE
    assert unseen <= written.keys()
    assert {text: where for text, where in written.items() if text not in seen | unseen} == {}


def test_a_rollback_that_was_asked_for_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One with a reason is."""
    shop = Shop(tmp_path, "a")
    manager = shop.open()
    with caplog.at_level(logging.DEBUG, "xabridge.tm"):
        transaction = manager.begin()
        shop.write(transaction)
        transaction.rollback()
        with pytest.raises(TransactionError), manager.begin() as marked:
            shop.write(marked)
            marked.set_rollback_only("sold out")
    shop.close()
    levels = [(one.levelno, one.getMessage()) for one in caplog.records if "rolled back: " in one.getMessage()]
    assert [level for level, _ in levels] == [logging.DEBUG, logging.INFO]
    assert levels[0][1].endswith("rolled back: asked for")
    assert "sold out" in levels[1][1]
