"""Enlistments: the resources that take part in one transaction, with their branches and associations.

An association moves by the table 6-2 (`xa.state_tables.ASSOCIATION`). If a resource manager fails, the transaction can
only be rolled back from then on. The exception `RollbackOnly` says so to the transaction, which changes its own state.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from tm.errors import ProtocolMisuse
from tm.log import Branch
from tm.outcome import Reason, named
from tm.two_phase.commit import TwoPhaseCommit
from xa import (
    FORMAT_ID,
    TMFAIL,
    TMJOIN,
    TMNOFLAGS,
    TMNOWAIT,
    TMRESUME,
    TMSUCCESS,
    TMSUSPEND,
    TryAgain,
    XaError,
    Xid,
)
from xa.machine import RESULT_OF, IllegalTransition, advance
from xa.state_tables import ASSOCIATION, AssociationState, AssociationVerb

if TYPE_CHECKING:
    from tm.resources import Resource
    from tm.two_phase.ports import Ports
    from tm.two_phase.states import GlobalState

DelistHow = Literal["success", "suspend", "fail"]

_DELIST: Final[dict[str, tuple[int, AssociationVerb]]] = {
    "success": (TMSUCCESS, AssociationVerb.END),
    "suspend": (TMSUSPEND, AssociationVerb.SUSPEND),
    "fail": (TMFAIL, AssociationVerb.END_FAIL),
}
_T0, _T1, _T2 = AssociationState.T0, AssociationState.T1, AssociationState.T2
_START, _RESUME = AssociationVerb.START, AssociationVerb.RESUME
_AFTER: Final = {verb: ASSOCIATION.column(verb) for verb in AssociationVerb}
"""Verb → state → the state after it went well."""


class RollbackOnly(Exception):
    """The transaction can only be rolled back from now on; `reason` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(str(reason))
        self.reason = reason


class WouldWait(Exception):
    """Enlisting the resource may take a while; nothing was done."""


@dataclass(slots=True, eq=False)
class Enlistment:
    """One resource in one transaction: its branch, and the state of the association of the transaction's thread of
    control with it. `joined`: another resource with the same identity has made the branch."""

    resource: Resource
    branch: Branch
    joined: bool
    state: AssociationState = _T0
    session: Any = None

    def failed(self, verb: AssociationVerb, error: XaError) -> None:
        """The state after `verb` raised `error`: by the table, which leaves it alone for a call without effect."""
        result = RESULT_OF.get(error.code)
        if result is not None:
            with suppress(IllegalTransition):  # an answer that the verb does not have; the end will tell
                self.state = advance(ASSOCIATION, self.state, verb, result)


class Enlistments:
    """The enlistments of one transaction, by the names of the resources, in the order in which they were made.
    `decider` is the name of the resource that decides, if the log does not."""

    __slots__ = ("_by_name", "_decider", "_gtrid")

    def __init__(self, gtrid: bytes, decider: str | None) -> None:
        self._gtrid = gtrid
        self._decider = decider
        self._by_name: dict[str, Enlistment] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Enlistment:
        return self._by_name[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the resources."""
        return tuple(self._by_name)

    @property
    def branches(self) -> int:
        """How many branches there are."""
        return sum(not enlistment.joined for enlistment in self._by_name.values())

    def session(self, name: str) -> Any:
        """The native interface of a resource that is associated; None where there is none."""
        enlistment = self._by_name.get(name)
        return None if enlistment is None else enlistment.session

    @property
    def sessions(self) -> list[Any]:
        """The native interfaces of the resources that are associated."""
        return [one.session for one in self._by_name.values() if one.session is not None]

    def branch_of(self, session: Any) -> Branch:
        """The branch of one of these."""
        return next(one.branch for one in self._by_name.values() if one.session is session)

    # --- begin and end of an association ------------------------------------------------------------------------

    def enlist(self, resource: Resource) -> Any:
        """Associates `resource`, and returns its native interface. A resource that registers dynamically does so with
        its first work. RollbackOnly: it can't take part."""
        if resource.suspect:
            try:
                resource.reopen()
            except XaError as error:
                raise RollbackOnly(Reason(None, error.message, resource.name)) from error

        if resource.dynamic:
            return _session(resource, None)
        name = resource.name
        enlistment = self._by_name.get(name)
        verb, flags = _START, TMJOIN
        if enlistment is None:
            enlistment = self._new(resource)
            flags = TMJOIN if enlistment.joined else TMNOFLAGS
        elif enlistment.state is _T1:
            return enlistment.session
        elif enlistment.state is _T2:
            verb, flags = _RESUME, TMRESUME
        self._by_name[name] = enlistment  # from here on the branch may exist, whatever is answered

        try:
            resource.rm.start(enlistment.branch.xid, resource.rmid, flags)
        except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
            failure = resource.as_xa_error(raised, "start", enlistment.branch.xid)
            enlistment.failed(verb, failure)
            raise RollbackOnly(Reason(enlistment.branch, failure)) from failure
        enlistment.state = _AFTER[verb][enlistment.state]
        enlistment.session = session = _session(resource, enlistment.branch)
        return session

    def enlist_at_once(self, resource: Resource) -> Any:
        """Enlists for a caller that must not wait. WouldWait: it has to be done in a thread that may."""
        session = self.session(resource.name)
        if session is not None:
            return session
        if resource.name in self._by_name or resource.dynamic or not resource.starts_at_once():
            raise WouldWait
        enlistment = self._new(resource)
        if enlistment.joined:
            raise WouldWait
        branch = enlistment.branch
        self._by_name[resource.name] = enlistment  # as in `enlist`

        try:
            resource.rm.start(branch.xid, resource.rmid, TMNOWAIT)
        except TryAgain:  # another thread was faster: there is no branch
            del self._by_name[resource.name]
            raise WouldWait from None
        except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
            failure = resource.as_xa_error(raised, "start", branch.xid)
            enlistment.failed(_START, failure)
            raise RollbackOnly(Reason(branch, failure)) from failure
        enlistment.state = _AFTER[_START][enlistment.state]
        enlistment.session = session = _session(resource, branch)
        return session

    def _new(self, resource: Resource) -> Enlistment:
        if resource.decides and resource.name != self._decider:
            raise ProtocolMisuse(
                f"transaction {named(self._gtrid)}: {resource.name} can't take part, since "
                + (f"{self._decider} is the one that decides" if self._decider else "the log decides here")
                + "; at most one decider takes part in a transaction"
            )
        identity = resource.identity
        if identity is not None and self._by_name:
            for other in self._by_name.values():
                if other.resource.identity == identity and other.resource is not resource:
                    return Enlistment(resource, Branch(resource.name, other.branch.xid), joined=True)
        xid = Xid(FORMAT_ID, self._gtrid, resource.bqual)
        return Enlistment(resource, Branch(resource.name, xid), joined=False)

    def delist(self, name: str, how: DelistHow) -> None:
        """Ends or suspends the association with the resource `name`. RollbackOnly: it failed, or was ended as
        failed."""
        if how not in _DELIST:
            raise ProtocolMisuse(f"delist how? {how!r} is none of {', '.join(_DELIST)}")
        enlistment = self._by_name.get(name)
        if enlistment is None:
            raise ProtocolMisuse(f"transaction {named(self._gtrid)}: {name} is not enlisted")
        if ASSOCIATION.refusal(enlistment.state, _DELIST[how][1]) is not None:
            raise ProtocolMisuse(
                f"transaction {named(self._gtrid)}: {name} can't be delisted ({how}), "
                f"its association is {enlistment.state.value}"
            )
        self._dissociate(enlistment, how)

    def _dissociate(self, enlistment: Enlistment, how: DelistHow) -> None:
        flags, verb = _DELIST[how]
        resource = enlistment.resource
        state = _AFTER[verb][enlistment.state]
        enlistment.session = None
        try:
            resource.rm.end(enlistment.branch.xid, resource.rmid, flags)
        except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
            error = resource.as_xa_error(raised, "end", enlistment.branch.xid)
            enlistment.failed(verb, error)
            raise RollbackOnly(Reason(enlistment.branch, error)) from error
        enlistment.state = state
        if how == "fail":
            raise RollbackOnly(Reason(enlistment.branch, "its work was delisted as failed"))

    def registered(self, resource: Resource) -> tuple[Enlistment, AssociationState | None]:
        """The enlistment, for ax_reg, of a dynamically registering resource, and what its association was before
        (None: it had none in this transaction)."""
        enlistment = self._by_name.get(resource.name)
        was = None
        if enlistment is None:
            enlistment = self._new(resource)
        else:
            was = enlistment.state
        enlistment.state = _AFTER[_RESUME if was is _T2 else _START][enlistment.state]
        self._by_name[resource.name] = enlistment
        return enlistment, was

    # --- all of them --------------------------------------------------------------------------------------------

    def suspend(self) -> list[Reason]:
        """Suspends every association. The reasons of those that could not be suspended."""
        reasons = []
        for enlistment in self._by_name.values():
            if enlistment.state is _T1:
                try:
                    self._dissociate(enlistment, "suspend")
                except RollbackOnly as doomed:
                    reasons.append(doomed.reason)
        return reasons

    def resume(self) -> None:
        """Resumes every suspended association. RollbackOnly: one could not be."""
        for enlistment in self._by_name.values():
            if enlistment.state is _T2 and not enlistment.resource.dynamic:
                self.enlist(enlistment.resource)

    def excuse(self) -> None:
        """Tells the resource managers of messages that a rollback counts for none that was received here, where they
        have that. It changes nothing else, so that a failure is not reported."""
        for enlistment in self._by_name.values():
            if enlistment.state is not _T1:
                continue
            with suppress(Exception):  # the resource may be what is down
                session = enlistment.session
                if enlistment.resource.dynamic:
                    session = _session(enlistment.resource, enlistment.branch)
                excuse = getattr(session, "excuse", None)
                if excuse is not None:
                    excuse(None)

    def forget_sessions(self) -> None:
        """The native interfaces can't be used any more, because the work is over."""
        for enlistment in self._by_name.values():
            enlistment.session = None

    def two_phase_commit(
        self, ports: Ports, state: GlobalState, *, stops_at_decision: bool = False, leaves: str = ""
    ) -> TwoPhaseCommit:
        """The commit, or rollback, of the transaction, which stands in `state`; see `TwoPhaseCommit`."""
        branches = []
        associations = []
        decider = None
        late = True
        for enlistment in self._by_name.values():
            if enlistment.joined:
                late = False
            elif enlistment.resource.decides:
                decider = enlistment.branch
            else:
                branches.append(enlistment.branch)
            if enlistment.state is not _T0:
                associations.append(enlistment.branch)

        return TwoPhaseCommit(
            ports,
            self._gtrid,
            branches,
            associations,
            decider,
            state,
            late=late,
            stops_at_decision=stops_at_decision,
            leaves=leaves,
        )


def _session(resource: Resource, branch: Branch | None) -> Any:
    try:
        return resource.rm.session(resource.rmid)
    except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
        error = resource.as_xa_error(raised, "session")
        raise RollbackOnly(Reason(branch, f"{resource.name}: {error.message}")) from error
