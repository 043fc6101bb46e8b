"""TwoPhaseCommit: carries out prepare, commit, rollback, an operator's decision and forget on a branch.

Each of them writes one batch, waits until it is durable, and only then moves the branch to its next state and answers.
Operations on one branch run one after the other, in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition
from dtx.broker.queues.outcomes import FAILED, GIVEN_BACK
from dtx.broker.queues.topics import Topic
from dtx.broker.transactional_resource import not_stored
from dtx.broker.transactions.transactional_work import rolled_back_by
from dtx.protocol.conditions import Refusal, RefusedError, refused
from dtx.protocol.replies import Result as ResultReply
from dtx.store.contract import Batch
from xa import Code
from xa.machine import Result
from xa.state_tables import BranchState, BranchVerb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dtx.broker.queues.entry import Entry
    from dtx.broker.queues.outcomes import Outcome
    from dtx.broker.transactional_resource import TransactionalResource
    from dtx.broker.transactions.branches import Branch, Registry
    from dtx.protocol.commands import Prepare
    from dtx.protocol.replies import Reply
    from dtx.store.contract import NotStored

    Answer = Callable[[Reply], None]

HEURISTIC: Final = {True: Code.XA_HEURCOM, False: Code.XA_HEURRB}


def _run_in_turn(branch: Branch, calls: deque[Callable[[], None]]) -> None:
    """Runs operations that have waited, or has them wait for the one that is being forced now."""
    if branch.waiting is not None:
        branch.waiting.extend(calls)
        return
    for call in calls:
        call()


def given_back(prepare: Prepare) -> dict[int, Outcome]:
    """The outcomes that a prepare gives to retired messages, by their places."""
    return dict.fromkeys(prepare.released, GIVEN_BACK) | dict.fromkeys(prepare.failed, FAILED)


class TwoPhaseCommit:
    """The operations that decide branches."""

    def __init__(self, resource: TransactionalResource, registry: Registry) -> None:
        self._resource = resource
        self._registry = registry

    def prepare(
        self, branch: Branch, answer: Answer, *, keep: bool, given_back: Mapping[int, Outcome] | None = None
    ) -> None:
        """The vote, forced before `answer` is called with XA_OK. `given_back`: outcomes of retired messages, by their
        places."""
        branch.legal(BranchVerb.PREPARE)
        self._check_ended(branch)
        if branch.state is BranchState.S4:
            branch.move(BranchVerb.PREPARE, Result.RB)
            self._registry.remove(branch)
            answer(ResultReply(branch.cause))
            return
        if branch.work.lost:
            branch.fail(branch.work.lost)
            self._give_up(branch, BranchVerb.PREPARE, answer)
            return
        branch.work.let_go_undecided()
        if given_back and not branch.work.give_back(given_back):
            count = len(branch.work.retired)
            message = f"the branch retires {count} messages; {max(given_back)} is no place among them"
            raise refused(Code.XAER_INVAL, message, branch.xid)
        if branch.work.empty and not keep:
            branch.move(BranchVerb.PREPARE, Result.RDONLY)
            self._registry.remove(branch)
            answer(ResultReply(Code.XA_RDONLY))
            return
        resource = self._resource
        branch.number = resource.number()
        since_ms = resource.clock.wall_ms()
        batch = Batch()
        enqueues, dequeues = branch.work.write_prepare(batch)
        batch.prepare(branch.number, branch.xid, branch.owner, since_ms, enqueues=enqueues, dequeues=dequeues)

        def done(error: NotStored | None) -> None:
            if error is None:
                branch.move(BranchVerb.PREPARE)
                branch.since_ms = since_ms
                branch.work.prepared()
                self._registry.prepared(branch)
                answer(ResultReply(Code.XA_OK))
            else:
                branch.move(BranchVerb.PREPARE, Result.RMERR)
                answer(not_stored(error, Code.XAER_RMERR, branch.xid))

        self._force(branch, batch, done)

    def commit(self, branch: Branch, answer: Answer, *, one_phase: bool) -> None:
        """Commits, forced before `answer` is called with XA_OK."""
        verb = BranchVerb.COMMIT_ONE_PHASE if one_phase else BranchVerb.COMMIT
        branch.legal(verb)
        self._check_ended(branch)

        if branch.state is BranchState.S5:
            self._heuristic(branch, verb, answer)
        elif branch.state is BranchState.S4:
            branch.move(verb, Result.RB)
            self._registry.remove(branch)
            answer(ResultReply(branch.cause))
        else:
            if one_phase and branch.work.lost:
                branch.fail(branch.work.lost)
                self._give_up(branch, verb, answer)
                return
            if one_phase:
                branch.work.let_go_undecided()
            self._with_posts_read(branch, partial(self._commit, branch, answer, verb))

    def _with_posts_read(self, branch: Branch, operation: Callable[[], None]) -> None:
        """Runs `operation`, which writes the commit of a prepared branch, when the posted messages are read on whose
        content it depends who gets them."""
        entries = branch.work.to_be_read()
        if not entries:
            operation()
            return
        branch.waiting = deque()
        left = len(entries)

        def read(entry: Entry, payload: bytes | None) -> None:
            nonlocal left
            if type(entry.queue) is Topic:
                entry.queue.read(entry, payload)
            left -= 1
            if left:
                return
            waiting, branch.waiting = branch.waiting or deque(), None
            self._with_posts_read(branch, operation)  # subscriptions may have come meanwhile
            _run_in_turn(branch, waiting)

        for entry in entries:
            self._resource.fetch_message(entry, partial(read, entry))

    def _commit(self, branch: Branch, answer: Answer, verb: BranchVerb) -> None:
        one_phase = verb is BranchVerb.COMMIT_ONE_PHASE
        batch = Batch()
        effects = branch.work.write_commit(batch, stored=not one_phase)
        if not one_phase:
            batch.finish(branch.number)

        def done(error: NotStored | None) -> None:
            if error is None:
                branch.move(verb)
                self._registry.remove(branch)
                branch.work.commit(effects)
                answer(ResultReply(Code.XA_OK))
            elif one_phase:
                branch.fail(str(error), rolled_back_by(error))
                why = Refusal(Condition.ROLLBACK, f"rolled back: {error}", branch.cause, branch.xid)
                self._give_up(branch, verb, lambda _: answer(why))  # the code alone would not tell it
            else:
                branch.move(verb, Result.RETRY)
                answer(not_stored(error, Code.XA_RETRY, branch.xid))

        if one_phase and branch.work.empty:
            done(None)
        else:
            self._force(branch, batch, done)

    def _give_up(self, branch: Branch, verb: BranchVerb, answer: Answer) -> None:
        """An idle branch can't succeed: it is rolled back, and gone."""
        branch.move(verb, Result.RB)
        self._registry.remove(branch)
        self._registry.undo_now(branch)
        answer(ResultReply(branch.cause))

    def rollback(self, branch: Branch, answer: Answer) -> None:
        """Rolls back; what was prepared, forced before `answer` is called with XA_OK."""
        branch.legal(BranchVerb.ROLLBACK)
        self._check_ended(branch)
        if branch.state is BranchState.S5:
            self._heuristic(branch, BranchVerb.ROLLBACK, answer)
            return
        if branch.state is not BranchState.S3:
            branch.move(BranchVerb.ROLLBACK)
            self._registry.remove(branch)
            self._registry.undo_now(branch)
            answer(ResultReply(Code.XA_OK))
            return
        batch = Batch()
        effects = branch.work.write_rollback(batch, stored=True)
        batch.finish(branch.number)

        def done(error: NotStored | None) -> None:
            if error is None:
                branch.move(BranchVerb.ROLLBACK)
                self._registry.remove(branch)
                branch.work.rollback(effects, self._resource.turn.batch)
                answer(ResultReply(Code.XA_OK))
            else:
                answer(not_stored(error, Code.XAER_RMFAIL, branch.xid))

        self._force(branch, batch, done)

    def complete(self, branch: Branch, answer: Answer, *, commit: bool) -> None:
        """An operator's decision over a prepared branch; remembered until it is forgotten."""
        branch.legal(BranchVerb.DECIDE)
        if commit:
            self._with_posts_read(branch, partial(self._complete, branch, answer, commit=True))
        else:
            self._complete(branch, answer, commit=False)

    def _complete(self, branch: Branch, answer: Answer, *, commit: bool) -> None:
        outcome, now_ms = HEURISTIC[commit], self._resource.clock.wall_ms()
        batch = Batch()
        if commit:
            effects = branch.work.write_commit(batch, stored=True)
        else:
            effects = branch.work.write_rollback(batch, stored=True)
        batch.complete(branch.number, outcome, now_ms)

        def done(error: NotStored | None) -> None:
            if error is not None:
                answer(not_stored(error, Code.XAER_RMFAIL, branch.xid))
                return
            branch.move(BranchVerb.DECIDE)
            self._registry.prepared_by_queue.drop(branch)
            branch.outcome, branch.since_ms = outcome, now_ms
            if commit:
                branch.work.commit(effects)
            else:
                branch.work.rollback(effects, self._resource.turn.batch)
            answer(ResultReply(Code.XA_OK))

        self._force(branch, batch, done)

    def forget(self, branch: Branch, answer: Answer) -> None:
        """Forgets a heuristically completed branch."""
        branch.legal(BranchVerb.FORGET)
        batch = Batch()
        batch.finish(branch.number)

        def done(error: NotStored | None) -> None:
            if error is None:
                branch.move(BranchVerb.FORGET)
                self._registry.remove(branch)
                answer(ResultReply(Code.XA_OK))
            else:
                branch.move(BranchVerb.FORGET, Result.RMERR)
                answer(not_stored(error, Code.XAER_RMERR, branch.xid))

        self._force(branch, batch, done)

    def _heuristic(self, branch: Branch, verb: BranchVerb, answer: Answer) -> None:
        branch.move(verb, Result.HEUR)
        answer(ResultReply(branch.outcome or Code.XA_HEURHAZ))

    def _check_ended(self, branch: Branch) -> None:
        if branch.associations:
            message = f"{branch.active} associations are at work and {branch.suspended} suspended: end them first"
            raise refused(Code.XAER_PROTO, message, branch.xid)

    # -- one operation at a time
    def _force(self, branch: Branch, batch: Batch, done: Callable[[NotStored | None], None]) -> None:
        branch.waiting = deque()

        def answered(error: NotStored | None) -> None:
            waiting, branch.waiting = branch.waiting, None
            done(error)
            for call in waiting or ():
                call()

        self._resource.submit(batch, answered)

    def in_turn(self, branch: Branch, answer: Answer, operation: Callable[[], None]) -> None:
        """Runs `operation` when no other one of this branch is being forced; a refusal goes to `answer`."""
        if branch.waiting is None:
            try:
                if branch.state is BranchState.S0:
                    raise refused(Code.XAER_NOTA, "there is no such branch", branch.xid)
                operation()
            except RefusedError as error:
                answer(error.refusal)
        elif len(branch.waiting) >= self._resource.limits.waiting_commands:
            message = f"{len(branch.waiting)} operations of this branch are waiting"
            answer(Refusal(Condition.RESOURCE_LIMIT, message, Code.XAER_PROTO, branch.xid))
        else:
            branch.waiting.append(lambda: self.in_turn(branch, answer, operation))
