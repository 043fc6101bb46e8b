"""ax_reg and ax_unreg: how resource managers with TMREGISTER announce work to the transaction manager.

Each thread of control has a registration with each such resource manager, which moves by the table 6-3
(`xa.state_tables.REGISTRATION`). If the thread has a transaction, its registration is the transaction's enlistment. The
states that are kept here are those of work outside any transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakKeyDictionary

from tm.errors import TransactionError
from xa import NULL_XID, TMNOFLAGS, AxCode, thread_of_control
from xa.machine import IllegalTransition, advance
from xa.state_tables import REGISTRATION, AssociationState, RegistrationState, RegistrationVerb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tm.resources import Resource
    from tm.resources.enlistment import Enlistment
    from xa import ThreadOfControl, Xid

_REFUSED: Final = (AxCode.TMER_PROTO, NULL_XID)
_INVALID: Final = (AxCode.TMER_INVAL, NULL_XID)


class RegisteringTransaction(Protocol):
    """The interface of a transaction that the registrar uses."""

    def registered(self, resource: Resource) -> tuple[Enlistment, AssociationState | None]:
        """The enlistment of a resource that registers: see `Enlistments.registered`. TransactionError: the state of
        the transaction does not allow it."""
        ...


class DynamicRegistrar:
    """`xa.Registrar` for the `resources` of one transaction manager; `current` is the calling context's transaction."""

    def __init__(self, resources: Mapping[str, Resource], current: Callable[[], RegisteringTransaction | None]) -> None:
        self._resources = resources
        self._current = current
        self._outside: WeakKeyDictionary[ThreadOfControl, dict[int, RegistrationState]] = WeakKeyDictionary()

    def ax_reg(self, rmid: int, flags: int = TMNOFLAGS) -> tuple[AxCode, Xid]:
        resource = self._resource(rmid)
        if resource is None or flags != TMNOFLAGS:
            return _INVALID
        if not resource.dynamic:
            return _REFUSED
        transaction = self._current()
        states = self._outside.setdefault(thread_of_control(), {})
        outside = states.get(rmid, RegistrationState.D0)
        if transaction is None:
            try:
                states[rmid] = advance(REGISTRATION, outside, RegistrationVerb.REGISTER_NULL)
            except IllegalTransition:
                return _REFUSED
            return AxCode.TM_OK, NULL_XID
        if outside is not RegistrationState.D0:
            return _REFUSED

        try:
            enlistment, was = transaction.registered(resource)
        except (TransactionError, IllegalTransition):
            return _REFUSED
        if was is AssociationState.T2:
            return AxCode.TM_RESUME, enlistment.branch.xid
        known = enlistment.joined or was is not None
        return (AxCode.TM_JOIN if known else AxCode.TM_OK), enlistment.branch.xid

    def ax_unreg(self, rmid: int, flags: int = TMNOFLAGS) -> AxCode:
        if self._resource(rmid) is None or flags != TMNOFLAGS:
            return AxCode.TMER_INVAL
        states = self._outside.setdefault(thread_of_control(), {})
        try:
            states[rmid] = advance(REGISTRATION, states.get(rmid, RegistrationState.D0), RegistrationVerb.UNREGISTER)
        except IllegalTransition:
            return AxCode.TMER_PROTO
        return AxCode.TM_OK

    def at_work_outside(self) -> bool:
        """Whether the calling thread of control is registered with the null XID somewhere."""
        return RegistrationState.D3 in self._outside.get(thread_of_control(), {}).values()

    def _resource(self, rmid: int) -> Resource | None:
        for resource in self._resources.values():
            if resource.rmid == rmid:
                return resource
        return None
