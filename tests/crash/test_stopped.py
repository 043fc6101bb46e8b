"""This test stops a process right after its decision, for longer than its lease. Another process of its node finishes
the transaction, and then the first one goes on. Everything must be there once, and neither process may report damage.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crash.stopped_child import NODE, resources
from tm import Action, TransactionManager
from xabridge.testing.reference import ReferenceStore
from xabridge.testing.reference.remote import ReferenceServer

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120
LEASE_S = 1.0


class Field:
    """The store that takes part, the database that decides, and the first process."""

    def __init__(self, folder: Path, url: str) -> None:
        self.address, self.authkey, self.url = str(folder / "reference"), secrets.token_bytes(16), url
        self.store = ReferenceStore("shop")
        self.server = ReferenceServer({"shop": self.store}, self.address, self.authkey)
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "tests.crash.stopped_child", self.address, self.authkey.hex(), url, str(LEASE_S)
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.server.close()

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def goes_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def sibling(self) -> TransactionManager:
        """Another process of the node; one in this process is as good."""
        return TransactionManager(NODE, None, resources(self.address, self.authkey, self.url), background=False)


@pytest.fixture(params=["sqlite", "postgresql"])
def field(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Field]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/ledger.db"
    else:
        url = request.getfixturevalue("postgres").create_database()
    made = Field(tmp_path, url)
    yield made
    made.close()


def test_a_sibling_finishes_what_a_stopped_process_has_decided(field: Field) -> None:
    assert field.says() == "decided"
    with field.sibling() as sibling:
        assert {finding.action for finding in sibling.recover().findings} == {Action.LEFT_ALONE}, "it is at work"
        field.process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE_S
        while not field.store.data:
            assert time.monotonic() < deadline, "the lease of a stopped process does not run out"
            report = sibling.recover()
        assert {finding.action for finding in report.findings} == {Action.COMMITTED}
        assert len(report.ended) == 1
        field.goes_on()
        field.process.send_signal(signal.SIGCONT)
        assert field.says() == "committed"
        assert sibling.recover().clean
    assert field.store.data == {"order": 1}
    assert not field.store.branches
    field.goes_on()
    assert field.process.wait(PATIENCE_S) == 0


def test_a_killed_process_of_this_machine_is_recovered_before_its_lease_has_run_out(field: Field) -> None:
    assert field.says() == "decided"
    field.process.kill()
    field.process.wait(PATIENCE_S)
    with field.sibling() as sibling:
        assert sibling.last_report is not None
        assert {finding.action for finding in sibling.last_report.findings} == {Action.COMMITTED}
    assert field.store.data == {"order": 1}
