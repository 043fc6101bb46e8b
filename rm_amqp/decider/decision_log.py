"""The decision log of one place. The log is kept in the tokens: it decides, settles, lists and ends transactions, and
holds leases.

A process that decides or settles a transaction holds the token of its slot meanwhile:

 - decide: acquire the token; refuse a transaction that is fenced; send the token with the decision in it, and retire
   the held one, in the transaction that has the work; discharge it. That discharge is the commit point.
 - settle: acquire the token; a decision in it is final. Otherwise put a fence into it, in a local transaction of its
   own, before the answer is given: a process that decides the same transaction later finds the fence.

While a transaction that retires the token is under way, no other process can have the token. So the process that has it
knows that no such transaction is under way. No process holds two tokens.

Leases are in a token of their own, and use channels of their own, so that they neither wait for decisions nor keep them
waiting. They use the wall clocks of the processes that write and read them. Because of a wrong clock a process may wait
in vain, or settle a transaction that is still at work, which is then rolled back; no outcome becomes wrong.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dtx.protocol.conditions import refused
from rm_amqp.decider.channel import LocalWork
from rm_amqp.decider.token_queues import TokenBusyError
from rm_amqp.decider.tokens import MAX_OCTETS, FoundingMessage, Token, TokenAnswer, WrongTokenError
from xa import Code, DecisionRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rm_amqp.channel.pool import ChannelPool
    from rm_amqp.decider.channel import LocalChannel
    from rm_amqp.decider.tokens import Lease
    from rm_amqp.settings import Settings

HOLD_WAIT_S: Final = 10.0
"""How long a decision, or a call that settles one, waits for the token of its slot."""
STUCK_S: Final = 1.0
"""How long there is no further wait for a token that did not come in time: recovery has many transactions to settle in
a slot, and would wait for each of them in turn."""
WORN: Final = 3
"""Deliveries in vain after which a token is sent anew, because brokers remove messages that come back too often."""
END_BATCH: Final = 64
"""The next decision of a slot removes decisions that have ended; if there are more than this many, they are removed at
once."""


class TokenRenewalDue(Exception):
    """The token came back so often that it has to be renewed before it is used."""

    def __init__(self, slot: int) -> None:
        super().__init__(slot)
        self.slot = slot


@dataclass(slots=True)
class DecisionAttempt:
    """One try to decide. `asked`: the discharge is on its way; until its answer arrives, the outcome is unknown.
    `loose`: the token is held, or may be on its way, outside of the transaction."""

    gtrid: bytes
    record: bytes
    known: int
    asked: bool = False
    loose: bool = False


def patience(now_s: float, settings: Settings, deadline: float) -> float:
    """Until when a call that began at `now_s` waits for a token; some time is left to say that there is none."""
    return min(deadline, now_s + min(HOLD_WAIT_S, settings.timeout_s / 2))


class DecisionLog:
    """The decisions of one place, as one resource manager instance reaches them."""

    def __init__(
        self,
        pool: ChannelPool[LocalChannel],
        leases: ChannelPool[LocalChannel],
        clock: Callable[[], float],
        settings: Settings,
        founding: FoundingMessage,
    ) -> None:
        self.founding = founding
        self._pool = pool
        self._leases = leases
        self._clock = clock
        self._settings = settings
        self._lock = threading.Lock()
        self._epochs: dict[int, int] = {}
        self._ended: defaultdict[int, set[bytes]] = defaultdict(set)
        self._stuck: dict[int, float] = {}
        """Since when the token of a slot is missed."""

    def known(self, gtrid: bytes) -> int:
        """The epoch that the slot of a transaction has reached for certain, now that it begins."""
        return self._epochs.get(self.founding.slot_of(gtrid), 0)

    def _note(self, token: Token) -> None:
        with self._lock:
            self._epochs[token.slot] = max(token.epoch, self._epochs.get(token.slot, 0))

    # -- deciding
    async def decide(self, channel: LocalChannel, work: LocalWork, attempt: DecisionAttempt, deadline: float) -> None:
        """Commits work and decision; durable when it returns. RefusedError: neither is and never will be, unless
        `attempt.asked`. TokenBusyError: not now. Whatever it raises, the work is still to be rolled back; where
        `attempt.loose`, with its connection."""
        slot = self.founding.slot_of(attempt.gtrid)
        attempt.loose = True
        try:
            held = await channel.tokens.acquire(self.founding, slot, self._patience(deadline), deadline)
        except (TokenBusyError, WrongTokenError):
            attempt.loose = False
            raise
        self._note(held.token)
        if held.deliveries >= WORN:
            await channel.tokens.release(held)
            attempt.loose = False
            raise TokenRenewalDue(slot)

        with self._lock:
            ended = frozenset(self._ended[slot])
        token = held.token.deciding(attempt.gtrid, attempt.record, ended)
        why = self._objection(held.token, token, attempt)
        if why:
            await channel.tokens.release(held)
            attempt.loose = False
            raise refused(Code.XA_RBROLLBACK, why)
        await channel.tokens.replace(work, [held], token, deadline)
        attempt.asked, attempt.loose = True, False
        await channel.discharge(work, deadline, fail=False)  # the commit point
        self._taken_out(slot, ended)

    def _objection(self, held: Token, token: Token, attempt: DecisionAttempt) -> str:
        word = held.word_on(attempt.gtrid, attempt.known)
        if word is not TokenAnswer.OPEN:
            return f"recovery has settled it: it {word.value}"
        if len(token.encode()) > MAX_OCTETS:
            return (
                f"slot {held.slot} holds {len(held.decided)} decisions that have not ended, and takes no more before "
                "recovery has carried them out"
            )
        return ""

    # -- settling
    def settle(self, gtrid: bytes, deadline: float) -> bytes | None:
        """TokenBusyError: it is unknown now."""

        def fence(token: Token) -> Token | None:
            return token.fencing(gtrid) if token.word_on(gtrid, token.epoch) is TokenAnswer.OPEN else None

        return self.exchange(self.founding.slot_of(gtrid), fence, deadline, alone=True).record_of(gtrid)

    # -- listing and ending
    def page(self, after: bytes, count: int, deadline: float) -> list[DecisionRecord]:
        found: list[DecisionRecord] = []
        for slot in range(self.founding.slots):
            found += [DecisionRecord(*pair) for pair in self._flush(slot, deadline).decided if pair[0] > after]
        return sorted(found, key=lambda decision: decision.gtrid)[:count]

    def end(self, gtrids: Sequence[bytes], deadline: float) -> None:
        with self._lock:
            for gtrid in gtrids:
                self._ended[self.founding.slot_of(gtrid)].add(gtrid)
            full = [slot for slot, ended in self._ended.items() if len(ended) >= END_BATCH]
        for slot in full:
            self._flush(slot, deadline)

    def flush(self, deadline: float) -> None:
        """Takes out every decision that has ended."""
        for slot in [slot for slot, ended in self._ended.items() if ended]:
            self._flush(slot, deadline)

    def _flush(self, slot: int, deadline: float) -> Token:
        """Takes the ended decisions out of one slot; its token."""
        with self._lock:
            ended = frozenset(self._ended[slot])

        def without(token: Token) -> Token | None:
            holds = ended.intersection(gtrid for gtrid, _ in (*token.decided, *token.fenced))
            return token.ending(ended) if holds else None

        token = self.exchange(slot, without, deadline)
        self._taken_out(slot, ended)
        return token

    def _taken_out(self, slot: int, ended: frozenset[bytes]) -> None:
        with self._lock:
            self._ended[slot] -= ended

    # -- leases
    def hold(self, lease: Lease, now_ms: int, deadline: float) -> None:
        """It is the end of a lease where its time is past. TooManyLeasesError."""
        self.exchange(self.founding.lease_slot, lambda token: token.holding(lease, now_ms), deadline, over=self._leases)

    def leases(self, deadline: float) -> Token:
        """The lease token."""
        return self.exchange(self.founding.lease_slot, lambda _: None, deadline, over=self._leases)

    # -- holding a token for its own sake
    def renew(self, slot: int, deadline: float) -> None:
        """Sends the token of a slot anew, as it is."""
        self.exchange(slot, lambda token: token.renewed(), deadline)

    def exchange(
        self,
        slot: int,
        change: Callable[[Token], Token | None],
        deadline: float,
        *,
        alone: bool = False,
        over: ChannelPool[LocalChannel] | None = None,
    ) -> Token:
        """Holds the token of a slot, and puts what `change` makes of it in its place; None leaves it. The token that
        the slot has now, durably. With `alone` the queue is seen to have no other. `over`: a channel of that pool."""
        pool = over or self._pool
        pooled = pool.acquire(work=False, deadline=deadline)
        channel = pooled.channel

        stuck = self._clock() - self._stuck.get(slot, -math.inf) < STUCK_S
        until_s = self._clock() if stuck else self._patience(deadline)

        async def steps() -> Token:
            held = await channel.tokens.acquire(self.founding, slot, until_s, deadline)
            if alone:
                await channel.tokens.check_alone(held, self.founding, deadline)
            token = change(held.token)
            if token is None and held.deliveries < WORN:
                await channel.tokens.release(held)
                return held.token
            token = token or held.token.renewed()
            work = LocalWork()
            await channel.declare(work, deadline)
            await channel.tokens.replace(work, [held], token, deadline)
            await channel.discharge(work, deadline, fail=False)
            return token

        try:
            token = pooled.connection.run(steps())
        except TokenBusyError:
            if not stuck:
                self._stuck[slot] = self._clock()
            pool.release(pooled)
            raise
        except BaseException:  # the token, or a transaction, may be left at this end
            pool.release(pooled, keep=False)
            raise
        pool.release(pooled)
        self._stuck.pop(slot, None)
        self._note(token)
        return token

    def _patience(self, deadline: float) -> float:
        return patience(self._clock(), self._settings, deadline)
