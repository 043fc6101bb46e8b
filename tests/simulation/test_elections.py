"""These tests check which founding of the token queues counts: in every schedule of two processes, and in random ones
of more, on a broker that keeps no order (`tests.simulation.elections`). Mutants make mistakes, and the checker must
notice each of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from rm_amqp.decider.election import elect
from rm_amqp.decider.tokens import WrongTokenError
from tests.simulation.bent import Bent
from tests.simulation.elections import Contradiction, World, every_schedule, run
from tests.simulation.seeds import few, many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rm_amqp.decider.election import Foundings, Ports
    from rm_amqp.decider.tokens import FoundingMessage, Token
    from tests.simulation.elections import Algorithm

QUICK = 150
SCHEDULES = int(os.environ.get("XABRIDGE_SCHEDULES", "600"))
PARTS = 2
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
@pytest.mark.long  # schedules that a seed draws: the tests above and below
@pytest.mark.timeout(0)
def test_every_schedule_of_two() -> None:
    states = every_schedule(lambda choose: World(choose, elect, (1, 1)), 200_000)
    assert states > 10_000


@pytest.mark.parametrize("lapses", [1, 4])
def test_locks_that_run_out(lapses: int) -> None:
    """Azure Service Bus has such locks."""
    for seed in few(QUICK // 2):
        run(seed, lapses=lapses)


# --- mutants ----------------------------------------------------------------------------------------------------
async def _use(ports: Ports, founding: FoundingMessage) -> None:
    """Whatever others may think of it."""
    while True:
        token = await ports.take(founding.lease_slot, 0)
        if token is not None and token.founder == founding.founder:
            if not token.used:
                await ports.elect(founding, frozenset({founding}))
            await ports.release()
            return
        if token is None:
            await ports.release()
            await ports.pause("it is not there")


async def _shown(ports: Ports, own: FoundingMessage) -> Foundings:
    foundings = await ports.foundings()
    if foundings:
        return foundings
    await ports.found(own)
    return await _shown(ports, own)


def _chosen(choice: Callable[[Foundings], FoundingMessage], *, shown: bool = True) -> Algorithm:
    """One of what is shown, or whoever has sent one takes that, with the lock of that one only."""

    async def elect(ports: Ports, own: FoundingMessage) -> FoundingMessage:
        foundings = await (_shown(ports, own) if shown else ports.foundings())
        if not foundings:
            await ports.found(own)
        chosen = choice(foundings or frozenset({own}))
        await _use(ports, chosen)
        return chosen

    return elect


def _first(foundings: Foundings) -> FoundingMessage:
    """What the former version did: the first message, in whatever order they are now."""
    return max(foundings, key=lambda founding: (len(foundings) * founding.founder[0]) % 7)


async def _takes_what_it_gets(ports: Ports, own: FoundingMessage) -> FoundingMessage:
    """A lock that can't be had is done without."""
    while True:
        foundings = await _shown(ports, own)
        taken: list[Token] = []
        for slot in sorted({founding.lease_slot for founding in foundings}):
            while (token := await ports.take(slot, 0)) is not None:
                taken.append(token)
        used = [each for each in foundings if any(token.used and token.founder == each.founder for token in taken)]
        places = {(token.founder, token.slot) for token in taken}
        locks = [each for each in foundings if (each.founder, each.lease_slot) in places]
        if not used and locks:
            await ports.elect(min(locks), frozenset(locks))
            used = [min(locks)]

        await ports.release()
        if used:
            return used[0]
        await ports.pause("it is not there")


class _RetiresTheWinnerOnly(Bent["Ports"]):
    async def elect(self, winner: FoundingMessage, foundings: Foundings) -> None:
        del foundings
        await self.ports.elect(winner, frozenset({winner}))


class _BrowsesOnce(Bent["Ports"]):
    """The second browse is believed to be as the first."""

    browsed: Foundings | None = None

    async def foundings(self) -> Foundings:
        foundings, self.browsed = self.browsed, None
        if foundings is None:
            foundings = await self.ports.foundings()
            self.browsed = foundings or None
        return foundings

    async def pause(self, why: str) -> None:
        await self.ports.pause(why)
        self.browsed = None


class _GivesUpAtOnce(Bent["Ports"]):
    """A used token of a founding that was not shown a moment ago is an error."""

    seen: Foundings = frozenset()

    async def foundings(self) -> Foundings:
        self.seen = await self.ports.foundings()
        return self.seen

    async def shown(self, slot: int) -> list[Token]:
        tokens = await self.ports.shown(slot)
        self._check(tokens)
        return tokens

    async def take(self, slot: int, wait_s: float) -> Token | None:
        token = await self.ports.take(slot, wait_s)
        self._check([token] if token is not None else [])
        return token

    def _check(self, tokens: Iterable[Token]) -> None:
        if any(token.used and token.founder not in {each.founder for each in self.seen} for token in tokens):
            raise WrongTokenError("its founding message is gone")


def _with(bent: Callable[[Ports], Any]) -> Algorithm:
    """The right algorithm, over bent ports."""
    return lambda ports, own: elect(bent(ports), own)


MUTANTS: dict[str, Algorithm] = {
    "the first message counts": _chosen(_first),
    "whoever has sent one takes it for the first": _chosen(min, shown=False),
    "the smallest that is shown counts": _chosen(min),
    "the locks of the losing ones stay": _with(_RetiresTheWinnerOnly),
    "one browse is believed to show what was there at one moment": _with(_BrowsesOnce),
    "a lock that can't be had is done without": _takes_what_it_gets,
    "a founding that was not seen is believed to be gone": _with(_GivesUpAtOnce),
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
