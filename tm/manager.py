"""Manager: begins transactions, drives their completion, recovers what was left in doubt.

It opens its decision log and its resources and runs one recovery pass. Then it starts two threads: one recovers again
and again, one rolls back what takes too long. A manager starts even if a resource can't be reached.

Applications make a `TransactionManager` (`tm.transaction_manager`), which adds what is declared over a manager:
consumers, transactional functions, telemetry and pages. Those parts know a `Manager` only.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast
from weakref import WeakSet

from tm.concurrency.deferred_signals import interruptible
from tm.concurrency.reaper import Reaper
from tm.concurrency.uninterrupted import UninterruptedCalls
from tm.concurrency.with_block import WithBlock
from tm.errors import ManagerUnusable, ProtocolMisuse, TransactionError
from tm.global_transaction import GlobalTransaction
from tm.log import LogError
from tm.log.factory import open_log
from tm.options import SECONDS, misfit
from tm.outcome import named
from tm.recovery.lease import Lease
from tm.recovery.ownership import ownership_of
from tm.recovery.service import RecoveryService
from tm.resources import ConfigurationError, Resource, ResourceConfig
from tm.resources.blocking_ports import BlockingPorts
from tm.resources.registrar import DynamicRegistrar
from tm.sequences import Sequences
from tm.transaction import live_of
from tm.two_phase.executor import Executor
from tm.two_phase.states import FINAL
from xa import ThreadOfControl, XaError, check_node, entered, switch_control
from xa.fork import belongs_to_this_process
from xa.gtrid import incarnation_prefix
from xa.lease import since_boot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from typing_extensions import TypeVar as DefaultTypeVar

    from tm.log import DecisionLog
    from tm.recording import Received, Recording
    from tm.recovery import Report
    from tm.recovery.ownership import Ownership
    from tm.transaction import Transaction
    from tm.two_phase.ports import Ports
    from xa.telemetry.exposition import Exposition, NoExporter

logger = logging.getLogger("xabridge.tm")

FORKED: Final = (
    "this process is a fork of the one that opened this transaction manager, whose connections, lease and threads "
    "stay with that one: open a transaction manager after the fork, in each process"
)
LEFT_S: Final = 0.5
"""How long a consumer may leave the answers to a commit; then the reaper waits for them."""
_T = TypeVar("_T")

if TYPE_CHECKING:
    Tx = DefaultTypeVar("Tx", bound=Transaction, default=Transaction)
    Tx_co = DefaultTypeVar("Tx_co", bound=Transaction, default=Transaction, covariant=True)
else:
    Tx_co = TypeVar("Tx_co", covariant=True)


class ManagedConsumer(Protocol):
    """The interface of a consumer that its manager uses."""

    def stop(self, timeout_s: float | None = None) -> bool:
        """Finishes what runs, for so long at most, and begins nothing; whether everything was finished."""
        ...


class _Entered:
    """The transaction of a context, and what the context had before it."""

    __slots__ = ("live", "outer", "outer_control", "span", "transaction")
    live: GlobalTransaction
    transaction: Transaction
    outer: _Entered | None
    outer_control: ThreadOfControl | None
    span: Any
    """What the recorder needs to leave the transaction's span; None: there is none."""


class Manager(Generic[Tx_co]):
    """A transaction manager of one node. Safe to use from many threads and tasks. Its parameters are those of
    `TransactionManager`; `recording` makes its telemetry. It is complete when it is made, and works from `_open` on."""

    exposition: Exposition | NoExporter | None = None
    """The metrics that its pages show, or why they show none."""

    def __init__(
        self,
        node: str,
        log: str | DecisionLog | None,
        resources: Mapping[str, str | ResourceConfig],
        *,
        transaction: type[Transaction],
        timeout_s: float,
        decider: str | None,
        recovery_interval_s: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        recording: Callable[[], Recording | None],
    ) -> None:
        self.node = _configured(check_node, node)
        _check_seconds(timeout_s=timeout_s, recovery_interval_s=recovery_interval_s)
        self._recorder = recorder = recording()
        self.timeout_s = timeout_s
        self._recovery_interval_s = recovery_interval_s
        self._clock = clock
        self._live: dict[bytes, GlobalTransaction] = {}
        self._current: ContextVar[_Entered | None] = ContextVar(f"xabridge_transaction_{node}")
        self._resources: dict[str, Resource] = {}
        self._registrar = DynamicRegistrar(self._resources, self._current_live)
        self._configure(resources, clock)
        self._transaction = self._check_annotated(transaction)
        self._decider = self._choose_decider(decider, log)
        self._log = _opened(log, node)
        self._closed = False
        self._consumers: WeakSet[ManagedConsumer] = WeakSet()
        self._unusable: str | None = None
        self._sequences = Sequences(clock)

        self._lease = self._make_lease(clock)
        ports: Ports = BlockingPorts(self._resources, self._log, sleep, self._holds)
        self._prefix: bytes | None = None
        self._recovery = RecoveryService(
            self._resources,
            self._log,
            ports,
            self._live,
            self._ownership,
            recorder.recovered if recorder is not None else None,
            clock=clock,
            sequences=self._sequences,
        )
        if recorder is not None:
            ports = recorder.ports(ports)
        self.executor = Executor(
            self._live, self._sequences, ports, self._recovery.unfinished.add, self._recovery.wake, recorder
        )
        self._reaper = Reaper(self._live, clock, self._note_bounds)
        self.uninterrupted = UninterruptedCalls(self._break_off)
        """The runner for code that no signal handler may interrupt."""
        belongs_to_this_process(self)

    def _open(self) -> None:
        """Opens the resources, as far as they can be reached, and recovers."""
        for resource in self._resources.values():
            try:
                resource.reopen()
            except XaError as error:
                logger.warning("%s could not be opened: %s", resource.name, error)
        self._recovery.run_once()

    def _start(self) -> None:
        """Starts the threads."""
        self._recovery.start(self._recovery_interval_s)
        self._reaper.start()
        if self._lease is not None:
            self._lease.keep()

    # --- configuration --------------------------------------------------------------------------------------

    def _configure(self, resources: Mapping[str, str | ResourceConfig], clock: Callable[[], float]) -> None:
        measured = self._recorder.resource if self._recorder is not None else None
        for rmid, (name, config) in enumerate(resources.items(), start=1):
            if isinstance(config, str):
                config = ResourceConfig(config)  # noqa: PLW2901 — the short form of the same
            self._resources[name] = Resource(name, rmid, config, self._registrar, clock, measured)

    def _check_annotated(self, transaction: type[Transaction]) -> type[Transaction]:
        for name in transaction.annotated:
            if name not in self._resources:
                known = ", ".join(self._resources) or "none"
                raise ConfigurationError(
                    f"{transaction.__qualname__}.{name}: no resource of that name is configured (configured: {known})"
                )
        return transaction

    def _choose_decider(self, decider: str | None, log: str | DecisionLog | None) -> str | None:
        deciders = [resource.name for resource in self._resources.values() if resource.decides]
        if decider is None and len(deciders) > 1:
            raise ConfigurationError(
                f'decider: {" and ".join(deciders)} are both configured as mode = "decider": '
                'say which decides (decider = "…")'
            )
        if decider is not None and decider not in deciders:
            having = f"there is {' and '.join(deciders)}" if deciders else 'give it mode = "decider"'
            raise ConfigurationError(f'decider: "{decider}": no resource of that name has mode = "decider"; {having}')
        if not deciders and log is None:
            raise ConfigurationError(
                'log: there is no log: say where decisions are kept (log = "file:///folder"), or which resource decides'
            )
        return decider or (deciders[0] if deciders else None)

    def _make_lease(self, clock: Callable[[], float]) -> Lease | None:
        """The lease at the resource that decides; it is not held yet. Its clock must go on while the machine is
        suspended."""
        if self._decider is None:
            return None
        decider = self._resources[self._decider]
        return Lease(self.node, decider, self._sequences, since_boot if clock is time.monotonic else clock)

    def _holds(self, sequence: int) -> bool:
        """Whether the lease has been held since the transaction of this number began; for the ports of a commit."""
        return self._lease is not None and self._lease.held(sequence)

    def _ownership(self) -> Ownership:
        own = b"" if self._lease is None else self._lease.owner.incarnation
        return ownership_of(self.node, self._log, self._resources, own)

    def resource(self, name: str) -> Resource:
        """The resource `name`; ProtocolMisuse when none is configured under it."""
        resource = self._resources.get(name)
        if resource is None:
            known = ", ".join(self._resources) or "none"
            raise ProtocolMisuse(f"no resource {name!r} is configured (configured: {known})")
        return resource

    @property
    def resources(self) -> Mapping[str, Resource]:
        """Every configured resource by its name."""
        return self._resources

    @property
    def trouble(self) -> tuple[str, ...]:
        """What keeps it from work, or will: it is closed or can't decide, recovery has not run, a resource could not
        be reached."""
        found = [] if self._unusable is None else [self._unusable]
        if self.executor.log_stopped:
            found.append("the log has stopped")
        report = self.last_report
        if report is None:
            found.append("recovery has not run")
        else:
            found += (f"{name} could not be reached" for name in report.unreachable)
        return tuple(found)

    @property
    def active(self) -> int:
        """How many transactions are under way, those that wait for a message included."""
        return len(self._live)

    @property
    def live(self) -> tuple[GlobalTransaction, ...]:
        """The transactions that are under way."""
        return tuple(self._live.values())

    @property
    def log(self) -> DecisionLog | None:
        """The decision log, where no resource decides."""
        return self._log

    @property
    def decider(self) -> str | None:
        """The name of the resource that decides, where one does."""
        return self._decider

    def at_work_outside(self) -> bool:
        """Whether a resource that registers itself is at work for the calling thread of control outside any
        transaction."""
        return self._registrar.at_work_outside()

    # --- transactions ---------------------------------------------------------------------------------------

    def begin(self, timeout_s: float | None = None, *, waits: bool = False) -> Tx_co:
        """Begins a transaction. It is the current one of the calling context until it is completed or suspended.
        `waits`: it waits for work, as that of a consumer does; its rollback is not logged unless `has_work` was
        called."""
        if self._unusable is not None or self.executor.log_stopped:
            self.check_usable()
        outer = self._current.get(None)
        while outer is not None and not outer.live.suspended:
            if not outer.live.is_over and not outer.live.end_if_left():
                raise ProtocolMisuse(
                    f"transaction {outer.live} is active in this context: complete or suspend it before you begin "
                    "another"
                )
            self.detach(outer.live)  # it was completed in another context, or its end was interrupted
            outer = self._current.get(None)
        if timeout_s is None:
            timeout_s = self.timeout_s
        elif not isinstance(timeout_s, int | float) or not timeout_s > 0:
            raise ProtocolMisuse(misfit("timeout_s", SECONDS, timeout_s))

        prefix = self._prefix or self.uninterrupted.run("begin", self._begin_prefix)
        sequence = self._sequences.take()
        gtrid = prefix + sequence.to_bytes(8, "big")
        if sequence >= self._sequences.ceiling:
            self._extend(gtrid, sequence)
        block = WithBlock() if interruptible() else None
        live = GlobalTransaction(self, gtrid, self._clock(), timeout_s, self._decider, waits=waits, block=block)
        transaction = cast("Tx_co", self._transaction(live))
        entered = _Entered()
        entered.live, entered.transaction = live, transaction
        entered.outer, entered.outer_control, entered.span = outer, None, None
        try:
            self._live[gtrid] = live
            if self._recorder is not None and not waits:
                self._recorder.began(gtrid)
                entered.span = self._recorder.enter(gtrid)
            entered.outer_control = switch_control(live.control)
            self._current.set(entered)
        except BaseException:  # interrupted: no caller has it
            self._live.pop(gtrid, None)
            self._sequences.over(gtrid)
            self._leave_span(entered)
            if entered.outer_control is not None:
                switch_control(entered.outer_control)
            if self._current.get(None) is entered:
                self._current.set(outer)
            raise
        return transaction

    def has_work(self, transaction: Transaction, received: Received | None = None) -> None:
        """The current transaction, which waited for work, has some now, and is one as any other from here on.
        `received`: messages of a consumer."""
        live_of(transaction).waits = False
        if self._recorder is not None:
            self._recorder.began(transaction.gtrid, received)
            entered = self._current.get(None)
            if entered is not None and entered.transaction is transaction:
                entered.span = self._recorder.enter(transaction.gtrid)

    def check_usable(self) -> None:
        """Raises ManagerUnusable if nothing can be decided any more. After a failure of the log, the log is asked again
        before another transaction depends on it."""
        if self._unusable is not None:
            raise ManagerUnusable(self._unusable)
        try:
            if self._log is not None:
                self.uninterrupted.run("begin", self._log.decisions)
        except LogError as error:
            raise ManagerUnusable(
                f"the decision log can't decide any more: {error}. Remove the cause, then restart this process; "
                "recovery will find out what is decided."
            ) from error
        self.executor.log_stopped = False

    def answers_due(self) -> float:
        """Until when the answers to a transaction's commit may be left."""
        return self._clock() + LEFT_S

    def _begin_prefix(self) -> bytes:
        """The prefix of this incarnation's gtrids. It is known as soon as the log or the decider is open, and has noted
        the incarnation durably."""
        if self._lease is None:
            assert self._log is not None  # noqa: S101 — as the constructor checked
            place, incarnation = self._log.log_id, self._noted()
        else:
            resource = self._resources[self._lease.resource]
            try:
                self._lease.take()
            except XaError as error:
                raise ManagerUnusable(
                    f"{resource.name} decides, and can't be used: {error.message}. Try again when it is back."
                ) from error
            place, incarnation = resource.decider.decider_id, self._lease.owner.incarnation
        self._prefix = incarnation_prefix(self.node, place, incarnation)
        return self._prefix

    def _noted(self) -> bytes:
        assert self._log is not None  # noqa: S101 — as above
        try:
            return self._log.incarnation
        except LogError as error:
            raise ManagerUnusable(f"the decision log can't note this incarnation: {error}. Try again later.") from error

    def _extend(self, gtrid: bytes, sequence: int) -> None:
        """Has it noted that transactions up to this sequence begin."""
        try:
            self.uninterrupted.run("begin", lambda: self._sequences.extend(sequence, self._note_ceiling))
        except BaseException as error:
            self._sequences.over(gtrid)
            if isinstance(error, LogError | XaError):
                raise ManagerUnusable(f"no more transactions can be noted: {error}. Try again later.") from error
            raise

    def _note_ceiling(self, ceiling: int) -> None:
        if self._lease is not None:
            self._lease.take(ceiling)
        elif self._log is not None:
            self._log.note_ceiling(ceiling)

    def get_transaction(self) -> Tx_co:
        """The calling context's transaction; ProtocolMisuse when it has none."""
        transaction = self.current_or_none()
        if transaction is None:
            self.check_unforked()
            raise ProtocolMisuse("no transaction is active in this context: begin one first")
        return transaction

    def current_or_none(self) -> Tx_co | None:
        """The calling context's transaction, if it has one that is neither suspended nor completed."""
        entered = self._current.get(None)
        if entered is None or entered.live.suspended or entered.live.is_over:
            return None
        return cast("Tx_co", entered.transaction)

    def _current_live(self) -> GlobalTransaction | None:
        transaction = self.current_or_none()
        return None if transaction is None else live_of(transaction)

    def __getitem__(self, name: str) -> Any:
        """The native interface of the resource `name` in the calling context's transaction."""
        return self.get_transaction()[name]

    def suspend(self) -> Tx_co:
        """Suspends the associations of the current transaction, and takes it off the calling context."""
        transaction = self.get_transaction()
        live = live_of(transaction)
        live.manager.uninterrupted.run(live, live.suspend)
        self.detach(live)
        return transaction

    def resume(self, transaction: Transaction) -> None:
        """Makes a suspended transaction the current one of the calling context, in this thread or another. RolledBack:
        a resource could not be resumed; the transaction is the current one, and rollback-only."""
        live = live_of(transaction)
        uninterrupted = live.manager.uninterrupted  # first, as a fork of its process hears that it is one
        current = self.current_or_none()
        if current is not None:
            raise ProtocolMisuse(f"transaction {current} is active in this context: suspend it first")

        is_free = live.is_resumable  # otherwise it may be another context's
        try:
            uninterrupted.run(live, live.resume)
        finally:
            if is_free and not live.suspended:
                outer = self._current.get(None)
                entered = _Entered()
                entered.live, entered.transaction, entered.span = live, transaction, None
                entered.outer = None if outer is None or outer.live is live or outer.live.status in FINAL else outer
                self._current.set(entered)
                entered.outer_control = switch_control(live.control)
                if self._recorder is not None:
                    entered.span = self._recorder.enter(live.gtrid)

    def _leave_span(self, entered: _Entered) -> None:
        if entered.span is not None and self._recorder is not None:
            self._recorder.leave(entered.span)

    def detach(self, transaction: GlobalTransaction) -> None:
        """Notes that the transaction is completed or suspended, and no longer the calling context's."""
        entered = self._current.get(None)
        if entered is not None and entered.live is transaction:
            self._current.set(entered.outer)
            switch_control(entered.outer_control)
            self._leave_span(entered)

    def has_consumer(self, consumer: ManagedConsumer) -> None:
        """Notes a consumer, which is to be stopped before the manager is closed."""
        self._consumers.add(consumer)

    @property
    def recorder(self) -> Recording | None:
        """The recorder of this manager's telemetry, if it is configured."""
        return self._recorder

    @property
    def recovery(self) -> RecoveryService:
        """What makes the recovery passes."""
        return self._recovery

    def wait_for_completions(self) -> None:
        """Waits for the end of the rollbacks that go on in the background, of blocks in generators that were closed."""
        self.uninterrupted.wait()

    def _break_off(self) -> None:
        """Breaks the connections of every resource, because a caller does not want to wait for them any longer."""
        for resource in self._resources.values():
            resource.break_off()

    # --- recovery and shutdown --------------------------------------------------------------------------------

    @property
    def last_report(self) -> Report | None:
        """The report of the latest recovery pass."""
        return self._recovery.last_report

    def recover(self) -> Report:
        """Runs one recovery pass now, over every resource manager, whether its back-off has passed or not. Transactions
        whose `with` block an interruption has left before `__exit__` could begin are rolled back first."""
        self.check_unforked()
        return self.uninterrupted.run("recovery", self._recover)

    def _recover(self) -> Report:
        for transaction in tuple(self._live.values()):
            transaction.end_if_left()
        return self._recovery.run_once(now=True)

    def forget(self, name: str, xid: Any) -> None:
        """Has the resource `name` forget a branch that it completed on its own, and drops the note of it."""
        self.check_unforked()
        resource = self.resource(name)
        self.uninterrupted.run("recovery", lambda: self._recovery.forget(resource, xid))

    def end_decision(self, gtrid: bytes, gone: Iterable[str] = ()) -> Report:
        """Ends, for an operator, the decision of a transaction that names resources which are not configured any more,
        so that no recovery pass could ever finish it. What the pass did that ended it.

        `gone` are the names of those resources: to say so is to say that they don't exist any more, or that their
        branches were committed by hand. ProtocolMisuse, and nothing is ended: one is not named in `gone`, is
        configured, or another branch can't be finished now; the message says which, with the xids.
        """
        self.check_unforked()
        return self.uninterrupted.run(named(gtrid), lambda: self._recovery.end_decision(gtrid, frozenset(gone)))

    def close(self, timeout_s: float = 10.0) -> None:
        """Stops taking transactions, waits for those under way (`timeout_s` at most), then closes resources and
        log. What is left in doubt is finished by the next start. In a fork of the process that opened it, nothing is
        closed: all of it is the parent's."""
        if not self._closed:
            self.uninterrupted.run("close", lambda: self._close(timeout_s))

    def forked(self) -> None:
        """This process is a child of the one that opened this manager. A lease, an incarnation and the connections are
        one process's, and its threads don't exist here. So nothing is begun, recovered or closed here."""
        self._unusable = FORKED
        self._closed = True
        for transaction in self._live.values():
            transaction.forked()
        self._live.clear()
        for resource in self._resources.values():
            resource.leave(FORKED)

    def _note_bounds(self) -> None:
        """Has the log note which transactions are over, and which may begin. Where a resource decides, its lease
        does."""
        if self._log is not None and self._lease is None:
            self._log.note_floor(self._sequences.floor())
            try:
                self._sequences.adjust(self._log.note_ceiling)
            except LogError as error:
                logger.info("the ceiling could not be noted: %s", error)

    def check_unforked(self) -> None:
        """Raises ManagerUnusable in a fork of the process that opened it."""
        if self._unusable is FORKED:
            raise ManagerUnusable(FORKED)

    def _close(self, timeout_s: float) -> None:
        self._closed = True
        for consumer in tuple(self._consumers):
            consumer.stop(timeout_s)
        self._unusable = "this transaction manager is closed"
        self._reaper.stop()
        deadline = time.monotonic() + timeout_s
        for transaction in tuple(self._live.values()):
            if transaction.is_left:
                with suppress(TransactionError):  # the log has it
                    transaction.finish()
        idle = threading.Event()
        while self._live and time.monotonic() < deadline:
            idle.wait(0.01)
        self._close_parts()

    def _close_parts(self) -> None:
        """Closes everything that transactions have used."""
        self.executor.stop()
        self._recovery.stop()
        for transaction in list(self._live.values()):
            logger.warning(
                "%s: still %s at shutdown; recovery will take care of it",
                transaction,
                transaction.status.value,
            )

        if self._lease is not None:
            self._lease.end()
        for resource in self._resources.values():
            with entered(ThreadOfControl()):  # this thread's own may be at work in one of its transactions
                resource.close()
        if self._log is not None:
            self._log.note_floor(self._sequences.floor())
            self._log.close()
        if self._recorder is not None:
            self._recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _configured(check: Callable[..., _T], *arguments: Any) -> _T:
    """check(*arguments); its ValueError is an error of the configuration."""
    try:
        return check(*arguments)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _opened(log: str | DecisionLog | None, node: str) -> DecisionLog | None:
    opened: DecisionLog | None = _configured(open_log, log, node) if isinstance(log, str) else log
    if opened is not None and opened.node != node:
        raise ConfigurationError(f"log: it is that of node {opened.node}, not of {node}: name one of its own")
    return opened


def _check_seconds(**seconds_of: float) -> None:
    """ConfigurationError: one of these settings is not a number of seconds."""
    for setting, seconds in seconds_of.items():
        if not SECONDS.fits(seconds):
            raise ConfigurationError(misfit(setting, SECONDS, seconds))
