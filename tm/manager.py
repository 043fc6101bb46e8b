"""TransactionManager: begins transactions, drives their completion, recovers what was left in doubt.

It opens its decision log and its resources, runs one recovery pass, and then two threads: one that recovers
again, one that rolls back what takes too long. A resource that can't be reached keeps nothing from starting.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tm.completion import Completion
from tm.config import Configuration, configuration_from
from tm.effects import Call
from tm.log import LogError, LogStopped
from tm.log.opening import open_log
from tm.outcome import ManagerUnusable, Outcome, ProtocolMisuse, Reason, Verdict, named
from tm.performer import Performer
from tm.propagation import Propagation, transactional
from tm.reaper import Reaper
from tm.recoverer import Recoverer
from tm.recovery import Ownership
from tm.registrar import DynamicRegistrar
from tm.resources import ConfigurationError, Resource, ResourceConfig
from tm.states import FINAL, GlobalState
from tm.transaction import Transaction
from tm.verdicts import Verb
from xa import XaError, check_node, switch_control
from xa.gtrid import log_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from tm.completion import Steps
    from tm.effects import Effect
    from tm.log import DecisionLog
    from tm.recovery import Report

logger = logging.getLogger("xabridge.tm")

F = TypeVar("F", bound="Callable[..., Any]")


class TransactionManager:
    """A transaction manager of one node. Safe to use from many threads and tasks.

    `resources` maps names to open strings (URLs) or ResourceConfigs. `log` is a URL ("file:///folder",
    "sqlite:///file", "postgresql://…") or an open DecisionLog; it is left out when a resource decides.
    `decider` names the resource that decides, where more than one could.
    """

    def __init__(
        self,
        node: str,
        log: str | DecisionLog | None = None,
        resources: Mapping[str, str | ResourceConfig] | None = None,
        *,
        timeout_s: float = 60.0,
        decider: str | None = None,
        recovery_interval_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        background: bool = True,
    ) -> None:
        self.node = check_node(node)
        self.timeout_s = timeout_s
        self._clock = clock
        self._live: dict[bytes, Transaction] = {}
        self._current: ContextVar[Transaction | None] = ContextVar(f"xabridge_transaction_{node}")
        self._registrar = DynamicRegistrar(self)
        self._resources = self._configure(resources or {}, clock)
        self._decider = self._choose_decider(decider, log)
        self._log: DecisionLog | None = open_log(log, node) if isinstance(log, str) else log
        self._closed = False
        self._unusable: str | None = None
        self._doubtful = False
        self._performer = Performer(self._resources, self._log, sleep)
        self._sequence = itertools.count(1)
        self._prefix: bytes | None = None
        self._background = ThreadPoolExecutor(4, thread_name_prefix="xabridge-completion")
        self._recoverer = Recoverer(self._resources, self._log, self._performer, self._live, self._ownership)
        for resource in self._resources.values():
            try:
                resource.mend()
            except XaError as error:
                logger.warning("%s could not be opened: %s", resource.name, error)
        self._reaper = Reaper(self._live, clock)
        try:
            self._recoverer.run_once()
        except LogError:
            self._close_resources()
            raise
        if background:
            self._recoverer.start(recovery_interval_s)
            self._reaper.start()

    @classmethod
    def from_config(cls, path: str | Path = "xabridge.toml") -> TransactionManager:
        """A manager as the configuration file says; ConfigurationError names file, key and mend."""
        configuration: Configuration = configuration_from(path)
        return cls(
            configuration.node,
            configuration.log,
            configuration.resources,
            timeout_s=configuration.timeout_s,
            decider=configuration.decider,
            recovery_interval_s=configuration.recovery_interval_s,
        )

    # --- configuration --------------------------------------------------------------------------------------

    def _configure(
        self, resources: Mapping[str, str | ResourceConfig], clock: Callable[[], float]
    ) -> dict[str, Resource]:
        configured = {}
        for rmid, (name, config) in enumerate(resources.items(), start=1):
            if isinstance(config, str):
                config = ResourceConfig(config)  # noqa: PLW2901 — the short form of the same
            configured[name] = Resource(name, rmid, config, self._registrar, clock)
        return configured

    def _choose_decider(self, decider: str | None, log: str | DecisionLog | None) -> str | None:
        deciders = [resource.name for resource in self._resources.values() if resource.decides]
        if decider is None and len(deciders) > 1:
            raise ConfigurationError(
                f'{" and ".join(deciders)} are both configured as mode = "decider": say which decides (decider = "…")'
            )
        if decider is not None and decider not in deciders:
            raise ConfigurationError(f'decider = "{decider}": no resource of that name has mode = "decider"')
        if not deciders and log is None:
            raise ConfigurationError(
                'no log: say where decisions are kept (log = "file:///folder"), or which resource decides'
            )
        return decider or (deciders[0] if deciders else None)

    def _ownership(self) -> Ownership:
        deciders = {}
        for resource in self._resources.values():
            if resource.decides and resource.identity is not None:  # it was opened once, so that its id is known
                deciders[resource.decider.decider_id] = resource.name
        return Ownership(self.node, self._log.log_id if self._log is not None else b"", deciders)

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
    def log(self) -> DecisionLog | None:
        """The decision log, where no resource decides."""
        return self._log

    # --- transactions ---------------------------------------------------------------------------------------

    def begin(self, timeout_s: float | None = None) -> Transaction:
        """A new transaction, the current one of the calling context until it is completed or suspended."""
        if self._unusable is not None or self._doubtful:
            self._check_usable()
        outer = self._current.get(None)
        if outer is not None and not outer.suspended:
            if outer.status not in FINAL and outer.status is not GlobalState.COMMITTING:
                raise ProtocolMisuse(
                    f"transaction {outer} is active in this context: complete or suspend it before you begin another"
                )
            outer = outer.outer
        if timeout_s is None:
            timeout_s = self.timeout_s
        elif timeout_s <= 0:
            raise ProtocolMisuse(f"timeout_s is {timeout_s}: a transaction has more than 0 seconds")
        prefix = self._prefix or self._begin_prefix()
        gtrid = prefix + next(self._sequence).to_bytes(8, "big")
        transaction = Transaction(self, gtrid, self._clock(), timeout_s, self._decider)
        transaction.outer = outer
        self._live[gtrid] = transaction
        self._current.set(transaction)
        transaction.outer_control = switch_control(transaction.control)
        return transaction

    def _check_usable(self) -> None:
        """After the log told nothing any more: it is asked again, before another transaction depends on it."""
        if self._unusable is not None:
            raise ManagerUnusable(self._unusable)
        try:
            if self._log is not None:
                self._log.decisions()
        except LogError as error:
            raise ManagerUnusable(
                f"the decision log can't decide any more: {error}. Mend its cause, then start this process anew; "
                "recovery will find out what is decided."
            ) from error
        self._doubtful = False

    def _begin_prefix(self) -> bytes:
        """What the gtrids of this incarnation begin with: known once the place of the decisions is open."""
        if self._decider is None:
            assert self._log is not None  # noqa: S101 — as the constructor checked
            place, incarnation = self._log.log_id, self._log.incarnation
        else:
            resource = self._resources[self._decider]
            try:
                resource.mend()
            except XaError as error:
                raise ManagerUnusable(
                    f"{resource.name} decides, and can't be used: {error.message}. Try again when it is back."
                ) from error
            place, incarnation = resource.decider.decider_id, resource.decider.incarnation
        self._prefix = log_prefix(self.node, place) + incarnation.to_bytes(4, "big")
        return self._prefix

    def get_transaction(self) -> Transaction:
        """The calling context's transaction; ProtocolMisuse when it has none."""
        transaction = self.current_or_none()
        if transaction is None:
            raise ProtocolMisuse("no transaction is active in this context: begin one first")
        return transaction

    def current_or_none(self) -> Transaction | None:
        """The calling context's transaction, if it has one that is not suspended."""
        transaction = self._current.get(None)
        return transaction if transaction is not None and not transaction.suspended else None

    def __getitem__(self, name: str) -> Any:
        """The native interface of the resource `name` in the calling context's transaction."""
        return self.get_transaction()[name]

    def suspend(self) -> Transaction:
        """Takes the current transaction off the calling context, its associations suspended."""
        transaction = self.get_transaction()
        transaction.suspend_associations()
        switch_control(transaction.outer_control)
        return transaction

    def resume(self, transaction: Transaction) -> None:
        """Makes a suspended transaction the calling context's, in this thread or another."""
        if not transaction.suspended:
            raise ProtocolMisuse(f"transaction {transaction} is not suspended")
        current = self.current_or_none()
        if current is not None and current.status not in FINAL:
            raise ProtocolMisuse(f"transaction {current} is active in this context: suspend it first")
        self._current.set(transaction)
        transaction.outer_control = switch_control(transaction.control)
        transaction.resume_associations()

    def detach(self, transaction: Transaction) -> None:
        """For the transaction: it is completed, and no longer the calling context's."""
        if self._current.get(None) is transaction:
            self._current.set(transaction.outer)
            switch_control(transaction.outer_control)

    @overload
    def transactional(self, function: F) -> F: ...

    @overload
    def transactional(
        self,
        function: None = None,
        *,
        propagation: Propagation = Propagation.REQUIRED,
        rollback_on: tuple[type[BaseException], ...] = (BaseException,),
        timeout_s: float | None = None,
        retries: int = 0,
    ) -> Callable[[F], F]: ...

    def transactional(
        self,
        function: Callable[..., Any] | None = None,
        *,
        propagation: Propagation = Propagation.REQUIRED,
        rollback_on: tuple[type[BaseException], ...] = (BaseException,),
        timeout_s: float | None = None,
        retries: int = 0,
    ) -> Any:
        """Decorates a function or coroutine function to run in a transaction; see `tm.propagation`."""
        return transactional(
            self,
            function,
            propagation=propagation,
            rollback_on=rollback_on,
            timeout_s=timeout_s,
            retries=retries,
        )

    # --- completion -----------------------------------------------------------------------------------------

    def drive(self, transaction: Transaction, completion: Completion, steps: Steps, *, early: bool) -> None:
        """For the transaction: performs the steps of its completion, to the end or (`early`) to the commit point,
        from where a worker thread goes on. The transaction is live until the end."""
        perform = self._performer.perform
        answer: Any = None
        effect: Effect | None = None
        try:
            while True:
                effect = steps.send(answer)
                if early and completion.state is GlobalState.COMMITTING:
                    transaction.goes_on()
                    self._background.submit(self._go_on, transaction, completion, steps, effect)
                    return
                answer = perform(effect)
        except StopIteration as stop:
            outcome: Outcome = stop.value
        except BaseException as error:
            self._break_off(transaction, completion, effect, error)
            raise
        self._completed(transaction, outcome, completion.state)

    def _break_off(
        self, transaction: Transaction, completion: Completion, effect: Effect | None, error: BaseException
    ) -> None:
        """The calling thread was interrupted while `effect` was performed (KeyboardInterrupt, say). Before the
        decision everything is rolled back; from there on only recovery can tell."""
        undecided = isinstance(effect, Call) and effect.verb in (Verb.END, Verb.PREPARE)
        if not undecided:
            self._completed(transaction, _interrupted(completion, error), GlobalState.IN_DOUBT)
            return
        again = Completion(completion.gtrid, completion.branches, completion.associations, completion.decider)
        reason = Reason(None, f"its completion was interrupted by {type(error).__name__}")
        try:
            outcome = drive(again.rollback(reason), self._performer.perform)
        except BaseException as another:
            self._completed(transaction, _interrupted(completion, another), GlobalState.IN_DOUBT)
            raise
        self._completed(transaction, outcome, again.state)

    def _go_on(self, transaction: Transaction, completion: Completion, steps: Steps, effect: Any) -> None:
        switch_control(transaction.control)
        try:
            outcome = drive(_continued(steps, effect), self._performer.perform)
            self._completed(transaction, outcome, completion.state)
        except BaseException as error:
            logger.exception("%s: its completion in the background failed; recovery takes it", transaction)
            self._completed(transaction, _interrupted(completion, error), GlobalState.IN_DOUBT)
        finally:
            switch_control(None)

    def _completed(self, transaction: Transaction, outcome: Outcome, state: GlobalState) -> None:
        transaction.completed(outcome, state)
        del self._live[transaction.gtrid]
        if outcome.verdict is Verdict.COMMITTED:
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("%s: committed", transaction)
        else:
            self._tell(transaction, outcome)

    def _tell(self, transaction: Transaction, outcome: Outcome) -> None:
        because = "; ".join(map(str, outcome.reasons)) or "asked for"
        level = logging.INFO if outcome.verdict is Verdict.ROLLED_BACK else logging.ERROR
        logger.log(level, "%s: %s: %s", transaction, outcome.verdict.value, because)
        for branch in outcome.pending:
            logger.warning("%s: %s on %s is left to recovery", transaction, branch.xid, branch.resource)
        if outcome.pending:
            self._recoverer.wake()
        if any(isinstance(reason.said, LogStopped) for reason in outcome.reasons):
            self._doubtful = True

    # --- recovery and shutdown --------------------------------------------------------------------------------

    @property
    def last_report(self) -> Report | None:
        """What the latest recovery pass did."""
        return self._recoverer.last_report

    def recover(self) -> Report:
        """One recovery pass now, over every resource manager, back-off or not; what it did."""
        return self._recoverer.run_once(now=True)

    def forget(self, name: str, xid: Any) -> None:
        """Lets the resource `name` forget a branch that it completed on its own, and drops the note of it."""
        self._recoverer.forget(self.resource(name), xid)

    def close(self, timeout_s: float = 10.0) -> None:
        """Stops taking transactions, waits for those under way (`timeout_s` at most), then closes resources and
        log. What is left in doubt is finished by the next start."""
        if self._closed:
            return
        self._closed = True
        self._unusable = "this transaction manager is closed"
        self._reaper.stop()
        deadline = time.monotonic() + timeout_s
        idle = threading.Event()
        while self._live and time.monotonic() < deadline:
            idle.wait(0.01)
        self._background.shutdown(wait=True)
        self._recoverer.stop()
        for transaction in list(self._live.values()):
            logger.warning(
                "%s: still %s at shutdown; recovery will take care of it",
                transaction,
                transaction.status.value,
            )
        self._close_resources()

    def _close_resources(self) -> None:
        for resource in self._resources.values():
            resource.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def drive(steps: Steps, perform: Callable[[Effect], Any]) -> Outcome:
    """Performs the steps to their end."""
    answer: Any = None
    try:
        while True:
            answer = perform(steps.send(answer))
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome


def _continued(steps: Steps, effect: Effect) -> Steps:
    """`steps`, of which `effect` was taken already."""
    answer = yield effect
    try:
        while True:
            answer = yield steps.send(answer)
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome


def _interrupted(completion: Completion, error: BaseException) -> Outcome:
    """The outcome of a completion that was broken off: whatever is prepared is left to recovery."""
    logger.error("%s: completion was interrupted by %s", named(completion.gtrid), type(error).__name__)
    reason = Reason(None, f"its completion was interrupted by {type(error).__name__}: {error}")
    decided = True if completion.state is GlobalState.COMMITTING else None
    return Outcome(completion.gtrid, Verdict.UNKNOWN, decided, completion.branches, (), (reason,))
