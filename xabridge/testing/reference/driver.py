"""ReferenceDriver: the client's side of the connection to a ReferenceStore, behind `xa.switch.Switch`.

One lock, the store's, covers both sides, and is taken once per verb. Where nothing is scripted and the server can be
reached, a verb is one call into the store. Everything else goes through `_send`, where a request and its reply may be
lost or late.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar
from weakref import ref

from xa.association import DYNAMIC, STATIC
from xa.codes import MEANING, Code
from xa.driver import Driver
from xa.errors import EXCEPTIONS, xa_error
from xa.flags import TMREGISTER, TMUSEASYNC
from xa.switch import Switch
from xa.threads_of_control import thread_of_control
from xabridge.testing.reference.script import NetworkFault
from xabridge.testing.reference.server import BRANCH_NONE, LOST, OK, Association, Branch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from xa.diagnosis import Diagnosis
    from xa.driver import Pending, SessionContext
    from xa.errors import XaError
    from xa.holdings import InDoubtBranch
    from xa.outcome_notes import BranchOutcome
    from xa.resource_manager import Registrar
    from xa.xid import Xid
    from xabridge.testing.reference.server import Control
    from xabridge.testing.reference.store import ReferenceStore


class ReferenceSession:
    """A dictionary of committed values, written under the thread's branch. There is no commit here.

    Each operation belongs to the branch that the thread is associated with when it is called: XAER_PROTO when there
    is none, XA_RB* when the branch is rollback-only, XAER_RMFAIL when the connection was lost, KeyLocked when
    another branch has written the key. A resource manager that registers dynamically registers itself instead, and
    outside any global transaction an operation is committed at once.
    """

    __slots__ = ("_context", "_driver")

    def __init__(self, driver: ReferenceDriver, context: SessionContext[Association]) -> None:
        self._driver = driver
        self._context = context

    def read(self, key: str) -> Any:
        """The value that this branch wrote, else the committed one, else None."""
        return self._driver.work(self._context, lambda store, branch: store.read(key, branch))

    def write(self, key: str, value: Any) -> None:
        """Writes; visible to others after commit only, and locked until then."""
        self._driver.work(self._context, lambda store, branch: store.write(key, value, branch))

    def append(self, key: str, item: Any) -> None:
        """Writes the tuple at `key` with `item` behind it."""
        self._driver.work(
            self._context,
            lambda store, branch: store.write(key, (*(store.read(key, branch) or ()), item), branch),
        )


T = TypeVar("T")


def _calling() -> Control:
    """The calling thread of control, which this reference does not keep alive. There is one reference to each."""
    return ref(thread_of_control())


class ServerRequest(Protocol):
    """A request at the server, with the scripted answer or, with None, its own."""

    def __call__(self, *, answer: Code | None) -> Code: ...


def answer_only(*, answer: Code | None) -> Code:
    """An effect that changes nothing."""
    return OK if answer is None else answer


class RequestInFlight:
    """A request that was sent and has not arrived. `code` is its answer, which may reach no caller.

    `associations` are those of the connection that was lost behind it: they are lost after its effect."""

    __slots__ = ("associations", "client", "code", "control", "effect", "verb", "xid")

    def __init__(
        self,
        client: ReferenceDriver,
        control: Control,
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


class Reply:
    """The answer to an asynchronous request: it is here already, or the request is still in flight."""

    __slots__ = ("_branch", "_driver", "_verb", "control", "outcome")

    def __init__(
        self,
        driver: ReferenceDriver,
        control: Control,
        verb: str,
        branch: Branch,
        outcome: Code | RequestInFlight,
    ) -> None:
        self._driver = driver
        self._verb = verb
        self._branch = branch
        self.control = control
        self.outcome = outcome

    def ready(self) -> bool:
        outcome = self.outcome
        return not isinstance(outcome, RequestInFlight) or outcome.code is not None

    def result(self) -> Code:
        """A delayed request arrives while somebody waits for it, unless the server can't be reached."""
        driver, store = self._driver, self._driver.store
        with store.lock:
            outcome = self.outcome
            if isinstance(outcome, RequestInFlight):
                if outcome.code is None:
                    store.arrive(outcome)
                outcome = LOST if outcome.code is None else outcome.code
            driver.replies.discard(self)
            if outcome is not OK and outcome in EXCEPTIONS:
                raise driver.failed(self._verb, outcome, self._branch, self.control)
            return outcome


class ReferenceDriver(Driver[Association]):
    """One client of `store`. `flags` are the switch's: any of TMREGISTER, TMNOMIGRATE, TMUSEASYNC."""

    name = "xabridge reference"

    def __init__(self, store: ReferenceStore, flags: int = TMUSEASYNC) -> None:
        self.flags = flags
        self.store = store
        self._dialect = DYNAMIC if flags & TMREGISTER else STATIC
        self.replies: set[Reply] = set()
        """Answers that are not collected yet."""

    @property
    def identity(self) -> str:
        return self.store.url

    @property
    def max_outstanding(self) -> int:
        return self.store.room

    # --- open and close ---------------------------------------------------------------------------------------
    def open(self, open_string: str) -> None:
        if open_string != self.store.url:
            raise xa_error(Code.XAER_INVAL, f"open: {open_string!r} is not this store's, {self.store.url!r} is")
        with self.store.lock:
            self._send("open", None, answer_only)

    def close(self, works: Sequence[Association]) -> None:
        def effect(*, answer: Code | None) -> Code:
            if answer is None:
                self.store.lose(works)
            return OK if answer is None else answer

        with self.store.lock:
            self._send("close", None, effect)

    def drop(self) -> None:
        self.replies.clear()

    # --- associations -----------------------------------------------------------------------------------------
    def begin(self, xid: Xid, beside: Sequence[Association], *, wait: bool) -> Association:  # noqa: ARG002 — room for all
        store = self.store
        association = Association(self, ref(thread_of_control()), Branch(xid), self._dialect)
        with store.lock:
            if store.script.plans or not store.reachable:
                self._send("start", association.branch, partial(store.start, association), association)
                return association
            code = store.start(association)
            if code is not OK:
                raise self._error("start", code, store.find(xid))
        return association

    def join(self, xid: Xid, beside: Sequence[Association], *, wait: bool) -> Association:  # noqa: ARG002 — room for all
        store = self.store
        with store.lock:
            association = Association(self, _calling(), store.find(xid), self._dialect)
            self._send("start", association.branch, partial(store.join, association), association)
        return association

    def resume(self, work: Association, *, wait: bool) -> Association:  # noqa: ARG002 — it never waits
        with self.store.lock:
            effect = partial(self.store.resume, work, self, _calling())
            self._send("start", work.branch, effect, work)
        return work

    def suspend(self, work: Association, *, migrate: bool) -> Code:
        with self.store.lock:
            effect = partial(self.store.end, work, work.dialect.suspend, migrates=migrate)
            return self._send("end", work.branch, effect, work)

    def end(self, work: Association, *, fail: bool) -> Code:
        store = self.store
        verb = work.dialect.end_fail if fail else work.dialect.end
        with store.lock:
            if store.script.plans or not store.reachable:
                return self._send("end", work.branch, partial(store.end, work, verb), work)
            code = store.end(work, verb)
            if code is not OK:
                raise self.failed("end", code, work.branch)
        return code

    def is_lost(self, work: Association) -> bool:
        return work.lost

    def lose(self, works: Sequence[Association], why: XaError) -> None:
        if why.code is not LOST:  # the store has noticed that, or will
            with self.store.lock:
                self.store.lose([work for work in works if work.client is self])

    def migrant(self, xid: Xid) -> Association | None:
        with self.store.lock:
            return self.store.migrant(xid)

    def has_migrated(self, work: Association) -> bool:
        return work.client is not self

    def knows(self, xid: Xid) -> bool:
        with self.store.lock:
            return self.store.find(xid).state is not BRANCH_NONE

    # --- completion -------------------------------------------------------------------------------------------
    def prepare(self, xid: Xid, *, later: bool) -> Code | Pending:
        return self._complete("prepare", xid, self.store.prepare, later)

    def commit(self, xid: Xid, *, one_phase: bool, later: bool) -> Code | Pending:
        effect = self.store.commit_one_phase if one_phase else self.store.commit
        return self._complete("commit", xid, effect, later)

    def rollback(self, xid: Xid, *, later: bool) -> Code | Pending:
        return self._complete("rollback", xid, self.store.rollback, later)

    def forget(self, xid: Xid, *, later: bool) -> Code | Pending:
        return self._complete("forget", xid, self.store.forget, later)

    def _complete(
        self, verb: str, xid: Xid, effect: Callable[[Branch, Code | None], Code], later: bool
    ) -> Code | Pending:
        store = self.store
        outcome: Code | RequestInFlight
        with store.lock:
            branch = store.known.get(xid) or Branch(xid)
            if store.script.plans or not store.reachable:
                # by the xid, which is looked up again when the request arrives
                outcome = self._disturbed(
                    verb, branch, lambda *, answer: effect(store.find(xid), answer), None, later=later
                )
            else:
                outcome = effect(branch, None)

            if later:
                reply = Reply(self, ref(thread_of_control()), verb, branch, outcome)
                self.replies.add(reply)
                return reply
            if outcome is OK:
                return outcome
            return self._answer_of(verb, branch, outcome)

    def scan(self, page: int) -> Iterator[Xid]:  # noqa: ARG002 — all of them are fetched at once
        return self._listed(self.store.recoverable)

    def reports(self, page: int) -> Iterator[InDoubtBranch]:  # noqa: ARG002 — all of them are fetched at once
        """The answer of `HoldingsReporting.in_doubt`."""
        return self._listed(self.store.reports)

    def outcomes(self, notes: Sequence[bytes]) -> list[BranchOutcome]:
        """The answer of `OutcomeNotes.outcomes`."""
        with self.store.lock:
            self._send("outcomes", None, answer_only)
            return [self.store.outcome_of(note) for note in notes]

    def _listed(self, all_of_them: Callable[[], list[T]]) -> Iterator[T]:
        with self.store.lock:
            self._send("recover", None, answer_only)
            return iter(all_of_them())

    # --- work -------------------------------------------------------------------------------------------------
    def session(self, work: Association | None, context: SessionContext[Association]) -> ReferenceSession:  # noqa: ARG002
        return ReferenceSession(self, context)

    def work(
        self,
        context: SessionContext[Association],
        operation: Callable[[ReferenceStore, Branch | None], Any],
    ) -> Any:
        """Does one operation of a session."""
        association = context.current()
        if association is None:
            association = context.register()
        if association is None:
            return self._work_outside(context, operation)

        store = self.store
        branch = association.branch
        with store.lock:
            if (
                store.script.plans
                or not store.reachable
                or branch.reason
                or association.state is not association.dialect.active
            ):
                try:
                    self._send("work", branch, partial(store.work, association))
                except EXCEPTIONS[LOST] as error:
                    raise context.failed(error) from None
            return operation(store, branch)

    def _work_outside(
        self,
        context: SessionContext[Association],
        operation: Callable[[ReferenceStore, Branch | None], Any],
    ) -> Any:
        """One operation that is a transaction of its own."""
        try:
            with self.store.lock:
                self._send("work", None, answer_only)
                return operation(self.store, None)
        except EXCEPTIONS[LOST] as error:
            raise context.failed(error) from None
        finally:
            context.unregister()

    # --- requests and replies -----------------------------------------------------------------------------------
    # Everything here is called with the store's lock held.

    def _send(
        self, verb: str, branch: Branch | None, effect: ServerRequest, association: Association | None = None
    ) -> Code:
        """The request goes out, with everything that can happen to it; its answer, raised where it is an error."""
        return self._answer_of(verb, branch, self._disturbed(verb, branch, effect, association, later=False))

    def _answer_of(self, verb: str, branch: Branch | None, outcome: Code | RequestInFlight) -> Code:
        if isinstance(outcome, RequestInFlight):  # only a request whose answer may come later is delayed
            raise TypeError(f"{verb} without TMASYNC can't be in flight")
        if outcome in EXCEPTIONS:
            raise self.failed(verb, outcome, branch)
        return outcome

    def _disturbed(
        self, verb: str, branch: Branch | None, effect: ServerRequest, association: Association | None, *, later: bool
    ) -> Code | RequestInFlight:
        """What the store's script and the network make of one request."""
        store = self.store
        control = _calling()
        xid = None if branch is None else branch.xid
        step = store.script.take(verb, xid)
        fate = step.fate
        if not store.reachable:
            return LOST

        carried_out = partial(effect, answer=step.answer)
        if fate is NetworkFault.ARRIVES or (fate is NetworkFault.DELAYED and not later):
            return carried_out()
        if fate is NetworkFault.DELAYED:
            flight = RequestInFlight(self, control, verb, xid, carried_out)
            store.in_flight.append(flight)
            return flight
        lost = RequestInFlight(self, control, verb, xid, carried_out, self._held_by(control, association))
        if fate is NetworkFault.IN_FLIGHT:
            store.in_flight.append(lost)
            return LOST
        if fate is NetworkFault.REPLY_LOST:
            carried_out()
        store.lose(lost.held())
        return LOST

    def _held_by(self, control: Control, association: Association | None) -> list[Association]:
        """The thread's associations, with the one that a request is about."""
        held = [
            one
            for branch in self.store.known.values()
            for one in branch.associations
            if one.client is self and one.control is control
        ]
        return held if association is None or association in held else [*held, association]

    def lose_replies(self, control: Control | None = None) -> None:
        """Loses the answers to asynchronous requests, of all or of one thread of control."""
        for reply in self.replies:
            if control is None or reply.control is control:
                reply.outcome = LOST

    def failed(self, verb: str, code: Code, branch: Branch | None, control: Control | None = None) -> XaError:
        """The error for what a request came to. Called with the store's lock held."""
        if code is LOST:
            self.lose_replies(control or _calling())
        return self._error(verb, code, branch)

    @staticmethod
    def _error(verb: str, code: Code, branch: Branch | None) -> XaError:
        if branch is None:
            return xa_error(code, f"{verb}: {MEANING[code]}")
        return xa_error(code, f"{verb}: {MEANING[code]}; the branch is now {branch.state.value}", branch.xid)


class ReferenceResource(Switch[Association]):
    """One client of `store`. `flags` are the switch's: any of TMREGISTER, TMNOMIGRATE, TMUSEASYNC. The open string is
    the store's `url`."""

    _driver_class: ClassVar[type[ReferenceDriver]] = ReferenceDriver

    def __init__(self, store: ReferenceStore, registrar: Registrar | None = None, flags: int = TMUSEASYNC) -> None:
        self._store = store
        self._reference = self._driver_class(store, flags)
        super().__init__(self._reference, registrar)

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        return self.page("in_doubt", self._reference.reports, rmid, flags, count)

    def diagnose(self, open_string: str) -> Diagnosis:
        return self._store.diagnosis(open_string)


class NotingResource(ReferenceResource):
    """One that gives notes of its branches, by which the store tells their outcomes later."""

    def outcome_note(self, xid: Xid, rmid: int) -> bytes:
        del rmid
        return self._store.note_of(xid)

    def outcomes(self, notes: Sequence[bytes], rmid: int) -> Sequence[BranchOutcome]:
        return self.call("outcomes", rmid, lambda: self._reference.outcomes(notes))


@dataclass(frozen=True, slots=True)
class ReferenceFactory:
    """An `xa.ResourceFactory`: makes clients of one store."""

    store: ReferenceStore
    flags: int = TMUSEASYNC

    def __call__(self, registrar: Registrar) -> ReferenceResource:
        kind = NotingResource if self.store.tells_outcomes else ReferenceResource
        return kind(self.store, registrar, self.flags)
