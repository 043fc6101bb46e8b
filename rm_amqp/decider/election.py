"""Which founding counts, where several processes may have founded the same place at about the same moment.

A broker need not keep the order of messages that were committed at the same moment (ActiveMQ Artemis changes it when
it starts again), and a founding message that was sent long ago may be committed at any later time. So nothing here
rests on an order, and nothing that was seen once is believed to be all. What is relied upon:

 - Nobody ever takes a message from the founding queue, so that a browse shows every founding that was committed before
   the browse began. It may show those that are committed meanwhile, or not.
 - A message that somebody holds can't be had by another one, and comes back when he is gone.
 - A local transaction retires messages and sends others, all or none.

A founding brings its lease token with it, in the same transaction. That token is the founding's lock:

 1. Browse the founding queue. Where nothing is in it, send a founding of our own and its tokens, and browse again.
 2. Browse the queues of the lease tokens. A token that was used (generation 1 and more) names the founding that counts.
 3. Otherwise browse the founding queue once more. If both browses have shown the same, these were all the foundings at
    one moment between the two.
 4. Take the lease tokens of all these foundings, and whatever else their queues have. If a token was used after all,
    its founding counts.
 5. Holding all of them, unused: the founding with the smallest founder counts. In one transaction retire all of these
    tokens, and send the smallest one's anew, as generation 1.

Why there is one result for good: of two sets that step 3 has found, one holds the other, because they are what a queue
that only grows held at two moments. Whoever elects holds the locks of a whole set, so that two who elect have a lock in
common, and come one after the other. The second one either finds it used, or does not find it at all; then it looks
again, and the founding that counts is in every set that is found from then on. A founding that comes later finds a used
token, and its own tokens are of no use to anybody: whoever meets one drops it.

Losing foundings stay in the founding queue. To take them out would need somebody to take from that queue, and for as
long as he held the founding that counts, another one would see none.

`elected` is the algorithm: a generator without I/O that yields what is to be done and is sent what came of it. Whoever
performs it raises what ends it (no connection, no time left), and has to let go of what is held then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rm_amqp.decider.tokens import Founding, Token, WrongTokenError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    Foundings = frozenset[Founding]

TAKE_WAIT_S: Final = 1.0
"""How long one who may wait for a lock waits for it before he looks again."""
PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Browse:
    """Look at the founding queue. Answer: a frozenset of the foundings in it."""


@dataclass(frozen=True, slots=True)
class Found:
    """Send this founding and its first tokens, in one transaction."""

    founding: Founding


@dataclass(frozen=True, slots=True)
class Look:
    """Look at a slot's queue. Answer: the tokens that it shows; one that somebody holds need not be among them."""

    slot: int


@dataclass(frozen=True, slots=True)
class Take:
    """Hold one more token of a slot's queue. Answer: the token; None where none came in `wait_s`."""

    slot: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class LetGo:
    """Give every token back that is held."""


@dataclass(frozen=True, slots=True)
class Elect:
    """In one transaction retire the lease tokens of `foundings`, which are held, and send that of `winner`, used."""

    winner: Founding
    foundings: Foundings


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for PAUSE_S; `why` is what was in the way. Whoever has no time left gives up here."""

    why: str


if TYPE_CHECKING:
    Effect = Browse | Found | Look | Take | LetGo | Elect | Pause


def elected(own: Founding) -> Generator[Effect, Any, Founding]:
    """The founding that counts; `own` is founded where there is none. WrongTokenError: the tokens are used by one whose
    founding message is gone, or by two."""
    sent = strange = False
    while True:
        foundings = yield Browse()
        if not foundings:
            yield Pause("a browse does not show the one that was sent") if sent else Found(own)
            sent = True
            continue
        tokens: list[Token] = []
        for slot in lease_slots(foundings):
            tokens += yield Look(slot)
        in_use = counting(foundings, tokens)
        if in_use is None and (yield Browse()) == foundings:
            in_use = yield from _contest(foundings)
        if isinstance(in_use, Founding):
            return in_use
        if in_use is not None and strange:  # it was not there yet when the queue was browsed, but now it would be
            raise WrongTokenError(
                f"decider {in_use.hex()} uses its tokens, and the founding message of that one is gone: put it back, "
                "or name another token_queue"
            )
        strange = in_use is not None
        yield Pause("others, who are founding it as well, hold its tokens, or the tokens are gone")


def lease_slots(foundings: Iterable[Founding]) -> list[int]:
    """Where the lease tokens of these foundings are."""
    return sorted({founding.lease_slot for founding in foundings})


def counting(foundings: Foundings, tokens: Iterable[Token]) -> Founding | bytes | None:
    """Which founding counts, by the tokens that were used: one of `foundings`, a founder that is not among them, or
    None where nobody has used any. WrongTokenError: two are in use."""
    founders = {token.founder for token in tokens if token.used}
    if len(founders) > 1:
        told = " and ".join(sorted(founder.hex() for founder in founders))
        raise WrongTokenError(f"deciders {told} both use its tokens: name another token_queue for one of them")
    for founder in founders:
        return {founding.founder: founding for founding in foundings}.get(founder, founder)
    return None


def _contest(foundings: Foundings) -> Generator[Effect, Any, Founding | bytes | None]:
    """Takes the locks of all these foundings, and elects one. None: somebody has one of the locks."""
    locks = {founding.founder: founding for founding in foundings}
    held: set[bytes] = set()
    for slot in lease_slots(foundings):
        wanted = {founder for founder, founding in locks.items() if founding.lease_slot == slot}
        while True:
            missing = not wanted <= held
            token: Token | None = yield Take(slot, _wait_s(wanted, held) if missing else 0.0)
            if token is None and missing:
                yield LetGo()
                return None
            if token is None:
                break
            if token.used:
                yield LetGo()
                return counting(foundings, [token])
            if token.founder in wanted and token.slot == slot:
                if token.founder in held:
                    raise WrongTokenError(f"slot {slot} holds the unused token of {token.founder.hex()} twice")
                held.add(token.founder)
            # any other one, of a founding that came meanwhile, stays held until the end: it would only come again
    winner = _smallest(locks)
    yield Elect(winner, foundings)
    yield LetGo()
    return winner


def _smallest(locks: Mapping[bytes, Founding]) -> Founding:
    return locks[min(locks)]


def _wait_s(wanted: set[bytes], held: set[bytes]) -> float:
    """Of those who want the same locks and each hold some, one waits, and the others let go."""
    some = wanted & held
    return TAKE_WAIT_S if not some or min(wanted) in some else 0.0
