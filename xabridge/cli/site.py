"""Site: what a configuration names, opened by an operator's command beside the transaction manager that may be at work.

Looking holds no lock: the decision log is read as it stands on disk, each resource manager is asked for what is in
doubt, all of them at once. A resource manager that can't be reached is reported, and does not hinder the others.

The log is read after the scan, so that a branch is shown as undecided only if it had no decision then.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from tm.log import LogError, LogMissing
from tm.log.factory import look_at_log, open_log
from tm.recovery.blocking import PAGE, at_work_in, decisions_in
from tm.recovery.ownership import ownership_of
from tm.recovery.service import RecoveryService
from tm.resources import ConfigurationError, Resource, ResourceConfig
from tm.two_phase.blocking import BlockingPorts
from xa import NULL_XID, TMNOFLAGS, TMSTARTRSCAN, AxCode, ThreadOfControl, XaError, entered
from xa.holdings import HoldingsReporting, InDoubtBranch
from xa.open_string import shown
from xabridge.cli.origins import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from tm.config import Configuration
    from tm.log import Decision, DecisionLog, LogImage
    from tm.recovery.blocking import PassProgress
    from tm.recovery.ownership import AtWork
    from xa import Xid
    from xabridge.cli.origins import Describe
    from xabridge.cli.progress import Progress

T = TypeVar("T")

AT_ONCE: Final = 16
"""Resource managers that are asked at a time."""


class NoWork:
    """The `xa.Registrar` of a command: no work is done through it."""

    def ax_reg(self, rmid: int, flags: int = 0) -> tuple[AxCode, Xid]:  # noqa: ARG002 — the contract's signature
        """Refused."""
        return AxCode.TMER_PROTO, NULL_XID

    def ax_unreg(self, rmid: int, flags: int = 0) -> AxCode:  # noqa: ARG002 — as above
        """Refused."""
        return AxCode.TMER_PROTO


@dataclass(frozen=True, slots=True)
class Scanned:
    """The branches in doubt of one resource manager. `tells`: it reported more than the xids."""

    branches: tuple[InDoubtBranch, ...]
    tells: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """A site as it was seen at one moment. `log` is None where there is none (yet), and the error where it can't be
    read; `deciding` are the resources that decide, `deciders` maps the id of each that was reached to its name,
    `decided` that name to its decisions; `unreachable` maps a resource's name to what kept it from being asked;
    `origins` know of branches that no application's transaction manager made; `at_work` are the other processes of this
    node, at each decider; `own` is the incarnation under which who looks begins transactions at a decider, if any."""

    node: str
    configured: tuple[str, ...]
    log: LogImage | LogError | None
    scanned: Mapping[str, Scanned]
    deciding: tuple[str, ...]
    deciders: Mapping[bytes, str]
    decided: Mapping[str, Mapping[bytes, Decision]]
    unreachable: Mapping[str, str]
    origins: tuple[Describe, ...] = ()
    at_work: AtWork = field(default_factory=lambda: MappingProxyType({}))
    own: bytes = b""


class Place(Protocol):
    """Where an operator looks and acts: a Site, or a transaction manager that runs (`xabridge.node`)."""

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

    def look(self) -> Seen:
        """Reads the branches in doubt and the decisions."""
        ...

    def read_log(self) -> LogImage | LogError | None:
        """The log as it is now; None where there is none, the error where it can't be read."""
        ...

    def holding_the_log(self) -> AbstractContextManager[DecisionLog | None]:
        """The log, in which nobody else decides about what is in doubt while the block lasts. None where a resource
        decides. LogError: it can't be had."""
        ...

    def recovery(self, log: DecisionLog | None, progress: PassProgress | None = None) -> RecoveryService:
        """What makes recovery passes, with the log in hand."""
        ...

    def close(self) -> None:
        """Closes what was opened for looking."""
        ...


class Scanner:
    """Asks all of `resources`, each in a thread.

    Each question has a thread of control of its own, which ends with it: a resource that it finds lost is not suspect
    to others because of it.
    """

    def __init__(self, node: str, resources: Mapping[str, Resource], progress: Progress, *, now: bool = True) -> None:
        self._node = node
        self._resources = resources
        self._progress = progress
        self._now = now
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="xabridge-site")

    def at_once(self, question: Callable[[Resource], T]) -> Iterator[T]:
        """The answers of the resource managers to `question`, in their order; all are asked at once."""

        def asked(resource: Resource) -> T:
            with entered(ThreadOfControl()):
                return question(resource)

        return self._threads.map(asked, list(self._resources.values()))

    def look(self, read_log: Callable[[], LogImage | LogError | None], own: bytes = b"") -> Seen:
        """What is in doubt; the log is read after the scan."""
        scanned: dict[str, Scanned] = {}
        decided: dict[str, dict[bytes, Decision]] = {}
        unreachable: dict[str, str] = {}
        asked = list(self._resources.values())
        with self._progress.step("asking", len(asked)) as done:
            answers = self.at_once(lambda resource: _scan(resource, now=self._now))
            for resource, answer in zip(asked, answers, strict=True):
                done(resource.name)
                if isinstance(answer, XaError):
                    unreachable[resource.name] = answer.message
                elif answer is not None:
                    scanned[resource.name] = answer
        reached = [resource for resource in asked if resource.decides and resource.name not in unreachable]
        at_work = {resource.name: at_work_in(resource, self._node) for resource in reached}
        log = read_log()
        for resource in reached:
            told = _decided(resource, self._node)
            if isinstance(told, str):
                unreachable[resource.name] = told
            else:
                decided[resource.name] = told
                scanned[resource.name] = Scanned((), tells=True)
        deciders = {self._resources[name].decider.decider_id: name for name in decided}
        deciding = tuple(resource.name for resource in asked if resource.decides)
        return Seen(
            self._node, tuple(self._resources), log, scanned, deciding, deciders, decided, unreachable, installed(),
            at_work, own,
        )  # fmt: skip

    def close(self) -> None:
        """Ends its threads."""
        self._threads.shutdown()


class Site:
    """The resource managers of `configuration`, made and not opened; ConfigurationError where that can't be."""

    def __init__(self, configuration: Configuration, progress: Progress) -> None:
        self.configuration = configuration
        self._progress = progress
        registrar = NoWork()
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

    def look(self) -> Seen:
        """Reads the branches in doubt and the decisions."""
        return self._scanner.look(self.read_log)

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
            return _checked(look_at_log, self.configuration.log, self.configuration.node)
        except LogMissing:
            return None
        except LogError as error:
            return error
        except OSError as error:
            return self._unreadable(error)

    def _unreadable(self, error: OSError) -> LogError:
        return LogError(f"{shown(self.configuration.log or '')}: it can't be opened: {error.strerror or error}")

    @contextmanager
    def holding_the_log(self) -> Iterator[DecisionLog | None]:
        """The log, opened as a transaction manager opens it: for the length of the block nobody else decides in it.
        None where a resource decides. LogError: it can't be opened; LogLocked names who holds it."""
        if self.configuration.log is None:
            if not any(resource.decides for resource in self.resources.values()):
                raise ConfigurationError('log: there is no log, and no resource decides: log = "file:///folder"')
            yield None
            return
        with self._progress.step("opening the decision log", 1):
            try:
                log = _checked(open_log, self.configuration.log, self.configuration.node)
            except OSError as error:
                raise self._unreadable(error) from error
        try:
            yield log
        finally:
            log.close()


def _checked(check: Callable[[str, str], T], url: str, node: str) -> T:
    try:
        return check(url, node)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _scan(resource: Resource, *, now: bool) -> Scanned | XaError | None:
    """The branches in doubt there; None for a decider, where nothing ever is. Runs in a thread of its own. `now`: it is
    tried whether its back-off has passed or not."""
    try:
        resource.reopen(now=now)
        if resource.decides:
            return None
        rm = resource.rm
        if isinstance(rm, HoldingsReporting):
            return Scanned(_all_pages(rm.in_doubt, resource.rmid, lambda branch: branch.xid), tells=True)
        xids = _all_pages(rm.recover, resource.rmid, lambda xid: xid)
        return Scanned(tuple(InDoubtBranch(xid) for xid in xids), tells=False)
    except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
        return resource.as_xa_error(raised, "recover")


def _all_pages(page_of: Callable[[int, int, int], Sequence[T]], rmid: int, xid_of: Callable[[T], Xid]) -> tuple[T, ...]:
    found: dict[Xid, T] = {}
    flags = TMSTARTRSCAN
    while True:
        page = page_of(rmid, flags, PAGE)
        before = len(found)
        found |= {xid_of(branch): branch for branch in page}
        if len(page) < PAGE or len(found) == before:  # the last page, or one that only repeats
            return tuple(found.values())
        flags = TMNOFLAGS


def _decided(resource: Resource, node: str) -> dict[bytes, Decision] | str:
    try:
        return decisions_in(resource, node)
    except ValueError as error:
        return f"its decisions can't be read: {error}"
    except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
        return resource.as_xa_error(raised, "decisions").message
