"""ReferenceDecider: a deciding resource manager, and DecidingStore, the server that keeps its decisions."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xa.codes import Code
from xa.deciding import DecisionRecord
from xa.errors import xa_error
from xa.flags import TMONEPHASE, TMUSEASYNC
from xabridge.testing.reference.client import answer_only
from xabridge.testing.reference.resource import ReferenceResource
from xabridge.testing.reference.server import OK
from xabridge.testing.reference.store import ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xa.deciding import Owner
    from xa.resource import Handle, Registrar
    from xa.xid import Xid
    from xabridge.testing.reference.branch import Branch
    from xabridge.testing.reference.client import Effect


class DecidingStore(ReferenceStore):
    """The server: decisions and tombstones survive every crash. A branch is never prepared here."""

    def __init__(self, name: str = "decider", *, decider_id: bytes = b"\0\0\0\0\0\0\0\1") -> None:
        super().__init__(name)
        if len(decider_id) != 8:
            raise ValueError(f"a decider id has 8 octets, not {len(decider_id)}")
        self.decider_id = decider_id
        self.leases: dict[Owner, float] = {}
        """Owner → when its lease runs out, by `clock`."""
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

    def hold(self, owner: Owner, lease_s: float) -> None:
        """As `xa.DecidingResource.hold` says. Called with `lock` held."""
        if lease_s:
            self.leases[owner] = self.clock() + lease_s
        else:
            self.leases.pop(owner, None)

    def owners(self) -> list[Owner]:
        """As `xa.DecidingResource.owners` says. Called with `lock` held."""
        now = self.clock()
        return [owner for owner, until in self.leases.items() if until > now]

    def settle(self, gtrid: bytes) -> bytes | None:
        """The record, or None and a tombstone. Called with `lock` held."""
        return self._decisions.setdefault(gtrid, None)

    def page(self, after: bytes, count: int) -> list[DecisionRecord]:
        """As `xa.DecidingResource.decisions` says. Called with `lock` held."""
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
        """As `xa.DecidingResource.end_decisions` says. Called with `lock` held."""
        for gtrid in gtrids:
            self._decisions.pop(gtrid, None)
        self._order = None


class ReferenceDecider(ReferenceResource):
    """One client of a DecidingStore, an `xa.DecidingResource`."""

    name = "xabridge reference decider"

    def __init__(self, store: DecidingStore, registrar: Registrar | None = None, flags: int = TMUSEASYNC) -> None:
        super().__init__(store, registrar, flags)
        self._decisions = store

    @property
    def decider_id(self) -> bytes:
        """As `xa.DecidingResource` says."""
        return self._decisions.decider_id

    def hold(self, owner: Owner, lease_s: float, rmid: int) -> None:
        """As `xa.DecidingResource` says."""

        def effect(*, answer: Code | None) -> Code:
            if answer is None:
                self._decisions.hold(owner, lease_s)
            return OK if answer is None else answer

        self._ask_store("hold", rmid, effect)

    def owners(self, rmid: int) -> Sequence[Owner]:
        """As `xa.DecidingResource` says."""
        self._ask_store("owners", rmid, answer_only)
        with self._decisions.lock:
            return self._decisions.owners()

    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """Refused: this branch is decided, not prepared."""
        self._enter("prepare", rmid, flags)
        raise xa_error(Code.XAER_PROTO, "prepare: a branch of the one that decides is not prepared", xid)

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Code | Handle:
        """With TMONEPHASE only."""
        if not flags & TMONEPHASE:
            self._enter("commit", rmid, flags)
            raise xa_error(Code.XAER_PROTO, "commit: the one that decides commits by decide, or TMONEPHASE", xid)
        return super().commit(xid, rmid, flags)

    def decide(self, xid: Xid, rmid: int, record: bytes) -> Code:
        """As `xa.DecidingResource` says."""
        control = self._connected("decide", rmid)
        store = self._decisions
        with store.lock:
            branch = store.find(xid)
            if branch.asked is self:
                raise self._refuse_second("decide", branch, 0)
            self._send("decide", control, branch, 0, lambda *, answer: store.decide(store.find(xid), record, answer))
            return OK

    def settle(self, gtrid: bytes, rmid: int) -> bytes | None:
        """As `xa.DecidingResource` says."""
        final: list[bytes | None] = []

        def effect(*, answer: Code | None) -> Code:
            if answer is None:
                final.append(self._decisions.settle(gtrid))
            return OK if answer is None else answer

        self._ask_store("settle", rmid, effect)
        return final[0]

    def decisions(self, rmid: int, after: bytes = b"", count: int = 1000) -> Sequence[DecisionRecord]:
        """As `xa.DecidingResource` says."""
        if count < 1:
            raise xa_error(Code.XAER_INVAL, f"decisions: count {count} is below 1")
        self._ask_store("decisions", rmid, answer_only)
        with self._decisions.lock:
            return self._decisions.page(after, count)

    def end_decisions(self, gtrids: Sequence[bytes], rmid: int) -> None:
        """As `xa.DecidingResource` says."""

        def effect(*, answer: Code | None) -> Code:
            if answer is None:
                self._decisions.discard(gtrids)
            return OK if answer is None else answer

        self._ask_store("end_decisions", rmid, effect)

    def _ask_store(self, verb: str, rmid: int, effect: Effect) -> None:
        control = self._connected(verb, rmid)
        with self._decisions.lock:
            self._send(verb, control, None, 0, effect)


@dataclass(frozen=True, slots=True)
class ReferenceDeciderFactory:
    """An `xa.ResourceFactory`: makes clients of one deciding store."""

    store: DecidingStore
    flags: int = TMUSEASYNC

    def __call__(self, registrar: Registrar) -> ReferenceDecider:
        """A new client, not yet opened."""
        return ReferenceDecider(self.store, registrar, self.flags)
