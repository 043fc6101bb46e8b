"""TransactionalContext: the transaction that a link works for: none, a local one, or a distributed one.

Links post, acquire and retire through a context, and never ask which it is. Without a transaction each operation
becomes durable by itself. The local and the distributed context collect the work. A local transaction is decided by its
discharge; a distributed one is never decided here, but by commands (`dtx.broker.transactions.branch_commands`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from dtx.amqp.conditions import Condition
from dtx.broker.queues.outcomes import TAKEN, TAKEN_OCTETS, Outcome, transactional_state
from dtx.broker.transactions.state_tables import LOCAL, LocalState, LocalVerb
from dtx.broker.transactions.transactional_work import HeldMessage, LiveDelivery, TransactionalWork, rolled_back_by
from dtx.protocol.conditions import Refusal, RefusedError
from dtx.store.contract import Batch
from xa import Code
from xa.machine import Result, advance
from xa.state_tables import ASSOCIATION, AssociationState, AssociationVerb, BranchState

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.broker.queues.entry import Entry
    from dtx.broker.transactional_resource import TransactionalResource
    from dtx.broker.transactions.branches import Branch
    from dtx.store.contract import NotStored


class Delivery(LiveDelivery, Protocol):
    """A message at a consumer, as a context sees it. `retirement` is what the transaction has of it that has acquired
    or retires it."""

    entry: Entry
    retirement: HeldMessage | None
    default: Outcome

    def hold(self, context: WorkContext, retirement: HeldMessage) -> None:
        """This transaction has acquired it, or retires it."""
        ...

    def refused(self, refusal: Refusal) -> None:
        """The outcome that it was given outside of transactions could not be made durable."""
        ...


class Control(Protocol):
    """A control link, as the transactions that it declared see it."""

    def terminate(self, refusal: Refusal) -> None:
        """Closes the link with this error. Its local transactions are rolled back."""
        ...


class TransactionalContext(Protocol):
    """The interface through which links work."""

    @property
    def takes(self) -> bool:
        """Whether one more message may be acquired."""
        ...

    def post(self, entry: Entry, answer: Callable[[Refusal | None], None] | None) -> bytes | None:
        """Posts a message. The transactional-state with the presumptive outcome, encoded, or None
        when there is no transaction: then `answer` is called when the message is durable. RefusedError: not
        posted."""
        ...

    def acquire(self, delivery: Delivery) -> None:
        """A message was taken from its queue for this delivery."""
        ...

    def sent_settled(self, delivery: Delivery) -> None:
        """A message that this context acquired was sent to its end, settled: it is accepted."""
        ...

    def retire(self, delivery: Delivery, outcome: Outcome | None, *, settled: bool) -> None:
        """The controller gave a delivery an outcome (None: settled it without one)."""
        ...

    def begin_partial(self) -> None:
        """The first part of a delivery came, of which there is more. RefusedError: it must not."""
        ...

    def end_partial(self) -> None:
        """A delivery that came in parts is complete, or aborted."""
        ...

    def refuse_success(self, refusal: Refusal) -> None:
        """Something could not be done, and no reply says that: the transaction can't succeed any more."""
        ...


class NoTransaction:
    """Every operation for itself."""

    takes: Final = True

    def __init__(self, resource: TransactionalResource) -> None:
        self._resource = resource

    def post(self, entry: Entry, answer: Callable[[Refusal | None], None] | None) -> bytes | None:
        self._resource.post(entry, answer)
        return None

    def acquire(self, delivery: Delivery) -> None:
        pass

    def sent_settled(self, delivery: Delivery) -> None:
        self._resource.retire(delivery.entry, TAKEN, None)

    def retire(self, delivery: Delivery, outcome: Outcome | None, *, settled: bool) -> None:
        if settled:
            self._resource.retire(delivery.entry, outcome or delivery.default, None)
        elif outcome is not None:
            decided = outcome
            self._resource.retire(
                delivery.entry,
                decided,
                lambda refusal: delivery.applied(decided) if refusal is None else delivery.refused(refusal),
            )

    def begin_partial(self) -> None:
        pass

    def end_partial(self) -> None:
        pass

    def refuse_success(self, refusal: Refusal) -> None:
        pass


class WorkContext:
    """The common part of the local and the distributed context: work is gathered until somebody decides."""

    # It is abstract without ABC as its base: links ask of each delivery whether a context is one, and isinstance takes
    # ten times as long where that is asked of ABCMeta. mypy keeps it from being made all the same.

    def __init__(
        self, resource: TransactionalResource, txn_id: bytes, control: Control, work: TransactionalWork
    ) -> None:
        self.control = control
        self.work = work
        self.partial = 0
        """Deliveries posted with this txn-id of which more is to come."""
        self._resource = resource
        self.name(txn_id)

    def name(self, txn_id: bytes) -> None:
        """From now on work is done under this txn-id."""
        self.txn_id = txn_id
        self.acquisition = transactional_state(txn_id)
        self._presumed = transactional_state(txn_id, TAKEN_OCTETS)

    @property
    def takes(self) -> bool:
        return self.work.takes

    @abstractmethod
    def check(self) -> None:
        """RefusedError when no work can be done under this txn-id."""

    def post(self, entry: Entry, answer: Callable[[Refusal | None], None] | None) -> bytes | None:
        self.check()
        self.work.post(entry, answer)
        return self._presumed

    def acquire(self, delivery: Delivery) -> None:
        retirement = HeldMessage(delivery.entry, None, delivery, delivery.default, acquired=True)
        self.work.hold(retirement)
        delivery.hold(self, retirement)

    def sent_settled(self, delivery: Delivery) -> None:
        retirement = self.work.retired.pop(delivery.entry.number)
        retirement.outcome, retirement.delivery = TAKEN, None
        self.work.hold(retirement)  # again: such messages have their places in the order in which they are sent

    def retire(self, delivery: Delivery, outcome: Outcome | None, *, settled: bool) -> None:
        retirement = delivery.retirement
        if retirement is None:
            try:
                self.check()
                self._check_room()
            except RefusedError:  # it is rolled back: nothing is applied, and the delivery is as it was
                if settled:
                    self._resource.retire(delivery.entry, delivery.default, None)
                return
            retirement = HeldMessage(delivery.entry, outcome, delivery, delivery.default)
            self.work.hold(retirement)
            delivery.hold(self, retirement)
        elif outcome is not None:
            retirement.outcome = outcome

        if outcome is not None and outcome.rolled_back is not None:
            retirement.default = outcome.rolled_back
        if settled:
            retirement.delivery = None

    def _check_room(self) -> None:
        """What is too much can't be left out, as no reply would say it: the transaction can't succeed."""
        if not self.work.takes:
            message = f"the transaction retires {len(self.work.retired)} messages"
            refusal = Refusal(Condition.RESOURCE_LIMIT, message, Code.XAER_RMERR)
            self.refuse_success(refusal)
            raise RefusedError(refusal)

    def begin_partial(self) -> None:
        self.check()
        self.partial += 1

    def end_partial(self) -> None:
        self.partial -= 1

    @abstractmethod
    def refuse_success(self, refusal: Refusal) -> None:
        pass


class LocalTransaction(WorkContext):
    """A transaction of one txn-id, decided by its discharge. `ended` is called when it is over."""

    def __init__(
        self,
        resource: TransactionalResource,
        txn_id: bytes,
        control: Control,
        ended: Callable[[LocalTransaction], None],
    ) -> None:
        super().__init__(
            resource, txn_id, control, TransactionalWork(resource.limits, resource.unstored, resource.reasons)
        )
        self.state = LocalState.ACTIVE
        self._cause: Refusal | None = None
        self._ended = ended
        timeout_s = resource.settings.local_timeout_s
        self._timer = resource.after(timeout_s, self._expire) if timeout_s else None

    def check(self) -> None:
        if self.state is not LocalState.ACTIVE:
            raise RefusedError(self._cause or unknown_id(self.txn_id))

    def discharge(self, *, fail: bool, answer: Callable[[Refusal | None], None]) -> None:
        """Commits or rolls back. `answer` is called with None once that is done, and durable where it has to be."""
        if fail:
            active = self.state is LocalState.ACTIVE
            self.state = advance(LOCAL, self.state, LocalVerb.ROLLBACK)
            if active:
                self._undo()
            self._over()
            answer(None)
        elif self.state is LocalState.ROLLED_BACK:
            self.state = advance(LOCAL, self.state, LocalVerb.COMMIT, Result.RB)
            self._over()
            answer(self._cause)
        else:
            self._commit(answer)

    def _commit(self, answer: Callable[[Refusal | None], None]) -> None:
        if self.work.lost:
            self._cause = Refusal(Condition.ROLLBACK, f"rolled back: {self.work.lost}", Code.XA_RBOTHER)
            self.state = advance(LOCAL, self.state, LocalVerb.COMMIT, Result.RB)
            self._undo()
            self._over()
            answer(self._cause)
            return
        self.state = advance(LOCAL, self.state, LocalVerb.COMMIT)
        self.work.let_go_undecided()
        batch = Batch()
        effects = self.work.write_commit(batch, stored=False)

        def done(error: NotStored | None) -> None:
            if error is None:
                self.state = advance(LOCAL, self.state, LocalVerb.FORCED)
                self.work.commit(effects)
                answer(None)
            else:
                self.state = advance(LOCAL, self.state, LocalVerb.FORCED, Result.RB)
                self._undo()
                answer(Refusal(Condition.ROLLBACK, f"rolled back: {error}", rolled_back_by(error)))

        self._over()
        if self.work.empty:
            done(None)
        else:
            self._resource.submit(batch, done)

    def refuse_success(self, refusal: Refusal) -> None:
        if self.state is LocalState.ACTIVE:
            self.state = advance(LOCAL, self.state, LocalVerb.BREAK)
            message = f"rolled back: {refusal.description}"
            self._cause = Refusal(Condition.ROLLBACK, message, refusal.rollback_code)
            self._undo()

    def lose(self) -> None:
        """The control link is closed."""
        active = self.state is LocalState.ACTIVE
        self.state = advance(LOCAL, self.state, LocalVerb.LOSE)
        if active:
            self._undo()
        self._over()

    def _expire(self) -> None:
        if self.state is LocalState.ACTIVE:
            self.state = advance(LOCAL, self.state, LocalVerb.EXPIRE)
            timeout_s = self._resource.settings.local_timeout_s
            message = f"rolled back: the transaction took longer than {timeout_s} s"
            self._cause = Refusal(Condition.TIMEOUT, message, Code.XA_RBTIMEOUT)
            self._undo()

    def _over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._ended(self)

    def _undo(self) -> None:
        batch = self._resource.turn.batch
        self.work.rollback(self.work.write_rollback(batch, stored=False), batch)


class DistributedContext(WorkContext):
    """The association of a txn-id with a branch. It gathers for the branch, and decides nothing."""

    def __init__(self, resource: TransactionalResource, txn_id: bytes, control: Control, branch: Branch) -> None:
        super().__init__(resource, txn_id, control, branch.work)
        self.branch = branch
        self.state = advance(ASSOCIATION, AssociationState.T0, AssociationVerb.START)

    def check(self) -> None:
        if self.state is not AssociationState.T1:
            raise RefusedError(unknown_id(self.txn_id))
        if self.branch.state is not BranchState.S1:
            raise RefusedError(self.branch.why())

    def refuse_success(self, refusal: Refusal) -> None:
        self.branch.fail(refusal.description, refusal.rollback_code)


def unknown_id(txn_id: bytes) -> Refusal:
    """There is no such transaction, or not any more."""
    return Refusal(Condition.UNKNOWN_ID, f"there is no transaction {txn_id.hex()}", Code.XAER_NOTA)
