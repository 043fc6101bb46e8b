"""Random schedules of topics, subscriptions and branches with refusals and crashes: no subscription lacks a message or
has one twice, no payload is lost or left; and each mutant is found."""

from __future__ import annotations

import pytest

from dtx.store.contract import StoreError
from tests.dtx.broker.topic_schedules import MUTANTS, Schedule
from tests.simulation.seeds import few, many


@pytest.mark.parametrize("seed", few(40))
def test_every_subscription_has_what_was_committed_while_it_stood(seed: int) -> None:
    Schedule(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_schedules(part: int) -> None:
    for seed in many(part, 4, 2000):
        try:
            Schedule(seed).run()
        except AssertionError as error:
            raise AssertionError(f"XABRIDGE_SEED={seed}: {error}") from error


@pytest.mark.pure  # replaces functions of ours
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    with MUTANTS[name](), pytest.raises((AssertionError, StoreError)):
        for seed in range(120):
            Schedule(seed).run()
