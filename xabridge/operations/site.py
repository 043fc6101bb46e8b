"""OperationsTarget: where an operator looks and acts.

- `Site` is what a configuration names, opened by a command beside the transaction manager that may be at work. Looking
  holds no lock (`xabridge.operations.scan`).
- `RunningNode` is a transaction manager that runs. It has the log open and recovers by itself, so that what is done
  here by hand is done beside both. Transactions under way are left out, because their own completion takes care of
  them. They are read after the scan and before the decisions, as in a recovery pass, so that a branch never seems to be
  undecided because its transaction has just been completed. No recovery pass runs while something is done by hand.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, TypeVar

from tm.log import LogError, LogImage, LogMissing
from tm.log.factory import look_at_log, open_log
from tm.recovery.ownership import ownership_of
from tm.recovery.service import RecoveryService
from tm.resources import ConfigurationError, Resource, ResourceConfig
from tm.resources.blocking_ports import BlockingPorts
from xa import ThreadOfControl, entered
from xa.resource_manager import RefusingRegistrar
from xabridge.operations.scan import ScannedResource, ScannedSite, Scanner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from tm.config import Configuration
    from tm.log import DecisionLog
    from tm.manager import Manager
    from tm.recovery.blocking import PassProgress
    from xabridge.operations.progress import Progress

T = TypeVar("T")


class OperationsTarget(Protocol):
    """Where an operator looks and acts: a Site, or a RunningNode."""

    @property
    def node(self) -> str:
        """The node."""
        ...

    @property
    def resources(self) -> Mapping[str, Resource]:
        """Its resources by name."""
        ...

    @property
    def has_the_log(self) -> bool:
        """Whether the log is open here all the time, so that nothing is done without it."""
        ...

    def look(self) -> ScannedSite:
        """Reads the branches in doubt and the decisions."""
        ...

    def read_log(self) -> LogImage | LogError | None:
        """The log as it is now; None where there is none, the error where it can't be read."""
        ...

    def holding_the_log(self) -> AbstractContextManager[DecisionLog | None]:
        """The log, in which no one else decides about what is in doubt while the block lasts. None where a resource
        decides. LogError: it can't be had."""
        ...

    def recovery(self, log: DecisionLog | None, progress: PassProgress | None = None) -> RecoveryService:
        """What makes recovery passes, with the log in hand."""
        ...

    def close(self) -> None:
        """Closes what was opened for looking."""
        ...


class Site:
    """The resource managers of `configuration`, made and not opened; ConfigurationError where that can't be."""

    def __init__(self, configuration: Configuration, progress: Progress) -> None:
        self.configuration = configuration
        self._progress = progress
        registrar = RefusingRegistrar()
        self.resources: dict[str, Resource] = {}
        for rmid, (name, config) in enumerate(configuration.resources.items(), start=1):
            wanted = ResourceConfig(config) if isinstance(config, str) else config
            self.resources[name] = Resource(name, rmid, wanted, registrar)
        self._scanner = Scanner(configuration.node, self.resources, progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the resource managers."""
        for resource in self.resources.values():
            if resource.identity is not None:
                with entered(ThreadOfControl()):
                    resource.close()
        self._scanner.close()

    @property
    def node(self) -> str:
        """The node of the configuration."""
        return self.configuration.node

    @property
    def has_the_log(self) -> bool:
        """It is opened for what needs it."""
        return False

    def look(self, silent: Collection[str] = ()) -> ScannedSite:
        """Reads the branches in doubt and the decisions. Resources that are known to be `silent` are not asked."""
        return self._scanner.look(self.read_log, silent=silent)

    def at_once(self, question: Callable[[Resource], T]) -> Iterator[T]:
        """The answers of the resource managers to `question`, in their order; all are asked at once."""
        return self._scanner.at_once(question)

    def recovery(self, log: DecisionLog | None, progress: PassProgress | None = None) -> RecoveryService:
        """What makes recovery passes, with the log in hand."""
        return RecoveryService(
            self.resources,
            log,
            BlockingPorts(self.resources, log),
            (),
            lambda: ownership_of(self.node, log, self.resources),
            progress=progress,
        )

    def read_log(self) -> LogImage | LogError | None:
        """The log as it stands on disk now; None where there is none, the error where it can't be read."""
        if self.configuration.log is None:
            return None
        try:
            image = _checked(look_at_log, self.configuration.log, self.node)
        except LogMissing:
            return None
        except LogError as error:
            return error
        if image.node != self.node:
            return LogError(f"the log is that of node {image.node}, not of {self.node}")
        return image

    @contextmanager
    def holding_the_log(self) -> Iterator[DecisionLog | None]:
        """The log, opened as a transaction manager opens it: for the length of the block no one else decides in it.
        None where a resource decides. LogError: it can't be opened; LogLocked names who holds it."""
        if self.configuration.log is None:
            if not any(resource.decides for resource in self.resources.values()):
                raise ConfigurationError('log: there is no log, and no resource decides: log = "file:///folder"')
            yield None
            return
        with self._progress.step("opening the decision log", 1):
            log = _checked(open_log, self.configuration.log, self.configuration.node)
        try:
            yield log
        finally:
            log.close()


def _checked(check: Callable[[str, str], T], url: str, node: str) -> T:
    try:
        return check(url, node)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


class RunningNode:
    """The `OperationsTarget` of `manager`."""

    def __init__(self, manager: Manager, progress: Progress) -> None:
        self._manager = manager
        self._scanner = Scanner(manager.node, manager.resources, progress, now=False)

    @property
    def node(self) -> str:
        return self._manager.node

    @property
    def resources(self) -> Mapping[str, Resource]:
        return self._manager.resources

    @property
    def has_the_log(self) -> bool:
        return True

    def look(self) -> ScannedSite:
        live: set[bytes] = set()

        def read_log() -> LogImage | LogError | None:
            live.update(one.gtrid for one in self._manager.live)
            return self.read_log()

        opened = self._manager.log
        floors = {} if opened is None else opened.incarnations.floors
        seen = self._scanner.look(read_log, self._manager.recovery.ownership.own, floors)
        log = seen.log
        if isinstance(log, LogImage):
            log = replace(log, decisions=tuple(one for one in log.decisions if one.gtrid not in live))
        return replace(
            seen,
            log=log,
            scanned={
                name: ScannedResource(
                    tuple(one for one in scanned.branches if one.xid.gtrid not in live), scanned.tells
                )
                for name, scanned in seen.scanned.items()
            },
            decided={
                name: MappingProxyType({gtrid: one for gtrid, one in decided.items() if gtrid not in live})
                for name, decided in seen.decided.items()
            },
        )

    def read_log(self) -> LogImage | LogError | None:
        log = self._manager.log
        if log is None:
            return None
        try:
            return LogImage(log.node, log.log_id, 0, log.incarnations, tuple(log.decisions()), tuple(log.heuristics()))
        except LogError as error:
            return error

    @contextmanager
    def holding_the_log(self) -> Iterator[DecisionLog | None]:
        with self._manager.recovery.paused():
            yield self._manager.log

    def recovery(self, log: DecisionLog | None, progress: PassProgress | None = None) -> RecoveryService:
        del log, progress  # the manager's has its own
        return self._manager.recovery

    def close(self) -> None:
        """Ends the threads. The resources are the manager's."""
        self._scanner.close()
