"""TransactionalWork: what one transaction posts, acquires and retires, until it is decided.

It is the same for a local transaction and for a branch; they differ in who decides, and when. What is to become durable
is written into a batch first (`write_commit`, `write_prepare`, …), and becomes true for everybody else when the batch
is durable (`commit`, `prepared`, …). Undoing what was not prepared needs no force.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dtx.amqp.conditions import Condition
from dtx.broker.queues.entry import Entry, MessageMove, State, write_post
from dtx.broker.queues.outcomes import FAILED, TAKEN, Outcome, decode_outcomes, encode_outcomes
from dtx.broker.queues.topics import Topic
from dtx.protocol.conditions import Refusal, refused
from dtx.protocol.replies import ACCEPTED
from dtx.store.contract import StoreRefused
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from dtx.broker.queues.counters import UnstoredMemory
    from dtx.broker.queues.outcomes import FailureReasons
    from dtx.broker.settings import Limits
    from dtx.store.contract import Batch, NotStored


class LiveDelivery(Protocol):
    """A delivery that is live at the controller: neither side has settled it."""

    def applied(self, outcome: Outcome) -> None:
        """The transaction that retired it is committed: the outcome is in force, and it is settled."""
        ...

    def reverted(self) -> None:
        """The transaction that retired it is rolled back: it is as before, and belongs to no transaction."""
        ...

    def withdrawn(self) -> None:
        """The transaction that acquired it is rolled back: it is the controller's no more."""
        ...


class HeldMessage:
    """A message that a transaction holds: the outcome to apply (None as long as it is only acquired), the
    delivery if it is live, and whether its acquisition belongs to the transaction as well. `default` is
    what is applied where the controller can say nothing any more, as after a rollback."""

    __slots__ = ("acquired", "default", "delivery", "entry", "outcome")

    def __init__(
        self,
        entry: Entry,
        outcome: Outcome | None,
        delivery: LiveDelivery | None,
        default: Outcome = FAILED,
        *,
        acquired: bool = False,
    ) -> None:
        self.entry = entry
        self.outcome = outcome
        self.delivery = delivery
        self.default = default
        self.acquired = acquired

    @property
    def taken(self) -> bool:
        """Whether a commit takes the message out of its queue for good."""
        return (self.outcome or self.default).code == ACCEPTED


def rolled_back_by(error: NotStored) -> Code:
    """What a transaction is rolled back with because of it: XA_RBTRANSIENT where the store takes nothing now."""
    return Code.XA_RBOTHER if isinstance(error, StoreRefused) else Code.XA_RBTRANSIENT


class TransactionalWork:
    """Posts in their order, and retirements in theirs, by message number."""

    __slots__ = ("_answers", "_copies", "_reasons", "_unstored", "limits", "octets", "posts", "retired")

    def __init__(self, limits: Limits, unstored: UnstoredMemory, reasons: FailureReasons) -> None:
        self.limits = limits
        self._reasons = reasons
        self._unstored = unstored
        self.posts: list[Entry] = []
        self.retired: dict[int, HeldMessage] = {}
        self.octets = 0
        self._answers: list[Callable[[Refusal | None], None]] = []
        self._copies: list[Entry] = []
        """What the commit that was written last makes of the messages that are posted to topics."""

    @property
    def lost(self) -> str:
        """Why an outcome that was sent for a posted message can't be applied any more; empty when all can."""
        gone = {entry.queue.name for entry in self.posts if entry.queue.deleted}
        return f"the queue {min(gone)} is gone" if gone else ""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to decide."""
        return not self.posts and not self.retired

    @property
    def takes(self) -> bool:
        """Whether one more message may be acquired or retired."""
        return len(self.retired) < self.limits.transaction_messages

    # -- what the controller does
    def post(self, entry: Entry, answer: Callable[[Refusal | None], None] | None = None) -> None:
        """A message to be made available; `answer` is called with the result. RefusedError: nothing happened;
        XA_RETRY: others have the room that it needs."""
        if (
            len(self.posts) >= self.limits.transaction_messages
            or self.octets + entry.size > self.limits.transaction_octets
        ):
            message = f"the transaction posts {len(self.posts)} messages of {self.octets} octets"
            raise refused(Code.XAER_RMERR, message, condition=Condition.RESOURCE_LIMIT)
        unstored = self._unstored
        if unstored.octets + entry.size > unstored.limit:
            code = Code.XAER_RMERR if self.octets + entry.size > unstored.limit else Code.XA_RETRY
            message = f"all transactions that are open post {unstored.octets} octets"
            raise refused(code, message, condition=Condition.RESOURCE_LIMIT)

        unstored.octets += entry.size
        self.octets += entry.size
        self.posts.append(entry)
        entry.queue.expect(entry)
        if answer is not None:
            self._answers.append(answer)

    def hold(self, retirement: HeldMessage) -> None:
        """A message is acquired or retired."""
        self.retired[retirement.entry.number] = retirement

    # -- preparing
    def give_back(self, outcomes: Mapping[int, Outcome]) -> bool:
        """Messages that were sent settled are not taken: each by its place among those that are retired. False, and
        nothing is changed: there is no such place, or the controller said itself what becomes of the message."""
        retired = list(self.retired.values())
        if max(outcomes) >= len(retired) or any(retired[place].delivery is not None for place in outcomes):
            return False
        for place, outcome in outcomes.items():
            retired[place].outcome = outcome
        return True

    def write_prepare(self, batch: Batch) -> tuple[list[int], list[tuple[int, bytes]]]:
        """Writes the posted messages; what the branch enqueues and dequeues, as the store is to have it.
        What lives in memory only is left out: it ends with its connection, prepared or not."""
        enqueues = []
        for entry in self.posts:
            if entry.queue.lasting:
                write_post(batch, entry)  # at no position yet
                enqueues.append(entry.number)
        dequeues = [
            (held.entry.number, encode_outcomes(held.outcome or held.default, held.default))
            for held in self.retired.values()
            if held.entry.queue.lasting
        ]
        return enqueues, dequeues

    def let_go_undecided(self) -> None:
        """Messages that were acquired, whose delivery is live and has no outcome: the acquisition stands, and
        the outcome is not this transaction's any more."""
        for held in [held for held in self.retired.values() if held.outcome is None and held.delivery is not None]:
            del self.retired[held.entry.number]
            if held.delivery is not None:
                held.delivery.reverted()

    def prepared(self) -> None:
        """The store has the payloads."""
        for entry in self.posts:
            if entry.queue.lasting:
                entry.payload = None
        for held in self.retired.values():
            held.entry.queue.prepared(held.entry)
        self._stored()

    def _stored(self) -> None:
        """What was posted takes no memory any more."""
        self._unstored.octets -= self.octets
        self.octets = 0

    # -- committing
    def to_be_read(self) -> list[Entry]:
        """Posted messages that have to be read (`Topic.read`) before a commit of a prepared branch is written."""
        return [entry for entry in self.posts if type(entry.queue) is Topic and entry.queue.lacks_payload(entry)]

    def write_commit(self, batch: Batch, *, stored: bool) -> list[MessageMove]:
        """Writes the commit; `stored` when the posted messages are in the store already (a prepared
        branch)."""
        self._copies = []
        for entry in self.posts:
            queue = entry.queue
            if type(queue) is Topic:
                self._copies += queue.write_copies(batch, entry, stored=stored)
                continue
            queue.take_place(entry)
            if not queue.lasting:
                continue
            if stored:
                batch.place(entry.number, queue.number, entry.position, 0, entry.expires_ms, entry.due_ms)
            else:
                write_post(batch, entry)
        effects = []

        for held in self.retired.values():
            entry = held.entry
            if entry.state is State.HELD:
                effects.append(entry.queue.plan(entry, held.outcome or held.default, batch))
        return effects

    def commit(self, effects: Iterable[MessageMove]) -> None:
        """The commit is durable: what was posted becomes available, the outcomes are in force."""
        for entry in self.posts:
            queue = entry.queue
            queue.expect_no_more(entry)
            if queue.deleted or type(queue) is Topic:
                entry.state = State.GONE
                entry.payload = None
                continue
            if queue.lasting:
                entry.payload = None
            queue.append(entry)
        for copy in self._copies:
            copy.payload = None
            if copy.queue.deleted:
                copy.state = State.GONE
            else:
                copy.queue.append(copy)
        self._copies = []

        for effect in effects:
            if effect.entry.state is State.HELD:
                effect.entry.queue.carry_out(effect)
        for held in self.retired.values():
            if held.delivery is not None:
                held.delivery.applied(held.outcome or TAKEN)
        self._clear(None)

    # -- rolling back
    def write_rollback(self, batch: Batch, *, stored: bool) -> list[MessageMove]:
        """Writes the rollback: posted messages go where they were `stored`, and messages that no consumer can say
        anything about any more get their default outcome."""
        if stored:
            for entry in self.posts:
                if entry.queue.lasting:
                    batch.dequeue(entry.number, entry.size)
                    if entry.has_record:
                        batch.drop_record(entry.number)
        effects = []
        for held in self.retired.values():
            entry = held.entry
            if entry.state is State.HELD and (held.acquired or held.delivery is None):
                effects.append(entry.queue.plan(entry, held.default, batch))
        return effects

    def rollback(self, effects: Iterable[MessageMove], batch: Batch) -> None:
        """The work is undone. A delivery that ended since its rollback was written gets its default outcome
        now, in `batch`: no one waits for that."""
        for entry in self.posts:
            entry.queue.expect_no_more(entry)
            entry.state = State.GONE
            entry.payload = None
        planned = {effect.entry.number: effect for effect in effects}
        retired = list(self.retired.items())
        for _, held in reversed(retired):  # the last one first: those behind it on its link would be sent when it goes
            if held.acquired and held.delivery is not None:
                held.delivery.withdrawn()

        for number, held in retired:
            self._note(number, held)
            effect = planned.get(number)
            if held.delivery is not None:
                if not held.acquired:
                    held.delivery.reverted()
                    held.entry.queue.decided(held.entry)
            elif effect is None and held.entry.state is State.HELD:
                effect = held.entry.queue.plan(held.entry, held.default, batch)
            if effect is not None and effect.entry.state is State.HELD:
                effect.entry.queue.carry_out(effect)
        self._clear(Refusal(Condition.ROLLBACK, "rolled back", Code.XA_RBROLLBACK))

    def _note(self, number: int, held: HeldMessage) -> None:
        """What the consumer has said of a message whose transaction is rolled back, for its next consumer."""
        outcome = held.default if held.default.reason or held.outcome is None else held.outcome
        if outcome.reason:
            self._reasons.note(number, outcome.reason, outcome.place)
        if held.default.apart:
            held.entry.apart = True

    def _clear(self, refusal: Refusal | None) -> None:
        self.posts.clear()
        self.retired.clear()
        self._stored()
        answers, self._answers = self._answers, []
        for answer in answers:
            answer(refusal)

    # -- what it holds, for people
    def holdings(self) -> dict[str, tuple[int, int]]:
        """By queue: how many messages are retired, and how many posted."""
        found: dict[str, tuple[int, int]] = {}
        for entry in (held.entry for held in self.retired.values()):
            retired, posted = found.get(entry.queue.name, (0, 0))
            found[entry.queue.name] = (retired + 1, posted)
        for entry in self.posts:
            retired, posted = found.get(entry.queue.name, (0, 0))
            found[entry.queue.name] = (retired, posted + 1)
        return found

    def restore(self, posts: Iterable[Entry], retired: Iterable[tuple[Entry, bytes]]) -> None:
        """The store's record of a prepared branch."""
        for entry in posts:
            self.posts.append(entry)
            entry.queue.expect(entry)
        for entry, octets in retired:
            outcome, default = decode_outcomes(octets)
            self.hold(HeldMessage(entry, outcome, None, default))
