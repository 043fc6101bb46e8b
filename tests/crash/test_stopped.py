"""This test stops a process right after SQLite has decided, for longer than its lease. Another process of its node
finishes the transaction, and then the first one goes on. Everything must be there once, and neither may report damage.
The same with PostgreSQL, brokers and logs: `test_bank.py`.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from pathlib import Path

import pytest

from bench.crash.points import hooked
from tests.crash.forked import ForkedProcess
from tm import Action, ResourceConfig, TransactionManager
from tm.recovery import lease
from tm.resources import find_factory
from xabridge.testing.reference import ReferenceStore
from xabridge.testing.reference.remote import ReferenceServer, RemoteReference

PATIENCE_S = 60
LEASE_S = 0.5


def manager(address: str, authkey: str, url: str, *, stops: bool = False) -> TransactionManager:
    """`ledger` decides, `shop` takes part; with `stops` the process stops itself behind the decision."""

    def stop(when: str, _: str) -> None:
        if when == "after":
            print("decided", flush=True)  # noqa: T201 — what the test reads
            os.kill(os.getpid(), signal.SIGSTOP)

    made = find_factory("ledger", ResourceConfig(url, "decider"))
    stopping = hooked(stop, ("decide",))
    ledger = ResourceConfig(url, "decider", lambda registrar: stopping(made(registrar)) if stops else made(registrar))
    shop = ResourceConfig(
        "reference://shop", factory=lambda _: RemoteReference(address, bytes.fromhex(authkey), "shop")
    )
    return TransactionManager("orders-1", None, {"ledger": ledger, "shop": shop}, background=stops)


def main() -> None:
    """The process that is stopped. It says what came of its transaction."""
    lease.LEASE_S = LEASE_S  # type: ignore[misc]  # so that the test need not wait for long
    address, authkey, url = sys.argv[1:]
    with manager(address, authkey, url, stops=True) as tm:
        with tm.begin() as tx:
            tx.enlist("ledger")
            tx["shop"].write("order", 1)
        print("committed", flush=True)  # noqa: T201


@pytest.mark.slow
def test_a_sibling_finishes_what_a_stopped_process_has_decided(tmp_path: Path) -> None:
    store = ReferenceStore("shop")
    there = (str(tmp_path / "reference"), secrets.token_bytes(16).hex(), f"sqlite:///{tmp_path}/ledger.db")
    server = ReferenceServer({"shop": store}, there[0], bytes.fromhex(there[1]))
    process = ForkedProcess("tests.crash.test_stopped", *there)

    try:
        assert process.stdout.readline() == "decided\n"
        with manager(*there) as sibling:
            deadline = time.monotonic() + PATIENCE_S
            report = sibling.last_report
            while report is None or not store.data:
                assert time.monotonic() < deadline, "the lease of a stopped process does not run out"
                report = sibling.recover()
            assert {finding.action for finding in report.findings} == {Action.COMMITTED}
            assert len(report.ended) == 1
            os.kill(process.pid, signal.SIGCONT)
            assert list(process.lines()) == ["committed\n"]
            assert process.wait(PATIENCE_S) == 0
            assert sibling.recover().clean
        assert store.data == {"order": 1}
        assert not store.branches
    finally:
        process.close()
        server.close()
