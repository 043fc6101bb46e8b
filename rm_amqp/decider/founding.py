"""How an instance agrees with all others on one founding of the token queues, over one channel: it performs the effects
of `rm_amqp.decider.election`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rm_amqp.connection.endpoint import until
from rm_amqp.decider.channel import LocalWork
from rm_amqp.decider.election import PAUSE_S, Browse, Elect, Found, LetGo, Look, Pause, Take, elect
from rm_amqp.decider.token_queues import TokenBusyError

if TYPE_CHECKING:
    from rm_amqp.connection.endpoint import Steps
    from rm_amqp.decider.channel import LocalChannel
    from rm_amqp.decider.election import Effect
    from rm_amqp.decider.token_queues import HeldToken
    from rm_amqp.decider.tokens import Founding


def agree_on_founding(channel: LocalChannel, own: Founding, until_s: float, deadline: float) -> Steps[Founding]:
    """The founding that counts, for everybody who uses these queues; `own` is what is founded where nobody has.

    RefusedError: the queues can't be used. TokenBusyError: it could not be told until `until_s`. WrongTokenError: they
    hold something else. Whatever it raises, tokens may be held: the connection has to go.
    """
    electing = elect(own)
    held: list[HeldToken] = []
    answer: object = None
    while True:
        try:
            effect = electing.send(answer)
        except StopIteration as over:
            founding: Founding = over.value
            return founding
        if isinstance(effect, Pause) and channel.endpoint.clock() >= until_s:
            raise TokenBusyError(f"it is not known yet which founding of {channel.tokens.name} counts: {effect.why}")
        answer = yield from _perform(effect, channel, held, deadline)


def _perform(effect: Effect, channel: LocalChannel, held: list[HeldToken], deadline: float) -> Steps[object]:
    queues, endpoint = channel.tokens, channel.endpoint
    match effect:
        case Browse():
            return (yield from queues.foundings(deadline))
        case Look():
            return (yield from queues.shown(effect.slot, deadline))
        case Found():
            yield from _found(effect.founding, channel, deadline)
        case Take():
            taken = yield from queues.take(effect.slot, effect.wait_s, deadline)
            if taken is None:
                return None
            held.append(taken)
            return taken.token
        case Elect():
            yield from _elect(effect, channel, held, deadline)
        case LetGo():
            while held:
                yield from queues.release(held.pop())
        case Pause():
            yield from until(endpoint, lambda: False, endpoint.clock() + PAUSE_S)
    return None


def _found(founding: Founding, channel: LocalChannel, deadline: float) -> Steps[None]:
    queues, work = channel.tokens, LocalWork()
    bodies = [(queues.name, founding.encode())]
    bodies += [(queues.address(token.slot), token.encode()) for token in founding.first_tokens()]
    yield from channel.declare(work, deadline)
    yield from queues.send(bodies, work, deadline)
    yield from channel.discharge(work, deadline, fail=False)


def _elect(effect: Elect, channel: LocalChannel, held: list[HeldToken], deadline: float) -> Steps[None]:
    queues, work = channel.tokens, LocalWork()
    places = {(founding.founder, founding.lease_slot) for founding in effect.foundings}
    locks = [each for each in held if (each.token.founder, each.token.slot) in places]
    held[:] = [each for each in held if each not in locks]
    lock = next(each.token for each in locks if each.token.founder == effect.winner.founder)
    yield from channel.declare(work, deadline)
    yield from queues.send([(queues.address(lock.slot), lock.renewed().encode())], work, deadline)
    for each in locks:
        queues.retire(each, work)
    yield from channel.discharge(work, deadline, fail=False)
