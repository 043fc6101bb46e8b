"""Switch: the verbs of `xa.ResourceManager`, implemented once over a `Driver`.

    factory = lambda registrar: Switch(MyDriver(), registrar)

is a complete resource manager. The switch does what is the same for every resource. It checks flags, the rmid and
whether the instance is open. It knows which thread of control (`xa.threads_of_control`) is associated with which
branch, and follows the state tables 6-1 to 6-3 and 6-5. It keeps asynchronous operations until `complete` returns them,
and scans while their pages are read. It registers dynamically. The driver (`xa.driver`) does the rest.

`DecidingSwitch` adds the verbs of `xa.DecidingResource`, `EndingWithPrepareSwitch` the one of `xa.EndingWithPrepare`. A
resource manager with verbs of its own subclasses one of them and carries these out by `call`.

The switch has a weak reference to each thread of control. If one ends while it is associated, its associations are
lost, as if its connection had broken: the next verb of any thread, or `reap`, tells the driver.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

from xa.association import DYNAMIC, STATIC, Association, ThreadRecord
from xa.codes import AxCode, Code
from xa.errors import XaError, xa_error
from xa.flags import (
    TMASYNC,
    TMENDRSCAN,
    TMFAIL,
    TMJOIN,
    TMMIGRATE,
    TMMULTIPLE,
    TMNOMIGRATE,
    TMNOWAIT,
    TMONEPHASE,
    TMREGISTER,
    TMRESUME,
    TMSTARTRSCAN,
    TMSUCCESS,
    TMSUSPEND,
    TMUSEASYNC,
    check_flags,
)
from xa.fork import belongs_to_this_process
from xa.machine import advance
from xa.resource_manager import Completion, Handle
from xa.state_tables import (
    ASYNC,
    REGISTRATION,
    RESOURCE,
    AsyncState,
    AsyncVerb,
    RegistrationState,
    RegistrationVerb,
    ResourceState,
    ResourceVerb,
)
from xa.threads_of_control import CURRENT, thread_of_control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from xa.deciding_resource import DecisionRecord, NotedIncarnation, Owner
    from xa.driver import DecidingDriver, Driver, Pending
    from xa.resource_manager import Registrar
    from xa.xid import Xid

T = TypeVar("T")
W = TypeVar("W")

R0, R1 = ResourceState.R0, ResourceState.R1
D0, D3 = RegistrationState.D0, RegistrationState.D3
OK: Final = Code.XA_OK
_CURRENT: Final = CURRENT.get
"""Gives the current thread of control, which every verb asks for. It makes none, which `thread_of_control` would do."""

_AX_STARTS: Final = {AxCode.TM_OK: 0, AxCode.TM_JOIN: TMJOIN, AxCode.TM_RESUME: TMRESUME}
_AX_ERRORS: Final = {
    AxCode.TMER_TMERR: Code.XAER_RMERR,
    AxCode.TMER_INVAL: Code.XAER_INVAL,
    AxCode.TMER_PROTO: Code.XAER_PROTO,
}


@dataclass(slots=True, eq=False)
class Operation(Generic[W]):
    """An asynchronous operation whose result `complete` has not returned: state A1 of table 6-5. Its answer is
    `pending`, or is here already as `code` and `error`."""

    thread: ThreadRecord[W]
    verb: str
    xid: Xid | None
    pending: Pending | None = None
    late: Association[W] | None = None
    """The association that ends with it, where its answer is `pending`."""
    code: Code | None = None
    error: XaError | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the one thread that waits for the answer."""

    @property
    def ready(self) -> bool:
        """Whether the answer is there without waiting."""
        if self.code is not None or self.pending is None:
            return True
        if not self.lock.acquire(blocking=False):
            return False
        try:
            return self.pending.ready()
        finally:
            self.lock.release()


class _CompletingVerb(Protocol):
    """A verb of a driver's that completes a branch: `prepare` and the like with its xid, `end_and_prepare` with the
    work that ends with it."""

    def __call__(self, subject: Any, /, *, later: bool) -> Code | Pending: ...


class Switch(Generic[W]):
    """One resource manager instance, as `xa.ResourceManager` says."""

    def __init__(self, driver: Driver[W], registrar: Registrar | None = None) -> None:
        flags = driver.flags
        if flags & ~(TMREGISTER | TMNOMIGRATE | TMUSEASYNC):
            raise ValueError(f"not switch flags: {flags:#x}")
        if flags & TMREGISTER and registrar is None:
            raise ValueError("TMREGISTER needs a registrar")

        self.driver = driver
        self.flags = flags
        self._registrar = registrar
        self._dialect = DYNAMIC if flags & TMREGISTER else STATIC
        self._lock = threading.RLock()
        self._numbers = count(1)
        self._rmid: int | None = None
        """The rmid under which it is open. None: it is not, so that no verb has the same one."""
        self._forked = False
        self._allowed: set[tuple[str, int]] = {("session", 0), ("work", 0)}
        """Verbs with flags that have been found to be in order. (What is not a verb of X/Open's has none.)"""
        self._room = driver.max_outstanding
        self._abandoned: deque[ThreadRecord[W]] = deque()
        """Threads of control that are gone."""
        self._forget_everything()
        belongs_to_this_process(self)

    def forked(self) -> None:
        """This process was forked, and the instance is the parent's: it is not open here, and its connections are not
        to be used."""
        self._lock = threading.RLock()
        self._state = R0
        self._rmid = None
        self._forked = True

    def _forget_everything(self) -> None:
        """Nothing is open, associated or outstanding."""
        self._state = R0
        self._rmid = None
        self._threads: dict[int, ThreadRecord[W]] = {}
        self._migrating: dict[Xid, tuple[ThreadRecord[W], Association[W]]] = {}
        """Suspended associations that any thread of control may resume."""
        self._operations: dict[int, Operation[W]] = {}
        self._busy: set[Xid] = set()
        """Branches with an operation outstanding."""
        self._abandoned.clear()

    @property
    def name(self) -> str:
        return self.driver.name

    @property
    def identity(self) -> str:
        return self.driver.identity

    @property
    def outstanding(self) -> int:
        """How many operations wait for `complete`."""
        return len(self._operations)

    @property
    def associated(self) -> int:
        """How many associations there are, and threads of control at work outside of any global transaction."""
        threads = list(self._threads.values())
        return sum(len(thread.associations()) + (thread.registration is D3) for thread in threads)

    # --- open and close ---------------------------------------------------------------------------------------
    def open(self, open_string: str, rmid: int, flags: int = 0) -> Code | Handle:
        check_flags("open", flags, self.flags)
        if self._forked:
            self._forget_everything()
            self.driver.start_over()
            self._forked = False
        if self._state is R1 and rmid != self._rmid:
            raise xa_error(Code.XAER_INVAL, f"open: is open under rmid {self._rmid} already, not {rmid}")
        thread = self._thread()

        def opened() -> Code:
            self.driver.open(open_string)
            with self._lock:
                self._room = self.driver.max_outstanding
                self._state = advance(RESOURCE, self._state, ResourceVerb.OPEN)
                self._rmid = rmid
                thread.lost = False
            return OK

        return self._at_once(thread, "open", None, flags, opened)

    def close(self, close_string: str, rmid: int, flags: int = 0) -> Code | Handle:  # noqa: ARG002 — says nothing here
        check_flags("close", flags, self.flags)
        thread = self._thread()
        if self._state is R0:
            return self._at_once(thread, "close", None, flags, lambda: OK)
        self._check_open("close", rmid)
        self.reap()
        at_work = thread.current or thread.late
        if (at_work is not None and not self.driver.is_lost(at_work.work)) or thread.registration is D3:
            raise xa_error(Code.XAER_PROTO, "close: this thread is at work; end that first")
        if self._operations:
            raise xa_error(Code.XAER_PROTO, f"close: {len(self._operations)} operations wait for complete")

        def closed() -> Code:
            with self._lock:
                self.driver.close([work for other in list(self._threads.values()) for work in other.works()])
                state = advance(RESOURCE, self._state, ResourceVerb.CLOSE)
                self._forget_everything()
                self._state = state
            return OK

        return self._at_once(thread, "close", None, flags, closed)

    def drop(self) -> None:
        """Closes everything at once, without a word to the resource: as if the process had died."""
        self.driver.drop()
        self._forget_everything()

    def break_off(self) -> None:
        self.driver.break_off()

    def _check_open(self, verb: str, rmid: int) -> None:
        refused = RESOURCE.refusal(self._state, ResourceVerb.ANY)
        if refused is not None:
            why = ", which is a fork of the one that opened it: what becomes of its work is not known here"
            why = why if self._forked else ""
            raise xa_error(refused, f"{verb}: the resource manager is not open in this process{why}")
        if rmid != self._rmid:
            raise xa_error(Code.XAER_INVAL, f"{verb}: open under rmid {self._rmid}, not {rmid}")

    # --- threads of control -----------------------------------------------------------------------------------
    def _thread(self) -> ThreadRecord[W]:
        """The record of the calling thread of control."""
        control = _CURRENT(None) or thread_of_control()
        thread = self._threads.get(id(control))
        if thread is None:
            thread = self._threads[id(control)] = ThreadRecord(control, self._gone)
        return thread

    def _gone(self, thread: ThreadRecord[W]) -> None:
        """A thread of control is gone. This is called while garbage is collected, at any moment and with any lock held,
        so that it only takes note."""
        if self._threads.get(thread.key) is thread:
            del self._threads[thread.key]
        if thread.current is not None or thread.late is not None or thread.suspended:
            self._abandoned.append(thread)

    def reap(self) -> None:
        """Threads of control that are gone have lost their associations. Every verb does this first."""
        while self._abandoned:
            try:
                thread = self._abandoned.popleft()
            except IndexError:  # another thread was faster
                return
            self._lose(thread, xa_error(Code.XA_RBCOMMFAIL, "the thread of control has ended"))

    def _enter(self, verb: str, rmid: int, flags: int) -> ThreadRecord[W]:
        """The calling thread of control, if it may issue this verb."""
        if (verb, flags) not in self._allowed:
            check_flags(verb, flags, self.flags)
            self._allowed.add((verb, flags))
        thread = self._threads.get(id(_CURRENT(None)))
        if rmid != self._rmid or self._abandoned:
            return self._calling(verb, rmid)
        if thread is None:
            return self._thread()
        return self._calling(verb, rmid) if thread.lost else thread

    def _calling(self, verb: str, rmid: int) -> ThreadRecord[W]:
        """The calling thread of control, if it may issue verbs at all."""
        if rmid != self._rmid:
            self._check_open(verb, rmid)
        if self._abandoned:
            self.reap()
        thread = self._thread()
        if thread.lost:
            code = RESOURCE.refusal(R0, ResourceVerb.ANY) or Code.XAER_PROTO
            raise xa_error(code, f"{verb}: this thread lost its connection and has to call open again")
        return thread

    def _lose(self, thread: ThreadRecord[W], why: XaError) -> None:
        """The thread has lost its associations and its scans; with XAER_RMFAIL it has to call `open`."""
        lost = thread.associations()
        for association in lost:
            if association.state is not association.dialect.none:
                association.move(association.dialect.lose, OK)
            self._stays(association)
        thread.forget()
        thread.lost = why.code is Code.XAER_RMFAIL
        self.driver.lose([association.work for association in lost], why)

    def _note_error(self, thread: ThreadRecord[W], error: XaError, late: Association[W] | None = None) -> None:
        """Notes that the thread gets this error; `late` is the association that was to end with the verb."""
        if error.code is Code.XAER_RMFAIL:
            self._lose(thread, error)
        elif late is not None:
            self._ended_late(thread, late)

    def _stays(self, association: Association[W]) -> None:
        """Other threads may not resume the association any more."""
        if self._migrating and self._migrating.get(association.xid, (None, None))[1] is association:
            del self._migrating[association.xid]

    def call(self, verb: str, rmid: int, call: Callable[[], T]) -> T:
        """Carries out what is no verb of XA's, for subclasses: the instance has to be open and the thread to have its
        connection, and an XAER_RMFAIL that is raised takes it."""
        thread = self._calling(verb, rmid)
        try:
            return call()
        except XaError as error:
            self._note_error(thread, error)
            raise

    # --- start ------------------------------------------------------------------------------------------------
    def start(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        thread = self._enter("start", rmid, flags)
        if self._dialect is DYNAMIC:
            raise xa_error(Code.XAER_PROTO, "start: this resource manager registers itself (TMREGISTER)", xid)
        if self._busy or xid.format_id < 0:
            self._check_branch("start", xid, flags)
        if flags & TMASYNC:
            return self._at_once(thread, "start", xid, flags, lambda: self._start(thread, xid, flags))
        try:
            return self._start(thread, xid, flags)
        except XaError as error:
            self._note_error(thread, error)
            raise

    def starts_at_once(self, rmid: int) -> bool:
        if rmid != self._rmid or self._abandoned or self._dialect is DYNAMIC:
            return False
        thread = self._threads.get(id(_CURRENT(None)))
        return (thread is None or thread.late is None) and self.driver.begins_at_once()

    def _start(self, thread: ThreadRecord[W], xid: Xid, flags: int) -> Code:
        own = None
        beside: Sequence[W] = ()
        if thread.current is not None or thread.late is not None or thread.suspended:
            own = self._own(thread, xid, flags)
            beside = thread.works()
        wait = not flags & TMNOWAIT
        if flags & TMRESUME:
            return self._resume(thread, own, xid, wait=wait)
        driver = self.driver
        work = driver.join(xid, beside, wait=wait) if flags & TMJOIN else driver.begin(xid, beside, wait=wait)
        thread.current = Association(xid, work, self._dialect)
        return OK

    def _own(self, thread: ThreadRecord[W], xid: Xid, flags: int) -> Association[W] | None:
        """What the thread has suspended with the branch, if it may start work for it now."""
        if thread.late is not None:
            self._end_now(thread, thread.late)
        held = thread.current
        own = self._suspended(thread, xid)
        if held is None and own is not None and not flags & TMRESUME:
            held = own
        if held is not None:
            if self.driver.is_lost(held.work):
                raise xa_error(Code.XAER_RMFAIL, "start: the connection, and the association with it, was lost", xid)
            does = "has suspended the branch and can only resume it" if held is own else f"works for {held.xid}"
            raise xa_error(Code.XAER_PROTO, f"start: this thread {does}", xid)
        return own

    def _resume(self, thread: ThreadRecord[W], own: Association[W] | None, xid: Xid, *, wait: bool) -> Code:
        """Resumes the thread's own association, or one that migrates to it."""
        owner, association = (thread, own) if own is not None else self._migrating.get(xid, (thread, None))
        if association is None:
            work = self.driver.migrant(xid)
            if work is None:
                raise self._not_associated("start(TMRESUME)", xid)
            work = self.driver.resume(work, wait=wait)
            thread.current = Association(xid, work, self._dialect)
            return OK
        dialect = association.dialect
        try:
            association.work = self.driver.resume(association.work, wait=wait)
        except XaError as error:
            if error.code is not Code.XAER_RMFAIL:
                self._moved(owner, association, dialect.resume, error.code)
            raise

        association.move(dialect.resume, OK)
        owner.drop(association)
        self._stays(association)
        thread.current = association
        return OK

    def _suspended(self, thread: ThreadRecord[W], xid: Xid) -> Association[W] | None:
        """The thread's own suspended association with the branch."""
        association = thread.suspended.get(xid)
        if association is not None and self.driver.has_migrated(association.work):
            thread.drop(association)
            return None
        return association

    def _not_associated(self, verb: str, xid: Xid) -> XaError:
        if self.driver.knows(xid):
            return xa_error(Code.XAER_PROTO, f"{verb}: this thread has no such association with the branch", xid)
        return xa_error(Code.XAER_NOTA, f"{verb}: there is no such branch", xid)

    # --- end --------------------------------------------------------------------------------------------------
    def end(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        thread = self._enter("end", rmid, flags)
        if self._busy or xid.format_id < 0:
            self._check_branch("end", xid, flags)
        if flags & TMASYNC:
            return self._at_once(thread, "end", xid, flags, lambda: self._end(thread, xid, flags))
        try:
            return self._end(thread, xid, flags)
        except XaError as error:
            self._note_error(thread, error)
            raise

    def _end(self, thread: ThreadRecord[W], xid: Xid, flags: int) -> Code:
        association = thread.current
        if association is None or (association.xid is not xid and association.xid != xid):
            association = self._suspended(thread, xid)
            if association is None:
                raise self._not_associated("end", xid)
        dialect = association.dialect
        verb = dialect.suspend if flags & TMSUSPEND else dialect.end_fail if flags & TMFAIL else dialect.end
        if association.state not in dialect.after[verb]:
            refused = dialect.machine.refusal(association.state, verb) or Code.XAER_PROTO
            raise xa_error(refused, f"end: the association is {association.state.value}", xid)

        try:
            if flags & TMSUSPEND:
                code = self.driver.suspend(association.work, migrate=bool(flags & TMMIGRATE))
            else:
                code = self.driver.end(association.work, fail=bool(flags & TMFAIL))
        except XaError as error:
            if error.code is not Code.XAER_RMFAIL:
                self._moved(thread, association, verb, error.code)
            raise
        self._moved(thread, association, verb, code)
        if flags & TMMIGRATE and code is OK:
            self._migrating[xid] = (thread, association)
        return code

    def _moved(self, thread: ThreadRecord[W], association: Association[W], verb: Any, code: Code) -> None:
        """Follows the table, and puts the association where its state says that it belongs."""
        before = association.state
        association.move(verb, code)
        if association.state is before:
            return
        if thread.current is association:
            thread.current = None
        else:
            thread.drop(association)
        if association.state is association.dialect.suspended:
            thread.suspended[association.xid] = association
        elif self._migrating:
            self._stays(association)

    # --- ends that are sent with prepare ------------------------------------------------------------------------
    def _ends_with(self, thread: ThreadRecord[W], late: Association[W], verb: str, xid: Xid) -> Association[W] | None:
        """The association that was to end with prepare, if this is the verb. Otherwise it is ended now."""
        ends = late.xid is xid or late.xid == xid
        if ends and verb == "prepare":
            return late
        self._end_now(thread, late, fail=ends and verb == "rollback")
        return None

    def _end_now(self, thread: ThreadRecord[W], late: Association[W], *, fail: bool = False) -> None:
        """Ends an association now that was to end together with prepare. If that fails, every later verb for the branch
        reports it too."""
        if late.xid in self._busy:
            return
        verb = late.dialect.end_fail if fail else late.dialect.end
        try:
            self._moved(thread, late, verb, self.driver.end(late.work, fail=fail))
        except XaError as error:
            if error.code is Code.XAER_RMFAIL:
                self._lose(thread, error)
                raise
            self._moved(thread, late, verb, error.code)
            thread.drop(late)

    @staticmethod
    def _ended_late(thread: ThreadRecord[W], late: Association[W]) -> None:
        """The vote that an end was sent with is known. Whatever it is but XAER_RMFAIL, the association has ended."""
        late.state = late.dialect.none
        if thread.late is late:
            thread.late = None

    # --- completion -------------------------------------------------------------------------------------------
    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        return self._ask("prepare", xid, rmid, flags, self.driver.prepare)

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        ask = partial(self.driver.commit, one_phase=bool(flags & TMONEPHASE))
        return self._ask("commit", xid, rmid, flags, ask)

    def rollback(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        return self._ask("rollback", xid, rmid, flags, self.driver.rollback)

    def forget(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        return self._ask("forget", xid, rmid, flags, self.driver.forget)

    def _ask(self, verb: str, xid: Xid, rmid: int, flags: int, ask: _CompletingVerb) -> Code | Handle:
        """Asks the driver, if the calling thread of control may complete the branch. With TMASYNC `complete` returns
        the answer, and only XAER_ASYNC is raised at once."""
        thread = self._enter(verb, rmid, flags)
        if self._busy or xid.format_id < 0:
            self._check_branch(verb, xid, flags)
        late = thread.late and self._ends_with(thread, thread.late, verb, xid)
        subject: Any = xid
        if late is not None:
            subject, ask = late.work, self.driver.end_and_prepare

        if not flags & TMASYNC:
            try:
                answer = ask(subject, later=False)
                code = answer if type(answer) is Code else cast("Pending", answer).result()
            except XaError as error:
                self._note_error(thread, error, late)
                raise
            if late is not None:
                self._ended_late(thread, late)
            return code

        if len(self._operations) >= self._room:
            self._check_room(verb)
        operation = Operation(thread, verb, xid)
        self._busy.add(xid)
        try:
            answer = ask(subject, later=True)
            if type(answer) is Code:
                operation.code = answer
            else:
                operation.pending, operation.late = cast("Pending", answer), late
        except BaseException as error:
            if not isinstance(error, XaError) or error.code is Code.XAER_ASYNC:
                self._busy.discard(xid)
                raise
            operation.code, operation.error = error.code, error

        if late is not None and operation.late is None and operation.code is not Code.XAER_RMFAIL:
            self._ended_late(thread, late)
        handle = Handle(next(self._numbers))
        self._operations[handle] = operation
        return handle

    def _check_branch(self, verb: str, xid: Xid, flags: int) -> None:
        """Whether a verb for this branch may be issued: no operation of it waits for `complete`."""
        if xid.format_id < 0:
            raise xa_error(Code.XAER_INVAL, f"{verb}: the null XID names no branch")
        if self._busy and xid in self._busy:
            kind = AsyncVerb.ASYNCHRONOUS if flags & TMASYNC else AsyncVerb.SYNCHRONOUS
            code = ASYNC.refusal(AsyncState.A1, kind) or Code.XAER_PROTO
            raise xa_error(code, f"{verb}: an operation on this branch waits for complete", xid)

    # --- recovery ---------------------------------------------------------------------------------------------
    def recover(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[Xid]:
        return self.page("recover", self.driver.scan, rmid, flags, count)

    def page(self, name: str, scan: Callable[[int], Iterator[T]], rmid: int, flags: int, count: int) -> Sequence[T]:
        """A page of the scan `name` of the calling thread; TMSTARTRSCAN makes it anew with `scan(count)`. Flags and
        errors are those of `recover`."""
        thread = self._enter("recover", rmid, flags)
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"recover: count {count} is below 1")
        if flags & TMSTARTRSCAN:
            thread.scans.pop(name, None)
        elif name not in thread.scans:
            raise xa_error(Code.XAER_INVAL, "recover: no scan is open and TMSTARTRSCAN was not given")

        try:
            items: Iterator[T] = scan(count) if flags & TMSTARTRSCAN else thread.scans[name]
            found = list(islice(items, count))
        except BaseException as error:
            thread.scans.pop(name, None)  # it would go on as if it were at its end
            if isinstance(error, XaError) and error.code is Code.XAER_RMFAIL:
                self._lose(thread, error)
            raise
        if flags & TMENDRSCAN:
            thread.scans.pop(name, None)
        else:
            thread.scans[name] = items
        return found

    # --- asynchronous operations --------------------------------------------------------------------------------
    def _at_once(
        self, thread: ThreadRecord[W], verb: str, xid: Xid | None, flags: int, carry_out: Callable[[], Code]
    ) -> Code | Handle:
        """Carries a verb out before it returns; with TMASYNC `complete` returns its result."""
        if flags & TMASYNC:
            self._check_room(verb)
            operation = Operation(thread, verb, xid)
            try:
                operation.code = carry_out()
            except XaError as error:
                operation.code, operation.error = error.code, error
            if xid is not None:
                self._busy.add(xid)

            handle = Handle(next(self._numbers))
            self._operations[handle] = operation
            return handle
        try:
            return carry_out()
        except XaError as error:
            self._note_error(thread, error)
            raise

    def _check_room(self, verb: str) -> None:
        if len(self._operations) >= self._room:
            raise xa_error(Code.XAER_ASYNC, f"{verb}: {self._room} operations are outstanding: collect one first")

    def complete(self, handle: Handle | None, rmid: int, flags: int = 0) -> Completion:
        if flags:
            check_flags("complete", flags, self.flags)
        closed = self._rmid is None  # by an asynchronous close, if anything is outstanding
        if rmid != self._rmid and not (closed and self._operations and not self._forked):
            self._check_open("complete", rmid)
        if handle is None or flags & TMMULTIPLE:
            handle = self._any_of(self._thread(), handle, flags)
        operation = self._operations.get(handle)
        if operation is None:
            refused = ASYNC.refusal(AsyncState.A0, AsyncVerb.COMPLETE) or Code.XAER_INVAL
            raise xa_error(refused, f"complete: no operation {handle} is outstanding")
        if flags & TMNOWAIT and not operation.ready:
            raise xa_error(Code.XA_RETRY, f"complete: {operation.verb} has not completed", operation.xid)

        with operation.lock:
            if operation.code is None:
                try:
                    operation.code = cast("Pending", operation.pending).result()
                except XaError as error:
                    operation.code, operation.error = error.code, error
        code = operation.code
        if self._operations.pop(handle, None) is None:
            raise xa_error(Code.XAER_INVAL, f"complete: operation {handle} belongs to another thread of control")
        if operation.xid is not None:
            self._busy.discard(operation.xid)
        if code is Code.XAER_RMFAIL and operation.error is not None:
            self._lose(operation.thread, operation.error)
        elif operation.late is not None:
            self._ended_late(operation.thread, operation.late)
        return Completion(handle, code, operation.error)

    def _any_of(self, thread: ThreadRecord[W], handle: Handle | None, flags: int) -> Handle:
        """An operation of the thread's: one that has completed, if there is one."""
        if not flags & TMMULTIPLE:
            raise xa_error(Code.XAER_INVAL, "complete: no handle, and no TMMULTIPLE")
        if handle is not None:
            raise xa_error(Code.XAER_INVAL, f"complete: TMMULTIPLE, and a handle, {handle}")
        mine = {number: one for number, one in list(self._operations.items()) if one.thread is thread}
        if not mine:
            raise xa_error(Code.XAER_INVAL, "complete: this thread has no operation outstanding")
        for number, one in mine.items():
            if one.code is not None:
                return Handle(number)
        if flags & TMNOWAIT:
            return Handle(next((number for number, one in mine.items() if one.ready), next(iter(mine))))
        waiting = {one.pending: number for number, one in mine.items() if one.pending is not None}
        return Handle(waiting[self.driver.first(list(waiting))])

    # --- work -------------------------------------------------------------------------------------------------
    def session(self, rmid: int) -> Any:
        thread = self._enter("session", rmid, 0)
        association = thread.current
        if association is None and self._dialect is STATIC:
            raise xa_error(Code.XAER_PROTO, "session: this thread is associated with no branch")
        work = association.work if association is not None else None
        context: _Context[W] = _Context(self, thread)
        return self.driver.session(work, context)

    def _current_work(self, thread: ThreadRecord[W]) -> W | None:
        """`SessionContext.current`, of this thread."""
        if self._enter("work", self._rmid or 0, 0) is not thread:
            raise xa_error(Code.XAER_PROTO, "work: this session belongs to another thread of control")
        association = thread.current
        if association is None:
            if self._dialect is STATIC:
                raise xa_error(Code.XAER_PROTO, "work: this thread is associated with no branch; its work has ended")
            return None
        if self._busy and association.xid in self._busy:
            raise xa_error(Code.XAER_PROTO, "work: an operation on this branch waits for complete", association.xid)
        return association.work

    def _register(self, thread: ThreadRecord[W]) -> W | None:
        """`SessionContext.register`, of this thread."""
        assert self._registrar is not None  # noqa: S101 — checked by the constructor
        answer, xid = self._registrar.ax_reg(self._rmid or 0)
        _check_answer(answer, "ax_reg")
        if xid.is_null:
            thread.registration = advance(REGISTRATION, thread.registration, RegistrationVerb.REGISTER_NULL)
            return None
        self._check_branch("work", xid, 0)
        try:
            self._start(thread, xid, _AX_STARTS[answer])
        except XaError as error:
            self._note_error(thread, error)
            raise
        return self._current_work(thread)

    def _unregister(self, thread: ThreadRecord[W]) -> None:
        """`SessionContext.unregister`, of this thread."""
        assert self._registrar is not None  # noqa: S101 — checked by the constructor
        if thread.registration is D3:
            thread.registration = advance(REGISTRATION, thread.registration, RegistrationVerb.UNREGISTER)
        _check_answer(self._registrar.ax_unreg(self._rmid or 0), "ax_unreg")

    def _failed(self, thread: ThreadRecord[W], error: XaError) -> XaError:
        """`SessionContext.failed`, of this thread."""
        self._note_error(thread, error)
        return error


@dataclass(frozen=True, slots=True, eq=False)
class _Context(Generic[W]):
    """A `SessionContext`, of one thread of control."""

    _switch: Switch[W]
    _thread: ThreadRecord[W]

    def current(self) -> W | None:
        return self._switch._current_work(self._thread)  # noqa: SLF001 — it is the switch's own

    def register(self) -> W | None:
        return self._switch._register(self._thread)  # noqa: SLF001

    def unregister(self) -> None:
        self._switch._unregister(self._thread)  # noqa: SLF001

    def failed(self, error: XaError) -> XaError:
        return self._switch._failed(self._thread, error)  # noqa: SLF001


def _check_answer(answer: AxCode, call: str) -> None:
    """The transaction manager's refusal is the resource manager's."""
    if answer in _AX_ERRORS:
        raise xa_error(_AX_ERRORS[answer], f"{call} answered {answer.name}")


class EndingWithPrepareSwitch(Switch[W]):
    """A switch whose driver has `end_and_prepare`: an `xa.EndingWithPrepare`."""

    def end_late(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        thread = self._enter("end", rmid, flags)
        if self._busy or xid.format_id < 0:
            self._check_branch("end", xid, flags)
        association = thread.current
        if (
            flags != TMSUCCESS
            or self._dialect is DYNAMIC
            or association is None
            or (association.xid is not xid and association.xid != xid)
            or self.driver.is_lost(association.work)
        ):
            return self.end(xid, rmid, flags)
        thread.current, thread.late = None, association
        return OK


class DecidingSwitch(Switch[W]):
    """A switch whose driver can decide: an `xa.DecidingResource`."""

    driver: DecidingDriver[W]

    @property
    def decider_id(self) -> bytes:
        if self._state is R0:
            raise xa_error(Code.XAER_PROTO, "decider_id: the resource manager is not open")
        return self.driver.decider_id

    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        self._enter("prepare", rmid, flags)
        raise xa_error(Code.XAER_PROTO, "prepare: a branch of the one that decides is not prepared", xid)

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        if not flags & TMONEPHASE:
            self._enter("commit", rmid, flags)
            why = "commit: the one that decides commits by decide, or with TMONEPHASE"
            raise xa_error(Code.XAER_PROTO, why, xid)
        return super().commit(xid, rmid, flags)

    def hold(self, owner: Owner, lease_s: float, rmid: int, floor: int = 0, ceiling: int = 0) -> None:
        self.call("hold", rmid, lambda: self.driver.hold(owner, lease_s, floor, ceiling))

    def owners(self, rmid: int) -> Sequence[Owner]:
        return self.call("owners", rmid, self.driver.owners)

    def incarnations(self, node: str, rmid: int) -> Sequence[NotedIncarnation]:
        return self.call("incarnations", rmid, lambda: self.driver.incarnations(node))

    def decide(self, xid: Xid, rmid: int, record: bytes) -> Code:
        self._calling("decide", rmid)
        self._check_branch("decide", xid, 0)
        return self.call("decide", rmid, lambda: self.driver.decide(xid, record))

    def settle(self, gtrid: bytes, rmid: int) -> bytes | None:
        return self.call("settle", rmid, lambda: self.driver.settle(gtrid))

    def decisions(self, rmid: int, after: bytes = b"", count: int = 1000) -> Sequence[DecisionRecord]:
        self._calling("decisions", rmid)
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"decisions: count {count} is below 1")
        return self.call("decisions", rmid, lambda: self.driver.decisions(after, count))

    def end_decisions(self, gtrids: Sequence[bytes], rmid: int) -> None:
        self.call("end_decisions", rmid, lambda: self.driver.end_decisions(gtrids))
