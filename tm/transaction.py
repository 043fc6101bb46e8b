"""Transaction: one global transaction as the application holds it.

It belongs to the thread of control that began it. Any thread may use it, but only one at a time. What it is, and how it
is completed, is in the `GlobalTransaction` behind it.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NoReturn, TypeVar, overload

from tm.concurrency.deferred_signals import DeferredSignals, interruptible
from tm.concurrency.uninterrupted import CallStillRunning, finish_in_thread
from tm.concurrency.with_block import WithBlock
from tm.errors import ProtocolMisuse
from tm.global_transaction import INHERITED, OVER, HandlerState
from tm.outcome import Reason, Verdict
from tm.resources.enlistment import WouldWait
from tm.two_phase.states import GlobalState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from tm.global_transaction import GlobalTransaction
    from tm.outcome import Outcome
    from tm.resources.enlistment import DelistHow
    from xa import Xid

logger = logging.getLogger("xabridge.tm")
T = TypeVar("T")

_ACTIVE, _COMMITTED = GlobalState.ACTIVE, Verdict.COMMITTED  # cheap to look up
CLOSED_S: Final = 2.0
"""How long the close of a generator waits for the rollback of its transaction."""


if sys.version_info >= (3, 14):  # annotations are evaluated when they are asked for, and names may be missing then
    from annotationlib import Format, get_annotations

    def _annotations(of: type) -> Iterable[str]:
        return get_annotations(of, format=Format.FORWARDREF)

else:

    def _annotations(of: type) -> Iterable[str]:
        annotations: Mapping[str, object] = vars(of).get("__annotations__", {})
        return annotations


class _ResourceAttribute(property):
    """An attribute of a class of transactions that is a resource's native interface."""

    def __init__(self, name: str) -> None:
        super().__init__(itemgetter(name), doc=f"The native interface of the resource {name}.")
        self.resource = name


def resource_name(name: Any) -> Any:
    """The name of the resource that an attribute of a class of transactions is for; a name is itself."""
    return name.resource if isinstance(name, _ResourceAttribute) else name


class Transaction:
    """A global transaction. `with`: commits at the end of the block, rolls back when an exception leaves it.

    `tx["shop"]` is the native interface of the resource `shop`. An application that wants its types says them in a
    class of its own, which it gives to its manager (`TransactionManager(…, transaction=Shop)`):

        class Shop(Transaction):
            shop: Database
            broker: Session

    `tx.shop` is `tx["shop"]` then, and an editor and a type checker know what it is.
    """

    annotated: ClassVar[tuple[str, ...]] = ()
    """The names of the resources that the class has annotations for."""

    __slots__ = ("_live",)

    def __init__(self, live: GlobalTransaction) -> None:
        self._live = live

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        names = [name for name in _annotations(cls) if not name.startswith("_") and name not in vars(cls)]
        for name in names:
            if hasattr(cls.__base__, name) and name not in cls.annotated:
                raise TypeError(
                    f"{cls.__qualname__}.{name}: a transaction has a {name} of its own; use tx[{name!r}], or give the "
                    "resource another name"
                )
            setattr(cls, name, _ResourceAttribute(name))
        cls.annotated = (*cls.annotated, *names)

    def __repr__(self) -> str:
        return f"<Transaction {self} {self.status.value}>"

    def __str__(self) -> str:
        return str(self._live)

    # --- what it is -----------------------------------------------------------------------------------------

    @property
    def gtrid(self) -> bytes:
        """The identifier that its branches have in common."""
        return self._live.gtrid

    @property
    def status(self) -> GlobalState:
        """The state of the transaction."""
        return self._live.status

    @property
    def outcome(self) -> Outcome | None:
        """What it came to; None: it is not completed."""
        return self._live.outcome

    @property
    def is_over(self) -> bool:
        """Whether it is completed or being completed, so that the application can do nothing with it any more."""
        return self._live.is_over

    @property
    def suspended(self) -> bool:
        """Whether it is suspended."""
        return self._live.suspended

    @property
    def expired(self) -> bool:
        """Whether it was rolled back because it took too long."""
        return self._live.expired

    @property
    def timeout_s(self) -> float:
        """How long it may take."""
        return self._live.timeout_s

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of the enlisted resources, in the order of their enlistment."""
        return self._live.resources

    def xid(self, name: str) -> Xid:
        """The xid of the branch that the resource `name` has in this transaction; KeyError when it has none."""
        return self._live.enlisted[name].branch.xid

    # --- resources ------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        """The native interface of the resource `name`, which is enlisted if it is not yet."""
        live = self._live
        session = live.enlisted.session(name)
        if session is not None and live.state is _ACTIVE:
            return session
        return self.enlist(name)

    def enlist(self, name: str) -> Any:
        """Makes the work that is done through the returned native interface part of this transaction.

        To enlist again resumes a suspended association, and joins the branch of an ended one. RolledBack: the resource
        could not take part, and the transaction is rollback-only. ProtocolMisuse: the transaction is not active.
        """
        live = self._live
        if interruptible():
            signals = DeferredSignals(live, live.manager.uninterrupted.break_off)
            try:
                signals.begin()
                return live.enlist(name)
            finally:
                signals.end()
        return live.enlist(name)

    @overload
    async def aenlist(self, name: str) -> Any: ...

    @overload
    async def aenlist(self, name: T) -> T: ...

    async def aenlist(self, name: Any) -> Any:
        """`enlist` for tasks: where it may have to wait, in a worker thread. If the task is cancelled, it is finished
        first. `name` may be the attribute of the transaction's class, `Shop.shop`, whose type the interface has."""
        name = resource_name(name)
        live = self._live
        if not live.guard.is_held:
            with suppress(WouldWait):
                return live.manager.uninterrupted.run(live, partial(live.enlist, name, waits=False))
        return await finish_in_thread(lambda: self.enlist(name))

    def delist(self, name: str, how: DelistHow = "success") -> None:
        """Ends the association with a resource ("success", "fail"), or suspends it ("suspend"). "fail" makes the
        transaction rollback-only. So does an error, which raises RolledBack if `how` is "success"."""
        live = self._live
        live.manager.uninterrupted.run(live, lambda: live.delist(name, how))

    # --- marks and synchronizations ---------------------------------------------------------------------------

    def set_rollback_only(self, reason: str = "the application asked for it") -> None:
        """Lets the transaction only be rolled back from now on."""
        live = self._live
        live.manager.uninterrupted.run(live, lambda: live.set_rollback_only(Reason(None, reason)))

    def register_synchronization(
        self,
        before: Callable[[], object] | None = None,
        after: Callable[[Outcome], object] | None = None,
    ) -> None:
        """Calls `before` when commit is asked for, while work is still possible; an exception in it makes the
        transaction rollback-only. Calls `after` with the outcome; an exception in it is logged."""
        live = self._live
        live.check_process()
        live.check_active("register a synchronization")
        if before is not None:
            live.before.append(before)
        if after is not None:
            live.after.append(after)

    # --- completion -------------------------------------------------------------------------------------------

    def commit(self, *, wait: Literal["completed", "logged"] = "completed") -> None:
        """Commits. Returns when everything is committed; raises one of `tm.errors` otherwise.

        `wait="logged"` returns when the decision is durable; the branches are committed in the background, or before it
        returns where too many transactions are there already. What comes of that is in the log and in `outcome`.
        """
        live = self._live
        if live.lent is not None:
            self._refuse_to_borrower("commit")
        if live.before and live.state is _ACTIVE:
            self._run_before()
        stops_at_decision = wait == "logged"
        manager = live.manager
        signals = manager.uninterrupted.signals(live)

        try:
            signals.begin()
            live.calls_after = True
            stopped = manager.executor.run(live, live.guard, partial(live.begin_commit, stops_at_decision))
        finally:
            self._leave(signals)
        if not stopped:
            live.raise_outcome(asked_for=_COMMITTED)

    def rollback(self) -> None:
        """Rolls back, whether suspended or not; returns when that is done. Raises only if a resource has committed on
        its own. A transaction that was rolled back already because it took too long is as asked."""
        self._roll_back(sys.exception())

    def _roll_back(self, error: BaseException | None) -> None:
        """Rolls back, for this error, which is being handled."""
        live = self._live
        if live.lent is not None and live.lent is not HandlerState.FAILED:
            self._refuse_to_borrower("rollback")
        manager = live.manager
        signals = manager.uninterrupted.signals(live)
        try:
            signals.begin()
            live.calls_after = True
            manager.executor.run(live, live.guard, partial(live.begin_wanted_rollback, error))
        finally:
            self._leave(signals)
        live.raise_outcome(asked_for=Verdict.ROLLED_BACK)

    async def acommit(self) -> None:
        """`commit` for tasks: it waits in a worker thread. If the task is cancelled, it is finished first."""
        if self._live.lent is not None:
            self._refuse_to_borrower("commit")
        try:
            await finish_in_thread(self.commit)
        finally:
            self._live.manager.detach(self._live)

    async def arollback(self) -> None:
        """`rollback` for tasks: it waits in a worker thread. If the task is cancelled, it is finished first."""
        if self._live.lent is not None and self._live.lent is not HandlerState.FAILED:
            self._refuse_to_borrower("rollback")
        try:
            await finish_in_thread(partial(self._roll_back, sys.exception()))
        finally:
            self._live.manager.detach(self._live)

    def _refuse_to_borrower(self, what: str) -> NoReturn:
        """The consumer completes this transaction, with the consumption of all messages in it."""
        self._live.check_process()
        lent = self._live.lent
        if lent is HandlerState.TO_HANDLER:
            self._live.lent = HandlerState.MISUSED
        why = "" if lent is None else lent.value
        raise ProtocolMisuse(
            f"no {what} in a handler: the consumer completes transaction {self}, with all messages in it; {why}. "
            "Raise, or call set_rollback_only(), where the messages are not handled"
        )

    def _run_before(self) -> None:
        live = self._live
        while live.before:
            try:
                live.before.pop(0)()  # once, because it may register others and may commit itself
            except BaseException as error:
                reason = Reason(None, f"before completion: {type(error).__name__}: {error}")
                live.manager.uninterrupted.run(live, lambda: live.mark_if_active(reason))  # noqa: B023 — called at once
                if not isinstance(error, Exception):
                    self.rollback()
                    raise
                return

    def _leave(self, signals: DeferredSignals) -> None:
        """Ends the commit or rollback: signals are handled, and a transaction that is over calls its callbacks, which
        may be interrupted, and is taken off the calling context."""
        live = self._live
        live.calls_after = False
        try:
            signals.end()
        finally:
            if live.state in OVER:
                if live.after:
                    live.call_after()
                live.manager.detach(live)

    # --- blocks -----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._live.check_process()
        if self._live.lent is not None:
            self._refuse_to_borrower("block")
        self._live.block = WithBlock() if interruptible() else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live.is_inherited:
            self._leave_inherited(error)
        elif self._live.state in OVER:
            self._leave_block(error)
        elif error is None and not self.suspended:
            self.commit()
        elif kind is GeneratorExit:
            self._roll_back_elsewhere()
        else:
            self.rollback()
            self._check_left(error)

    async def __aenter__(self) -> Self:
        self._live.check_process()
        if self._live.lent is not None:
            self._refuse_to_borrower("block")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live.is_inherited:
            self._leave_inherited(error)
        elif self._live.state in OVER:
            self._leave_block(error)
        elif error is None and not self.suspended:
            await self.acommit()
        elif kind is GeneratorExit:  # a coroutine that is closed can't wait for anything
            self._roll_back_elsewhere()
        else:
            await self.arollback()
            self._check_left(error)

    def _roll_back_elsewhere(self) -> None:
        """Rolls back on a thread of its own, for the block of a generator or coroutine that is closed. The garbage
        collector may close it on any thread, at a moment at which that one holds any lock, so that the rollback is
        not waited for longer than a moment."""
        live = self._live
        try:
            live.manager.uninterrupted.run_for(
                CLOSED_S, live, partial(live.manager.executor.run, live, live.guard, live.begin_wanted_rollback)
            )
        except CallStillRunning:
            logger.warning("%s: the generator that it was begun in was closed; its rollback goes on", self)
        finally:
            if self.is_over:
                self._live.manager.detach(self._live)
        self._live.raise_outcome(asked_for=Verdict.ROLLED_BACK)

    def _leave_inherited(self, error: BaseException | None) -> None:
        """The end of a block in a fork of the process that has the transaction. An error, or the end of the process, is
        the child's own, and goes on with a note."""
        if error is None:
            self._live.check_process()
        else:
            error.add_note(INHERITED)

    def _leave_block(self, error: BaseException | None) -> None:
        """The end of a block whose transaction is completed already: by the block itself, or because it took too
        long."""
        self._live.manager.detach(self._live)
        if error is None and self.expired:
            self._live.raise_outcome(asked_for=Verdict.COMMITTED)

    def _check_left(self, error: BaseException | None) -> None:
        if error is None:
            raise ProtocolMisuse(f"transaction {self} was left suspended at the end of its block, and was rolled back")


live_of: Final[Callable[[Transaction], GlobalTransaction]] = attrgetter("_live")
"""The transaction behind one of the application's, for the manager and for consumers."""
