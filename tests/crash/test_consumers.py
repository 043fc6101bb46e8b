"""These tests run the campaign of consumers: processes with consumers, whose messages are poison in part, and whose
database, broker and processes are away for a while.

XABRIDGE_ROUNDS sets how many storms there are, XABRIDGE_SEED which; `python -m bench crash --part consumers` runs more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from random import Random

import pytest

from bench.crash.consumers.campaign import (
    ConsumerCampaign,
    ConsumerSetup,
    ConsumerStage,
    Letter,
    compare,
    setup_of,
)
from bench.crash.consumers.worker import COMMITS, GOOD, RAISES
from tests.memory_disk import new_folder
from tests.simulation.seeds import ROUNDS, SEED

ROOT = Path(__file__).parents[2]
COUNT = 40
OWN = "Poison: number 2 is poison"


@pytest.fixture(scope="module")
def stage() -> Iterator[ConsumerStage]:
    with chdir(ROOT), ConsumerStage(new_folder("consumers")) as made:
        yield made


SETUPS = [
    ConsumerSetup("calm", 10, "broker", limit=1, batch=20),
    ConsumerSetup("calm", 50, "worker", limit=1, batch=20, kinds=(RAISES, COMMITS)),
    ConsumerSetup("conflicts", 10, "worker", limit=2, batch=1, threads=8),
    ConsumerSetup("outage", 1, "worker", limit=2, workers=2, threads=5),
]


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_who_never_raises_is_handled_once(stage: ConsumerStage, setup: ConsumerSetup) -> None:
    audit = ConsumerCampaign(stage, COUNT).storm(setup, Random(SEED), f"seed {SEED}")
    assert audit.details == []
    assert audit.handled > 0
    assert audit.dead > 0


@pytest.mark.slow
@pytest.mark.long  # one more storm: each kind of weather has one above
@pytest.mark.timeout(0)
def test_storms(stage: ConsumerStage) -> None:
    campaign = ConsumerCampaign(stage)
    campaign.storms(SEED, ROUNDS)
    assert campaign.tally.violations == [], f"seed {SEED}"


@pytest.mark.parametrize(
    ("kind", "waiting", "rows", "letters"),
    [
        ("lost", [], [], [Letter(2, OWN, 5)]),
        ("duplicated", [], [1, 1], [Letter(2, OWN, 5)]),
        ("duplicated", [], [1], [Letter(1, None, None), Letter(2, OWN, 5)]),
        ("dead", [], [], [Letter(1, "OperationalError: away", 5), Letter(2, OWN, 5)]),
        ("spared", [], [1, 2], []),
        ("spared", [], [1], []),
        ("spared", [], [1], [Letter(2, OWN, 5), Letter(2, OWN, 5)]),
        ("reason", [], [1], [Letter(2, "Poison: number 3 is poison", 5)]),
        ("stuck", [1], [], [Letter(2, OWN, 5)]),
    ],
)
def test_what_the_audit_sees(kind: str, waiting: list[int], rows: list[int], letters: list[Letter]) -> None:
    audit = compare({1: GOOD, 2: RAISES}, waiting, rows, letters, {1: ["0.10 s begins"]})
    assert dict(audit.by_kind) == {kind: 1}
    assert not audit.right


def test_what_the_audit_finds_right() -> None:
    assert compare({1: GOOD, 2: RAISES}, [], [1], [Letter(2, OWN, 5)], {}).right
    assert compare({1: GOOD, 2: RAISES}, [], [1], [Letter(2, None, None)], {}).right, "a process was killed with it"


def test_every_setting_is_drawn() -> None:
    drawn = [setup_of(Random(f"{number}")) for number in range(400)]
    assert {one.poison for one in drawn} == {1, 10, 50}
    assert {one.limit for one in drawn} == set(range(1, 11))
    assert {(one.waits, one.batch) for one in drawn} == {("worker", 1), ("worker", 20), ("broker", 1), ("broker", 20)}
    assert {one.weather for one in drawn} == {"calm", "conflicts", "outage", "cuts", "kills"}
    assert {(one.store, one.style) for one in drawn} >= {("postgresql", "asyncio"), ("sqlite", "threads")}
    assert {one.workers > 1 for one in drawn} == {True, False}
