"""The client's side of the connection to a ReferenceStore: what is open, associated and outstanding, and what becomes
of requests and replies on their way. The verbs on top of it are in `resource.py`."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from xa.codes import MEANING, Code
from xa.control import thread_of_control
from xa.errors import EXCEPTIONS, xa_error
from xa.flags import TMASYNC, TMMULTIPLE, TMNOWAIT, check_flags
from xa.machine import Result, advance
from xa.resource import Completion, Handle
from xa.tables import ASYNC, RESOURCE, AsyncState, AsyncVerb, RegistrationState, ResourceState, ResourceVerb
from xabridge.testing.reference.script import Fate
from xabridge.testing.reference.server import LOST, OK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xa.control import ThreadOfControl
    from xa.errors import XaError
    from xa.holdings import InDoubtBranch
    from xa.xid import Xid
    from xabridge.testing.reference.branch import Association, Branch, Dialect
    from xabridge.testing.reference.store import ReferenceStore

"""Asynchronous operations that one client may have outstanding."""

R0, R1 = ResourceState.R0, ResourceState.R1


class Effect(Protocol):
    """A verb at the server, with the scripted answer or, with None, its own."""

    def __call__(self, *, answer: Code | None) -> Code: ...


def answer_only(*, answer: Code | None) -> Code:
    """An effect that changes nothing."""
    return OK if answer is None else answer


class Flight:
    """A request that was sent and has not arrived. `code` is its answer, which may have nobody to hear it.

    `associations` are those of the connection that was lost behind it: they are lost after its effect."""

    __slots__ = ("associations", "client", "code", "control", "effect", "verb", "xid")

    def __init__(
        self,
        client: ReferenceClient,
        control: ThreadOfControl,
        verb: str,
        xid: Xid | None,
        effect: Callable[[], Code],
        associations: Sequence[Association] = (),
    ) -> None:
        self.client = client
        self.control = control
        self.verb = verb
        self.xid = xid
        self.effect = effect
        self.associations = associations
        self.code: Code | None = None

    def held(self) -> list[Association]:
        """Those of `associations` that are still of the lost connection, and did not migrate."""
        return [held for held in self.associations if held.client is self.client and held.control is self.control]


Operation: TypeAlias = "tuple[ThreadOfControl, str, Branch | None, Code | Flight]"
"""An asynchronous operation that `complete` has not told of yet, one in the state A1 of table 6-5: who asked for
what, of which branch, and the result or the request that is still on its way."""


class ReferenceClient:
    """What one client knows. Its state is guarded by the store's lock."""

    def __init__(self, store: ReferenceStore, flags: int, dialect: Dialect) -> None:
        self.flags = flags
        self._store = store
        self._dialect = dialect
        self._rmid = 0
        self._numbers = count(1)
        self.forget_everything()

    def forget_everything(self) -> None:
        """A new process: nothing is open, associated or outstanding. Called with the store's lock held."""
        self._state = R0
        self._passed: set[tuple[str, int, int]] = set()
        self._broken: WeakKeyDictionary[ThreadOfControl, ResourceState] | None = None
        self._current: dict[ThreadOfControl, Association] = {}
        self._suspended: dict[tuple[ThreadOfControl, Xid], Association] = {}
        self._outside: dict[ThreadOfControl, RegistrationState] = {}
        self._operations: dict[int, Operation] = {}
        self._scans: WeakKeyDictionary[ThreadOfControl, list[Xid]] = WeakKeyDictionary()
        self._reports: WeakKeyDictionary[ThreadOfControl, list[InDoubtBranch]] = WeakKeyDictionary()

    def release(self, association: Association) -> None:
        """The association is not this thread's any more, or not suspended. Called with the store's lock held."""
        self._suspended.pop((association.control, association.branch.xid), None)

    def lose_replies(self) -> None:
        """No outstanding operation will be answered. Called with the store's lock held."""
        for handle, (control, verb, branch, _) in self._operations.items():
            self._operations[handle] = (control, verb, branch, LOST)

    @property
    def outstanding(self) -> int:
        """How many handles wait for `complete`. For tests."""
        return len(self._operations)

    def complete(self, handle: Handle | None, rmid: int, flags: int = 0) -> Completion:
        """As `xa.ResourceManager` says."""
        if flags:
            check_flags("complete", flags, self.flags)
        operations = self._operations
        with self._store.lock:
            if rmid != self._rmid or not operations:
                self._check_open("complete", rmid)
            if handle is None or flags & TMMULTIPLE:
                handle = self._any_of(thread_of_control(), handle, flags)
            operation = operations.get(handle)
            if operation is None:
                refused = ASYNC.refusal(AsyncState.A0, AsyncVerb.COMPLETE) or Code.XAER_INVAL
                raise xa_error(refused, f"complete: no operation {handle} is outstanding")
            control, verb, branch, code = operation
            if isinstance(code, Flight):
                code = self._result(code, branch, flags)
            del operations[handle]
            if branch is not None:
                branch.asked = None
            if code is LOST:
                self._lose_connection(control)
        if code is OK or code not in EXCEPTIONS:
            return Completion(handle, code)
        return Completion(handle, code, self._error(verb, code, branch))

    def _result(self, flight: Flight, branch: Branch | None, flags: int) -> Code:
        """What came of a delayed request: it arrives while somebody waits, unless the server can't be reached."""
        if flight.code is None and flags & TMNOWAIT:
            raise self._error("complete", Code.XA_RETRY, branch)
        if flight.code is None:
            self._store.arrive(flight)
        return LOST if flight.code is None else flight.code

    def _any_of(self, control: ThreadOfControl, handle: Handle | None, flags: int) -> Handle:
        """An operation of the thread's: one that has completed, if there is one."""
        if not flags & TMMULTIPLE:
            raise xa_error(Code.XAER_INVAL, "complete: no handle, and no TMMULTIPLE")
        if handle is not None:
            raise xa_error(Code.XAER_INVAL, f"complete: TMMULTIPLE, and a handle, {handle}")
        mine = [number for number, operation in self._operations.items() if operation[0] is control]
        if not mine:
            raise xa_error(Code.XAER_INVAL, "complete: this thread has no operation outstanding")
        return Handle(next((number for number in mine if self._replied(number)), mine[0]))

    def _replied(self, number: int) -> bool:
        outcome = self._operations[number][3]
        return not isinstance(outcome, Flight) or outcome.code is not None

    # --- what every verb goes through ---------------------------------------------------------------------
    def _enter(self, verb: str, rmid: int, flags: int) -> ThreadOfControl:
        """The calling thread of control, if it may issue this verb."""
        if (
            self._broken is None
            and (verb, rmid, flags) in self._passed
            and len(self._operations) < self._store.room  # as only TMASYNC has to know
        ):
            return thread_of_control()
        check_flags(verb, flags, self.flags)
        self._check_open(verb, rmid)
        self._passed.add((verb, rmid, flags))
        if flags & TMASYNC:
            self._check_room(verb)
        return self._connected(verb, rmid)

    def _connected(self, verb: str, rmid: int) -> ThreadOfControl:
        """The calling thread of control, if it may issue verbs at all."""
        self._check_open(verb, rmid)
        control = thread_of_control()
        if self._broken is not None and control in self._broken:
            code = RESOURCE.refusal(self._broken[control], ResourceVerb.ANY) or Code.XAER_PROTO
            raise xa_error(code, f"{verb}: this thread lost its connection and has to call open again")
        return control

    def _check_room(self, verb: str) -> None:
        room = self._store.room
        if len(self._operations) >= room:
            raise xa_error(Code.XAER_ASYNC, f"{verb}: {room} operations are outstanding: collect one first")

    def _check_open(self, verb: str, rmid: int) -> None:
        refused = RESOURCE.refusal(self._state, ResourceVerb.ANY)
        if refused is not None:
            raise xa_error(refused, f"{verb}: the resource manager is not open")
        if rmid != self._rmid:
            raise xa_error(Code.XAER_INVAL, f"{verb}: open under rmid {self._rmid}, not {rmid}")

    def _refuse_second(self, verb: str, branch: Branch, flags: int) -> XaError:
        """The branch has an operation of this client's outstanding."""
        kind = AsyncVerb.ASYNCHRONOUS if flags & TMASYNC else AsyncVerb.SYNCHRONOUS
        code = ASYNC.refusal(AsyncState.A1, kind) or Code.XAER_PROTO
        return xa_error(code, f"{verb}: an operation on this branch waits for complete", branch.xid)

    def _send(
        self,
        verb: str,
        control: ThreadOfControl,
        branch: Branch | None,
        flags: int,
        effect: Effect,
        association: Association | None = None,
    ) -> Code | Handle:
        """The request goes out, with everything that can happen to it. Called with the store's lock held."""
        outcome = self._disturbed(verb, control, branch, flags, effect, association)
        if association is not None and outcome is not LOST:
            self._file(association)
        if flags & TMASYNC:
            return self._promise(control, verb, branch, outcome)
        if isinstance(outcome, Flight):  # only a TMASYNC request is delayed
            raise TypeError(f"{verb} without TMASYNC can't be in flight")
        if outcome is LOST:
            self._lose_connection(control)
        if outcome in EXCEPTIONS:
            raise self._error(verb, outcome, branch)
        return outcome

    def _disturbed(
        self,
        verb: str,
        control: ThreadOfControl,
        branch: Branch | None,
        flags: int,
        effect: Effect,
        association: Association | None,
    ) -> Code | Flight:
        """What the store's script and the network make of one request. Called with the store's lock held."""
        store = self._store
        xid = None if branch is None else branch.xid
        step = store.script.take(verb, xid)
        fate = step.fate
        if not store.reachable:
            return LOST
        carried_out = partial(effect, answer=step.answer)
        if fate is Fate.ARRIVES or (fate is Fate.DELAYED and not flags & TMASYNC):
            return carried_out()
        if fate is Fate.DELAYED:
            flight = Flight(self, control, verb, xid, carried_out)
            store.in_flight.append(flight)
            return flight
        lost = Flight(self, control, verb, xid, carried_out, self._held_by(control, association))
        if fate is Fate.IN_FLIGHT:
            store.in_flight.append(lost)
            return LOST
        if fate is Fate.REPLY_LOST:
            carried_out()
        store.lose(lost.held())
        return LOST

    def _promise(self, control: ThreadOfControl, verb: str, branch: Branch | None, outcome: Code | Flight) -> Handle:
        handle = Handle(next(self._numbers))
        self._operations[handle] = (control, verb, branch, outcome)
        if branch is not None:
            branch.asked = self
        return handle

    def _held_by(self, control: ThreadOfControl, association: Association | None) -> list[Association]:
        """The thread's associations, with the one that a request is about."""
        held = [suspended for (owner, _), suspended in self._suspended.items() if owner is control]
        if control in self._current:
            held.append(self._current[control])
        if association is not None and association not in held:
            held.append(association)
        return held

    def _file(self, association: Association) -> None:
        """Puts the association where its state says that it belongs. Called with the store's lock held."""
        control, dialect = association.control, association.dialect
        if association.state is dialect.active:
            self._current[control] = association
            return
        if self._current.get(control) is association:
            del self._current[control]
        if association.state is dialect.suspended:
            association.client.keep_suspended(association)
        elif self._suspended:
            self.release(association)

    def keep_suspended(self, association: Association) -> None:
        """The association is suspended. Called with the store's lock held."""
        self._suspended[association.control, association.branch.xid] = association

    def _lose_connection(self, control: ThreadOfControl) -> None:
        """The thread hears XAER_RMFAIL: it has no associations, no scan, and no reply reaches it any more."""
        if self._broken is None:
            self._broken = WeakKeyDictionary()
        self._broken[control] = advance(RESOURCE, R1, ResourceVerb.ANY, Result.RMFAIL)
        self._current.pop(control, None)
        for key in [key for key in self._suspended if key[0] is control]:
            del self._suspended[key]
        self._scans.pop(control, None)
        self._reports.pop(control, None)
        for handle, (owner, verb, branch, _) in self._operations.items():
            if owner is control:
                self._operations[handle] = (owner, verb, branch, LOST)

    def _error(self, verb: str, code: Code, branch: Branch | None) -> XaError:
        if branch is None:
            return xa_error(code, f"{verb}: {MEANING[code]}")
        return xa_error(code, f"{verb}: {MEANING[code]}; the branch is now {branch.state.value}", branch.xid)
