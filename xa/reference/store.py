"""ReferenceStore: the server of the reference resource manager, in memory. It outlives its clients.

It holds the committed data, the branches by xid, and the locks of their writes. Every change of a branch is a row of
the state tables. Methods that end in "Called with `lock` held." are the clients' side; the others are for tests:
what an operator, a timer, a network and a crash do, and what can be observed from outside.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from xa.codes import HEURISTIC_CODES, ROLLBACK_CODES, Code
from xa.machine import RESULT_OF, IllegalTransition, Result, advance
from xa.reference.branch import Association, Branch
from xa.reference.script import Script
from xa.tables import BRANCH, BranchState, BranchVerb

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xa.control import ThreadOfControl
    from xa.reference.client import Flight, ReferenceClient
    from xa.xid import Xid

OK: Final = Code.XA_OK
S0, S3, S4, S5 = BranchState.S0, BranchState.S3, BranchState.S4, BranchState.S5
_GONE: Final = frozenset({S0, S4, S5})
"""Where a branch holds no writes and no locks any more."""
_COMMITS: Final = frozenset({BranchVerb.COMMIT, BranchVerb.COMMIT_ONE_PHASE})


class KeyLocked(Exception):
    """Another branch has written this key and is not completed. Wait for it, or roll back."""


class ReferenceStore:
    """The server. `read_only_votes`: branches that wrote nothing vote XA_RDONLY; without it they vote XA_OK."""

    def __init__(self, name: str = "reference", *, read_only_votes: bool = False) -> None:
        self.name = name
        self.script = Script()
        self.lock = threading.Lock()
        self.reachable = True
        self.in_flight: list[Flight] = []
        self._read_only_votes = read_only_votes
        self._branches: dict[Xid, Branch] = {}
        self._committed: dict[str, Any] = {}
        self._locks: dict[str, Branch] = {}

    @property
    def url(self) -> str:
        """The open string."""
        return f"reference://{self.name}"

    # --- what can be observed -----------------------------------------------------------------------------
    @property
    def data(self) -> Mapping[str, Any]:
        """A copy of what is committed."""
        with self.lock:
            return dict(self._committed)

    @property
    def branches(self) -> dict[Xid, BranchState]:
        """Every branch that exists, with its state."""
        with self.lock:
            return {xid: branch.state for xid, branch in self._branches.items()}

    @property
    def in_doubt(self) -> list[Xid]:
        """The prepared and the heuristically completed branches, in the order of their start."""
        with self.lock:
            return self.recoverable()

    @property
    def associations(self) -> int:
        """How many associations, active and suspended, there are with all branches."""
        with self.lock:
            return sum(len(branch.associations) for branch in self._branches.values())

    @property
    def locked_keys(self) -> dict[str, Xid]:
        """Which key is locked by which branch."""
        with self.lock:
            return {key: branch.xid for key, branch in self._locks.items()}

    # --- what an operator, a timer, a network and a crash do ---------------------------------------------------
    def expire(self, xid: Xid) -> None:
        """The branch's timeout passes. IllegalTransition for a prepared or completed branch: no timer touches it."""
        with self.lock:
            branch = self._branches[xid]
            branch.state = advance(BRANCH, branch.state, BranchVerb.EXPIRE)
            self._doom(branch, Code.XA_RBTIMEOUT)

    def complete_heuristically(self, xid: Xid, outcome: Code) -> None:
        """An operator completes a prepared branch: `outcome` is the XA_HEUR* that the manager will hear.

        XA_HEURMIX commits every other write, XA_HEURHAZ none."""
        if outcome not in HEURISTIC_CODES:
            raise ValueError(f"{outcome.name} is not one of XA_HEUR*")
        with self.lock:
            branch = self._branches[xid]
            target = advance(BRANCH, branch.state, BranchVerb.DECIDE)
            self._land(branch, target, outcome, commits=False)

    def disconnect(self, client: ReferenceClient) -> None:
        """The client's process dies, its threads and connections with it."""
        with self.lock:
            self._lose(
                [held for branch in self._branches.values() for held in branch.associations if held.client is client]
            )
            client.forget_everything()

    def partition(self) -> None:
        """The server can't be reached until `heal`; it lives, and notices that its connections are lost."""
        with self.lock:
            self.reachable = False
            self._lose([held for branch in self._branches.values() for held in branch.associations])

    def crash(self) -> None:
        """The server's process dies, and with it what was not prepared; it can't be reached until `heal`."""
        with self.lock:
            self.reachable = False
            self.in_flight.clear()
            self._lose([held for branch in self._branches.values() for held in branch.associations])
            for branch in list(self._branches.values()):
                if branch.state not in (S3, S5):
                    self._land(branch, S0, OK, commits=False)

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
                self._lose(flight.held())
            return len(dropped)

    # --- associations ---------------------------------------------------------------------------------------
    def start(self, association: Association, answer: Code | None = None) -> Code:
        """Makes the branch, with its first association. Called with `lock` held."""
        xid = association.xid
        known = self._branches.get(xid)
        if known is not None:
            return BRANCH.refusal(known.state, BranchVerb.START) or Code.XAER_DUPID
        branch = Branch(xid)
        code = self._apply(branch, BranchVerb.START, OK if answer is None else answer)
        if branch.state is not S0:
            self._branches[xid] = branch
            branch.associations.append(association)
            dialect = association.dialect
            association.state = advance(dialect.machine, association.state, dialect.start)
        return code

    def join(self, association: Association, answer: Code | None = None) -> Code:
        """Associates another thread with a branch that exists. Called with `lock` held."""
        branch = self._branches.get(association.xid)
        if branch is None:
            return Code.XAER_NOTA
        code = self._apply(branch, BranchVerb.JOIN, answer if answer is not None else branch.reason or OK)
        if code is OK:
            branch.associations.append(association)
            dialect = association.dialect
            association.state = advance(dialect.machine, association.state, dialect.start)
        return code

    def resume(
        self,
        association: Association,
        client: ReferenceClient,
        control: ThreadOfControl,
        answer: Code | None = None,
    ) -> Code:
        """Resumes a suspended association, which becomes this client's and thread's. Called with `lock` held."""
        branch = self._branches.get(association.xid)
        dialect = association.dialect
        if branch is None or association.state is dialect.none:
            return Code.XAER_RMFAIL  # the association was lost before this request came
        code = self._apply(branch, BranchVerb.JOIN, answer if answer is not None else branch.reason or OK)
        result = RESULT_OF.get(code)
        if result is not None:
            association.state = advance(dialect.machine, association.state, dialect.resume, result)
            if association.state is not dialect.suspended:
                association.client.release(association)
                association.client, association.control = client, control
                if association in branch.migrating:
                    branch.migrating.remove(association)
            if association.state is dialect.none:
                branch.associations.remove(association)
        return code

    def end(self, association: Association, verb: Any, answer: Code | None = None, *, migrates: bool = False) -> Code:
        """Ends or suspends; `verb` is one of the dialect's. Called with `lock` held."""
        branch = self._branches.get(association.xid)
        dialect = association.dialect
        if branch is None or association.state is dialect.none:
            return Code.XAER_RMFAIL  # the association was lost before this request came
        if verb is dialect.end_fail:
            moved = BranchVerb.END_FAIL
        elif len(branch.associations) > 1 and any(
            held is not association and held.state is dialect.active for held in branch.associations
        ):
            moved = BranchVerb.END_SHARED
        else:
            moved = BranchVerb.END
        natural = branch.reason or OK
        code = self._apply(branch, moved, natural if answer is None else answer)
        result = RESULT_OF.get(code)
        if result is not None:
            association.state = advance(dialect.machine, association.state, verb, result)
            if association.state is dialect.none:
                self._dissociate(branch, association)
            elif migrates and code is OK:
                branch.migrating.append(association)
        return code

    def migrant(self, xid: Xid) -> Association | None:
        """An association with `xid` that was suspended for another thread to resume. Called with `lock` held."""
        branch = self._branches.get(xid)
        return branch.migrating[0] if branch is not None and branch.migrating else None

    def lose(self, associations: Sequence[Association]) -> None:
        """A connection is gone, and these associations with it. Called with `lock` held."""
        self._lose(associations)

    def _lose(self, associations: Sequence[Association]) -> None:
        for association in associations:
            dialect = association.dialect
            branch = self._branches.get(association.xid)
            if association.state is dialect.none or branch is None:
                continue
            association.state = advance(dialect.machine, association.state, dialect.lose)
            self._dissociate(branch, association)
            branch.state = advance(BRANCH, branch.state, BranchVerb.LOSE)
            self._doom(branch, Code.XA_RBCOMMFAIL)

    @staticmethod
    def _dissociate(branch: Branch, association: Association) -> None:
        if association in branch.associations:
            branch.associations.remove(association)
        if association in branch.migrating:
            branch.migrating.remove(association)

    # --- completion -----------------------------------------------------------------------------------------
    def prepare(self, xid: Xid, answer: Code | None = None) -> Code:
        """xa_prepare. Called with `lock` held."""
        branch = self._branches.get(xid)
        if branch is None:
            return Code.XAER_NOTA
        if answer is None:
            answer = branch.reason or (Code.XA_RDONLY if self._read_only_votes and not branch.writes else OK)
        return self._apply(branch, BranchVerb.PREPARE, answer)

    def commit(self, xid: Xid, answer: Code | None = None) -> Code:
        """xa_commit. Called with `lock` held."""
        branch = self._branches.get(xid)
        if branch is None:
            return Code.XAER_NOTA
        return self._apply(branch, BranchVerb.COMMIT, answer if answer is not None else branch.outcome or OK)

    def commit_one_phase(self, xid: Xid, answer: Code | None = None) -> Code:
        """xa_commit(TMONEPHASE). Called with `lock` held."""
        branch = self._branches.get(xid)
        if branch is None:
            return Code.XAER_NOTA
        return self._apply(branch, BranchVerb.COMMIT_ONE_PHASE, answer if answer is not None else branch.reason or OK)

    def rollback(self, xid: Xid, answer: Code | None = None) -> Code:
        """xa_rollback. Called with `lock` held."""
        branch = self._branches.get(xid)
        if branch is None:
            return Code.XAER_NOTA
        return self._apply(branch, BranchVerb.ROLLBACK, answer if answer is not None else branch.outcome or OK)

    def forget(self, xid: Xid, answer: Code | None = None) -> Code:
        """xa_forget. Called with `lock` held."""
        branch = self._branches.get(xid)
        if branch is None:
            return Code.XAER_NOTA
        return self._apply(branch, BranchVerb.FORGET, OK if answer is None else answer)

    def knows(self, xid: Xid) -> bool:
        """Whether there is such a branch."""
        return xid in self._branches

    def state_of(self, xid: Xid) -> BranchState:
        """The state of the branch, S0 when there is none."""
        branch = self._branches.get(xid)
        return S0 if branch is None else branch.state

    def recoverable(self) -> list[Xid]:
        """What xa_recover lists. Called with `lock` held."""
        return [xid for xid, branch in self._branches.items() if branch.state in (S3, S5)]

    def arrive(self, flight: Flight) -> bool:
        """The request arrives, unless the server can't be reached. Called with `lock` held."""
        if not self.reachable:
            return False
        self.in_flight.remove(flight)
        flight.code = flight.effect()
        self._lose(flight.held())
        return True

    # --- work -----------------------------------------------------------------------------------------------
    def work(self, association: Association, answer: Code | None = None) -> Code:
        """An operation of a session arrives, if only to be refused: with a scripted rollback code the branch can
        only be rolled back from now on, and its end will say so. Called with `lock` held."""
        branch = self._branches.get(association.xid)
        if branch is None or association.state is association.dialect.none:
            return Code.XAER_RMFAIL
        if answer in ROLLBACK_CODES:
            self._doom(branch, answer)
        return branch.reason or (OK if answer is None else answer)

    def branch_of(self, association: Association) -> Branch:
        """The branch that work goes to. Called with `lock` held, after `work` said XA_OK."""
        return self._branches[association.xid]

    def read(self, key: str, branch: Branch | None) -> Any:
        """What `branch` wrote, else what is committed, else None. Called with `lock` held."""
        if branch is not None and key in branch.writes:
            return branch.writes[key]
        return self._committed.get(key)

    def write(self, key: str, value: Any, branch: Branch | None) -> None:
        """A pending write of `branch`; with None a committed one. Called with `lock` held."""
        owner = self._locks.get(key)
        if owner is not None and owner is not branch:
            raise KeyLocked(f"{key!r} is locked by the branch {owner.xid} in state {owner.state.value}")
        if branch is None:
            self._committed[key] = value
        else:
            self._locks[key] = branch
            branch.writes[key] = value

    # --- moves ------------------------------------------------------------------------------------------------
    def _apply(self, branch: Branch, verb: BranchVerb, code: Code) -> Code:
        """Answers `verb` with `code` and does what that means; or refuses, with the code of the table."""
        if branch.associations and verb in _NEEDS_ENDED:
            return BRANCH.refusal(branch.state, verb) or Code.XAER_PROTO
        if code is Code.XAER_NOTA:  # a resource manager that says so holds nothing of the branch
            self._land(branch, S0, code, commits=False)
            return code
        result = RESULT_OF.get(code)
        if result is None:
            return BRANCH.refusal(branch.state, verb) or code
        try:
            target = advance(BRANCH, branch.state, verb, result)
        except IllegalTransition as refused:
            if BRANCH.refusal(branch.state, verb) is None:
                raise  # the verb is legal, but the script wants an answer that the table does not have
            return refused.code
        if result is Result.RDONLY and branch.writes:
            raise ValueError(f"{branch.xid} has pending writes and can't vote XA_RDONLY: mend the script")
        if target in _GONE:
            self._land(branch, target, code, commits=code is OK and verb in _COMMITS)
        else:
            branch.state = target
        return code

    def _land(self, branch: Branch, target: BranchState, code: Code, *, commits: bool) -> None:
        """Brings the branch to a state in which it holds nothing: rollback only, completed, or none at all."""
        if target is S4:
            branch.state = S4
            self._doom(branch, code if code in ROLLBACK_CODES else Code.XA_RBROLLBACK)
            return
        if branch.writes:
            if target is S5 and code in (Code.XA_HEURCOM, Code.XA_HEURMIX):
                step = 1 if code is Code.XA_HEURCOM else 2
                self._committed.update(list(branch.writes.items())[::step])
            elif commits:
                self._committed.update(branch.writes)
            self._release(branch)
        branch.state = target
        if target is S0:
            self._branches.pop(branch.xid, None)
            for association in branch.associations:
                association.state = advance(association.dialect.machine, association.state, association.dialect.lose)
            branch.associations.clear()
        else:
            branch.outcome = code

    def _doom(self, branch: Branch, reason: Code) -> None:
        """A rollback-only branch keeps its first reason and gives up its writes and locks."""
        branch.reason = branch.reason or reason
        self._release(branch)

    def _release(self, branch: Branch) -> None:
        for key in branch.writes:
            del self._locks[key]
        branch.writes.clear()


_NEEDS_ENDED: Final = frozenset(
    {
        BranchVerb.PREPARE,
        BranchVerb.COMMIT,
        BranchVerb.COMMIT_ONE_PHASE,
        BranchVerb.ROLLBACK,
        BranchVerb.FORGET,
    }
)
"""Verbs whose precondition is that every association of the branch has ended."""
