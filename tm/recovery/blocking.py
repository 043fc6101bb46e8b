"""BlockingRecoveryPorts: a recovery pass on resource managers and the decision log, for the calling thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from tm.log import Decision
from tm.log.decider_record import decode_branches
from tm.outcome import named
from tm.recovery.lease import is_gone
from tm.recovery.ownership import IN_LOG
from tm.recovery.ports import Decisions
from xa import TMENDRSCAN, TMNOFLAGS, TMSTARTRSCAN, Code, XaError, Xid, xa_error
from xa.gtrid import log_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from tm.log import Branch, DecisionLog, Heuristic, LogError
    from tm.log.incarnations import Incarnations
    from tm.recovery.messages import RecoveryMessages
    from tm.recovery.ownership import AtWork, Ceilings, Floors, Ownership
    from tm.recovery.ports import Scanned
    from tm.resources import Resource
    from tm.two_phase.ports import Answer, Ports
    from tm.two_phase.return_codes import Verb
    from xa import NotedIncarnation
    from xa.outcome_notes import BranchOutcome

PAGE: Final = 1000


class PassProgress(Protocol):
    """The callable that is called before each step of a pass."""

    def reads_decisions(self) -> None:
        """It reads the decisions."""
        ...

    def scans(self) -> None:
        """It scans the resource managers."""
        ...

    def asks(self, verb: Verb, branches: int) -> None:
        """It asks `verb` of so many branches."""
        ...


class BlockingRecoveryPorts:
    """`tm.recovery.ports.RecoveryPorts` that block. What a two-phase commit asks as well goes to `ports`."""

    def __init__(
        self,
        resources: Mapping[str, Resource],
        log: DecisionLog | None,
        ports: Ports,
        live: Collection[bytes],
        ownership: Callable[[], Ownership],
        messages: RecoveryMessages,
        progress: PassProgress | None = None,
    ) -> None:
        self._resources = resources
        self._log = log
        self._ports = ports
        self._live = live
        self._ownership = ownership
        self._messages = messages
        self._progress = progress

    async def read_floors(self) -> Floors:
        return self._noted(lambda incarnations: incarnations.floors, floors_in)

    async def read_ceilings(self) -> Ceilings:
        return self._noted(lambda incarnations: incarnations.ceilings, ceilings_in)

    def _noted(
        self,
        in_log: Callable[[Incarnations], Mapping[bytes, int]],
        in_decider: Callable[[Resource, str], Mapping[bytes, int] | XaError],
    ) -> dict[str, Mapping[bytes, int] | XaError]:
        """What the log and each decider have noted."""
        noted: dict[str, Mapping[bytes, int] | XaError] = {}
        if self._log is not None:
            noted[IN_LOG] = in_log(self._log.incarnations)
        for resource in self._resources.values():
            if resource.decides:
                noted[resource.name] = in_decider(resource, self._ownership().node)
        return noted

    async def read_decisions(self) -> Decisions:
        if self._progress is not None:
            self._progress.reads_decisions()
        return self.decisions()

    async def scan(self) -> Scanned:
        if self._progress is not None:
            self._progress.scans()
        return {name: self._scan(resource) for name, resource in self._resources.items()}

    async def read_live(self) -> tuple[frozenset[bytes], AtWork, Decisions]:
        live = frozenset(self._live)  # before the decisions, because a transaction logs first and stops living then
        return live, self.at_work(), self.decisions()

    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        if self._progress is not None:
            self._progress.asks(verb, len(branches))
        return await self._ports.ask(verb, branches, flags)

    async def outcomes(self, branches: tuple[Branch, ...]) -> list[BranchOutcome | XaError]:
        return await self._ports.outcomes(branches)

    async def note(self, heuristic: Heuristic) -> LogError | None:
        return await self._ports.note(heuristic)

    async def end(self, decision: Decision, decider: str | None = None) -> None:
        await self._ports.end(decision, decider)

    def decisions(self) -> Decisions:
        logged: dict[bytes, Decision] = {}
        noted: dict[Xid, Heuristic] = {}
        if self._log is not None:
            logged = {decision.gtrid: decision for decision in self._log.decisions()}
            noted = {heuristic.branch.xid: heuristic for heuristic in self._log.heuristics()}

        by_decider = {}
        for resource in self._resources.values():
            if resource.decides:
                try:
                    by_decider[resource.name] = decisions_in(resource, self._ownership().node)
                except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's, and its records
                    self._messages.unreadable(resource.name, raised)
                    if not isinstance(raised, ValueError):
                        resource.as_xa_error(raised, "decisions")
                else:
                    self._messages.readable(resource.name)
        return Decisions(logged, by_decider, noted)

    def at_work(self) -> AtWork:
        """Reads the other processes of this node at work at each decider."""
        node = self._ownership().node
        working: dict[str, frozenset[bytes] | XaError] = {}
        for resource in self._resources.values():
            if resource.decides:
                working[resource.name] = at_work_in(resource, node)
        return working

    def _scan(self, resource: Resource) -> Sequence[Xid] | XaError:
        try:
            if resource.suspect:
                resource.reopen()
            if resource.decides:
                return ()

            xids: dict[Xid, None] = {}
            flags = TMSTARTRSCAN
            while True:
                page = resource.rm.recover(resource.rmid, flags, PAGE)
                before = len(xids)
                xids |= dict.fromkeys(page)
                if flags == TMENDRSCAN:
                    break
                last = len(page) < PAGE or len(xids) == before  # a page that only repeats is taken for the last
                flags = TMENDRSCAN if last else TMNOFLAGS
        except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
            return resource.as_xa_error(raised, "recover")
        return list(xids)

    async def settle(self, decider: str, gtrid: bytes) -> Decision | XaError | None:
        resource = self._resources[decider]
        try:
            if resource.suspect:
                resource.reopen()
            record = resource.decider.settle(gtrid, resource.rmid)
            return None if record is None else Decision(gtrid, decode_branches(record))
        except ValueError as error:
            return xa_error(Code.XAER_RMERR, f"its record of {named(gtrid)} can't be read: {error}")
        except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
            return resource.as_xa_error(raised, "settle")


def decisions_in(resource: Resource, node: str) -> dict[bytes, Decision]:
    """Every decision of `node` in a decider that has not ended, by gtrid; raises what the resource manager raises, and
    ValueError for a record that can't be read. Those of other nodes don't matter here, and may be of a version
    that writes them otherwise."""
    if resource.suspect:
        resource.reopen()
    decided: dict[bytes, Decision] = {}
    prefix = after = log_prefix(node, resource.decider.decider_id)
    while True:
        page = resource.decider.decisions(resource.rmid, after, PAGE)
        for record in page:
            if not record.gtrid.startswith(prefix):
                return decided
            decided[record.gtrid] = Decision(record.gtrid, decode_branches(record.record))
        if len(page) < PAGE:
            return decided
        after = page[-1].gtrid


def floors_in(resource: Resource, node: str) -> Mapping[bytes, int] | XaError:
    """The floor of each incarnation of `node` that a decider has noted, or what keeps it from telling them."""
    noted = incarnations_in(resource, node)
    return noted if isinstance(noted, XaError) else {one.incarnation: one.floor for one in noted}


def ceilings_in(resource: Resource, node: str) -> Mapping[bytes, int] | XaError:
    """The ceiling of each incarnation of `node` that a decider has noted, or what keeps it from telling them."""
    noted = incarnations_in(resource, node)
    return noted if isinstance(noted, XaError) else {one.incarnation: one.ceiling for one in noted}


def incarnations_in(resource: Resource, node: str) -> Sequence[NotedIncarnation] | XaError:
    """The incarnations of `node` that a decider has noted, or what keeps it from telling them."""
    try:
        if resource.suspect:
            resource.reopen()
        return resource.decider.incarnations(node, resource.rmid)
    except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
        return resource.as_xa_error(raised, "incarnations")


def at_work_in(resource: Resource, node: str) -> frozenset[bytes] | XaError:
    """The incarnations under which processes of `node` are at work at a decider, or what keeps it from telling them.
    Who is known to be gone is not at work, however long its lease still runs."""
    try:
        if resource.suspect:
            resource.reopen()
        owners = resource.decider.owners(resource.rmid)
    except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's
        return resource.as_xa_error(raised, "owners")
    return frozenset(owner.incarnation for owner in owners if owner.node == node and not is_gone(owner.process))
