"""Channel: a transactional channel: one connection with one session, a control link, and links for work.

The slides' channel: it is selected for distributed transactions, and a thread of control has it to itself from its
first start until none of its associations is left. Everything here is steps (`rm_amqp.core.Steps`) that a shell runs.

What leaves together: a start does not wait with `ahead`; messages are sent settled and wait for nothing; outcomes of
received messages are told with the end, and the end follows them. The resource refuses the end (and so the prepare)
of a branch in which anything that was sent settled went wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from dtx.protocol.addresses import TXN_ID
from dtx.protocol.capabilities import DISTRIBUTED, LOCAL
from dtx.protocol.commands import Declare, Discharge, End, Start
from dtx.protocol.conditions import Condition, RefusedError, refused
from dtx.protocol.replies import ACCEPTED
from rm_amqp.core import until
from rm_amqp.links import Control, Receiver, Sender
from rm_amqp.loss import Cause, ConnectionLost, TimedOut
from rm_amqp.wire import control_message, read_vote
from xa import ROLLBACK_CODES, Code
from xa.machine import Result, advance
from xa.tables import ASSOCIATION, AssociationState, AssociationVerb

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.association import Association
    from rm_amqp.core import Core, Steps
    from rm_amqp.links import Answer, Arrived, Link
    from rm_amqp.settings import Settings

MAX_LINKS: Final = 64
"""Links to addresses that a channel keeps for the next transaction."""
T0, T1, T2 = AssociationState.T0, AssociationState.T1, AssociationState.T2
VERBS: Final[dict[AssociationVerb, Callable[[bytes], Discharge | End]]] = {
    AssociationVerb.END: Discharge,
    AssociationVerb.END_FAIL: lambda txn_id: Discharge(txn_id, fail=True),
    AssociationVerb.SUSPEND: lambda txn_id: End(txn_id, suspend=True),
}


class Channel:
    """One transactional channel. `settings` are the resource manager's. It is made inside of steps, as everything is
    done that touches the engine."""

    wanted: ClassVar[tuple[str, ...]] = (LOCAL, DISTRIBUTED)
    """What the coordinator is asked for."""
    sends: ClassVar[type[Sender]] = Sender
    receives: ClassVar[type[Receiver]] = Receiver
    """What links to addresses are."""

    def __init__(self, core: Core, settings: Settings) -> None:
        self.core = core
        self._settings = settings
        self._control = Control(core, self.wanted)
        self._senders: dict[str, Sender] = {}
        self._receivers: dict[tuple[str, bool], Receiver] = {}
        self._txn_number = 0
        self.recall = False
        """Whether a branch that received here did not commit: what was sent ahead stands behind what came back."""
        self.idle_since = 0.0
        """When it was put back, on the core's clock."""

    @property
    def broken(self) -> bool:
        """Whether it can't be used any more."""
        return self.core.lost is not None or self._control.refusal is not None

    # -- select
    def select(self, deadline: float) -> Steps[None]:
        """Verifies that the broker has distributed transactions."""
        control = self._control
        broker = f"the broker {self.core.peer or '?'} at {self.core.broker}"
        answered = self.core.lost is None
        try:
            answered = yield from until(self.core, lambda: control.answered, deadline)
        except ConnectionLost:
            if self.core.ended is None:
                raise
        if not answered:
            self.core.lose("the coordinator did not answer in time", Cause.UNREACHABLE)
            self.core.check()
        why = control.refusal or self.core.ended
        if why is not None:
            raise self._unusable(
                f"{broker} offers no transactions ({why.condition}: {why.description}); amqp:distributed-transactions "
                "are needed for two phases, amqp:local-transactions for a broker that decides"
            )
        self._verify(broker, control.offered)

    def _verify(self, broker: str, offered: tuple[str, ...]) -> None:
        """Refuses a coordinator that does not offer what is needed."""
        if DISTRIBUTED not in offered:
            offers = ", ".join(offered) or "nothing that it names"
            raise self._unusable(
                f"{broker} has no amqp:distributed-transactions; it offers {offers}. With amqp:local-transactions it "
                'can take part as the one that decides: mode = "decider"'
            )

    def _unusable(self, why: str) -> ConnectionLost:
        self.core.lose(why, Cause.UNUSABLE)
        return ConnectionLost(Cause.UNUSABLE, why)

    # -- start and end
    def start(self, association: Association, verb: AssociationVerb, deadline: float, *, join: bool) -> Steps[None]:
        """Associates the channel's thread with a branch: start, join, or resume. RefusedError: it is not."""
        self.check()
        answer = self._declare(association, resume=verb is AssociationVerb.RESUME, join=join)
        if self._settings.ahead and verb is AssociationVerb.START and not join:
            association.opening = answer
        else:
            try:
                yield from self._answered(answer, deadline)
            except RefusedError as error:
                if error.refusal.code in ROLLBACK_CODES and verb is AssociationVerb.RESUME:
                    association.state = advance(ASSOCIATION, association.state, verb, Result.RB)
                raise
        association.state = advance(ASSOCIATION, association.state, verb)

    def _declare(self, association: Association, *, resume: bool, join: bool) -> Answer:
        self._txn_number += 1
        association.named(b"t%x" % self._txn_number)
        association.senders.clear()
        timeout_s = None if join or resume else self._settings.branch_timeout_s or None
        start = Start(association.xid, join, resume, association.txn_id, timeout_s)
        return self._tell(Declare(start))

    def _tell(self, command: Declare | Discharge | End) -> Answer:
        answer = self._control.send(control_message(command), settled=False)
        assert answer is not None  # noqa: S101 — it is not sent settled
        return answer

    def _answered(self, answer: Answer, deadline: float) -> Steps[None]:
        """Waits for what came of a control message. RefusedError: it was refused."""
        if not (yield from until(self.core, lambda: answer.there, deadline)):
            raise TimedOut("the coordinator did not answer in time")
        if answer.refusal is not None:
            raise RefusedError(answer.refusal)
        if answer.lost:
            self.core.check()
            raise ConnectionLost(Cause.LOST, "the broker closed the control link")

    def end(self, association: Association, verb: AssociationVerb, deadline: float) -> Steps[None]:
        """Ends or suspends an association: tells what became of its messages, and the end, in one write.

        RefusedError: it is ended, and why the branch can't be prepared.
        """
        self.check()
        if association.state is T2:
            # it has no txn-id: it is resumed and ended in one write
            association.opening = self._declare(association, resume=True, join=False)
        else:
            association.tell()
            self._stop_acquiring()
            yield from self._sent(association, deadline)
        opening, association.opening = association.opening, None
        answer = self._tell(VERBS[verb](association.txn_id))
        try:
            if opening is not None:
                yield from self._answered(opening, deadline)
            yield from self._answered(answer, deadline)
            if verb is not AssociationVerb.END_FAIL:
                yield from self._complete(association, verb, deadline)
        except RefusedError:
            association.state = advance(ASSOCIATION, association.state, verb, Result.RB)
            raise
        association.state = advance(ASSOCIATION, association.state, verb)

    def end_and_prepare(self, association: Association, deadline: float) -> Steps[Answer]:
        """Tells what became of an association's messages, its end, and prepare, in one write; `voted` says what came
        of it."""
        self.check()
        association.tell()
        self._stop_acquiring()
        yield from self._sent(association, deadline)
        return self._tell(End(association.txn_id, prepare=True))

    def voted(self, association: Association, answer: Answer, deadline: float) -> Steps[Code]:
        """The vote. RefusedError: with a rollback code the association is ended, and the branch can't be prepared;
        with another one neither is known, the branch is not to be committed."""
        opening, association.opening = association.opening, None
        if opening is not None:
            yield from self._answered(opening, deadline)
        yield from self._answered(answer, deadline)
        why = self._swallowed(association)
        if why:
            raise refused(Code.XAER_RMERR, why, association.xid)
        return read_vote(answer.fields)

    def _sent(self, association: Association, deadline: float) -> Steps[None]:
        """Waits until every message has left: the end may not overtake one that waits for credit."""
        self.core.stage()
        while any(sender.queued for sender in association.senders):
            self.core.check()
            if self.core.clock() >= deadline:
                raise TimedOut("the broker did not take all messages in time")
            yield deadline
            self.core.stage()

    def _complete(self, association: Association, verb: AssociationVerb, deadline: float) -> Steps[None]:
        """A link that the broker closed has swallowed what was sent over it behind that. It has told so before it
        answered the end: the branch, which lacks a message, is made rollback-only. RefusedError says why."""
        why = self._swallowed(association)
        if not why:
            return
        answers = [
            self._declare(association, resume=verb is AssociationVerb.SUSPEND, join=verb is AssociationVerb.END),
            self._tell(Discharge(association.txn_id, fail=True)),
        ]
        for answer in answers:
            yield from self._answered(answer, deadline)
        raise refused(Code.XA_RBOTHER, why, association.xid)

    @staticmethod
    def _swallowed(association: Association) -> str:
        """Which link the broker closed behind what was sent over it; the empty string for none."""
        for sender in association.senders:
            if sender.refusal is not None:
                return f"a message for {sender.address} was not taken ({sender.refusal.description})"
        return ""

    def check(self) -> None:
        """ConnectionLost, or RefusedError, where the channel can't be used any more."""
        self.core.check()
        if self._control.refusal is not None:
            raise RefusedError(self._control.refusal)

    def check_work(self, association: Association | None) -> None:
        """RefusedError where no work can be done for the association any more."""
        self.check()
        if association is None:
            return
        if association.state is not T1:
            raise refused(Code.XAER_PROTO, "the association was ended meanwhile", association.xid)
        opening = association.opening
        if opening is not None and opening.there:
            if opening.refusal is not None:
                raise RefusedError(opening.refusal)
            association.opening = None

    # -- sending
    def send(self, address: str, octets: bytes, association: Association | None, deadline: float) -> Steps[None]:
        """Sends a message; it is the broker's when this returns, or when the branch is committed."""
        self.check_work(association)
        sender = self._senders.get(address)
        if sender is None or not sender.attached or not sender.alive:
            sender = yield from self._sender(address, deadline)
        if sender.max_octets and len(octets) > sender.max_octets:
            told = f"a message of {len(octets)} octets; the broker takes at most {sender.max_octets} for {address}"
            raise refused(Code.XAER_INVAL, told, condition=Condition.MESSAGE_SIZE)
        while sender.credit <= 0:
            self._check_link(sender)
            self.check_work(association)
            if self.core.clock() >= deadline:
                raise TimedOut(f"the broker takes no messages for {address} now")
            yield deadline
        self.check_work(association)
        if association is not None:
            self._post(sender, octets, association)
            return
        answer = sender.send(octets, settled=False)
        assert answer is not None  # noqa: S101 — it is not sent settled
        if not (yield from until(self.core, lambda: answer.there, deadline)):
            raise TimedOut(f"the broker did not confirm the message for {address}")
        if answer.refusal is not None:
            raise RefusedError(answer.refusal)

    def _post(self, sender: Sender, octets: bytes, association: Association) -> None:
        """Sends a message as work of an association."""
        sender.send(octets, association.stateful(), settled=True)
        association.senders.add(sender)

    def _sender(self, address: str, deadline: float) -> Steps[Sender]:
        self._senders.pop(address, None)
        self._make_room(self._senders)
        sender = self.sends(self.core, address)
        self._senders[address] = sender
        yield from self._attached(sender, deadline)
        return sender

    def _attached(self, link: Link, deadline: float) -> Steps[None]:
        if not (yield from until(self.core, lambda: link.answered, deadline)):
            raise TimedOut("the broker did not answer the attach in time")
        self._check_link(link)

    def _check_link(self, link: Link) -> None:
        self.core.check()
        if link.refusal is not None:
            raise RefusedError(link.refusal)

    def _make_room(self, links: dict[Any, Any]) -> None:
        """Closes a link that nothing depends on, where there are too many."""
        if len(links) >= MAX_LINKS:
            self.core.stage()
            key = next((key for key, link in links.items() if link.idle), None)
            if key is not None:
                links.pop(key).close()

    # -- receiving
    def receive(
        self,
        address: str,
        association: Association | None,
        deadline: float,
        patience: float,
        *,
        acquire: bool = False,
    ) -> Steps[Arrived | None]:
        """The next message from an address, None where none comes until `deadline`. With `acquire` the branch has
        taken it already when it comes. `patience` bounds what the broker may take to say that there is none."""
        self.check_work(association)
        yield from self._recalled(association, patience)
        receiver = yield from self._receiver(address, association, patience, acquire=acquire)
        prefetch = 0 if acquire else self._settings.prefetch
        while not receiver.arrived:
            self._check_link(receiver)
            self.check_work(association)
            if receiver.credit <= 0:
                receiver.flow(prefetch or 1)
            if self.core.clock() >= deadline:
                yield from self._drained(receiver, association, patience)
                break
            yield deadline
        if not receiver.arrived:
            return None
        if prefetch and 2 * receiver.credit < prefetch:
            receiver.flow(prefetch - receiver.credit)
        return receiver.arrived.popleft()

    def _recalled(self, association: Association | None, patience: float) -> Steps[None]:
        """After a rollback: gives back what was sent ahead, so that messages come in their order again."""
        if not self.recall:
            return
        receivers = [receiver for receiver in self._receivers.values() if receiver.alive and receiver.attached]
        for receiver in receivers:
            yield from self._drained(receiver, association, patience)
            receiver.give_back()
        self.recall = False

    def _drained(self, receiver: Receiver, association: Association | None, patience: float) -> Steps[None]:
        """The broker sends what it has, up to the credit, and gives back the rest."""
        if receiver.credit > 0 and not receiver.draining:
            receiver.drain()
        while receiver.draining:
            self._check_link(receiver)
            self.check_work(association)
            if self.core.clock() >= patience:
                raise TimedOut(f"the broker did not say in time that {receiver.address} is empty")
            yield patience

    def receive_batch(
        self, address: str, count: int, association: Association | None, deadline: float, patience: float
    ) -> Steps[list[Arrived]]:
        """The first message that comes until `deadline`, and what else the broker has at once, at most `count`."""
        self.check_work(association)
        yield from self._recalled(association, patience)
        receiver = yield from self._receiver(address, association, patience, acquire=False)
        missing = count - len(receiver.arrived) - receiver.credit
        if missing > 0:
            receiver.flow(missing)
        while not receiver.arrived and self.core.clock() < deadline:
            self._check_link(receiver)
            self.check_work(association)
            yield deadline
        if len(receiver.arrived) < count and receiver.credit > 0:
            yield from self._drained(receiver, association, patience)
        prefetch = self._settings.prefetch
        if 2 * receiver.credit < prefetch:
            receiver.flow(prefetch - receiver.credit)
        return [receiver.arrived.popleft() for _ in range(min(count, len(receiver.arrived)))]

    def _receiver(
        self, address: str, association: Association | None, deadline: float, *, acquire: bool
    ) -> Steps[Receiver]:
        receiver = self._receivers.get((address, acquire))
        if receiver is None or not receiver.attached or not receiver.alive:
            self._receivers.pop((address, acquire), None)
            self._make_room(self._receivers)
            receiver = self.receives(self.core, address, name="acquire" if acquire else "receive")
            self._receivers[address, acquire] = receiver
            yield from self._attached(receiver, deadline)
        if acquire:
            self._acquire(receiver, association)
        return receiver

    def _acquire(self, receiver: Receiver, association: Association | None) -> None:
        """What is sent to the receiver from now on is acquired by the association's branch."""
        if association is not None:
            self.core.say_transaction(receiver.name, {TXN_ID: association.txn_id})

    def _stop_acquiring(self) -> None:
        """The txn-id is about to be discharged: no flow names it any more."""
        for (_, acquire), receiver in self._receivers.items():
            if acquire and receiver.alive:
                self.core.say_transaction(receiver.name, {})

    # -- at rest
    def settle(self, arrived: Arrived) -> None:
        """Outside of any transaction: the message is taken."""
        arrived.link.settle(arrived, None, ACCEPTED)

    @property
    def holds_nothing(self) -> bool:
        """Whether no message was sent ahead, or can come."""
        return all(receiver.idle for receiver in self._receivers.values() if receiver.alive)

    def let_go(self) -> Steps[None]:
        """Nobody has used the channel for a while: what was sent ahead is given back, first the credit and then,
        at the next call, the messages. It waits for nothing."""
        yield from ()
        for receiver in self._receivers.values() if not self.broken else ():
            if receiver.alive and receiver.attached and not receiver.draining:
                if receiver.credit > 0:
                    receiver.drain()
                    continue
                receiver.give_back()

    def emptied(self, deadline: float) -> Steps[None]:
        """The channel is about to be closed: what was sent ahead is given back, and what is on its way. Nobody has
        seen it, so that it does not count as delivered, as it would with the end of its link."""
        receivers = [one for one in self._receivers.values() if one.alive and one.attached]
        for receiver in receivers:
            if receiver.credit > 0:
                receiver.drain()
        yield from until(self.core, lambda: not any(one.draining for one in receivers), deadline)
        for receiver in receivers:
            receiver.give_back()
