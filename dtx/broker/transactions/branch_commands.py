"""DtxCoordination: outcomes of branches and what is known of them, for the command channel.

A command names its branch, or with a null XID means the one that the session runs: an association of it
that is at work is ended first, as the slides have it, where work done between start and commit belongs to
the branch. Every command is answered exactly once, and what it changed is durable by then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition
from dtx.broker.transactions.branches import UNPREPARED
from dtx.broker.transactions.demarcation import unauthorized
from dtx.broker.transactions.state_tables import VERBS
from dtx.broker.transactions.two_phase_commit import given_back
from dtx.protocol.commands import (
    Commit,
    Complete,
    Fence,
    Forget,
    GetTimeout,
    Prepare,
    Recover,
    RecoveredState,
    Rollback,
    SetTimeout,
)
from dtx.protocol.conditions import Refusal, RefusedError, refused
from dtx.protocol.replies import Details, Holding, Recovered, Timeout
from dtx.protocol.replies import Result as ResultReply
from xa import Code
from xa.state_tables import BRANCH, AssociationState, AssociationVerb, BranchState, BranchVerb

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.sasl.mechanisms import Identity
    from dtx.broker.access.permissions import Permissions
    from dtx.broker.transactions.branches import Branch, Registry
    from dtx.broker.transactions.contexts import DistributedContext
    from dtx.broker.transactions.demarcation import DtxDemarcation
    from dtx.broker.transactions.fences import Fences
    from dtx.broker.transactions.two_phase_commit import TwoPhaseCommit
    from dtx.protocol.commands import Coordination
    from dtx.protocol.replies import Reply
    from xa import Xid

    Answer = Callable[[Reply], None]

FOUND: Final = {BranchState.S3: RecoveredState.PREPARED, BranchState.S5: RecoveredState.HEURISTIC}


class DtxCoordination:
    """The coordination of every branch."""

    def __init__(self, registry: Registry, two_phase: TwoPhaseCommit, fences: Fences, permissions: Permissions) -> None:
        self._registry = registry
        self._two_phase = two_phase
        self._fences = fences
        self._permissions = permissions

    def refusal_of_all(self, identity: Identity) -> Refusal | None:
        """What every command of `identity` is refused with, if it may coordinate nothing, not even its own branches."""
        if self._permissions.may_coordinate(identity, identity.name):
            return None
        message = f"{identity} may coordinate no branch of this broker"
        return Refusal(Condition.UNAUTHORIZED, message, Code.XAER_RMERR)

    def handle(self, command: Coordination, identity: Identity, session: DtxDemarcation, answer: Answer) -> None:
        """Carries out a command of `identity` that came over `session`."""
        try:
            match command:
                case Recover():
                    answer(self._recover(command, identity))
                case Fence():
                    self._fence(command, identity, answer)
                case SetTimeout() | GetTimeout():
                    answer(self._timeout(command, identity, session))
                case _:
                    self._outcome(command, identity, session, answer)
        except RefusedError as error:
            answer(error.refusal)

    def end_and_prepare(
        self,
        context: DistributedContext,
        identity: Identity,
        session: DtxDemarcation,
        answer: Answer,
        *,
        keep: bool,
    ) -> None:
        """Ends an association and prepares its branch, in one exchange, where `identity` may coordinate it."""
        try:
            if not self._permissions.may_coordinate(identity, context.branch.owner):
                raise unauthorized(identity, context.branch.xid)
            session.end(context, AssociationVerb.END)
        except RefusedError as error:
            answer(error.refusal)
            return
        branch = context.branch
        self._two_phase.in_turn(branch, answer, lambda: self._two_phase.prepare(branch, answer, keep=keep))

    # -- outcomes
    def _outcome(
        self,
        command: Prepare | Commit | Rollback | Forget | Complete,
        identity: Identity,
        session: DtxDemarcation,
        answer: Answer,
    ) -> None:
        verb = VERBS[type(command)].branch
        if isinstance(command, Commit) and command.one_phase:
            verb = BranchVerb.COMMIT_ONE_PHASE
        branch = self._branch(command.xid, identity, session, verb)
        done = self._two_phase

        def operation() -> None:
            match command:
                case Prepare():
                    done.prepare(branch, answer, keep=command.keep, given_back=given_back(command))
                case Commit():
                    done.commit(branch, answer, one_phase=command.one_phase)
                case Rollback():
                    done.rollback(branch, answer)
                case Forget():
                    done.forget(branch, answer)
                case Complete():
                    done.complete(branch, answer, commit=command.commit)

        done.in_turn(branch, answer, operation)

    def _branch(self, xid: Xid, identity: Identity, session: DtxDemarcation, verb: BranchVerb | None) -> Branch:
        """The branch that a command names. What is at work for it on this session is ended for a `verb` that is
        possible then."""
        context = session.running if xid.is_null else None
        branch = self._registry.find(xid) if context is None else context.branch
        if not self._permissions.may_coordinate(identity, branch.owner):
            raise unauthorized(identity, branch.xid)
        if context is not None and verb is not None and context.state is AssociationState.T1:
            code = BRANCH.refusal(BranchState.S2, verb)
            if code is not None:
                raise refused(code, f"{verb.value} is not possible: the branch is at work", branch.xid)
            if context.partial:
                raise refused(Code.XAER_PROTO, "a delivery of its work is not complete", branch.xid)
            if len(branch.associations) > 1:
                raise refused(Code.XAER_PROTO, "others are associated too: they are to end first", branch.xid)
            session.end(context, AssociationVerb.END)
        return branch

    # -- timeouts
    def _timeout(self, command: SetTimeout | GetTimeout, identity: Identity, session: DtxDemarcation) -> Reply:
        branch = self._branch(command.xid, identity, session, None)
        if isinstance(command, SetTimeout):
            self._registry.check_timeout(command.timeout_s, branch.xid)
            if branch.state not in UNPREPARED:
                message = f"the branch is {branch.state.value}: no timeout touches it any more"
                raise refused(Code.XAER_PROTO, message, branch.xid)
            self._registry.set_timeout(branch, command.timeout_s)
            return ResultReply(Code.XA_OK)
        return Timeout(branch.timeout_s)

    # -- recovery
    def _recover(self, command: Recover, identity: Identity) -> Recovered:
        found: list[Branch] = []
        states = command.states or tuple(RecoveredState)
        owner = None if self._permissions.may_coordinate_all(identity) else identity.name
        for branch in self._registry.in_doubt(command.after, command.prefix, owner):
            if FOUND.get(branch.state) not in states:
                continue
            if not self._permissions.may_coordinate(identity, branch.owner):
                continue
            if len(found) == command.count:
                return self._page(found, command, more=True)
            found.append(branch)
        return self._page(found, command, more=False)

    def _page(self, found: list[Branch], command: Recover, *, more: bool) -> Recovered:
        details = tuple(map(describe, found)) if command.details else ()
        return Recovered(tuple(branch.xid for branch in found), more, details)

    # -- fences
    def _fence(self, command: Fence, identity: Identity, answer: Answer) -> None:
        if not self._permissions.may_coordinate(identity, identity.name):
            raise refused(Code.XAER_RMERR, f"{identity} may set no fence", condition=Condition.UNAUTHORIZED)
        for_all = self._permissions.may_coordinate_all(identity)
        if command.lift:
            self._fences.lift(command.format_id, command.gtrid, identity.name, answer, for_all=for_all)
            return
        owners = {branch.owner for branch in self._registry.of(command.format_id, command.gtrid)}
        if not all(self._permissions.may_coordinate(identity, owner) for owner in owners):
            message = f"{identity} may not coordinate this global transaction"
            raise refused(Code.XAER_RMERR, message, condition=Condition.UNAUTHORIZED)
        self._fences.put(command.format_id, command.gtrid, identity.name, answer, for_all=for_all)


def describe(branch: Branch) -> Details:
    """The facts about a branch in doubt."""
    holdings = tuple(Holding(queue, retired, posted) for queue, (retired, posted) in branch.work.holdings().items())
    return Details(branch.xid, FOUND[branch.state], branch.since_ms, branch.owner, holdings, branch.outcome)
