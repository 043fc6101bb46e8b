"""Which founding of the token queues counts: every schedule of two processes, and random ones of more, on a broker that
keeps no order (`tests.simulation.elections`); and mutants, each of which has to be seen."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from rm_amqp.decider.election import Browse, Elect, Found, LetGo, Look, Pause, Take, elected
from rm_amqp.decider.tokens import Founding, Token, WrongTokenError
from tests.simulation.elections import Contradiction, World, every_schedule, run
from tests.simulation.seeds import few, many

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from rm_amqp.decider.election import Effect, Foundings

    Algorithm = Callable[[Founding], Generator[Effect, Any, Founding]]

QUICK = 2_000
SCHEDULES = int(os.environ.get("XABRIDGE_SCHEDULES", "12000"))
PARTS = 4
SEARCH = 60_000


def test_one_seed_or_a_quick_walk() -> None:
    for seed in few(QUICK):
        run(seed)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(PARTS))
def test_schedules(part: int) -> None:
    for seed in many(part, PARTS, SCHEDULES):
        run(seed)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_every_schedule_of_two() -> None:
    states = every_schedule(lambda choose: World(choose, elected, (1, 1)), 200_000)
    assert states > 10_000


# --- mutants ----------------------------------------------------------------------------------------------------
def _use(founding: Founding) -> Generator[Effect, Any, None]:
    """Whatever others may think of it."""
    while True:
        token: Token | None = yield Take(founding.lease_slot, 0)
        if token is not None and token.founder == founding.founder:
            if not token.used:
                yield Elect(founding, frozenset({founding}))
            yield LetGo()
            return
        if token is None:
            yield LetGo()
            yield Pause("it is not there")


def _shown(own: Founding) -> Generator[Effect, Any, Foundings]:
    foundings: Foundings = yield Browse()
    if foundings:
        return foundings
    yield Found(own)
    return (yield from _shown(own))


def _one_that_is_shown(own: Founding) -> Generator[Effect, Any, Founding]:
    """What the former version did: the first message, in whatever order they are now."""
    foundings = yield from _shown(own)
    first: Founding = max(foundings, key=lambda founding: (len(foundings) * founding.founder[0]) % 7)
    yield from _use(first)
    return first


def _its_own(own: Founding) -> Generator[Effect, Any, Founding]:
    """Whoever has sent one takes that."""
    foundings = yield Browse()
    if not foundings:
        yield Found(own)
        foundings = frozenset({own})
    yield from _use(min(foundings))
    smallest: Founding = min(foundings)
    return smallest


def _the_smallest_that_is_shown(own: Founding) -> Generator[Effect, Any, Founding]:
    """By what it contains, with the lock of that one only."""
    foundings = yield from _shown(own)
    yield from _use(min(foundings))
    return min(foundings)


def _bent(bend: Callable[[Effect], Effect]) -> Algorithm:
    """The right algorithm; each effect goes through `bend`."""

    def algorithm(own: Founding) -> Generator[Effect, Any, Founding]:
        electing, answer = elected(own), None
        while True:
            try:
                effect = electing.send(answer)
            except StopIteration as over:
                founding: Founding = over.value
                return founding
            answer = yield bend(effect)

    return algorithm


def _retires_the_winner_only(effect: Effect) -> Effect:
    return Elect(effect.winner, frozenset({effect.winner})) if isinstance(effect, Elect) else effect


def _browses_once(own: Founding) -> Generator[Effect, Any, Founding]:
    """The second browse is believed to be as the first."""
    electing, answer, browsed = elected(own), None, None
    while True:
        try:
            effect = electing.send(answer)
        except StopIteration as over:
            founding: Founding = over.value
            return founding
        if isinstance(effect, Browse) and browsed is not None:
            answer, browsed = browsed, None
            continue
        answer = yield effect
        if isinstance(effect, Browse):
            browsed = answer or None
        elif isinstance(effect, Pause):
            browsed = None


def _takes_what_it_gets(own: Founding) -> Generator[Effect, Any, Founding]:
    """A lock that can't be had is done without."""
    while True:
        foundings = yield from _shown(own)
        taken: list[Token] = []
        for slot in sorted({founding.lease_slot for founding in foundings}):
            while (token := (yield Take(slot, 0))) is not None:
                taken.append(token)
        used = [each for each in foundings if any(token.used and token.founder == each.founder for token in taken)]
        places = {(token.founder, token.slot) for token in taken}
        locks = [each for each in foundings if (each.founder, each.lease_slot) in places]
        if not used and locks:
            yield Elect(min(locks), frozenset(locks))
            used = [min(locks)]
        yield LetGo()
        if used:
            return used[0]
        yield Pause("it is not there")


def _gives_up_at_once(own: Founding) -> Generator[Effect, Any, Founding]:
    """A used token of a founding that was not shown a moment ago is an error."""
    electing, answer = elected(own), None
    foundings: Foundings = frozenset()
    while True:
        try:
            effect = electing.send(answer)
        except StopIteration as over:
            founding: Founding = over.value
            return founding
        answer = yield effect
        if isinstance(effect, Browse):
            foundings = answer
        tokens = answer if isinstance(effect, Look) else [answer] if isinstance(effect, Take) and answer else []
        if any(token.used and token.founder not in {each.founder for each in foundings} for token in tokens):
            raise WrongTokenError("its founding message is gone")


MUTANTS: dict[str, Algorithm] = {
    "the first message counts": _one_that_is_shown,
    "whoever has sent one takes it for the first": _its_own,
    "the smallest that is shown counts": _the_smallest_that_is_shown,
    "the locks of the losing ones stay": _bent(_retires_the_winner_only),
    "one browse is believed to show what was there at one moment": _browses_once,
    "a lock that can't be had is done without": _takes_what_it_gets,
    "a founding that was not seen is believed to be gone": _gives_up_at_once,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_is_seen(name: str) -> None:
    for seed in range(SEARCH):
        try:
            run(seed, MUTANTS[name])
        except Contradiction:
            return
    pytest.fail(f"{SEARCH} schedules and no contradiction seen")
