"""Instance: what the verbs of a database resource manager go through: whether it is open, which thread of control
calls, how steps that wait are carried out, and what becomes of a thread that has lost its connection.

A thread of control that hears XAER_RMFAIL has lost its associations and its scans, and has to call open.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from rm_db.branches import Branches
from rm_db.operations import MAX_OUTSTANDING, Operations
from rm_db.postgres.steps import drive
from xa import (
    TMASYNC,
    TMENDRSCAN,
    TMSTARTRSCAN,
    TMUSEASYNC,
    Code,
    ResourceUnavailable,
    XaError,
    check_flags,
    thread_of_control,
    xa_error,
)
from xa.tables import RESOURCE, ResourceState, ResourceVerb

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rm_db.branches import Association
    from rm_db.postgres.libpq import Steps
    from xa import Handle, ThreadOfControl, Xid
    from xa.holdings import InDoubtBranch

logger = logging.getLogger("xabridge.rm_db")

T = TypeVar("T")

WAIT_S: Final = 30.0
"""How long one thread waits for another that is at work on the same branch."""
REPLY_S: Final = 60.0
R0, R1 = ResourceState.R0, ResourceState.R1


class Instance:
    """One instance, its branches and its threads of control. `_reply_s` is how long a verb waits for the database's
    reply before it gives the connection up; whoever opens sets it."""

    flags = TMUSEASYNC

    def __init__(self) -> None:
        self._start_over()

    def _start_over(self) -> None:
        """A new process: nothing is open, associated or outstanding. What the parent opened is left alone."""
        self._operations = Operations()
        self._pid = os.getpid()
        self._forget_everything()

    def _forget_everything(self) -> None:
        """Nothing is open or associated."""
        self._state = R0
        self._rmid = 0
        self._url = ""
        self._reply_s = REPLY_S
        self._branches = Branches(WAIT_S)
        self._scans: WeakKeyDictionary[ThreadOfControl, list[Xid]] = WeakKeyDictionary()
        self._reports: WeakKeyDictionary[ThreadOfControl, list[InDoubtBranch]] = WeakKeyDictionary()
        self._broken: WeakSet[ThreadOfControl] = WeakSet()

    def _enter(self, verb: str, rmid: int, flags: int, xid: Xid | None = None) -> ThreadOfControl:
        """The calling thread of control, if it may issue the verb."""
        if flags or verb == "end":
            check_flags(verb, flags, self.flags)
        if self._state is not R1 or rmid != self._rmid or self._pid != os.getpid():
            self._check_open(verb, rmid)
        if flags & TMASYNC and len(self._operations) >= MAX_OUTSTANDING:
            raise xa_error(Code.XAER_ASYNC, f"{verb}: {MAX_OUTSTANDING} operations are outstanding", xid)
        if xid is not None and xid.is_null:
            raise xa_error(Code.XAER_INVAL, f"{verb}: the null XID names no branch")
        if self._branches.lost:
            self._reap()
        control = thread_of_control()
        if self._broken and control in self._broken:
            code = RESOURCE.refusal(R0, ResourceVerb.ANY) or Code.XAER_PROTO
            raise xa_error(code, f"{verb}: this thread lost its connection and has to call open again", xid)
        return control

    def _check_open(self, verb: str, rmid: int) -> None:
        refused = RESOURCE.refusal(R0 if self._pid != os.getpid() else self._state, ResourceVerb.ANY)
        if refused is not None:
            raise xa_error(refused, f"{verb}: the resource manager is not open in this process")
        if rmid != self._rmid:
            raise xa_error(Code.XAER_INVAL, f"{verb}: open under rmid {self._rmid}, not {rmid}")

    def _perform(
        self,
        control: ThreadOfControl,
        verb: str,
        xid: Xid | None,
        flags: int,
        steps: Steps[Code],
        *,
        hold: bool = False,
    ) -> Code | Handle:
        """Carries the verb out, or with TMASYNC begins it. With `hold` the branch takes no other until it is over."""
        asynchronous = bool(flags & TMASYNC)
        if xid is not None:
            with self._branches.lock:
                self._branches.occupy(verb, xid, asynchronous=asynchronous, hold=hold or asynchronous)
        begun = False
        try:
            if not asynchronous:
                return self._run(control, steps)
            handle = self._operations.begin(control, verb, xid, steps)
            begun = True
            return handle
        finally:
            if xid is not None and (hold or asynchronous) and not begun:
                with self._branches.lock:
                    self._branches.vacate(xid)

    def _run(self, control: ThreadOfControl, steps: Steps[T]) -> T:
        try:
            return drive(steps, self._reply_s)
        except ResourceUnavailable as error:
            self._lose(control, error)
            raise

    def _lose(self, control: ThreadOfControl, error: XaError | None) -> None:
        """The thread hears XAER_RMFAIL and has lost its associations and its scan."""
        why = error.message if error is not None else "the connection was lost"
        with self._branches.lock:
            for association in self._branches.held_by(control):
                self._lose_one(association, xa_error(Code.XA_RBCOMMFAIL, why, association.branch.xid))
        self._scans.pop(control, None)
        self._reports.pop(control, None)
        self._broken.add(control)

    def _reap(self) -> None:
        """Threads of control that are gone have lost their associations."""
        while self._branches.lost:
            with suppress(IndexError), self._branches.lock:
                association = self._branches.lost.popleft()
                why = xa_error(Code.XA_RBCOMMFAIL, "the thread of control is gone", association.branch.xid)
                self._lose_one(association, why)

    def _lose_one(self, association: Association, why: XaError) -> None:
        branch = self._branches.lose(association, why)
        if branch is not None and branch.work is not None:
            logger.warning("%s is rollback-only: %s", branch.xid, why.message)
            drive(branch.work.start_rollback(), self._reply_s)

    def _page(
        self,
        scans: WeakKeyDictionary[ThreadOfControl, list[T]],
        all_of_them: Callable[[], Steps[list[T]]],
        rmid: int,
        flags: int,
        count: int,
    ) -> Sequence[T]:
        """A page of a scan over `all_of_them`."""
        control = self._enter("recover", rmid, flags)
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"recover: count {count} is below 1")
        if flags & TMSTARTRSCAN:
            scans[control] = self._run(control, all_of_them())[::-1]
        scan = scans.get(control)
        if scan is None:
            raise xa_error(Code.XAER_INVAL, "recover: no scan is open and TMSTARTRSCAN was not given")
        page = scan[-count:][::-1]
        del scan[-count:]
        if flags & TMENDRSCAN:
            del scans[control]
        return page
