"""Server: the part of a ReferenceStore that carries out its clients' requests, strictly by the state tables.

Every method is called with `lock` held. `answer` is the code that a script wants; with None the server decides. The
code that is returned is the answer, or the refusal of the state tables.
"""

from __future__ import annotations

import threading
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from xa.codes import ROLLBACK_CODES, Code
from xa.machine import RESULT_OF, IllegalTransition, Result, advance
from xa.outcome_notes import BranchOutcome
from xa.state_tables import BRANCH, BranchState, BranchVerb
from xabridge.testing.reference.script import FaultScript

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from weakref import ref

    from xa.association import Dialect
    from xa.threads_of_control import ThreadOfControl
    from xa.xid import Xid
    from xabridge.testing.reference.driver import ReferenceDriver, RequestInFlight


Control: TypeAlias = "ref[ThreadOfControl]"
"""A thread of control, which is not kept alive; to be compared by identity."""

BRANCH_NONE: Final = BranchState.S0


class Branch:
    """One branch; one that is in S0 is not, or no longer, the store's.

    `reason` is the rollback code of a branch that can only be rolled back, `outcome` the XA_HEUR* of a completed
    one, `since` when it was prepared or completed, by the store's clock."""

    __slots__ = ("associations", "outcome", "reason", "since", "state", "writes", "xid")

    def __init__(self, xid: Xid) -> None:
        self.xid = xid
        self.state = BRANCH_NONE
        self.associations: list[Association] = []
        self.writes: dict[str, Any] | None = None
        self.reason: Code | None = None
        self.outcome: Code | None = None
        self.since = 0.0


class Association:
    """How one thread of control of one client stands to one branch. One that has ended is in the state `none`, and is
    `lost` where its thread or connection was lost; the client notices when it uses it next."""

    __slots__ = ("branch", "client", "control", "dialect", "lost", "state")

    def __init__(self, client: ReferenceDriver, control: Control, branch: Branch, dialect: Dialect) -> None:
        self.client = client
        self.control = control
        self.branch = branch
        self.dialect = dialect
        self.state = dialect.none
        self.lost = False


# Members that stand in the way of every branch, under names that cost nothing to look up.
OK, RDONLY, NOTA, LOST = Code.XA_OK, Code.XA_RDONLY, Code.XAER_NOTA, Code.XAER_RMFAIL
S0, S3, S4, S5 = BranchState.S0, BranchState.S3, BranchState.S4, BranchState.S5
START, JOIN, END, END_SHARED = BranchVerb.START, BranchVerb.JOIN, BranchVerb.END, BranchVerb.END_SHARED
END_FAIL, PREPARE, COMMIT = BranchVerb.END_FAIL, BranchVerb.PREPARE, BranchVerb.COMMIT
COMMIT_ONE_PHASE, ROLLBACK, FORGET = BranchVerb.COMMIT_ONE_PHASE, BranchVerb.ROLLBACK, BranchVerb.FORGET
RESULT_OK: Final = Result.OK
MAX_OUTSTANDING: Final = 4096

_AFTER_OK: Final = {verb: BRANCH.column(verb) for verb in BranchVerb}
"""Verb → state → the state after it was answered XA_OK."""

_COMMITTED: Final = frozenset({COMMIT, COMMIT_ONE_PHASE})
_NEEDS_ENDED: Final = frozenset({PREPARE, COMMIT, COMMIT_ONE_PHASE, ROLLBACK, FORGET})
"""Verbs whose precondition is that every association of the branch has ended."""
_HOLDS_NOTHING: Final = frozenset({S0, S4, S5})
"""Where a branch has neither writes nor locks any more."""


class KeyLocked(Exception):
    """Another branch has written this key and is not completed. Wait for it, or roll back."""


class Server:
    """The server's state, and the requests. `room` is how many asynchronous operations a client may have
    outstanding."""

    def __init__(
        self,
        name: str = "reference",
        *,
        read_only_votes: bool = False,
        tells_outcomes: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.clock = clock
        self.script = FaultScript()
        self.lock = threading.Lock()
        self.reachable = True
        self.room = MAX_OUTSTANDING
        self.in_flight: list[RequestInFlight] = []
        self.known: dict[Xid, Branch] = {}
        self.committed: dict[str, Any] = {}
        self.key_locks: dict[str, Branch] = {}
        self._migrating: list[Association] = []
        self._read_only_votes = read_only_votes
        self.tells_outcomes = tells_outcomes
        self._past: dict[bytes, BranchOutcome] = {}

    def find(self, xid: Xid) -> Branch:
        """The branch; an unknown one is in S0, and by that refused."""
        return self.known.get(xid) or Branch(xid)

    def recoverable(self) -> list[Xid]:
        """The xids that xa_recover lists."""
        return [xid for xid, branch in self.known.items() if branch.state is S3 or branch.state is S5]

    # --- outcomes ---------------------------------------------------------------------------------------
    def note_of(self, xid: Xid) -> bytes:
        """The note of a branch."""
        return sha256(str(xid).encode()).digest()

    def outcome_of(self, note: bytes) -> BranchOutcome:
        """What became of the branch of a note."""
        known = next((branch for xid, branch in self.known.items() if self.note_of(xid) == note), None)
        if known is not None and known.state is S3:
            return BranchOutcome.PREPARED
        return self._past.get(note, BranchOutcome.UNKNOWN)

    def _remember(self, branch: Branch, code: Code, *, commits: bool) -> None:
        """How a branch is completed; the first time counts, because later it may be forgotten."""
        if code is Code.XA_HEURMIX:
            outcome = BranchOutcome.UNKNOWN
        else:
            outcome = BranchOutcome.COMMITTED if commits or code is Code.XA_HEURCOM else BranchOutcome.ROLLED_BACK
        self._past.setdefault(self.note_of(branch.xid), outcome)

    def migrant(self, xid: Xid) -> Association | None:
        """An association with `xid` that was suspended for another thread to resume."""
        return next((held for held in self._migrating if held.branch.xid == xid), None)

    def arrive(self, flight: RequestInFlight) -> bool:
        """A request in flight arrives, unless the server can't be reached."""
        if not self.reachable or flight not in self.in_flight:
            return False
        self.in_flight.remove(flight)
        flight.code = flight.effect()
        self.lose(flight.held())
        return True

    # --- associations -----------------------------------------------------------------------------------
    def start(self, association: Association, answer: Code | None = None) -> Code:
        """Makes the branch, with its first association."""
        branch = association.branch
        known = self.known.setdefault(branch.xid, branch)
        if known is not branch:
            return BRANCH.refusal(known.state, START) or Code.XAER_DUPID

        if answer is None:
            branch.state = _AFTER_OK[START][S0]
            code = OK
        else:
            code = self._apply(branch, START, answer)
        if branch.state is S0:
            self.known.pop(branch.xid, None)
            return code
        branch.associations.append(association)
        dialect = association.dialect
        association.state = dialect.after[dialect.start][association.state]
        return code

    def join(self, association: Association, answer: Code | None = None) -> Code:
        """Associates another thread with a branch that exists."""
        branch = association.branch
        code = self._apply(branch, JOIN, answer if answer is not None else branch.reason or OK)
        if code is OK:
            branch.associations.append(association)
            dialect = association.dialect
            association.state = advance(dialect.machine, association.state, dialect.start)
        return code

    def resume(
        self,
        association: Association,
        client: ReferenceDriver,
        control: Control,
        answer: Code | None = None,
    ) -> Code:
        """Resumes a suspended association, which becomes this client's and thread's."""
        branch, dialect = association.branch, association.dialect
        if association.state is dialect.none:
            return LOST if association.lost else Code.XAER_PROTO  # before this request came
        code = self._apply(branch, JOIN, answer if answer is not None else branch.reason or OK)
        result = RESULT_OF.get(code)
        if result is not None:
            association.state = advance(dialect.machine, association.state, dialect.resume, result)
            if association.state is not dialect.suspended:
                association.client, association.control = client, control
            self._settle(association)
        return code

    def end(self, association: Association, verb: Any, answer: Code | None = None, *, migrates: bool = False) -> Code:
        """Ends or suspends; `verb` is one of the association's dialect."""
        branch, dialect = association.branch, association.dialect
        if association.state is dialect.none:
            return LOST if association.lost else Code.XAER_PROTO  # before this request came

        if verb is dialect.end_fail:
            moved = END_FAIL
        elif len(branch.associations) > 1 and any(
            held is not association and held.state is dialect.active for held in branch.associations
        ):
            moved = END_SHARED
        else:
            moved = END
        code = self._apply(branch, moved, answer if answer is not None else branch.reason or OK)
        result = RESULT_OK if code is OK else RESULT_OF.get(code)
        if result is not None:
            if result is RESULT_OK:
                association.state = dialect.after[verb][association.state]
            else:
                association.state = advance(dialect.machine, association.state, verb, result)
            if association.state is dialect.none:
                self._settle(association)
            if migrates and code is OK:
                self._migrating.append(association)
        return code

    def lose(self, associations: Sequence[Association]) -> None:
        """A connection is gone, and these associations with it."""
        for association in tuple(associations):
            branch, dialect = association.branch, association.dialect
            if association.state is not dialect.none:
                association.state = advance(dialect.machine, association.state, dialect.lose)
                association.lost = True
                self._settle(association)
                branch.state = advance(BRANCH, branch.state, BranchVerb.LOSE)
                self.doom(branch, Code.XA_RBCOMMFAIL)

    def _settle(self, association: Association) -> None:
        """Tidies up after a change of state: an association that is none is forgotten, an active one doesn't
        migrate."""
        dialect = association.dialect
        if association.state is dialect.none:
            association.branch.associations.remove(association)
        if self._migrating and association in self._migrating and association.state is not dialect.suspended:
            self._migrating.remove(association)

    # --- completion -------------------------------------------------------------------------------------
    def prepare(self, branch: Branch, answer: Code | None = None) -> Code:
        """xa_prepare."""
        if answer is None:
            answer = branch.reason or OK
            if self._read_only_votes and answer is OK and not branch.writes:
                answer = RDONLY
        code = self._apply(branch, PREPARE, answer)
        if code is OK:
            branch.since = self.clock()
        return code

    def commit(self, branch: Branch, answer: Code | None = None) -> Code:
        """xa_commit."""
        return self._apply(branch, COMMIT, answer if answer is not None else branch.outcome or OK)

    def commit_one_phase(self, branch: Branch, answer: Code | None = None) -> Code:
        """xa_commit(TMONEPHASE)."""
        return self._apply(branch, COMMIT_ONE_PHASE, answer if answer is not None else branch.reason or OK)

    def rollback(self, branch: Branch, answer: Code | None = None) -> Code:
        """xa_rollback."""
        return self._apply(branch, ROLLBACK, answer if answer is not None else branch.outcome or OK)

    def forget(self, branch: Branch, answer: Code | None = None) -> Code:
        """xa_forget."""
        return self._apply(branch, FORGET, OK if answer is None else answer)

    # --- work -------------------------------------------------------------------------------------------
    def work(self, association: Association, answer: Code | None = None) -> Code:
        """An operation of a session arrives, if only to be refused: after a scripted rollback code the branch can
        only be rolled back, and its end will say so."""
        branch = association.branch
        if association.state is association.dialect.none:
            return LOST if association.lost else Code.XAER_PROTO
        if answer in ROLLBACK_CODES:
            self.doom(branch, answer)
        return branch.reason or (OK if answer is None else answer)

    def read(self, key: str, branch: Branch | None) -> Any:
        """The value that `branch` wrote, else the committed one, else None."""
        if branch is not None and branch.writes is not None and key in branch.writes:
            return branch.writes[key]
        return self.committed.get(key)

    def write(self, key: str, value: Any, branch: Branch | None) -> None:
        """A pending write of `branch`; with None a committed one."""
        owner = self.key_locks.get(key)
        if owner is not None and owner is not branch:
            raise KeyLocked(f"{key!r} is locked by the branch {owner.xid} in state {owner.state.value}")
        if branch is None:
            self.committed[key] = value
            return
        if branch.writes is None:
            branch.writes = {}
        self.key_locks[key] = branch
        branch.writes[key] = value

    # --- moves ------------------------------------------------------------------------------------------
    def _apply(self, branch: Branch, verb: BranchVerb, code: Code) -> Code:
        """Answers `verb` with `code` and does what that means; or refuses, with the code of the table."""
        if branch.associations and verb in _NEEDS_ENDED:
            return BRANCH.refusal(branch.state, verb) or Code.XAER_PROTO
        if code is OK:
            target = _AFTER_OK[verb].get(branch.state)
            if target is None:
                return self._refused(branch, verb, RESULT_OK)
            if target in _HOLDS_NOTHING:
                self.land(branch, target, code, commits=verb in _COMMITTED)
            else:
                branch.state = target
            return code
        if code is NOTA:  # a resource manager that says so has nothing of the branch
            self.land(branch, S0, code, commits=False)
            return code
        result = RESULT_OF.get(code)
        if result is None:
            return BRANCH.refusal(branch.state, verb) or code
        if code is Code.XA_NOMIGRATE and verb in (START, JOIN):
            raise BRANCH.illegal(branch.state, verb, result)

        try:
            target = advance(BRANCH, branch.state, verb, result)
        except IllegalTransition:
            return self._refused(branch, verb, result)
        if code is RDONLY and branch.writes:
            raise ValueError(f"{branch.xid} has pending writes and can't vote XA_RDONLY: correct the script")

        if target in _HOLDS_NOTHING:
            self.land(branch, target, code, commits=False)
        else:
            branch.state = target
        return code

    def _refused(self, branch: Branch, verb: BranchVerb, result: Result) -> Code:
        """The refusal of `verb`; IllegalTransition where the verb is legal, and only the answer that the script wants
        is not in the table."""
        code = BRANCH.refusal(branch.state, verb)
        if code is None:
            raise BRANCH.illegal(branch.state, verb, result)
        return code

    def land(self, branch: Branch, target: BranchState, code: Code, *, commits: bool) -> None:
        """Brings the branch to a state in which it holds nothing: rollback only, completed, or none at all."""
        branch.state = target
        if target is S4:
            self.doom(branch, code if code in ROLLBACK_CODES else Code.XA_RBROLLBACK)
            return

        if self.tells_outcomes:
            self._remember(branch, code, commits=commits)
        if branch.writes:
            if target is S5 and code in (Code.XA_HEURCOM, Code.XA_HEURMIX):
                step = 1 if code is Code.XA_HEURCOM else 2
                self.committed.update(list(branch.writes.items())[::step])
            elif commits:
                self.committed.update(branch.writes)
            self._release(branch)
        if target is S5:
            branch.outcome = code
            branch.since = self.clock()
            return
        self.known.pop(branch.xid, None)
        if branch.associations:
            for association in tuple(branch.associations):  # of a branch that vanished: their threads will notice
                association.state = advance(association.dialect.machine, association.state, association.dialect.lose)
                association.lost = True
                self._settle(association)

    def doom(self, branch: Branch, reason: Code) -> None:
        """A branch that can only be rolled back keeps its first reason and gives up its writes and locks."""
        branch.reason = branch.reason or reason
        self._release(branch)

    def _release(self, branch: Branch) -> None:
        for key in branch.writes or ():
            del self.key_locks[key]
        branch.writes = None
