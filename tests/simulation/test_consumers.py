"""These tests run consumers under seeded schedules of poison, batches, outages, conflicts, kills and restarts, and see
that no message pays for another one.

A failing seed is printed with its trace; run it again with XABRIDGE_SEED=n. XABRIDGE_SCHEDULES sets how many are run.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.consumer_mutants import MUTANTS
from tests.simulation.consumers import Mutant, World
from tests.simulation.seeds import few, many

QUICK = 300
SCHEDULES = int(os.environ.get("XABRIDGE_SCHEDULES", "2000"))
SEARCH = 5_000


def _run(seed: int) -> None:
    world = World(seed)
    world.run()
    assert not world.violations(), f"seed {seed}: {world.violations()}\n{world.settings}\n" + "\n".join(world.trace)


def test_one_seed_or_a_quick_walk() -> None:
    for seed in few(QUICK):
        _run(seed)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(2))
def test_schedules(part: int) -> None:
    for seed in many(part, 2, SCHEDULES):
        _run(seed)


def test_a_seed_runs_the_same_way_twice() -> None:
    once, again = World(4711), World(4711)
    once.run()
    again.run()
    assert once.trace == again.trace


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_checker_sees_every_mutant(mutant: Mutant) -> None:
    for seed in range(SEARCH):
        world = World(seed, mutant)
        world.run()
        if world.violations():
            return
    pytest.fail(f"{SEARCH} schedules and no violation seen")
