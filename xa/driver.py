"""Driver: what a resource manager has of its own, behind the XA verbs that `xa.switch.Switch` implements once.

`Switch` checks flags, keeps track of open and closed, of threads of control and their associations, of asynchronous
operations, scans and dynamic registration. A driver knows one kind of resource: how it is reached, how work for a
branch begins and ends there, and how a branch is prepared, committed, rolled back and listed.

To write one, subclass `Driver`, implement its abstract methods, and give an instance to `Switch`. Everything that is
not abstract is optional: the default says what a resource without that capability answers. The type parameter `W` is
the driver's own object for one association's work; the switch only keeps it and hands it back.

Two kinds of resources differ in where an unprepared branch lives:

- It lives at the resource (a message broker with distributed transactions): implement `Driver`. The resource keeps the
  state of branches and refuses what the state tables refuse.
- It lives in this process, as a transaction on a connection of its own, until it is prepared (databases): implement
  the smaller `xa.in_process_branches.UnitOfWorkDriver` and put it behind `xa.in_process_branches.Branches`, which is a
  `Driver`.

How a driver answers:

- It returns what is an answer (XA_OK, XA_RDONLY from prepare, XA_NOMIGRATE from suspend). It raises every other code as
  an `XaError`, made with `xa_error(code, message, xid)`. `xa.resource_manager` defines each code.
- XAER_RMFAIL means that it is unknown whether the call was carried out. The switch then takes every association from
  the calling thread of control, calls `lose`, and refuses the thread's verbs until it calls `open` again.
- XA_RETRY means that nothing happened. A driver raises it, and never XAER_RMERR, where a connection or a lock was not
  free: XAER_RMERR at commit and rollback says that the work was rolled back.
- An exception that is no `XaError` (KeyboardInterrupt) changes nothing in the switch. If the driver does not know then
  what has reached the resource, it closes the connection, and raises XAER_RMFAIL when the work is used next.

The switch calls a driver without holding a lock, on the caller's own thread. Several threads may call at once, also for
one thread of control: a transaction manager ends the work of a transaction that takes too long from another thread,
while the application may be inside a session. The driver keeps the two apart, by waiting or by an error to either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xa.codes import Code
    from xa.deciding_resource import DecisionRecord, NotedIncarnation, Owner
    from xa.errors import XaError
    from xa.xid import Xid

W = TypeVar("W")
W_co = TypeVar("W_co", covariant=True)

MAX_OUTSTANDING: Final = 4096
"""Asynchronous operations that one instance may have outstanding, unless its driver says another number."""


class Pending(Protocol):
    """A request that was sent, and whose answer is not collected yet. One thread at a time uses it."""

    def ready(self) -> bool:
        """Whether `result` would return, or raise, without waiting. It never waits itself."""
        ...

    def result(self) -> Code:
        """Waits for the answer: the code, or the XaError that the verb would have raised.

        It is called again only when it raised something that is no XaError (an interruption); it then tells the
        answer if there is one, or raises XAER_RMFAIL.
        """
        ...


class SessionContext(Protocol[W_co]):
    """A session's questions to the switch. A driver whose sessions check nothing before an operation may ignore it."""

    def current(self) -> W_co | None:
        """The work that the operation to be carried out now belongs to.

        None: the resource manager registers dynamically, and the thread has not registered: `register` follows.
        XAER_PROTO: another thread of control calls; this one is associated with no branch, has lost its connection, or
        an asynchronous operation on its branch waits for `complete`; or the resource manager is not open.
        """
        ...

    def register(self) -> W_co | None:
        """Asks the transaction manager (ax_reg) whose work this is, and begins, joins or resumes the branch.

        None: the work is outside of any global transaction. The driver carries it out as a transaction of its own, and
        then calls `unregister`, also when it failed.
        """
        ...

    def unregister(self) -> None:
        """The work outside of any global transaction is complete (ax_unreg)."""
        ...

    def failed(self, error: XaError) -> XaError:
        """The operation came to this error; it is handed back to be raised. XAER_RMFAIL takes the thread's associations
        from it."""
        ...


class Driver(ABC, Generic[W]):
    """One kind of resource. An instance belongs to one switch."""

    name: str = "driver"
    """The kind of resource manager, at most 31 characters (the switch's name)."""

    flags: int = 0
    """The switch's flags. TMUSEASYNC: `prepare`, `commit`, `rollback` and `forget` can leave their answer for later.
    TMNOMIGRATE: end with TMMIGRATE is refused. TMREGISTER: its sessions register themselves; `start` is refused."""

    @property
    def max_outstanding(self) -> int:
        """How many asynchronous operations may wait for `complete`; one more is refused with XAER_ASYNC."""
        return MAX_OUTSTANDING

    @property
    def identity(self) -> str:
        """Names the resource once it is open: instances with equal identities serve the same unprepared branches.
        The default is for a resource whose unprepared branches are known to this instance only."""
        return f"{self.name}#{id(self):x}"

    # --- open and close ---------------------------------------------------------------------------------------
    @abstractmethod
    def open(self, open_string: str) -> None:
        """Reaches the resource and checks that it can do what it must.

        It is called again while it is open: after XAER_RMFAIL, and by any caller that wants to be sure. XAER_INVAL: the
        open string is wrong (the message says where), or is not the one that it is open with. XAER_RMERR: the resource
        was reached and can't be used (the message says what to do). XAER_RMFAIL: it can't be reached.
        """

    @abstractmethod
    def close(self, works: Sequence[W]) -> None:
        """Closes every connection; prepared branches stay prepared. `works` are those of all associations that have not
        ended: their branches are rollback-only. Branches that live in this process are rolled back.

        XAER_RMERR: it could not be closed, and nothing has changed.
        """

    def drop(self) -> None:
        """Closes every connection at once, without a word to the resource, as if the process had died."""
        return

    def break_off(self) -> None:
        """Breaks every connection, as a network does that fails: what is being asked over one comes to XAER_RMFAIL.
        Called at any moment, by any thread, while others are inside of the driver: it takes no lock that they hold
        while they wait. The default is for a resource that is never waited for long."""
        return

    def start_over(self) -> None:
        """The process was forked: forgets every connection, and neither uses nor closes one, since they are the
        parent's. `open` follows."""
        return

    # --- associations -----------------------------------------------------------------------------------------
    @abstractmethod
    def begin(self, xid: Xid, beside: Sequence[W], *, wait: bool) -> W:
        """Makes the branch, and begins work for it in the calling thread of control.

        `beside` is the other work that this thread holds (suspended, or ended late), for resources on which a thread
        has one connection. XA_RETRY: no connection is free, at once (`wait` false) or after as long as it may take.
        XAER_DUPID: the xid exists. With any error there is no work.
        """

    def begins_at_once(self) -> bool:
        """Whether `begin` with `wait` false would now return, or raise XA_RETRY, without waiting for anything, as far
        as is known. It never raises."""
        return False

    @abstractmethod
    def join(self, xid: Xid, beside: Sequence[W], *, wait: bool) -> W:
        """Begins work for a branch that exists. XA_RB*: it is rollback-only. XAER_NOTA: there is no such branch.
        XAER_PROTO: it is prepared or completed, or can't be joined. XA_RETRY: as at `begin`, or another thread is at
        work in it and the resource serves one at a time."""

    def resume(self, work: W, *, wait: bool) -> W:
        """Goes on with suspended work; the same object is returned, or another one for it from now on. The calling
        thread of control is the one that suspended it, or another one where `suspend` answered XA_OK to `migrate`.

        XA_RB*: the branch is rollback-only, and the association has ended. XAER_RMERR, XA_RETRY: suspended it stays.
        """
        del wait
        return work

    def suspend(self, work: W, *, migrate: bool) -> Code:
        """Suspends work. Errors are those of `end`. With `migrate` XA_OK says that another thread of control may
        resume it, XA_NOMIGRATE that only this one may; without it the answer is XA_OK."""
        raise NotImplementedError

    @abstractmethod
    def end(self, work: W, *, fail: bool) -> Code:
        """Ends work, which may be suspended; XA_OK: it is complete in the resource. With `fail` the branch is
        rollback-only from now on.

        XA_RB*, XAER_RMERR: the work has ended, and the branch is rollback-only. XAER_NOTA: the branch is gone.
        """

    def is_lost(self, work: W) -> bool:
        """Whether it is known already that the connection of this work is lost. It need not be known: then the next
        verb that uses the work raises XAER_RMFAIL."""
        del work
        return False

    def lose(self, works: Sequence[W], why: XaError) -> None:
        """These associations have ended without an `end`. Make their branches rollback-only, and close everything that
        they hold, so that the resource notices.

        `why` is the XAER_RMFAIL that their thread of control has got, which this driver raised itself; or XA_RBCOMMFAIL
        if the thread of control has ended (it was garbage collected).
        """
        del works, why

    def migrant(self, xid: Xid) -> W | None:
        """Work that another instance, in this process or another one, has suspended so that any instance may resume
        it."""
        del xid
        return None

    def has_migrated(self, work: W) -> bool:
        """Whether suspended work was resumed through another instance, and is not ours any more."""
        del work
        return False

    @abstractmethod
    def knows(self, xid: Xid) -> bool:
        """Whether there is such a branch, prepared or not. Asked only when a verb is to be refused: XAER_PROTO for a
        branch that exists, XAER_NOTA for one that does not. XAER_RMFAIL as everywhere."""

    # --- work -------------------------------------------------------------------------------------------------
    @abstractmethod
    def session(self, work: W | None, context: SessionContext[W]) -> Any:
        """The resource's native interface for the calling thread of control. `work` is None only where the resource
        manager registers dynamically."""

    # --- completion -------------------------------------------------------------------------------------------
    # Each is refused by XAER_PROTO where the state tables refuse it, in particular while an association of the branch
    # has not ended. With `later` true the request may be sent, and a Pending returned that tells the answer; where
    # nothing is gained by that (or the driver has no TMUSEASYNC), the call is carried out at once, as without `later`.
    # A Pending may be returned without `later` too: the switch then waits for it. XAER_ASYNC with `later`: there are
    # too many requests on their way; nothing was sent.

    @abstractmethod
    def prepare(self, xid: Xid, *, later: bool) -> Code | Pending:
        """The vote. XA_OK: durably prepared. XA_RDONLY: nothing to commit, and the branch has ended. XA_RB*: rolled
        back and ended. XAER_RMERR, XA_RETRY: the branch is as it was. XAER_NOTA: there is no such branch."""

    @abstractmethod
    def commit(self, xid: Xid, *, one_phase: bool, later: bool) -> Code | Pending:
        """Commits a prepared branch, or with `one_phase` an ended one that is not prepared. XA_OK: durably committed,
        and ended. XA_HEUR*: it was completed heuristically, and is remembered until `forget`. XA_RB* (`one_phase`
        only), XAER_RMERR: rolled back and ended. XA_RETRY: as it was."""

    @abstractmethod
    def rollback(self, xid: Xid, *, later: bool) -> Code | Pending:
        """Rolls a branch back, prepared or not. XA_OK, XA_RB*, XAER_RMERR: rolled back and ended. XA_HEUR*: as at
        `commit`. XA_RETRY: as it was."""

    @abstractmethod
    def forget(self, xid: Xid, *, later: bool) -> Code | Pending:
        """Forgets a branch that was completed heuristically; XAER_PROTO for one that was not."""

    @abstractmethod
    def scan(self, page: int) -> Iterator[Xid]:
        """The prepared and the heuristically completed branches, each once. Branches that are completed meanwhile must
        not make the scan skip others. `page` is how many the caller asks for at a time, as a hint for how many to fetch
        in one exchange. What it raises ends the scan."""

    def first(self, outstanding: Sequence[Pending]) -> Pending:
        """Waits until one of these is ready, and tells which; the default names one that is, or the oldest."""
        return next((pending for pending in outstanding if pending.ready()), outstanding[0])

    def end_and_prepare(self, work: W, *, later: bool) -> Code | Pending:
        """The end of work and the prepare of its branch, in one exchange (`xa.EndingWithPrepare`, decision 0008).
        Answers as `prepare`; whatever it answers but XAER_RMFAIL, the association has ended. XA_RB*: the branch is
        gone, also where it was the end that was refused. XAER_RMERR: it is to be rolled back.

        Only for a driver whose switch is a `EndingWithPrepareSwitch`."""
        raise NotImplementedError


class DecisionStorage(ABC):
    """The part of a driver that keeps decisions. What each method does stands in
    `xa.deciding_resource.DecidingResource`."""

    @property
    @abstractmethod
    def decider_id(self) -> bytes:
        """Asked only while the resource is open."""

    @abstractmethod
    def hold(self, owner: Owner, lease_s: float, floor: int, ceiling: int) -> None: ...

    @abstractmethod
    def owners(self) -> Sequence[Owner]: ...

    @abstractmethod
    def incarnations(self, node: str) -> Sequence[NotedIncarnation]: ...

    @abstractmethod
    def settle(self, gtrid: bytes) -> bytes | None: ...

    @abstractmethod
    def decisions(self, after: bytes, count: int) -> Sequence[DecisionRecord]:
        """`count` is at least 1."""

    @abstractmethod
    def end_decisions(self, gtrids: Sequence[bytes]) -> None: ...


class DecidingDriver(Driver[W], DecisionStorage):
    """A driver that can be the one that decides, behind `xa.switch.DecidingSwitch`. `prepare`, and `commit` without
    `one_phase`, are never asked of it."""

    @abstractmethod
    def decide(self, xid: Xid, record: bytes) -> Code:
        """Commits the branch and `record` together: see `xa.deciding_resource.DecidingResource.decide`."""
