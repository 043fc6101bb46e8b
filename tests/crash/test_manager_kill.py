"""These tests kill a real process that runs transactions with SIGKILL and start it again, while its stores live on in
the test's process.

They kill it at named points, exactly before and after each verb, the force and the end record; and at random points,
with several threads, after a seeded number of answers. XABRIDGE_KILLS sets how many random kills there are,
XABRIDGE_KILLS_SEED which.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.crash.forked import ForkedProcess
from tests.waiting import until
from xabridge.testing.reference import ReferenceStore
from xabridge.testing.reference.remote import ReferenceServer

KILLS = int(os.environ.get("XABRIDGE_KILLS", "6"))
SEED = int(os.environ.get("XABRIDGE_KILLS_SEED", "1"))
PATIENCE_S = 60

VITAL = [f"{when} {what} 3" for what in ("force", "commit a", "commit b") for when in ("before", "after")]
OTHERS = [
    f"{when} {what} 3"
    for what in ("start a", "end b", "prepare a", "prepare b", "complete a", "rollback a", "rollback b", "note the end")
    for when in ("before", "after")
]


class Field:
    """The stores, their server, the folder of the log; and what each transaction was told."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authkey = secrets.token_bytes(16)
        self._address = str(folder / "reference")
        self.stores = {name: ReferenceStore(name) for name in "ab"}
        self.server = ReferenceServer(self.stores, self._address, self._authkey)
        self.told: dict[str, str] = {}

    @contextmanager
    def child(self, name: str, threads: int, point: str = "- 0") -> Iterator[ForkedProcess]:
        arguments = (self._address, self._authkey.hex(), str(self._folder / "log"), name, str(threads), point)
        process = ForkedProcess("tests.crash.manager_child", *arguments)
        try:
            yield process
        finally:
            process.kill()
            for line in process.lines():
                self.hear(line)
            process.close()
        # What a killed process had sent has its effect before the next one starts.
        until(lambda: not self.server.connected, "the server still has connections of a dead process")

    def hear(self, line: str) -> None:
        key, _, told = line.rstrip("\n").partition(" ")
        self.told[key] = told

    def recover(self) -> None:
        with self.child("recovery", 0) as process:
            assert process.wait(PATIENCE_S) == 0

    def check(self, where: str) -> None:
        """Every transaction is in both stores or in none, as it was told, and nothing is left."""
        a, b = self.stores["a"].data, self.stores["b"].data
        assert a == b, f"{where}: {a.keys() ^ b.keys()}"
        for key, told in self.told.items():
            if told != "unknown":
                assert (key in a) == (told == "committed"), f"{where}: {key} was told {told}"
        for name, store in self.stores.items():
            assert not store.in_doubt, (where, name)
            assert not store.associations, (where, name)


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    made = Field(tmp_path)
    yield made
    made.server.close()


def killed_at(field: Field, points: list[str]) -> None:
    for number, point in enumerate(points):
        with field.child(f"p{number}", 1, point) as process:
            for line in process.lines():
                field.hear(line)
                assert len(field.told) < 1000 * (number + 1), f"{point} was never reached"
            assert process.wait(PATIENCE_S) == -9
        field.recover()
        field.check(point)
    assert "committed" in field.told.values()


@pytest.mark.slow  # without processes, at every step: tests/simulation
@pytest.mark.parametrize("point", VITAL)
def test_killed_around_the_decision(field: Field, point: str) -> None:
    killed_at(field, [point])
    assert field.told == {"p0-0-0": "committed", "p0-0-1": "committed"}
    decided = point != "before force 3"
    assert ("p0-0-2" in field.stores["a"].data) == decided, "the force is the commit point, exactly"


@pytest.mark.slow
def test_killed_at_any_other_point(field: Field) -> None:
    killed_at(field, OTHERS)


@pytest.mark.slow
def test_killed_while_it_recovers(field: Field) -> None:
    """The first is killed with a decision made; the second in the middle of recovering it; the third finishes it."""
    for number, what in enumerate(("commit a", "commit b")):
        for when in ("before", "after"):
            with field.child(f"r{number}{when}", 1, f"before {what} 2") as process:
                assert process.wait(PATIENCE_S) == -9
            with field.child("again", 0, f"{when} {what} 1") as process:
                process.wait(PATIENCE_S)
            field.recover()
            field.check(f"{when} {what}")


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_killed_at_random(field: Field) -> None:
    random = Random(SEED)
    for kill in range(KILLS):
        with field.child(f"k{kill}", 4) as process:
            for _ in range(random.randint(1, 150)):
                field.hear(process.stdout.readline())
        if random.random() < 0.5:
            field.recover()
            field.check(f"seed {SEED}, kill {kill}")
    field.recover()
    field.check(f"seed {SEED}, at the end")
    assert sum(told == "committed" for told in field.told.values()) >= KILLS
