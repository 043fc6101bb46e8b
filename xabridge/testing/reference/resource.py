"""ReferenceResource: the client of a ReferenceStore, a complete `xa.ResourceManager` that is strict about the tables.

One lock, the store's, covers both sides, and is taken once per verb. Where nothing is scripted and the server can be
reached, a verb is one call into the store; everything else goes through `ReferenceClient._send`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from xa.codes import AxCode, Code
from xa.control import thread_of_control
from xa.errors import xa_error
from xa.flags import (
    TMASYNC,
    TMENDRSCAN,
    TMFAIL,
    TMJOIN,
    TMMIGRATE,
    TMNOMIGRATE,
    TMONEPHASE,
    TMREGISTER,
    TMRESUME,
    TMSTARTRSCAN,
    TMSUCCESS,
    TMSUSPEND,
    TMUSEASYNC,
    check_flags,
)
from xa.machine import advance
from xa.tables import REGISTRATION, RESOURCE, RegistrationState, RegistrationVerb, ResourceVerb
from xabridge.testing.reference.branch import BRANCH_NONE, DYNAMIC, STATIC, Association, Branch
from xabridge.testing.reference.client import R0, R1, ReferenceClient, answer_only
from xabridge.testing.reference.server import LOST, OK, RDONLY
from xabridge.testing.reference.session import ReferenceSession

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from weakref import WeakKeyDictionary

    from xa.control import ThreadOfControl
    from xa.diagnosis import Diagnosis
    from xa.errors import XaError
    from xa.holdings import InDoubtBranch
    from xa.resource import Handle, Registrar
    from xa.xid import Xid
    from xabridge.testing.reference.client import Effect
    from xabridge.testing.reference.store import ReferenceStore

T = TypeVar("T")

_AX_ERRORS: Final = {
    AxCode.TMER_TMERR: Code.XAER_RMERR,
    AxCode.TMER_INVAL: Code.XAER_INVAL,
    AxCode.TMER_PROTO: Code.XAER_PROTO,
}
_AX_STARTS: Final = {AxCode.TM_OK: 0, AxCode.TM_JOIN: TMJOIN, AxCode.TM_RESUME: TMRESUME}


class ReferenceResource(ReferenceClient):
    """One client of `store`. `flags` are the switch's: any of TMREGISTER, TMNOMIGRATE, TMUSEASYNC."""

    name = "xabridge reference"

    def __init__(self, store: ReferenceStore, registrar: Registrar | None = None, flags: int = TMUSEASYNC) -> None:
        if flags & ~(TMREGISTER | TMNOMIGRATE | TMUSEASYNC):
            raise ValueError(f"not switch flags: {flags:#x}")
        if flags & TMREGISTER and registrar is None:
            raise ValueError("TMREGISTER needs a registrar")
        self._registrar = registrar
        super().__init__(store, flags, DYNAMIC if flags & TMREGISTER else STATIC)

    @property
    def identity(self) -> str:
        """As `xa.ResourceManager` says."""
        return self._store.url

    # --- resource manager -------------------------------------------------------------------------------------
    def open(self, open_string: str, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says; `open_string` is the store's `url`."""
        check_flags("open", flags, self.flags)
        if open_string != self._store.url:
            raise xa_error(Code.XAER_INVAL, f"open: {open_string!r} is not this store's, {self._store.url!r} is")
        control = thread_of_control()
        with self._store.lock:
            if self._state is R1 and rmid != self._rmid:
                raise xa_error(Code.XAER_INVAL, f"open: is open under rmid {self._rmid} already, not {rmid}")
            if flags & TMASYNC:
                self._check_room("open")
            if self._broken is not None:
                self._broken.pop(control, None)
                self._broken = self._broken or None
            return self._send("open", control, None, flags, partial(self._open, rmid))

    def _open(self, rmid: int, answer: Code | None = None) -> Code:
        code = OK if answer is None else answer
        if code is OK:
            self._rmid = rmid
            self._state = advance(RESOURCE, self._state, ResourceVerb.OPEN)
        return code

    def close(self, close_string: str, rmid: int, flags: int = 0) -> Code | Handle:  # noqa: ARG002 — says nothing here
        """As `xa.ResourceManager` says."""
        check_flags("close", flags, self.flags)
        control = thread_of_control()
        with self._store.lock:
            if self._state is not R0:
                self._check_open("close", rmid)
                held = self._current.get(control)
                if (held is not None and held.state is held.dialect.active) or control in self._outside:
                    raise xa_error(Code.XAER_PROTO, "close: this thread is at work; end that first")
                if self._operations:
                    raise xa_error(Code.XAER_PROTO, f"close: {len(self._operations)} operations wait for complete")
            return self._send("close", control, None, flags, self._close)

    def _close(self, answer: Code | None = None) -> Code:
        code = OK if answer is None else answer
        if code is OK:
            self._store.lose([*self._current.values(), *self._suspended.values()])
            state = advance(RESOURCE, self._state, ResourceVerb.CLOSE)
            self.forget_everything()
            self._state = state
        return code

    # --- association --------------------------------------------------------------------------------------------
    def start(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        control = self._enter("start", rmid, flags)
        if self._dialect is DYNAMIC:
            raise xa_error(Code.XAER_PROTO, "start: this resource manager registers itself (TMREGISTER)", xid)
        with self._store.lock:
            return self._start(control, xid, flags)

    def _start(self, control: ThreadOfControl, xid: Xid, flags: int) -> Code | Handle:
        """Called with the store's lock held."""
        store = self._store
        held = self._current.get(control)
        if held is not None:
            raise self._still_associated(control, held, xid)
        if flags or self._suspended or store.script.plans or not store.reachable:
            return self._start_otherwise(control, xid, flags)
        association = Association(self, control, Branch(xid), self._dialect)
        code = store.start(association)
        if code is not OK:
            raise self._error("start", code, store.find(xid))
        self._current[control] = association
        return code

    def _start_otherwise(self, control: ThreadOfControl, xid: Xid, flags: int) -> Code | Handle:
        """A start that joins, resumes, is asynchronous or goes wrong."""
        store = self._store
        own = self._suspended.get((control, xid))
        effect: Effect
        if flags & TMRESUME:
            association = own or store.migrant(xid)
            if association is None:
                raise self._not_associated("start(TMRESUME)", xid)
            effect = partial(store.resume, association, self, control)
        elif own is not None and own.state is own.dialect.none:
            raise self._still_associated(control, own, xid)
        elif own is not None:
            raise xa_error(Code.XAER_PROTO, "start: this thread has suspended the branch and can only resume it", xid)
        else:
            branch = store.find(xid) if flags & TMJOIN else Branch(xid)
            association = Association(self, control, branch, self._dialect)
            effect = partial(store.join if flags & TMJOIN else store.start, association)
        if association.branch.asked is self:
            raise self._refuse_second("start", association.branch, flags)
        return self._send("start", control, association.branch, flags, effect, association)

    def _still_associated(self, control: ThreadOfControl, held: Association, xid: Xid) -> XaError:
        if held.state is held.dialect.none:
            self._lose_connection(control)
            return xa_error(LOST, "start: the connection, and the association with it, was lost", held.branch.xid)
        return xa_error(Code.XAER_PROTO, f"start: this thread is associated with {held.branch.xid}", xid)

    def _not_associated(self, verb: str, xid: Xid) -> XaError:
        branch = self._store.find(xid)
        if branch.state is BRANCH_NONE:
            return self._error(verb, Code.XAER_NOTA, branch)
        return xa_error(Code.XAER_PROTO, f"{verb}: this thread has no such association with the branch", xid)

    def end(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        control = self._enter("end", rmid, flags)
        store = self._store
        with store.lock:
            association = self._current.get(control)
            if association is None or (association.branch.xid is not xid and association.branch.xid != xid):
                association = self._suspended.get((control, xid))
                if association is None:
                    raise self._not_associated("end", xid)
            dialect = association.dialect
            if association.branch.asked is self:
                raise self._refuse_second("end", association.branch, flags)
            if (
                flags == TMSUCCESS
                and association.state is dialect.active
                and store.reachable
                and not store.script.plans
            ):
                code = store.end(association, dialect.end)
                if code is OK:
                    del self._current[control]
                    return code
                self._file(association)
                raise self._error("end", code, association.branch)
            verb = dialect.suspend if flags & TMSUSPEND else dialect.end_fail if flags & TMFAIL else dialect.end
            refused = dialect.machine.refusal(association.state, verb)
            if refused is not None and association.state is not dialect.none:
                raise xa_error(refused, f"end: the association is {association.state.value}", xid)
            effect = partial(store.end, association, verb, migrates=bool(flags & TMMIGRATE))
            return self._send("end", control, association.branch, flags, effect, association)

    # --- completion ---------------------------------------------------------------------------------------------
    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        return self._finish("prepare", xid, rmid, flags, self._store.prepare)

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        store = self._store
        return self._finish("commit", xid, rmid, flags, store.commit_one_phase if flags & TMONEPHASE else store.commit)

    def rollback(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        return self._finish("rollback", xid, rmid, flags, self._store.rollback)

    def forget(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says."""
        return self._finish("forget", xid, rmid, flags, self._store.forget)

    def _finish(
        self, verb: str, xid: Xid, rmid: int, flags: int, effect: Callable[[Branch, Code | None], Code]
    ) -> Code | Handle:
        control = self._enter(verb, rmid, flags)
        store = self._store
        with store.lock:
            branch = store.known.get(xid) or Branch(xid)
            if branch.asked is self:
                raise self._refuse_second(verb, branch, flags)
            if store.script.plans or not store.reachable:
                # by the xid, which is looked up again when the request arrives
                return self._send(verb, control, branch, flags, lambda *, answer: effect(store.find(xid), answer))
            code = effect(branch, None)
            if flags and flags & TMASYNC:
                return self._promise(control, verb, branch, code)
        if code is OK or code is RDONLY:
            return code
        raise self._error(verb, code, branch)

    def recover(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[Xid]:
        """As `xa.ResourceManager` says."""
        with self._store.lock:
            return self._page(self._scans, self._store.recoverable, rmid, flags, count)

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        """As `xa.holdings.HoldingsReporting` says."""
        with self._store.lock:
            return self._page(self._reports, self._store.reports, rmid, flags, count)

    def _page(
        self,
        scans: WeakKeyDictionary[ThreadOfControl, list[T]],
        all_of_them: Callable[[], list[T]],
        rmid: int,
        flags: int,
        count: int,
    ) -> Sequence[T]:
        """A page of a scan over `all_of_them`. Called with the store's lock held."""
        control = self._enter("recover", rmid, flags)
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"recover: count {count} is below 1")
        self._send("recover", control, None, 0, answer_only)
        if flags & TMSTARTRSCAN:
            scans[control] = all_of_them()[::-1]
        scan = scans.get(control)
        if scan is None:
            raise xa_error(Code.XAER_INVAL, "recover: no scan is open and TMSTARTRSCAN was not given")
        page = scan[-count:][::-1]
        del scan[-count:]
        if flags & TMENDRSCAN:
            del scans[control]
        return page

    def diagnose(self, open_string: str) -> Diagnosis:
        """As `xa.diagnosis.Diagnosing` says."""
        return self._store.diagnosis(open_string)

    # --- work ---------------------------------------------------------------------------------------------------
    def session(self, rmid: int) -> ReferenceSession:
        """As `xa.ResourceManager` says."""
        if self._broken is None and ("session", rmid, 0) in self._passed:
            control = thread_of_control()
        else:
            control = self._connected("session", rmid)
            self._passed.add(("session", rmid, 0))
        if self._dialect is STATIC and control not in self._current:
            raise xa_error(Code.XAER_PROTO, "session: this thread is associated with no branch")
        return ReferenceSession(self, control)

    def work(self, control: ThreadOfControl, operation: Callable[[ReferenceStore, Branch | None], Any]) -> Any:
        """Does one operation of a session."""
        self._connected("session", self._rmid)
        store = self._store
        if thread_of_control() is not control:
            raise xa_error(Code.XAER_PROTO, "work: this session belongs to another thread of control")
        if self._dialect is DYNAMIC and control not in self._current and not self._register(control):
            return self._work_outside(control, operation)
        with store.lock:
            association = self._current.get(control)
            if association is None:
                raise xa_error(Code.XAER_PROTO, "work: this thread is associated with no branch")
            branch = association.branch
            if branch.asked is self:
                raise self._refuse_second("work", branch, 0)
            if (
                store.script.plans
                or not store.reachable
                or branch.reason
                or association.state is association.dialect.none
            ):
                self._send("work", control, branch, 0, partial(store.work, association))
            return operation(store, branch)

    def _register(self, control: ThreadOfControl) -> bool:
        """Asks the transaction manager whose work this is; False when it is outside any global transaction."""
        assert self._registrar is not None  # noqa: S101 — checked by the constructor
        answer, xid = self._registrar.ax_reg(self._rmid)
        _check_answer(answer, "ax_reg")
        with self._store.lock:
            if xid.is_null:
                self._outside[control] = advance(REGISTRATION, RegistrationState.D0, RegistrationVerb.REGISTER_NULL)
                return False
            self._start(control, xid, _AX_STARTS[answer])
            return True

    def _work_outside(self, control: ThreadOfControl, operation: Callable[[ReferenceStore, Branch | None], Any]) -> Any:
        """One operation that is a transaction of its own, and the end of its registration."""
        assert self._registrar is not None  # noqa: S101 — checked by the constructor
        try:
            with self._store.lock:
                self._send("work", control, None, 0, answer_only)
                return operation(self._store, None)
        finally:
            with self._store.lock:
                advance(REGISTRATION, self._outside.pop(control), RegistrationVerb.UNREGISTER)
            _check_answer(self._registrar.ax_unreg(self._rmid), "ax_unreg")


def _check_answer(answer: AxCode, call: str) -> None:
    """The transaction manager's refusal is the resource manager's."""
    if answer in _AX_ERRORS:
        raise xa_error(_AX_ERRORS[answer], f"{call} answered {answer.name}")


@dataclass(frozen=True, slots=True)
class ReferenceFactory:
    """An `xa.ResourceFactory`: makes clients of one store."""

    store: ReferenceStore
    flags: int = TMUSEASYNC

    def __call__(self, registrar: Registrar) -> ReferenceResource:
        """A new client, not yet opened."""
        return ReferenceResource(self.store, registrar, self.flags)
