"""These tests run the completion and recovery cores under seeded schedules of crashes, lost replies, and resource
managers that vanish, return, expire, refuse and decide on their own.

A failing seed is printed with its trace; run it again with XABRIDGE_SEED=n. XABRIDGE_SCHEDULES sets how many are run.
"""

from __future__ import annotations

import os

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.seeds import few, many
from tests.simulation.world import World

QUICK = 1_500
SCHEDULES = int(os.environ.get("XABRIDGE_SCHEDULES", "10000"))
PARTS = 2
SEARCH = 60_000


def _run(seed: int, *, leaving: bool = False) -> None:
    world = World(seed, leaving=leaving)
    world.run()
    assert not world.violations(), f"seed {seed}: {world.violations()}\n" + "\n".join(world.trace)


@pytest.mark.parametrize("leaving", [False, True])
def test_one_seed_or_a_quick_walk(*, leaving: bool) -> None:
    for seed in few(QUICK):
        _run(seed, leaving=leaving)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("leaving", [False, True])
@pytest.mark.parametrize("part", range(PARTS))
def test_schedules(part: int, *, leaving: bool) -> None:
    for seed in many(part, PARTS, SCHEDULES):
        _run(seed, leaving=leaving)


def test_a_seed_runs_the_same_way_twice() -> None:
    once, again = World(4711), World(4711)
    once.run()
    again.run()
    assert once.trace == again.trace


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_checker_sees_every_mutant(mutant: Mutant) -> None:
    for seed in (mutant.seed, *range(SEARCH)):
        world = World(
            seed,
            commit_through=mutant.commit_through,
            recovery=mutant.recovery,
            leasing=mutant.leasing,
            counting=mutant.counting,
            leaving=mutant.leaving,
        )
        world.run()
        if world.violations():
            return
    pytest.fail(f"{SEARCH} schedules and no violation seen")
