"""ResourceManager: X/Open's xa_switch as a Protocol, and Registrar, the calls in the other direction (ax_reg,
ax_unreg).

The docstrings here are the contract. Most resource managers do not implement it themselves: they write a driver, and
`xa.switch.Switch` implements the verbs over it.

How results are returned:

- An answer (XA_OK, XA_RDONLY from prepare, XA_NOMIGRATE from end) is returned as a `Code`.
- Every other code is raised, as the `XaError` that `xa.errors.EXCEPTIONS` gives for it.
- With TMASYNC the request is sent and a `Handle` is returned; `complete` returns the result.

Any verb may raise these codes, and they are not repeated below:

- XAER_INVAL: the verb does not allow these flags, or the instance is open under another rmid.
- XAER_PROTO: the instance is not open, the state tables refuse the verb, an operation on this branch waits for
  `complete`, or the caller may not do this.
- XAER_ASYNC: TMASYNC at a switch without TMUSEASYNC, or with an operation on this branch outstanding, or with too many
  outstanding: collect one first.
- XA_RETRY: not now, and nothing happened. No connection became free, the server takes no more of them, or a lock was in
  the way.
- XAER_RMFAIL: the resource manager can't be reached. Nothing may be assumed about the call: it was carried out, or it
  was not, or it will be in a moment. The calling thread of control has lost its associations, and has to call `open`
  before its next verb.

A code means one thing at one verb. XAER_RMERR and XA_RB* at commit and rollback mean that the work was rolled back and
the branch does not exist any more, and the transaction manager never asks for it again. So a resource manager must not
raise them when it was only hindered from carrying the verb out. If a branch is prepared, or may be, the answer is
XA_RETRY, XAER_PROTO or XAER_RMFAIL.

Connections, channels and outstanding operations are bounded, and no call waits for anything that its own thread of
control holds: an operation that waits for `complete` returns its connection as soon as another call needs one, or the
next operation is refused with XAER_ASYNC. So one thread can ask any number of branches, however few connections there
are.

One object is one resource manager instance. It is opened once per process, under one rmid, and many threads of control
(`xa.threads_of_control`) use it, each of which is associated with at most one branch at a time. When a transaction
takes too long, the transaction manager ends it and rolls it back on behalf of its thread of control, from another
thread, while the application may still be inside a session. The instance keeps the two apart, by waiting or by an error
to either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from xa.codes import AxCode
from xa.xid import NULL_XID

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xa.codes import Code
    from xa.errors import XaError
    from xa.xid import Xid


class Handle(int):
    """Names one outstanding asynchronous operation of one resource manager; positive."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """The result of an asynchronous operation: the code that the verb would have returned, or the error that
    it would have raised, with that error's code."""

    handle: Handle
    code: Code
    error: XaError | None = None


class ResourceManager(Protocol):
    """One resource manager instance, as the transaction manager sees it."""

    @property
    def name(self) -> str:
        """The kind of resource manager, at most 31 characters (the switch's name)."""
        ...

    @property
    def flags(self) -> int:
        """The switch's flags: any of TMREGISTER, TMNOMIGRATE, TMUSEASYNC."""
        ...

    @property
    def identity(self) -> str:
        """Names the resource behind an opened instance. Two instances with equal identities serve the same
        branches: start(TMJOIN) at one joins a branch that was started at the other."""
        ...

    def open(self, open_string: str, rmid: int, flags: int = 0) -> Code | Handle:
        """Makes the instance usable under `rmid`; `open_string` is a URL.

        Flags: TMASYNC. Opening again with the same rmid is allowed (R1 → R1), and needed after XAER_RMFAIL.
        XA_OK: the resource was reached and can do what it must; it is initialised.
        XAER_INVAL: the open string is wrong; the message says where. Another rmid is open already.
        XAER_RMERR: the resource was reached and can't be used (credentials, settings); the message says what to do.
        """
        ...

    def close(self, close_string: str, rmid: int, flags: int = 0) -> Code | Handle:
        """Ends the use of the instance; closing one that is not open is XA_OK.

        Flags: TMASYNC. Precondition: the calling thread is associated with no branch (XAER_PROTO).
        Postcondition: every connection is closed. Prepared branches stay prepared.
        XAER_RMERR: it could not be closed and stays initialised.
        """
        ...

    def start(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """Associates the calling thread of control with a branch.

        Flags: TMNOFLAGS makes the branch, TMJOIN joins one that exists, TMRESUME resumes the thread's
        suspended association; TMNOWAIT (does not wait for room, nor for another thread), TMASYNC.
        Precondition: the thread is associated with no branch; XAER_OUTSIDE when it is at work outside of any.
        XA_OK: work that the thread does from now on through `session` belongs to the branch.
        XA_RETRY: the call would block and TMNOWAIT was given, or has waited as long as it may; no association was made.
        XA_RB*: joined or resumed branch is rollback-only; no association was made.
        XAER_DUPID: TMNOFLAGS, and the xid exists. XAER_NOTA: TMJOIN or TMRESUME, and it does not.
        XAER_PROTO: TMRESUME without a suspended association; the thread is associated already; the branch
        is prepared or completed. XAER_RMERR: no association was made.
        """
        ...

    def end(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        """Ends or suspends the calling thread's association.

        Flags: one of TMSUCCESS, TMFAIL, TMSUSPEND; TMMIGRATE with TMSUSPEND; TMASYNC. TMSUCCESS and TMFAIL
        also end a suspended association.
        XA_OK: the work is complete in the resource; with TMFAIL the branch is now rollback-only.
        XA_NOMIGRATE: TMMIGRATE was given, and the association can be resumed here only.
        XA_RB*: the association is ended, and the branch is rollback-only.
        XAER_NOTA: unknown xid. XAER_PROTO: this thread has no such association.
        XAER_RMERR: the association is ended, the branch is rollback-only.
        """
        ...

    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """Asks for the vote.

        Flags: TMASYNC. Precondition: every association of the branch has ended (XAER_PROTO).
        XA_OK: the branch is durably prepared; it can be committed and rolled back, from now on until that is
        done, by any process, through crashes of either side.
        XA_RDONLY: there is nothing to commit; the branch is gone and left nothing durable behind.
        XA_RB*: the branch was rolled back and is gone.
        XAER_RMERR: could not be prepared; the branch is as it was, and can be rolled back.
        XAER_NOTA: unknown xid; nothing of it is left, whether it was lost or never was.
        """
        ...

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """Commits a prepared branch, or with TMONEPHASE an ended one that was not prepared.

        Flags: TMONEPHASE, TMNOWAIT, TMASYNC.
        XA_OK: durably committed, and the branch is gone.
        XA_RETRY: could not be committed now, nothing happened; prepared it stays.
        XA_HEUR*: the branch was heuristically completed, and is remembered until `forget`.
        XA_RB*: only with TMONEPHASE: the work was rolled back and the branch is gone.
        XAER_RMERR: the work was rolled back and the branch is gone; never for "could not" (that is XA_RETRY).
        XAER_NOTA: unknown xid. After a successful prepare somebody else completed it.
        """
        ...

    def rollback(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """Rolls a branch back, prepared or not.

        Flags: TMASYNC. Precondition: every association of the branch has ended (XAER_PROTO).
        XA_OK, XA_RB*, XAER_RMERR: the work was rolled back and the branch is gone.
        XA_RETRY: could not be rolled back now, nothing happened; prepared it stays. (XA has no such answer here, and
        resource managers without one say that a branch is gone which is not.)
        XA_HEUR*: the branch was heuristically completed, and is remembered until `forget`.
        XAER_NOTA: unknown xid; nothing of it is left.
        """
        ...

    def recover(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[Xid]:
        """The next page, of at most `count` xids, of a scan over prepared and heuristically completed branches.

        Flags: TMSTARTRSCAN opens the scan at its first page, TMENDRSCAN closes it after this page; both
        together are the whole scan where one page suffices. A page shorter than `count` is the last. A scan
        belongs to the calling thread of control. XAER_INVAL: no scan is open, or count is below 1.
        """
        ...

    def forget(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """Lets the resource manager forget a heuristically completed branch.

        Flags: TMASYNC. XA_OK: forgotten. XAER_NOTA: unknown xid. XAER_PROTO: the branch is not completed.
        XAER_RMERR: not forgotten.
        """
        ...

    def complete(self, handle: Handle | None, rmid: int, flags: int = 0) -> Completion:
        """The result of the operation that `handle` names, waiting for it where it is not there yet.

        Flags: TMMULTIPLE with handle None waits for any of the calling thread's operations; TMNOWAIT does
        not wait. XA_RETRY: TMNOWAIT was given and nothing has completed. XAER_INVAL: no such operation is
        outstanding. The completed operation's own failure, a lost connection included, is in the
        Completion and not raised.
        """
        ...

    def session(self, rmid: int) -> Any:
        """The resource's native interface for the calling thread of control: what the application works with.

        Precondition: the thread is associated with a branch (XAER_PROTO); a resource manager that registers
        dynamically (TMREGISTER) is asked at any time and registers itself at the first work.
        """
        ...


class Registrar(Protocol):
    """The transaction manager's side: what a resource manager with TMREGISTER calls before it does work.

    Rules (XA specification, ax_reg and ax_unreg): only with TMREGISTER; a thread that got the null XID works
    outside any global transaction and calls `ax_unreg` when that work is complete, before it registers again;
    a thread that got an xid is dissociated by `end` as usual and does not call `ax_unreg`.
    """

    def ax_reg(self, rmid: int, flags: int = 0) -> tuple[AxCode, Xid]:
        """Announces work in the calling thread of control.

        (TM_OK, xid): the work belongs to a new branch of this xid; with the null XID it is outside any.
        (TM_JOIN, xid): as after start(TMJOIN). (TM_RESUME, xid): as after start(TMRESUME).
        (TMER_INVAL, null): unknown rmid, or flags. (TMER_PROTO, null): already registered, or the resource
        manager's switch lacks TMREGISTER. (TMER_TMERR, null): an error of the transaction manager.
        """
        ...

    def ax_unreg(self, rmid: int, flags: int = 0) -> AxCode:
        """Announces that the calling thread's work outside any global transaction is complete.

        TM_OK; TMER_INVAL: unknown rmid, or flags; TMER_PROTO: the thread is not registered with the null XID.
        """
        ...


class RefusingRegistrar:
    """A registrar for callers that begin branches themselves, or do no work: nothing registers."""

    def ax_reg(self, rmid: int, flags: int = 0) -> tuple[AxCode, Xid]:  # noqa: ARG002 — the contract's signature
        return AxCode.TMER_PROTO, NULL_XID

    def ax_unreg(self, rmid: int, flags: int = 0) -> AxCode:  # noqa: ARG002 — as above
        return AxCode.TMER_PROTO


class ResourceFactory(Protocol):
    """The object that an entry point of the group `xabridge.resource_managers` names, by the scheme of the open
    strings."""

    def __call__(self, registrar: Registrar) -> ResourceManager:
        """A new instance, not yet opened."""
        ...
