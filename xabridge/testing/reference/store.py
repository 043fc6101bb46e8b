"""ReferenceStore: the server of the reference resource manager, in memory. It outlives its clients.

It holds the committed data, the branches by xid, and the locks of their writes; every change of a branch is a row of
the state tables. This module has what tests use: what an operator, a timer, a network and a crash do to the server, and
what can be seen from outside. The requests of clients are in `server.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xa.codes import HEURISTIC_CODES, Code
from xa.diagnosis import Check, Diagnosis, Health
from xa.holdings import Holding, InDoubtBranch, Relation
from xa.machine import advance
from xa.state_tables import BRANCH, BranchState, BranchVerb
from xabridge.testing.reference.driver import ReferenceDriver
from xabridge.testing.reference.server import OK, Branch, Server

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from xa.switch import Switch
    from xa.xid import Xid
    from xabridge.testing.reference.server import Association


@dataclass(frozen=True, slots=True)
class BackUp:
    """A copy of a store: what is committed, and the branches in doubt with their states, outcomes and writes."""

    committed: Mapping[str, Any]
    branches: tuple[tuple[Xid, BranchState, Code | None, Mapping[str, Any]], ...]


class ReferenceStore(Server):
    """The server; clients are made by `ReferenceResource(store, …)` or a `ReferenceFactory`. `script` plans what
    goes wrong. `read_only_votes`: a branch that wrote nothing votes XA_RDONLY; without it, it votes XA_OK.
    `tells_outcomes`: it remembers what became of its branches, for who has a note of one."""

    @property
    def url(self) -> str:
        """The open string."""
        return f"reference://{self.name}"

    # --- what can be observed ---------------------------------------------------------------------------
    @property
    def data(self) -> Mapping[str, Any]:
        """A copy of what is committed."""
        with self.lock:
            return dict(self.committed)

    @property
    def branches(self) -> dict[Xid, BranchState]:
        """Every branch that exists, with its state."""
        with self.lock:
            return {xid: branch.state for xid, branch in self.known.items()}

    @property
    def in_doubt(self) -> list[Xid]:
        """The prepared and the heuristically completed branches, in the order of their start."""
        with self.lock:
            return self.recoverable()

    @property
    def associations(self) -> int:
        """How many associations, active and suspended, there are with all branches."""
        with self.lock:
            return sum(len(branch.associations) for branch in self.known.values())

    @property
    def locked_keys(self) -> dict[str, Xid]:
        """Which key is locked by which branch."""
        with self.lock:
            return {key: branch.xid for key, branch in self.key_locks.items()}

    # --- reports for operators ---------------------------------------------------------------------------
    def reports(self) -> list[InDoubtBranch]:
        """The branches that `in_doubt` lists. Called with `lock` held."""
        now = self.clock()
        return [_report(self.name, self.known[xid], now) for xid in self.recoverable()]

    def diagnosis(self, open_string: str) -> Diagnosis:
        """The answer of `diagnose`."""
        if open_string != self.url:
            advice = f"name it {self.url}"
            return Diagnosis((Check(Health.FAIL, "open string", f"{open_string} is not this store", advice),))
        with self.lock:
            if not self.reachable:
                return Diagnosis((Check(Health.FAIL, "reachable", "the store can't be reached", "heal it"),))
            return Diagnosis((Check(Health.OK, "reachable", f"{self.url}, in this machine's memory"),), 0.0)

    # --- what an operator, a timer, a network and a crash do -----------------------------------------------
    def expire(self, xid: Xid) -> None:
        """The branch's timeout passes. IllegalTransition for a prepared or completed one: no timer touches it."""
        with self.lock:
            self._expire(self.known[xid])

    def _expire(self, branch: Branch) -> None:
        branch.state = advance(BRANCH, branch.state, BranchVerb.EXPIRE)
        self.doom(branch, Code.XA_RBTIMEOUT)

    def complete_heuristically(self, xid: Xid, outcome: Code) -> None:
        """An operator completes a prepared branch: `outcome` is the XA_HEUR* that the manager will get.

        XA_HEURMIX commits every other write, XA_HEURHAZ none."""
        if outcome not in HEURISTIC_CODES:
            raise ValueError(f"{outcome.name} is not one of XA_HEUR*")
        with self.lock:
            branch = self.known[xid]
            self.land(branch, advance(BRANCH, branch.state, BranchVerb.DECIDE), outcome, commits=False)

    def complete_by_hand(self, xid: Xid, *, commit: bool) -> None:
        """Completes a prepared branch by hand. The store keeps no record of it, like a database that knows no
        heuristic outcomes."""
        with self.lock:
            branch = self.known[xid]
            verb = BranchVerb.COMMIT if commit else BranchVerb.ROLLBACK
            self.land(branch, advance(BRANCH, branch.state, verb), OK, commits=commit)

    def disconnect(self, client: Switch[Association], alone: Collection[Xid] = ()) -> None:
        """The client's process dies, its threads and connections with it. No other process completes the branches
        `alone`: their timeout passes, unless they are prepared or completed."""
        with self.lock:
            self._lose_client(client)
            client.drop()
            for xid in alone:
                if self.find(xid).state is BranchState.S2:
                    self._expire(self.known[xid])

    def cut(self, client: Switch[Association]) -> None:
        """The client's connections are cut, with the replies on them. It can connect again at once, and notices when
        it uses what it lost."""
        with self.lock:
            self._lose_client(client).lose_replies()

    def _lose_client(self, client: Switch[Association]) -> ReferenceDriver:
        driver = client.driver
        for branch in self.known.values():
            self.lose([held for held in branch.associations if held.client is driver])
        assert isinstance(driver, ReferenceDriver)  # noqa: S101 — only these have such associations
        return driver

    def partition(self) -> None:
        """The server can't be reached until `heal`; it lives, and notices that its connections are lost."""
        with self.lock:
            self._lose_all()

    def crash(self) -> None:
        """The server's process dies, and with it what was not prepared; it can't be reached until `heal`."""
        with self.lock:
            self._lose_all()
            self.in_flight.clear()
            for branch in list(self.known.values()):
                if branch.state not in (BranchState.S3, BranchState.S5):
                    self.land(branch, BranchState.S0, OK, commits=False)

    def backed_up(self) -> BackUp:
        """A copy of what a crash leaves, as it is now."""
        with self.lock:
            doubtful = [self.known[xid] for xid in self.recoverable()]
            kept = tuple((branch.xid, branch.state, branch.outcome, dict(branch.writes or {})) for branch in doubtful)
            return BackUp(dict(self.committed), kept)

    def restore(self, copy: BackUp) -> None:
        """The server dies, and starts again with the data of a copy; it can't be reached until `heal`."""
        self.crash()
        with self.lock:
            self.committed = dict(copy.committed)
            self.known.clear()
            self.key_locks.clear()
            for xid, state, outcome, writes in copy.branches:
                branch = self.known[xid] = Branch(xid)
                branch.state, branch.outcome, branch.since = state, outcome, self.clock()
                for key, value in writes.items():
                    self.write(key, value, branch)

    def _lose_all(self) -> None:
        self.reachable = False
        for branch in self.known.values():
            self.lose(branch.associations)

    def heal(self) -> None:
        """The server can be reached again."""
        with self.lock:
            self.reachable = True

    def deliver(self, xid: Xid | None = None) -> int:
        """Requests in flight arrive, of all or of one branch, in the order of their sending; how many did."""
        with self.lock:
            return sum(self.arrive(flight) for flight in tuple(self.in_flight) if xid is None or flight.xid == xid)

    def drop(self, xid: Xid | None = None) -> int:
        """Requests in flight will never arrive, of all or of one branch; how many."""
        with self.lock:
            dropped = [flight for flight in self.in_flight if xid is None or flight.xid == xid]
            for flight in dropped:
                self.in_flight.remove(flight)
                flight.code = Code.XAER_RMFAIL
                self.lose(flight.held())
            return len(dropped)


def _report(store: str, branch: Branch, now: float) -> InDoubtBranch:
    held = (Holding(Relation.LOCKED, store, "key", len(branch.writes)),) if branch.writes else ()
    return InDoubtBranch(branch.xid, now - branch.since, "", branch.outcome, held)
