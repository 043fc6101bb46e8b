"""ReferenceDecider: a deciding resource manager, and DecidingStore, the server that keeps its decisions."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xa.codes import Code
from xa.deciding_resource import DecisionRecord, NotedIncarnation
from xa.driver import DecidingDriver
from xa.flags import TMUSEASYNC
from xa.switch import DecidingSwitch
from xabridge.testing.reference.driver import ReferenceDriver, ReferenceResource
from xabridge.testing.reference.server import OK, Association
from xabridge.testing.reference.store import BackUp, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from xa.deciding_resource import Owner
    from xa.resource_manager import Registrar
    from xa.xid import Xid
    from xabridge.testing.reference.server import Branch


@dataclass(frozen=True, slots=True)
class DecidingBackUp(BackUp):
    """A copy of a DecidingStore: with its decisions and tombstones, and what it has noted of incarnations."""

    decisions: Mapping[bytes, bytes | None]
    noted: Mapping[str, Mapping[bytes, NotedIncarnation]]


class DecidingStore(ReferenceStore):
    """The server: decisions and tombstones survive every crash. A branch is never prepared here."""

    def __init__(self, name: str = "decider", *, decider_id: bytes = b"\0\0\0\0\0\0\0\1") -> None:
        super().__init__(name)
        if len(decider_id) != 8:
            raise ValueError(f"a decider id has 8 octets, not {len(decider_id)}")
        self.decider_id = decider_id
        self.leases: dict[Owner, float] = {}
        """Owner → when its lease runs out, by `clock`."""
        self._noted: dict[str, dict[bytes, NotedIncarnation]] = {}
        """Node → its incarnations."""
        self._decisions: dict[bytes, bytes | None] = {}
        self._order: list[bytes] | None = []

    @property
    def decided(self) -> dict[bytes, bytes]:
        """gtrid → record of every decision that has not ended. For tests."""
        with self.lock:
            return {gtrid: record for gtrid, record in self._decisions.items() if record is not None}

    @property
    def tombstones(self) -> set[bytes]:
        """Every gtrid that can't be decided any more. For tests."""
        with self.lock:
            return {gtrid for gtrid, record in self._decisions.items() if record is None}

    def decide(self, branch: Branch, record: bytes, answer: Code | None = None) -> Code:
        """Commits the branch with the decision in it, or neither. Called with `lock` held."""
        gtrid = branch.xid.gtrid
        if answer is None and gtrid in self._decisions:
            answer = Code.XA_RBROLLBACK
        code = self.commit_one_phase(branch, answer)
        if code is OK:
            self._decisions[gtrid] = record
            self._order = None
        return code

    def hold(self, owner: Owner, lease_s: float, floor: int = 0, ceiling: int = 0) -> None:
        """Makes or ends a lease, and notes floor and ceiling. Called with `lock` held."""
        noted = self._noted.setdefault(owner.node, {})
        noted[owner.incarnation] = NotedIncarnation(owner.incarnation, floor, ceiling, self.clock())
        if lease_s:
            self.leases[owner] = self.clock() + lease_s
        else:
            self.leases.pop(owner, None)

    def owners(self) -> list[Owner]:
        """The holders whose leases have not run out. Called with `lock` held."""
        now = self.clock()
        return [owner for owner, until in self.leases.items() if until > now]

    def incarnations(self, node: str) -> list[NotedIncarnation]:
        """Those of a node. Called with `lock` held."""
        return list(self._noted.get(node, {}).values())

    def backed_up(self) -> DecidingBackUp:
        with self.lock:
            noted = {node: dict(incarnations) for node, incarnations in self._noted.items()}
            return DecidingBackUp(dict(self.committed), (), dict(self._decisions), noted)

    def restore(self, copy: BackUp) -> None:
        super().restore(copy)
        assert isinstance(copy, DecidingBackUp)  # noqa: S101 — another store's data can't be put here
        with self.lock:
            self._decisions, self._order = dict(copy.decisions), None
            self._noted = {node: dict(incarnations) for node, incarnations in copy.noted.items()}
            self.leases.clear()

    def settle(self, gtrid: bytes) -> bytes | None:
        """The record, or None and a tombstone. Called with `lock` held."""
        return self._decisions.setdefault(gtrid, None)

    def page(self, after: bytes, count: int) -> list[DecisionRecord]:
        """Decisions in the order of their gtrids. Called with `lock` held."""
        if self._order is None:
            self._order = sorted(gtrid for gtrid, record in self._decisions.items() if record is not None)
        first = bisect_right(self._order, after)
        page = []
        for gtrid in self._order[first : first + count]:
            record = self._decisions[gtrid]
            if record is not None:
                page.append(DecisionRecord(gtrid, record))
        return page

    def discard(self, gtrids: Sequence[bytes]) -> None:
        """Deletes decisions and tombstones. Called with `lock` held."""
        for gtrid in gtrids:
            self._decisions.pop(gtrid, None)
        self._order = None


class ReferenceDecidingDriver(ReferenceDriver, DecidingDriver[Association]):
    """The client's side of the connection to a DecidingStore."""

    name = "xabridge reference decider"

    def __init__(self, store: ReferenceStore, flags: int = TMUSEASYNC) -> None:
        super().__init__(store, flags)
        assert isinstance(store, DecidingStore)  # noqa: S101 — ReferenceDecider takes no other
        self._decisions = store

    @property
    def decider_id(self) -> bytes:
        return self._decisions.decider_id

    def hold(self, owner: Owner, lease_s: float, floor: int, ceiling: int) -> None:
        self._ask("hold", lambda: self._decisions.hold(owner, lease_s, floor, ceiling))

    def owners(self) -> Sequence[Owner]:
        self._ask("owners")
        with self._decisions.lock:
            return self._decisions.owners()

    def incarnations(self, node: str) -> Sequence[NotedIncarnation]:
        self._ask("incarnations")
        with self._decisions.lock:
            return self._decisions.incarnations(node)

    def decide(self, xid: Xid, record: bytes) -> Code:
        store = self._decisions
        with store.lock:
            return self._send(
                "decide", store.find(xid), lambda *, answer: store.decide(store.find(xid), record, answer)
            )

    def settle(self, gtrid: bytes) -> bytes | None:
        final: list[bytes | None] = []
        self._ask("settle", lambda: final.append(self._decisions.settle(gtrid)))
        return final[0]

    def decisions(self, after: bytes, count: int) -> Sequence[DecisionRecord]:
        self._ask("decisions")
        with self._decisions.lock:
            return self._decisions.page(after, count)

    def end_decisions(self, gtrids: Sequence[bytes]) -> None:
        self._ask("end_decisions", lambda: self._decisions.discard(gtrids))

    def _ask(self, verb: str, change: Callable[[], None] | None = None) -> None:
        def effect(*, answer: Code | None) -> Code:
            if answer is None and change is not None:
                change()
            return OK if answer is None else answer

        with self._decisions.lock:
            self._send(verb, None, effect)


class ReferenceDecider(DecidingSwitch[Association], ReferenceResource):
    """One client of a DecidingStore, an `xa.DecidingResource`."""

    _driver_class = ReferenceDecidingDriver

    def __init__(self, store: DecidingStore, registrar: Registrar | None = None, flags: int = TMUSEASYNC) -> None:
        ReferenceResource.__init__(self, store, registrar, flags)


@dataclass(frozen=True, slots=True)
class ReferenceDeciderFactory:
    """An `xa.ResourceFactory`: makes clients of one deciding store."""

    store: DecidingStore
    flags: int = TMUSEASYNC

    def __call__(self, registrar: Registrar) -> ReferenceDecider:
        """A new client, not yet opened."""
        return ReferenceDecider(self.store, registrar, self.flags)
