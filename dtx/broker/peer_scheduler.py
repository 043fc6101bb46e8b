"""PeerScheduler: which peer is served now, and when what was done is written and answered.

A peer is served at once if no one waits and the round has time left. Otherwise it waits for its turn
(`dtx.broker.fair_queue`: payers first, then their peers), and nothing more is read from it meanwhile. So of each peer
at most one read waits. A round ends after a time; then its changes have one force together, and the answers are sent.

What a peer waits for at most is the rest of a round and of a force, and then its own. So both are short while several
payers have work, whatever the others do:

1. A turn takes SHARED_TURN_S, a round SHARED_ROUND_S, or where forces are slow a quarter of a force. After each turn,
   and once more before the round ends, the loop looks who has sent something. A peer that was just answered and asks
   again so comes into this round, and does not miss its force. When one has had all that it wants, less of a
   round is enough.
2. No payer has more waiting for the store than its part of SHARED_WAITING, which grows with the round. One that has
   more is held until the store has answered; the others go on.
3. When the store's thread answers, the next force waits for a round as well.

While one payer has work, turns and rounds are longer, because a force is then shared by more.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from dtx.broker.fair_queue import FairQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TURN_S: Final = 0.004
ROUND_S: Final = 0.008
SHARED_TURN_S: Final = 0.00015
SHARED_ROUND_S: Final = 0.0008
SHARED_ENOUGH_S: Final = 0.00015
"""So much of a round is enough where somebody has had all that it wants: it may be waiting for the force."""
LONGEST_SHARED_ROUND_S: Final = 0.004
ROUND_OF_FORCE: Final = 0.25
ENOUGH_OF_FORCE: Final = 0.16
LONGEST_FORCE_S: Final = 0.05
FORCE_COUNTS: Final = 0.1
"""As such a part each force counts in the average."""
SHARED_FOR_S: Final = 1.0
"""So long after two payers had their turns the time counts as shared."""
SHARED_WAITING: Final = 200
FEWEST_WAITING: Final = 20
"""What may wait for the store while the time is shared, all payers together and each at least, in rows: a few
milliseconds. Where rounds are longer, more may."""
RELEASED: Final = 8
"""Peers of a payer that get turns again at a time."""
LONG_TURN_S: Final = 0.005
"""A turn that took longer is counted."""


class ScheduledPeer(Protocol):
    """A peer that is served in turns."""

    @property
    def payer(self) -> str:
        """Who pays for the time: a user, or an address."""
        ...

    @property
    def urgent(self) -> bool:
        """Whether what comes next decides about a transaction."""
        ...

    @property
    def writes(self) -> bool:
        """Whether what comes next may change the store."""
        ...

    def pause_reading(self) -> None:
        """Has nothing more read from the peer."""
        ...

    def resume_reading(self) -> None:
        """Has the peer read again."""
        ...


P = TypeVar("P", bound=ScheduledPeer)
S_contra = TypeVar("S_contra", contravariant=True)


class SchedulerPorts(Protocol[S_contra]):
    """What rounds need of the broker."""

    @property
    def overloaded(self) -> bool:
        """Whether so much waits for the store that nothing more is taken, from anybody."""
        ...

    @property
    def waiting(self) -> Mapping[str, int]:
        """By payer: how much waits for the store, in rows."""
        ...

    def serve(self, peer: S_contra, budget_s: float) -> bool:
        """Carries out what the peer has sent, and begins nothing new after so long; whether there may be more."""
        ...

    def turn_was_long(self) -> None:
        """A turn took longer than LONG_TURN_S."""
        ...

    def flush(self) -> None:
        """Has the changes written, if `end` says so, and sends the answers; then calls `go_on`."""
        ...

    def flush_soon(self) -> None:
        """Has `flush` called when the loop has carried out what it found ready."""
        ...

    def soon(self, call: Callable[[], None]) -> None:
        """Has `call` called after the loop has looked who has sent something."""
        ...


class PeerScheduler(Generic[P]):
    """The rounds of one broker. `has_input` is called when a peer has sent something, `answered` when the store's
    thread has answered, `forced` after each force, `left` when a peer is gone."""

    def __init__(self, shell: SchedulerPorts[P], clock: Callable[[], float]) -> None:
        self._shell = shell
        self._clock = clock
        self._turns: FairQueue[P] = FairQueue()
        self._held: dict[str, dict[P, None]] = {}
        """By payer: peers that wait until less waits for the store."""
        self._held_for: dict[P, str] = {}
        self._spent_s = 0.0
        """How long peers were served in this round."""
        self._payers: set[str] = set()
        """Who was served in this round."""

        self._is_satisfied = False
        """Whether some payer has had all that it wants in this round."""
        self._is_due = False
        self._gathers = False
        """Whether a round goes on that will be written together; `_go_round` is due then."""
        self._looks_again = False
        """Whether it only looks once more who has sent something."""
        self._latest = ""
        self._force_s = 0.0
        """How long a force takes, on average."""
        self._shared_round_s = SHARED_ROUND_S
        self._enough_s = SHARED_ENOUGH_S
        self._shared_until = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether several payers have had turns lately."""
        return self._clock() < self._shared_until

    def end(self) -> bool:
        """Ends the round, unless it goes on: whether its changes are to be written."""
        if self._gathers:
            return False
        self._spent_s = 0.0
        self._payers.clear()
        self._is_satisfied = False
        return True

    def has_input(self, peer: P) -> None:
        """A peer has sent something: it is carried out now, or waits for its turn."""
        if peer in self._turns or peer in self._held_for:
            peer.pause_reading()
        elif self._turns or self._is_over:
            self._wait(peer)
        elif self._may_write(peer.payer) or not peer.writes:
            self._serve(peer)
            self._shell.flush_soon()
        else:
            self._hold(peer)
        self.go_on()

    def wants_turn(self, peer: P) -> None:
        """A peer has been sent what it may be sent in one turn, and there is more."""
        if peer not in self._held_for:
            self._turns.add(peer, peer.payer)

    def answered(self) -> None:
        """The store's thread has answered. What the answers lead to belongs to the next force: that waits for a
        round."""
        self._release()
        if self._turns and self.is_shared:
            self._gathers = True
            self._go_round_soon()

    def forced(self, seconds: float) -> None:
        """A force took so long, with what was written for it."""
        self._force_s += (min(seconds, LONGEST_FORCE_S) - self._force_s) * FORCE_COUNTS
        round_s = min(self._force_s * ROUND_OF_FORCE, LONGEST_SHARED_ROUND_S)
        self._shared_round_s = max(round_s, SHARED_ROUND_S)
        self._enough_s = min(max(self._force_s * ENOUGH_OF_FORCE, SHARED_ENOUGH_S), self._shared_round_s)

    def left(self, peer: P) -> None:
        """A peer is gone."""
        self._turns.remove(peer)
        self._let_go(peer)

    def go_on(self) -> None:
        """Has those that wait served soon."""
        if self._held:
            self._release()
        if self._turns:
            self._go_round_soon()

    # -- rounds
    @property
    def _is_over(self) -> bool:
        if self._spent_s >= ROUND_S:
            return True
        return self._spent_s >= (self._enough_s if self._is_satisfied else self._shared_round_s) and self.is_shared

    @property
    def _may_serve_next(self) -> bool:
        """Whether the round has time left, or the next payer had none of it."""
        return not self._is_over or (self._spent_s < ROUND_S and self._turns.next_payer not in self._payers)

    def _go_round_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._shell.soon(self._go_round)

    def _go_round(self) -> None:
        """Serves those that wait; one of them, if the time is shared and the loop has to look again."""
        self._is_due = False
        try:
            while self._turns and self._may_serve_next:
                peer = self._turns.take()
                if not self._may_write(peer.payer) and peer.writes:
                    self._hold(peer)
                    continue
                self._serve(peer)
                if self.is_shared:
                    break
        finally:
            self._end_or_go_on()

    def _end_or_go_on(self) -> None:
        is_over = not self._turns or self._is_over
        self._looks_again = is_over and self.is_shared and not self._looks_again
        self._gathers = self._looks_again or not is_over
        if self._gathers:
            self._go_round_soon()
        else:
            self._shell.flush()

    def _serve(self, peer: P) -> None:
        """Gives a peer its turn, at the cost of its payer."""
        payer, began = peer.payer, self._clock()
        if payer != self._latest:
            self._shared_until = began + SHARED_FOR_S if self._latest else 0.0
            self._latest = payer

        more = self._shell.serve(peer, SHARED_TURN_S if began < self._shared_until else TURN_S)
        took = self._clock() - began
        self._spent_s += took
        self._payers.add(payer)
        if more:  # before it is charged: so a payer that comes meanwhile begins at what the account was
            self._wait(peer)
        self._turns.spent(payer, took)
        if took > LONG_TURN_S:
            self._shell.turn_was_long()
        if not more:
            self._is_satisfied |= not self._turns.waits(payer)
            peer.resume_reading()

    def _wait(self, peer: P) -> None:
        peer.pause_reading()
        self._turns.add(peer, peer.payer, urgent=peer.urgent)

    # -- those that wait for the store
    def _may_write(self, payer: str) -> bool:
        """Whether more is taken that a payer has for the store. If not, less waits there later."""
        if self._shell.overloaded:
            return False
        waiting = self._shell.waiting
        weight = waiting.get(payer, 0)
        if weight <= FEWEST_WAITING or not self.is_shared:
            return True
        return weight <= SHARED_WAITING * self._shared_round_s / SHARED_ROUND_S / len(waiting)

    def _hold(self, peer: P) -> None:
        peer.pause_reading()
        payer = self._held_for[peer] = peer.payer
        self._held.setdefault(payer, {})[peer] = None

    def _release(self) -> None:
        """Gives turns to peers that had to wait for the store, and have not to any more."""
        for payer in [payer for payer in self._held if self._may_write(payer)]:
            for peer in list(islice(self._held[payer], RELEASED)):
                self._let_go(peer)
                self._wait(peer)

    def _let_go(self, peer: P) -> None:
        payer = self._held_for.pop(peer, None)
        if payer is not None:
            held = self._held[payer]
            del held[peer]
            if not held:
                del self._held[payer]
