"""DatabaseResource: the XA verbs as every database of ours has them. What is particular to one is the `Place` where it
does its work, and how it completes what is prepared.

A verb goes three steps: under the lock it claims the branch, as the state tables allow; without the lock it talks to
the database, in steps that wait (see `rm_db.postgres.libpq`);
under the lock it moves the branch by what really happened.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from rm_db.branches import S4, Association, Branch
from rm_db.instance import R1, Instance
from xa import (
    TMFAIL,
    TMJOIN,
    TMMIGRATE,
    TMNOWAIT,
    TMONEPHASE,
    TMRESUME,
    TMSUSPEND,
    Code,
    XaError,
    check_flags,
    thread_of_control,
    xa_error,
)
from xa.machine import advance
from xa.tables import RESOURCE, AssociationVerb, BranchVerb, ResourceVerb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rm_db.branches import Work
    from rm_db.postgres.libpq import Steps
    from xa import Completion, Handle, Registrar, ThreadOfControl, Xid


class Place(Protocol):
    """Where the work of a resource manager is done, once it has been reached."""

    @property
    def reply_s(self) -> float:
        """How long a verb waits for the database's reply before it gives the connection up."""
        ...

    def begin(self, xid: Xid, *, wait: bool) -> Work:
        """The work of a new branch."""
        ...

    def close(self) -> None:
        """Closes every connection."""
        ...


P = TypeVar("P", bound=Place)


class DatabaseResource(Instance, ABC, Generic[P]):
    """One instance. A kind of database says how it is reached, and what becomes of prepared branches."""

    name = "xabridge database"

    def __init__(self, registrar: Registrar | None = None) -> None:  # noqa: ARG002 — registers statically
        super().__init__()

    def _forget_everything(self) -> None:
        super()._forget_everything()
        self._place: P | None = None  # in a forked process its connections are the parent's: not a word to them

    @property
    def identity(self) -> str:
        """As `xa.ResourceManager` says: a connection can't be shared with another instance, so no other has this."""
        return f"{self.name}#{id(self):x}"

    @property
    def _opened(self) -> P:
        if self._place is None:
            raise xa_error(Code.XAER_PROTO, "the resource manager is not open")
        return self._place

    # --- what a kind of database says -----------------------------------------------------------------------------

    @abstractmethod
    def _reach(self, url: str, place: P | None) -> P:
        """Reaches the database and checks that it can do what it must: the place at `url`; again after XAER_RMFAIL,
        the place that it was. What can't be used is closed."""

    @abstractmethod
    def _commit_prepared(self, xid: Xid) -> Steps[Code]:
        """Commits a prepared branch, whoever prepared it."""

    @abstractmethod
    def _rollback_prepared(self, xid: Xid) -> Steps[Code]:
        """Rolls back a branch that is none of this instance's unprepared ones."""

    @abstractmethod
    def _scan(self) -> Steps[list[Xid]]:
        """The prepared branches that this resource manager may complete."""

    @abstractmethod
    def _forget(self, xid: Xid) -> Steps[Code]:
        """What `forget` does."""

    # --- resource manager -----------------------------------------------------------------------------------------

    def open(self, open_string: str, rmid: int, flags: int = 0) -> Code | Handle:
        check_flags("open", flags, self.flags)
        control = thread_of_control()
        if self._pid != os.getpid():
            self._start_over()
        return self._perform(control, "open", None, flags, self._open(control, open_string, rmid))

    def _open(self, control: ThreadOfControl, url: str, rmid: int) -> Steps[Code]:
        yield from ()
        if self._state is R1 and rmid != self._rmid:
            raise xa_error(Code.XAER_INVAL, f"open: open under rmid {self._rmid} already, not {rmid}")
        if self._url and url != self._url:
            raise xa_error(Code.XAER_INVAL, "open: was opened with another open string; close it first")
        self._place = self._reach(url, self._place)
        self._url, self._rmid, self._reply_s = url, rmid, self._place.reply_s
        self._broken.discard(control)
        self._state = advance(RESOURCE, self._state, ResourceVerb.OPEN)
        return Code.XA_OK

    def close(self, close_string: str, rmid: int, flags: int = 0) -> Code | Handle:  # noqa: ARG002 — says nothing here
        check_flags("close", flags, self.flags)
        control = thread_of_control()
        if self._pid != os.getpid() or not self._url:
            return self._perform(control, "close", None, flags, _answer(Code.XA_OK))
        if self._state is R1 and rmid != self._rmid:
            raise xa_error(Code.XAER_INVAL, f"close: open under rmid {self._rmid}, not {rmid}")
        self._reap()
        with self._branches.lock:
            if self._branches.current(control) is not None:
                raise xa_error(Code.XAER_PROTO, "close: this thread is associated with a branch; end that first")
            if len(self._operations):
                raise xa_error(Code.XAER_PROTO, f"close: {len(self._operations)} operations wait for complete")
        return self._perform(control, "close", None, flags, self._close())

    def _close(self) -> Steps[Code]:
        lost = xa_error(Code.XA_RBCOMMFAIL, "the resource manager was closed")
        with self._branches.lock:
            branches = self._branches.all()
            for branch in branches:
                for association in [branch.active, *branch.suspended]:
                    if association is not None:
                        self._branches.lose(association, lost)
        for branch in branches:
            if branch.work is not None:
                yield from branch.work.rollback()
            with self._branches.lock:
                self._branches.remove(branch)
        state = advance(RESOURCE, self._state, ResourceVerb.CLOSE)
        self._opened.close()
        self._forget_everything()
        self._state = state
        return Code.XA_OK

    # --- association ----------------------------------------------------------------------------------------------

    def start(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says. A branch is joined and resumed in the instance that started it."""
        control = self._enter("start", rmid, flags, xid)
        return self._perform(control, "start", xid, flags, self._start(control, xid, flags))

    def _start(self, control: ThreadOfControl, xid: Xid, flags: int) -> Steps[Code]:
        yield from ()
        branches = self._branches
        wait = not flags & TMNOWAIT
        if flags & (TMJOIN | TMRESUME):
            with branches.lock:
                (branches.join if flags & TMJOIN else branches.resume)(control, xid, wait=wait)
            return Code.XA_OK
        with branches.lock:
            branch = branches.create(control, xid)
        try:
            work = self._opened.begin(xid, wait=wait)
        except BaseException:
            with branches.lock:
                branches.remove(branch)
            raise
        with branches.lock:
            branches.begun(branch, control, work)
        return Code.XA_OK

    def end(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        control = self._enter("end", rmid, flags, xid)
        return self._perform(control, "end", xid, flags, self._end(control, xid, flags))

    def _end(self, control: ThreadOfControl, xid: Xid, flags: int) -> Steps[Code]:
        verb = (
            AssociationVerb.SUSPEND
            if flags & TMSUSPEND
            else AssociationVerb.END_FAIL
            if flags & TMFAIL
            else AssociationVerb.END
        )
        with self._branches.lock:
            association = self._branches.ending(control, xid, verb)
            association.migrates = bool(flags & TMMIGRATE)
            branch = association.branch
        fault = branch.reason
        if branch.active is association and fault is None:
            failed = verb is AssociationVerb.END_FAIL
            unflushed = _finish(association, xid, failed=failed)
            fault = (yield from branch.work.check()) or unflushed
            if fault is not None and fault.code is Code.XAER_RMFAIL:
                if not failed:
                    raise fault  # whoever hears it has lost the association, and with it the branch
                fault = xa_error(Code.XA_RBCOMMFAIL, fault.message, xid)
            elif failed:
                fault = None
        with self._branches.lock:
            self._branches.ended(association, verb, fault)
        if branch.state is S4 and branch.work is not None:
            yield from branch.work.start_rollback()
        if fault is not None:
            raise fault
        return Code.XA_OK

    def session(self, rmid: int) -> Any:
        association = self._branches.current(self._enter("session", rmid, 0))
        if association is None:
            raise xa_error(Code.XAER_PROTO, "session: this thread is associated with no branch")
        if association.session is None:
            association.session = association.branch.work.session()
        return association.session.facade

    # --- completion -----------------------------------------------------------------------------------------------

    def _find(self, verb: str, move: BranchVerb, xid: Xid) -> Branch | None:
        with self._branches.lock:
            return self._branches.find(verb, move, xid)

    def _carry_out(self, verb: str, move: BranchVerb, xid: Xid, work: Callable[[Any], Steps[Code]]) -> Steps[Code]:
        """Carries `move` out on an unprepared branch; a rollback-only one answers with its reason instead."""
        branch = self._find(verb, move, xid)
        if branch is None:
            raise xa_error(Code.XAER_NOTA, f"{verb}: no such branch in this instance of the resource manager", xid)
        code = Code.XAER_RMFAIL
        try:
            if branch.reason is not None:
                code = branch.reason.code
                yield from branch.work.rollback()
                raise branch.reason
            code = yield from work(branch.work)
        except XaError as error:
            code = error.code
            raise
        finally:
            if code is Code.XAER_RMFAIL:  # also when the thread was interrupted
                branch.work.abandon()
            with self._branches.lock:
                self._branches.completed(branch, move, code)
        return code

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        control = self._enter("commit", rmid, flags, xid)
        if flags & TMONEPHASE:
            steps = self._carry_out("commit", BranchVerb.COMMIT_ONE_PHASE, xid, lambda work: work.commit())
        else:
            steps = self._commit_prepared(xid)
        return self._perform(control, "commit", xid, flags, steps, hold=True)

    def rollback(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        control = self._enter("rollback", rmid, flags, xid)
        return self._perform(control, "rollback", xid, flags, self._rollback(xid), hold=True)

    def _rollback(self, xid: Xid) -> Steps[Code]:
        branch = self._find("rollback", BranchVerb.ROLLBACK, xid)
        if branch is None:
            return (yield from self._rollback_prepared(xid))
        try:
            yield from branch.work.rollback()
        finally:
            branch.work.abandon()  # what is left of it when the thread was interrupted
            with self._branches.lock:
                self._branches.completed(branch, BranchVerb.ROLLBACK, Code.XA_OK)
        return Code.XA_OK

    def recover(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[Xid]:
        return self._page(self._scans, self._scan, rmid, flags, count)

    def forget(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """As `xa.ResourceManager` says. No database of ours completes a branch on its own, so none is forgotten."""
        control = self._enter("forget", rmid, flags, xid)
        return self._perform(control, "forget", xid, flags, self._forget(xid), hold=True)

    def complete(self, handle: Handle | None, rmid: int, flags: int = 0) -> Completion:
        check_flags("complete", flags, self.flags)
        if not len(self._operations):
            self._check_open("complete", rmid)
        control = thread_of_control()
        operation, completion = self._operations.take(control, handle, flags, self._reply_s)
        if operation.xid is not None:
            with self._branches.lock:
                self._branches.vacate(operation.xid)
        if completion.code is Code.XAER_RMFAIL:
            self._lose(operation.control, completion.error)
        return completion


def _finish(association: Association, xid: Xid, *, failed: bool) -> XaError | None:
    """Closes the association's session; the XA_RB* for what goes wrong in it."""
    session = association.session
    if session is None:
        return None
    try:
        if not failed:
            session.finish()
    except Exception as error:  # noqa: BLE001 — flushing runs the application's own code, and any of it may fail
        return xa_error(Code.XA_RBROLLBACK, f"{type(error).__name__} while the session was flushed: {error}", xid)
    finally:
        session.expire()
        association.session = None
    return None


def _answer(code: Code) -> Steps[Code]:
    yield from ()
    return code
