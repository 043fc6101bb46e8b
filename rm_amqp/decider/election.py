"""Elects the founding that counts, if several processes have founded the same place at about the same time.

A founding makes the tokens of a place (`rm_amqp.decider.tokens`). All processes must use the tokens of the same
founding. A broker need not keep the order of messages that were committed at the same moment (ActiveMQ Artemis changes
it when it starts again), and a founding message that was sent long ago may be committed at any later time. So the
algorithm relies on no order, and does not assume that one browse shows everything. It relies on three facts:

 - No process ever takes a message from the founding queue, so that a browse shows every founding that was committed
   before the browse began. It may or may not show those that are committed meanwhile.
 - While one client has acquired a message, no other one can acquire it; when the client ends, the message comes back.
 - A local transaction retires messages and sends others, all or none.

A founding brings its lease token with it, in the same transaction. That token is the founding's lock:

 1. Browse the founding queue. If it is empty, send a founding of our own and its tokens, and browse again.
 2. Browse the queues of the lease tokens. A token that was used (generation 1 and more) names the founding that counts.
 3. Otherwise browse the founding queue once more. If both browses show the same, these were all the foundings at one
    moment between the two.
 4. Take the lease tokens of all these foundings, and all other messages of their queues. If one of the tokens
    turns out to be used, its founding counts.
 5. Holding all of them, unused: the founding with the smallest founder counts. In one transaction retire all of these
    tokens, and send the smallest one's anew, as generation 1.

There is one result, and it never changes, because step 3 finds the content of a queue that only grows, at one moment.
So of two sets that it finds, one contains the other. A process that elects holds the locks of a whole set, so that two
such processes have a lock in common, and elect one after the other. The second one either finds that lock used, or
does not find it at all, and looks again. The founding that counts is in every set that is found from then on. A process
that founds later finds a used token; its own tokens are useless, and any process that finds one drops it.

Losing foundings stay in the founding queue. To remove them, a process would have to take messages from that queue; and
while it held the founding that counts, another process would see none.

`elect` is the algorithm: a coroutine without I/O, which awaits the methods of its `Ports`. An implementation of the
ports raises the error that ends the election (no connection, no time left), and has to release the held messages then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from rm_amqp.decider.tokens import FoundingMessage, Token, WrongTokenError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Foundings = frozenset[FoundingMessage]

TAKE_WAIT_S: Final = 1.0
"""How long a process that may wait for a lock waits for it before it looks again."""
PAUSE_S: Final = 0.05


class Ports(Protocol):
    """The calls of an election to the token queues. Its process may die before and after each of them."""

    async def foundings(self) -> Foundings:
        """Browses the founding queue."""
        ...

    async def found(self, founding: FoundingMessage) -> None:
        """Sends this founding and its first tokens, in one transaction."""
        ...

    async def shown(self, slot: int) -> list[Token]:
        """The tokens that a browse of a slot's queue shows; acquired ones need not be among them."""
        ...

    async def take(self, slot: int, wait_s: float) -> Token | None:
        """Holds one more token of a slot's queue; None where none came in `wait_s`."""
        ...

    async def release(self) -> None:
        """Gives every token back that is held."""
        ...

    async def elect(self, winner: FoundingMessage, foundings: Foundings) -> None:
        """In one transaction retires the lease tokens of `foundings`, which are held, and sends that of `winner`,
        used."""
        ...

    async def pause(self, why: str) -> None:
        """Waits for PAUSE_S; `why` is the obstacle. If no time is left, it raises."""
        ...


async def elect(ports: Ports, own: FoundingMessage) -> FoundingMessage:
    """Returns the founding that counts; if there is none, it founds `own`. WrongTokenError: the founding that uses the
    tokens has lost its founding message, or two foundings use them."""
    sent = strange = False
    while True:
        foundings = await ports.foundings()
        if not foundings:
            if sent:
                await ports.pause("a browse does not show the founding message that was sent")
            else:
                await ports.found(own)
            sent = True
            continue

        tokens: list[Token] = []
        for slot in lease_slots(foundings):
            tokens += await ports.shown(slot)
        in_use = founding_in_use(foundings, tokens)
        if in_use is None and await ports.foundings() == foundings:
            in_use = await _contest(ports, foundings)
        if isinstance(in_use, FoundingMessage):
            return in_use
        if in_use is not None and strange:  # it was not there yet when the queue was browsed, but now it would be
            raise WrongTokenError(
                f"decider {in_use.hex()} uses its tokens, but the founding message of that decider is missing: restore "
                "it, or name another token_queue"
            )
        strange = in_use is not None
        await ports.pause("other processes that found it as well hold its tokens, or the tokens are lost")


def lease_slots(foundings: Iterable[FoundingMessage]) -> list[int]:
    """Where the lease tokens of these foundings are."""
    return sorted({founding.lease_slot for founding in foundings})


def founding_in_use(foundings: Foundings, tokens: Iterable[Token]) -> FoundingMessage | bytes | None:
    """Which founding counts, by the tokens that were used: one of `foundings`, a founder that is not among them, or
    None where none was used. WrongTokenError: two are in use."""
    founders = {token.founder for token in tokens if token.used}
    if len(founders) > 1:
        listed = " and ".join(sorted(founder.hex() for founder in founders))
        raise WrongTokenError(f"deciders {listed} both use its tokens: name another token_queue for one of them")
    for founder in founders:
        return {founding.founder: founding for founding in foundings}.get(founder, founder)
    return None


async def _contest(ports: Ports, foundings: Foundings) -> FoundingMessage | bytes | None:
    """Takes the locks of all these foundings, and elects one. None: another process has one of the locks."""
    locks = {founding.founder: founding for founding in foundings}
    held: set[bytes] = set()
    for slot in lease_slots(foundings):
        wanted = {founder for founder, founding in locks.items() if founding.lease_slot == slot}
        while True:
            missing = not wanted <= held
            token = await ports.take(slot, _wait_s(wanted, held) if missing else 0.0)
            if token is None and missing:
                await ports.release()
                return None
            if token is None:
                break
            if token.used:
                await ports.release()
                return founding_in_use(foundings, [token])
            if token.founder in wanted and token.slot == slot:
                if token.founder in held:
                    raise WrongTokenError(f"slot {slot} holds the unused token of {token.founder.hex()} twice")
                held.add(token.founder)

            # any other one, of a founding that came meanwhile, stays held until the end: it would only come again
    winner = _smallest(locks)
    await ports.elect(winner, foundings)
    await ports.release()
    return winner


def _smallest(locks: Mapping[bytes, FoundingMessage]) -> FoundingMessage:
    return locks[min(locks)]


def _wait_s(wanted: set[bytes], held: set[bytes]) -> float:
    """Of those who want the same locks and each hold some, one waits, and the others let go."""
    some = wanted & held
    return TAKE_WAIT_S if not some or min(wanted) in some else 0.0
