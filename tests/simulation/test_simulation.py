"""These tests run three simulations under seeded schedules: the completion and recovery cores, with crashes, lost
replies, and resource managers that vanish, return, expire, refuse and decide on their own; consumers, with poison,
batches, outages, conflicts, kills and restarts, where no message may pay for another one; and the pipeline's core, with
crashes, late and duplicate attempts, lost replies, commits that raise, and drivers that take the pipeline from each
other.

A failing seed is printed with its trace; run it again with XABRIDGE_SEED=n. XABRIDGE_SCHEDULES sets how many are run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.simulation import consumer_mutants, consumers, mutants, world
from tests.simulation.pipeline import mutants as pipeline_mutants
from tests.simulation.pipeline import world as pipeline_world
from tests.simulation.seeds import few, many

PARTS = 2
SEARCH = 60_000
FOUND = (1_001_501, 1_002_508)
"""Without fences against earlier tries, a message was blamed in place of another one, which a batch of the pipeline
still held whose fence had failed; and a queue was read out of order."""


@dataclass(frozen=True)
class Simulation:
    """A world, made from a seed, or from a seed and a mutant; how many schedules are quick, and how many are many."""

    world: Callable[..., Any]
    mutants: Sequence[Any]
    quick: int
    schedules: int

    def run(self, seed: int) -> None:
        """One schedule."""
        made = self.world(seed)
        made.run()
        settings = getattr(made, "settings", "")
        assert not made.violations(), f"seed {seed}: {made.violations()}\n{settings}\n" + "\n".join(made.trace)


def _with_mutant(usual: world.Mutant, seed: int, mutant: world.Mutant | None = None) -> world.World:
    return world.World(seed, mutant or usual)


LEAVING = world.Mutant("none", leaving=True)
HANDS = world.Mutant("none", hands=True)
SIMULATIONS = {
    "transactions": Simulation(world.World, mutants.MUTANTS, 40, 1_000),
    "transactions that leave answers": Simulation(partial(world.World, mutant=LEAVING), (), 20, 500),
    "transactions with an operator": Simulation(partial(_with_mutant, HANDS), mutants.MUTANTS_OF_HANDS, 40, 1_000),
    "consumers": Simulation(consumers.World, consumer_mutants.MUTANTS, 10, 200),
    "pipelines": Simulation(pipeline_world.World, pipeline_mutants.MUTANTS, 4, 100),
}
EACH = pytest.mark.parametrize("simulation", SIMULATIONS.values(), ids=SIMULATIONS)


@EACH
def test_one_seed_or_a_quick_walk(simulation: Simulation) -> None:
    for seed in few(simulation.quick):
        simulation.run(seed)


@pytest.mark.parametrize("seed", FOUND)
def test_schedules_of_pipelines_that_found_a_defect(seed: int) -> None:
    SIMULATIONS["pipelines"].run(seed)


@pytest.mark.slow
@pytest.mark.timeout(0)
@EACH
@pytest.mark.parametrize("part", range(PARTS))
def test_schedules(part: int, simulation: Simulation) -> None:
    for seed in many(part, PARTS, int(os.environ.get("XABRIDGE_SCHEDULES", simulation.schedules))):
        simulation.run(seed)


@EACH
def test_a_seed_runs_the_same_way_twice(simulation: Simulation) -> None:
    once, again = simulation.world(4711), simulation.world(4711)
    once.run()
    again.run()
    assert once.trace == again.trace


@pytest.mark.slow
@pytest.mark.parametrize(
    ("simulation", "mutant"),
    [
        pytest.param(simulation, mutant, id=f"{name}: {mutant.name}")
        for name, simulation in SIMULATIONS.items()
        for mutant in simulation.mutants
    ],
)
def test_the_checker_sees_every_mutant(simulation: Simulation, mutant: Any) -> None:
    for seed in (mutant.seed, *range(SEARCH)):
        made = simulation.world(seed, mutant)
        made.run()
        if made.violations():
            return
    pytest.fail(f"{SEARCH} schedules and no violation seen")
