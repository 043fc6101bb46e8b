"""Scan: what resource managers and the decision log say of branches in doubt at one moment.

No lock is held: each resource manager is asked for what is in doubt, all of them at once, and the decision log is read
as it stands. A resource manager that can't be reached is reported, and does not hinder the others. The log is read
after the scan, so that a branch is shown as undecided only if it had no decision then.

Some branches were made not by an application's transaction manager but by something built on one, a pipeline for
example. What is installed beside `tm` describes these by an entry point of the group `xabridge.origins`: a function
that takes an xid and answers with an Origin, or None for what it did not make.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from tm.log import LogError
from tm.recovery.blocking import PAGE, at_work_in, ceilings_in, decisions_in, incarnations_in
from tm.recovery.ownership import IN_LOG
from xa import TMNOFLAGS, TMSTARTRSCAN, ThreadOfControl, XaError, entered
from xa.holdings import HoldingsReporting, InDoubtBranch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from tm.log import Decision, LogImage
    from tm.recovery.ownership import AtWork, Ceilings, Floors
    from tm.resources import Resource
    from xa import NotedIncarnation, Xid
    from xabridge.operations.progress import Progress

    Describe: TypeAlias = "Callable[[Xid], Origin | None]"

T = TypeVar("T")

AT_ONCE: Final = 16
"""Resource managers that are asked at a time."""
GROUP: Final = "xabridge.origins"


@dataclass(frozen=True, slots=True)
class Origin:
    """In words: what the transaction is, what the branch is of it, and the command that tells more."""

    transaction: str
    branch: str
    command: str


def installed() -> tuple[Describe, ...]:
    """The functions of everything that is installed."""
    return tuple(entry.load() for entry in entry_points(group=GROUP))


def origin_of(xid: Xid, known: Sequence[Describe]) -> Origin | None:
    """The first answer; None where no one knows it."""
    return next((origin for describe in known if (origin := describe(xid)) is not None), None)


@dataclass(frozen=True, slots=True)
class ScannedResource:
    """The branches in doubt of one resource manager. `tells`: it reported more than the xids."""

    branches: tuple[InDoubtBranch, ...]
    tells: bool


@dataclass(frozen=True, slots=True)
class ScannedSite:
    """A site as it was seen at one moment. `log` is None where there is none (yet), and the error where it can't be
    read; `deciding` are the resources that decide, `deciders` maps the id of each that was reached to its name,
    `decided` that name to its decisions; `unreachable` maps a resource's name to what kept it from being asked;
    `origins` know of branches that no application's transaction manager made; `at_work` are the other processes of this
    node, at each decider; `own` is the incarnation under which who looks begins transactions at a decider, if any.
    `floors` say which transactions were over before the scan, and `ceilings` which had not begun after it; `worked_at`
    when this node was last known to be at work at a decider (seconds since 1970, by its clock)."""

    node: str
    configured: tuple[str, ...]
    log: LogImage | LogError | None
    scanned: Mapping[str, ScannedResource]
    deciding: tuple[str, ...]
    deciders: Mapping[bytes, str]
    decided: Mapping[str, Mapping[bytes, Decision]]
    unreachable: Mapping[str, str]
    origins: tuple[Describe, ...] = ()
    at_work: AtWork = field(default_factory=lambda: MappingProxyType({}))
    own: bytes = b""
    floors: Floors = field(default_factory=lambda: MappingProxyType({}))
    worked_at: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    ceilings: Ceilings = field(default_factory=lambda: MappingProxyType({}))


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

    def at_once(self, question: Callable[[Resource], T], resources: Iterable[Resource] | None = None) -> Iterator[T]:
        """The answers of the resource managers to `question`, in their order; all, or these, are asked at once."""

        def asked(resource: Resource) -> T:
            with entered(ThreadOfControl()):
                return question(resource)

        return self._threads.map(asked, list(self._resources.values() if resources is None else resources))

    def look(
        self,
        read_log: Callable[[], LogImage | LogError | None],
        own: bytes = b"",
        floors_in_log: Mapping[bytes, int] | None = None,
        silent: Collection[str] = (),
    ) -> ScannedSite:
        """What is in doubt. The log is read after the scan. Which transactions are over is read before it, from the log
        too, unless that is known (`floors_in_log`). Resources that are known to be `silent` are not asked."""
        scanned: dict[str, ScannedResource] = {}
        decided: dict[str, dict[bytes, Decision]] = {}
        unreachable = dict.fromkeys(silent, "it was not asked again")
        asked = [resource for resource in self._resources.values() if resource.name not in unreachable]
        with self._progress.step("asking", len(asked)) as done:
            floors, worked_at = self._look_at_deciders(unreachable, done)
            floors[IN_LOG] = _floors_in(read_log()) if floors_in_log is None else floors_in_log
            others = [resource for resource in asked if not resource.decides]
            answers = self.at_once(lambda resource: _scan(resource, now=self._now), others)
            for resource, answer in zip(others, answers, strict=True):
                done(resource.name)
                if isinstance(answer, XaError):
                    unreachable[resource.name] = answer.message
                else:
                    scanned[resource.name] = answer
        reached = [resource for resource in asked if resource.decides and resource.name not in unreachable]
        at_work = {resource.name: at_work_in(resource, self._node) for resource in reached}
        ceilings = {resource.name: ceilings_in(resource, self._node) for resource in reached}
        log = read_log()
        if log is not None and not isinstance(log, LogError):
            ceilings[IN_LOG] = log.incarnations.ceilings

        for resource in reached:
            decisions = _decided(resource, self._node)
            if isinstance(decisions, str):
                unreachable[resource.name] = decisions
            else:
                decided[resource.name] = decisions
                scanned[resource.name] = ScannedResource((), tells=True)

        deciders = {self._resources[name].decider.decider_id: name for name in decided}
        deciding = tuple(resource.name for resource in self._resources.values() if resource.decides)
        return ScannedSite(
            self._node, tuple(self._resources), log, scanned, deciding, deciders, decided, unreachable, installed(),
            at_work, own, floors, worked_at, ceilings,
        )  # fmt: skip

    def _look_at_deciders(
        self, unreachable: dict[str, str], done: Callable[[str], None]
    ) -> tuple[dict[str, Mapping[bytes, int] | XaError], dict[str, float]]:
        """The floors in each resource that decides, and when this node was last known to be at work there."""
        deciders = [
            resource for resource in self._resources.values() if resource.decides and resource.name not in unreachable
        ]
        floors: dict[str, Mapping[bytes, int] | XaError] = {}
        worked_at: dict[str, float] = {}
        answers = self.at_once(lambda resource: _noted(resource, self._node, now=self._now), deciders)
        for resource, noted in zip(deciders, answers, strict=True):
            done(resource.name)
            if isinstance(noted, XaError):
                unreachable[resource.name] = noted.message
                continue
            floors[resource.name] = {one.incarnation: one.floor for one in noted}
            if noted:
                worked_at[resource.name] = max(one.noted_s for one in noted)
        return floors, worked_at

    def close(self) -> None:
        """Ends its threads."""
        self._threads.shutdown()


def _floors_in(log: LogImage | LogError | None) -> Mapping[bytes, int]:
    return {} if log is None or isinstance(log, LogError) else log.incarnations.floors


def _noted(resource: Resource, node: str, *, now: bool) -> Sequence[NotedIncarnation] | XaError:
    """The incarnations that a resource which decides has noted. The rest is as for `_scan`."""
    try:
        resource.reopen(now=now)
    except XaError as error:
        return error
    return incarnations_in(resource, node)


def _scan(resource: Resource, *, now: bool) -> ScannedResource | XaError:
    """The branches in doubt there. Runs in a thread of its own. `now`: it is tried whether its back-off has passed or
    not."""
    try:
        resource.reopen(now=now)
        rm = resource.rm
        if isinstance(rm, HoldingsReporting):
            return ScannedResource(_all_pages(rm.in_doubt, resource.rmid, lambda branch: branch.xid), tells=True)
        xids = _all_pages(rm.recover, resource.rmid, lambda xid: xid)
        return ScannedResource(tuple(InDoubtBranch(xid) for xid in xids), tells=False)
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
