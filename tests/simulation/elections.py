"""This module models a broker's token queues, and processes that find out which founding counts
(`rm_amqp.decider.election`).

The broker keeps no order: a queue holds a set. A browse has two steps, its beginning and its end: it shows what was
there all the time, and of what arrived meanwhile it shows what the schedule chooses. It may or may not show messages
that a client has acquired. What a transaction sends to two queues arrives at two moments. It may also arrive late, when
its sender has the answer already or has ended. When a process dies, the messages that it has acquired become available
again. A lock may run out, too (`lapses`): then others get the message, its process hears nothing, and a transaction
that retires a message which somebody else has is rolled back as a whole. When the broker crashes, no message is
acquired any more, every connection is lost, and everything that was committed is there. A process can stop at any call
of a port for as long as the schedule chooses.

A process that knows which founding counts uses it as every client does: it takes the lease token, removes useless
messages, and sends the next generation.

A schedule is a sequence of choices, each with a number of possibilities. `run` chooses at random; `every_schedule` goes
through all of them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any

from rm_amqp.decider import election
from rm_amqp.decider.tokens import FoundingMessage, Token, WrongTokenError
from xa.coroutines import suspension

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from rm_amqp.decider.election import Foundings, Ports

    Algorithm = Callable[[Ports, FoundingMessage], Coroutine[None, None, FoundingMessage]]
    Choose = Callable[[int], int]
    Place = tuple[int, Token]


USES = 2
"""After so many the lease token is not replaced any more, so that there is an end to the states."""
LONG = 20_000
TOLD = frozenset(
    {"sent", "strange", "foundings", "tokens", "slot", "in_use", "locks", "held", "wanted", "token", "winner", "there"}
)
"""The variables that say where a process stands."""


class Refused(Exception):
    """The broker rolls a transaction back, because it retires what its process holds no more."""


class Contradiction(AssertionError):
    """Two processes do not agree, or a token is there twice."""


@dataclass(eq=False)
class Transaction:
    """What is under way at the broker: its discharge has arrived, and each part of it comes true at its own moment."""

    parts: list[Callable[[], object]]

    def go_on(self) -> None:
        """One part more."""
        self.parts.pop(0)()


@dataclass(eq=False)
class Broker:
    """The founding queue, and the tokens of each slot's queue: free, or held by a process or a transaction."""

    choose: Choose
    foundings: set[FoundingMessage] = field(default_factory=set)
    tokens: dict[Place, Process | Transaction | None] = field(default_factory=dict)
    under_way: list[Transaction] = field(default_factory=list)

    def free(self, slot: int) -> list[Token]:
        """What can be had in a slot's queue."""
        return sorted((token for (at, token), by in self.tokens.items() if at == slot and by is None), key=repr)

    def held(self, slot: int) -> list[Token]:
        """What somebody has."""
        return sorted((token for (at, token), by in self.tokens.items() if at == slot and by), key=repr)

    def some_of(self, things: list[Any]) -> list[Any]:
        """Those that the schedule chooses."""
        return [thing for thing in things if self.choose(2)]

    def let_go(self, holder: Process | Transaction) -> None:
        """What it held is there again."""
        for place, by in self.tokens.items():
            if by is holder:
                self.tokens[place] = None

    def begin(self, transaction: Transaction, retired: Sequence[Place] = ()) -> None:
        """The discharge has arrived."""
        for place in retired:
            self.tokens[place] = transaction
        self.under_way.append(transaction)

    def replace(self, by: Process | Transaction, retired: Sequence[Place], sent: Sequence[Place]) -> None:
        """What comes true at one moment."""
        for place in retired:
            assert self.tokens.pop(place) is by
        for place in sent:
            if place in self.tokens:
                raise Contradiction(f"{place} is there twice")
            self.tokens[place] = None

    def crash(self) -> None:
        """What was committed is there, all of it, and nobody holds anything."""
        while self.under_way:
            self.go_on(0)
        for place in self.tokens:
            self.tokens[place] = None

    def go_on(self, number: int) -> None:
        """One part more of a transaction."""
        self.under_way[number].go_on()
        if not self.under_way[number].parts:
            del self.under_way[number]


@dataclass(eq=False)
class Process:
    """One process, and the ports of its election. `result` is which founding counts, once it knows."""

    broker: Broker
    algorithm: Algorithm
    own: FoundingMessage
    result: FoundingMessage | None = None
    believed: set[Place] = field(default_factory=set)
    """What it has taken and not given back. The broker may have taken a lock away since, and given it to others."""
    waits_for: Transaction | None = None
    steps: Coroutine[None, None, None] | None = None

    @property
    def ready(self) -> bool:
        """Whether it waits for no answer."""
        return self.waits_for is None or not self.waits_for.parts

    def step(self) -> bool:
        """Goes on to its next call of a port; whether there is one."""
        if self.steps is None:
            self.steps = self._run()
        try:
            self.steps.send(None)
        except StopIteration:
            return False
        return True

    async def _run(self) -> None:
        """The algorithm, and then the use of its result."""
        self.result = await self.algorithm(self, self.own)
        await self._use(self.result)

    async def foundings(self) -> Foundings:
        await suspension()
        broker = self.broker
        there = set(broker.foundings)
        await suspension()
        return frozenset(there | set(broker.some_of(sorted(broker.foundings - there))))

    async def shown(self, slot: int) -> list[Token]:
        await suspension()
        return [*self.broker.free(slot), *self.broker.some_of(self.broker.held(slot))]

    async def take(self, slot: int, wait_s: float) -> Token | None:
        del wait_s
        await suspension()
        free = self.broker.free(slot)
        if not free:
            return None
        token = free[self.broker.choose(len(free))]
        self.broker.tokens[slot, token] = self
        if (slot, token) in self.believed:
            raise Refused
        self.believed.add((slot, token))
        return token

    # Nobody can tell the next two from coming late to the next call, so that they suspend nothing.
    async def release(self) -> None:
        self.broker.let_go(self)
        self.believed.clear()

    async def pause(self, why: str) -> None:
        pass

    async def found(self, founding: FoundingMessage) -> None:
        await suspension()
        places = [(token.slot, token) for token in founding.first_tokens()]
        transaction = Transaction([])
        parts: list[Callable[[], object]] = [
            lambda: self.broker.foundings.add(founding),
            lambda: self.broker.replace(transaction, [], places),
        ]
        transaction.parts += parts if self.broker.choose(2) else reversed(parts)
        if self.broker.choose(2):  # what was answered may be there a moment later
            self.broker.begin(transaction)
        else:
            await self._discharged(transaction)

    async def _discharged(self, transaction: Transaction, retired: Sequence[Place] = ()) -> None:
        self.broker.begin(transaction, retired)
        self.waits_for = transaction
        await suspension()
        self.waits_for = None

    async def elect(self, winner: FoundingMessage, foundings: Foundings) -> None:
        await suspension()
        places = {(founding.founder, founding.lease_slot) for founding in foundings}
        locks = [place for place in self.believed if (place[1].founder, place[0]) in places]
        if any(self.broker.tokens.get(place) is not self for place in locks):
            raise Refused
        self.believed.difference_update(locks)
        (lock,) = (token for _, token in locks if token.founder == winner.founder)
        transaction = Transaction([])
        refused = []

        def commit() -> None:
            if any(self.broker.tokens.get(place) is not transaction for place in locks):
                refused.append(transaction)
                self.broker.let_go(transaction)
            else:
                self.broker.replace(transaction, locks, [(lock.slot, lock.renewed())])

        transaction.parts.append(commit)
        await self._discharged(transaction, locks)
        if refused:
            raise Refused

    async def _use(self, founding: FoundingMessage) -> None:
        """Takes the lease token, drops what is in its way, and replaces it."""
        slot, broker = founding.lease_slot, self.broker
        while True:
            await suspension()
            free = broker.free(slot)
            if not free:
                return  # somebody holds it, who does the same

            token = free[broker.choose(len(free))]
            if token.founder != founding.founder:
                if token.used:
                    raise Contradiction(f"{token.founder.hex()} is in use, and {founding.founder.hex()} counts here")
                del broker.tokens[slot, token]
                continue
            if not token.used:
                raise Contradiction(f"the token of {founding.founder.hex()} is unused, and it counts")
            if token.generation >= USES:
                return
            broker.tokens[slot, token] = self
            await suspension()
            if broker.tokens.get((slot, token)) is not self:
                raise Refused
            broker.replace(self, [(slot, token)], [(slot, token.renewed())])
            return


@dataclass
class World:
    """Some processes over one broker. One that dies is followed by another; so many deaths there are in all."""

    choose: Choose
    algorithm: Algorithm
    slots: Sequence[int]
    """Of each process' own founding."""
    deaths: int = 0
    broker_crashes: int = 0
    lapses: int = 0
    """How many locks run out while somebody holds them, or a transaction retires them, who does not hear of it."""
    stays: int = 0
    """Where it is not 0: a process goes on, but for one time in so many, so that others stand still for long."""

    def __post_init__(self) -> None:
        self._last: Process | None = None
        self.broker = Broker(self.choose)
        self.results: set[FoundingMessage] = set()
        self._born = 0
        self.processes = [self._process(slots) for slots in self.slots]

    def _process(self, slots: int) -> Process:
        self._born += 1
        founder = bytes([(self._born * 73) % 256]) * 8  # the smallest is not the first
        return Process(self.broker, self.algorithm, FoundingMessage(founder, slots))

    def move(self) -> bool:
        """One process goes on, or there is a crash; whether there was anything to do."""
        ready = [process for process in self.processes if process.ready]
        under_way = len(self.broker.under_way)
        dying = self.processes if self.deaths else []
        locked = [place for place, by in self.broker.tokens.items() if by is not None] if self.lapses else []
        ways = len(ready) + under_way + len(dying) + len(locked) + bool(self.broker_crashes and self.processes)
        if not ways:
            return False

        if self.stays and self._last in ready and self.choose(self.stays):
            way = ready.index(self._last)
        else:
            way = self.choose(ways)

        if way < len(ready):
            process = self._last = ready[way]
            try:
                if not process.step():
                    self.processes.remove(process)
            except Refused:
                self._replace(process)
            if process.result is not None:
                self.results.add(process.result)
        elif (way := way - len(ready)) < under_way:
            self.broker.go_on(way)
        elif (way := way - under_way) < len(dying):
            self.deaths -= 1
            self._replace(dying[way])
        elif (way := way - len(dying)) < len(locked):
            self.lapses -= 1
            self.broker.tokens[locked[way]] = None
        else:
            self.broker_crashes -= 1
            self.broker.crash()
            for process in tuple(self.processes):
                self._replace(process)
        self.check()
        return True

    def _replace(self, process: Process) -> None:
        self.broker.let_go(process)
        self.processes[self.processes.index(process)] = self._process(process.own.slots)

    def check(self) -> None:
        """Everybody who knows it knows the same, and one founding at the most is in use."""
        if len(self.results) > 1:
            raise Contradiction(f"both count: {self.results}")
        used = {token.founder for _, token in self.broker.tokens if token.used}
        if len(used) > 1:
            raise Contradiction(f"both are in use: {used}")
        if self.results and used != {founding.founder for founding in self.results}:
            raise Contradiction(f"{self.results} counts, and in use is {used}")

    def finish(self) -> None:
        """Nobody dies any more: those who are left, and one who comes last, get to the same end."""
        self.deaths = self.broker_crashes = self.lapses = 0
        self.processes.append(self._process(self.slots[0]))
        for _ in range(LONG):
            if not self.move():
                break
        else:
            raise Contradiction("it does not come to an end")
        if len(self.results) != 1:
            raise Contradiction("nobody knows which founding counts")

    def key(self) -> object:
        """Where everything is, to be compared."""
        names: dict[object, int] = {each: number for number, each in enumerate(self.processes)}
        names |= {each: -1 - number for number, each in enumerate(self.broker.under_way)}
        return (
            self.deaths,
            self.broker_crashes,
            self.lapses,
            frozenset(self.results),
            frozenset(self.broker.foundings),
            frozenset((place, names.get(by)) for place, by in self.broker.tokens.items()),
            tuple(len(transaction.parts) for transaction in self.broker.under_way),
            tuple(
                (process.own, frozenset(process.believed), names.get(process.waits_for), _place(process))
                for process in self.processes
            ),
        )


def _place(process: Process) -> object:
    """Where its coroutines stand, and with which variables."""
    found = []
    steps: Any = process.steps
    while iscoroutine(steps) and steps.cr_frame is not None:
        names = {name: repr(_sorted(value)) for name, value in steps.cr_frame.f_locals.items() if name in TOLD}
        found.append((steps.cr_frame.f_lasti, tuple(sorted(names.items()))))
        steps = steps.cr_await
    return tuple(found)


def _sorted(value: object) -> object:
    return sorted(value, key=repr) if isinstance(value, (set, frozenset, dict, list)) else value


def every_schedule(world_of: Callable[[Choose], World], most: int) -> int:
    """Every schedule of such a world, each state once; how many states there are. More than `most` are too many.

    A world can't be copied. So each is moved on until it comes to a state that another one was in, or to its end, and
    makes the first of all choices; the others are made by new worlds, which repeat the choices up to there.
    """
    seen: set[object] = set()
    ahead: list[tuple[int, ...]] = [()]
    while ahead:
        script = Script(ahead.pop(), ahead)
        world = world_of(script)
        while world.move():
            if script.repeats:
                continue
            state = world.key()
            if state in seen:
                break
            seen.add(state)
        else:
            if len(world.results) != 1:
                raise Contradiction("nobody knows which founding counts")

        if len(seen) > most:
            raise Contradiction(f"more than {most} states")
    return len(seen)


class Script:
    """Choices: first those that are given, then always the first one, while `ahead` gets what else could be chosen."""

    def __init__(self, given: tuple[int, ...], ahead: list[tuple[int, ...]]) -> None:
        self._made = list(given)
        self._ahead = ahead
        self._at = 0

    def __call__(self, ways: int) -> int:
        if self._at == len(self._made):
            self._ahead += [(*self._made, choice) for choice in range(1, ways)]
            self._made.append(0)
        self._at += 1
        return self._made[self._at - 1]

    @property
    def repeats(self) -> bool:
        """Whether some of the given choices are not made yet."""
        return self._at < len(self._made)


def run(seed: int, algorithm: Algorithm = election.elect, *, lapses: int = 0) -> None:
    """One schedule of many processes, which die now and then, and lose at most so many locks."""
    choose = random.Random(seed).randrange
    slots = [(2, 2, 2, 2), (2, 2, 3), (1, 3, 2), (2, 2)][choose(4)]
    world = World(choose, algorithm, slots, deaths=choose(4), broker_crashes=choose(2), stays=choose(3) * 8)
    world.lapses = lapses
    try:
        for _ in range(choose(200)):
            if not world.move():
                break
        world.finish()
    except (Contradiction, WrongTokenError) as wrong:
        raise Contradiction(f"seed {seed}: {wrong}") from wrong
