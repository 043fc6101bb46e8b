"""DtxDemarcation: which branch a txn-id works for. select, start (new, join, resume), end (success, fail,
suspend).

One object stands for one session, the slides' channel. It knows the branch that the session runs: the one
that was started or resumed last, until another is, or the branch is gone. A null XID means that one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtx.amqp.conditions import Condition
from dtx.broker.transactions.contexts import DistributedContext
from dtx.broker.transactions.state_tables import CHANNEL, Channel, ChannelVerb
from dtx.protocol.conditions import RefusedError, refused
from xa import Code, Xid
from xa.machine import Result, advance
from xa.state_tables import ASSOCIATION, AssociationState, AssociationVerb, BranchState, BranchVerb

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.sasl.mechanisms import Identity
    from dtx.broker.access.permissions import Permissions
    from dtx.broker.transactional_resource import TransactionalResource
    from dtx.broker.transactions.branches import Branch, Registry
    from dtx.broker.transactions.contexts import Control
    from dtx.broker.transactions.fences import Fences
    from dtx.protocol.commands import Start

ENDED = {
    AssociationVerb.END: BranchVerb.END,
    AssociationVerb.END_FAIL: BranchVerb.END_FAIL,
    AssociationVerb.SUSPEND: BranchVerb.END,
}


class DtxDemarcation:
    """The demarcation of one session. `released` is called when a txn-id is no longer in use."""

    def __init__(
        self,
        resource: TransactionalResource,
        registry: Registry,
        fences: Fences,
        permissions: Permissions,
        identity: Identity,
        released: Callable[[DistributedContext], None],
    ) -> None:
        self.channel = Channel.PLAIN
        self._resource = resource
        self._registry = registry
        self._fences = fences
        self._permissions = permissions
        self._identity = identity
        self._released = released
        self._running: DistributedContext | None = None

    # -- select
    def attach(self, *, select: bool) -> None:
        """A control link is attached, with or without the wish for distributed transactions."""
        self._channel(ChannelVerb.SELECT if select else ChannelVerb.ATTACH)

    def _channel(self, verb: ChannelVerb) -> None:
        code = CHANNEL.refusal(self.channel, verb)
        if code is not None:
            message = f"{verb.value}: the session is {self.channel.value} for distributed transactions"
            raise refused(code, f"{message}; attach a control link that desires them first")
        self.channel = advance(CHANNEL, self.channel, verb)

    # -- start
    def start(self, start: Start, txn_id: bytes, control: Control) -> DistributedContext:
        """Associates `txn_id` with a branch. RefusedError: there is no association."""
        self._channel(ChannelVerb.START)
        if start.timeout_s is not None:
            self._registry.check_timeout(start.timeout_s, start.xid)

        if start.resume:
            context = self._resume(start.xid, txn_id, control)
        elif start.join:
            context = self._join(start.xid, txn_id, control)
        else:
            self._fences.check(start.xid, self._identity.name)
            branch = self._registry.make(start.xid, self._identity.name)
            context = DistributedContext(self._resource, txn_id, control, branch)
            branch.associations.append(context)
        if start.timeout_s is not None:
            self._registry.set_timeout(context.branch, start.timeout_s)
        self._running = context
        return context

    def _existing(self, xid: Xid) -> Branch:
        branch = self._registry.find(xid)
        if not self._permissions.may_coordinate(self._identity, branch.owner):
            raise unauthorized(self._identity, xid)
        branch.legal(BranchVerb.JOIN)
        if branch.waiting is not None:
            raise refused(Code.XAER_PROTO, "the branch is being prepared or completed", xid)
        return branch

    def _join(self, xid: Xid, txn_id: bytes, control: Control) -> DistributedContext:
        branch = self._existing(xid)
        if branch.state is BranchState.S4 or branch.failed:
            self._refuse_join(branch)
            raise RefusedError(branch.why())
        branch.move(BranchVerb.JOIN)
        context = DistributedContext(self._resource, txn_id, control, branch)
        branch.associations.append(context)
        return context

    def _refuse_join(self, branch: Branch) -> None:
        if branch.state is BranchState.S2:
            branch.undo(BranchVerb.JOIN, "", branch.cause, Result.RB)
        elif branch.state is BranchState.S4:
            branch.move(BranchVerb.JOIN, Result.RB)
        else:  # others are at work, and their end will say so
            branch.move(BranchVerb.JOIN, Result.RMERR)

    def _resume(self, xid: Xid, txn_id: bytes, control: Control) -> DistributedContext:
        branch = self._existing(xid)
        suspended = [
            context
            for context in branch.associations
            if context.state is AssociationState.T2 and context.control is control
        ]
        if not suspended:
            raise refused(Code.XAER_PROTO, "this control link has suspended no association with it", xid)

        context = suspended[0]
        if branch.state is BranchState.S4 or branch.failed:
            context.state = advance(ASSOCIATION, context.state, AssociationVerb.RESUME, Result.RB)
            branch.associations.remove(context)
            self._refuse_join(branch)
            raise RefusedError(branch.why())
        branch.move(BranchVerb.JOIN)
        context.state = advance(ASSOCIATION, context.state, AssociationVerb.RESUME)
        context.name(txn_id)
        return context

    # -- end
    def end(self, context: DistributedContext, verb: AssociationVerb) -> None:
        """Ends or suspends the association. RefusedError with a rollback code: it is ended, and the branch is
        rollback-only; with another code: nothing happened."""
        self._channel(ChannelVerb.END)
        branch = context.branch
        code = ASSOCIATION.refusal(context.state, verb)
        if code is not None:
            raise refused(code, f"{verb.value}: the association is {context.state.value}", branch.xid)

        others = branch.active - (context.state is AssociationState.T1)
        moved = ENDED[verb]
        if verb is not AssociationVerb.END_FAIL and others and context.state is AssociationState.T1:
            moved = BranchVerb.END_SHARED
        doomed = branch.failed or branch.state is BranchState.S4
        branch.legal(moved)
        if doomed or verb is AssociationVerb.END_FAIL:
            self._end_doomed(context, verb, moved, doomed=doomed)
            self._released(context)
            if doomed and verb is not AssociationVerb.END_FAIL:
                raise RefusedError(branch.why())
            return
        branch.move(moved)
        context.state = advance(ASSOCIATION, context.state, verb)
        if context.state is AssociationState.T0:
            branch.associations.remove(context)
        self._released(context)

    def _end_doomed(
        self, context: DistributedContext, verb: AssociationVerb, moved: BranchVerb, *, doomed: bool
    ) -> None:
        branch = context.branch
        context.state = advance(ASSOCIATION, context.state, verb, Result.RB if doomed else Result.OK)
        branch.associations.remove(context)
        if branch.state is BranchState.S4:
            branch.move(moved, Result.RB)
        else:
            result = Result.RB if doomed else Result.OK
            branch.undo(moved, "its work was ended with fail", Code.XA_RBROLLBACK, result)

    def lose(self, context: DistributedContext) -> None:
        """The session, the connection or the control link of an association is gone."""
        branch = context.branch
        context.state = advance(ASSOCIATION, context.state, AssociationVerb.LOSE)
        branch.associations.remove(context)
        if branch.state is BranchState.S4:
            branch.move(BranchVerb.LOSE)
        else:
            message = "a connection, session or control link was lost while it was associated"
            branch.undo(BranchVerb.LOSE, message, Code.XA_RBCOMMFAIL)

    # -- the branch that the session runs
    @property
    def running(self) -> DistributedContext:
        """The association that was started or resumed last; its branch exists. RefusedError: there is
        none."""
        if self._running is None or self._running.branch.state is BranchState.S0:
            raise refused(Code.XAER_PROTO, "a null XID, and the session runs no branch")
        return self._running


def unauthorized(identity: Identity, xid: Xid) -> RefusedError:
    """The branch is somebody else's. It is as it was: XAER_RMERR would mean, at commit, that it was rolled back."""
    return refused(Code.XAER_PROTO, f"{identity} may not coordinate this branch", xid, Condition.UNAUTHORIZED)
