"""recover(): one recovery pass, as a coroutine without I/O, in the order that is safe while transactions run.

 1. Read which transactions are over, and the decisions: those of the log, and those of each decider.
 2. Scan every resource manager for prepared and heuristically completed branches.
 3. Then read which sequences no transaction has reached, the live transactions, the other processes of this node at
    work at each decider, and the decisions again.
    (A branch that was prepared during the scan may belong to a transaction that has been decided since, or is about
    to be. A process that prepared one before the scan had its lease by then.)
 4. For each branch found: leave it alone if it is not ours to resolve (`tm.recovery.ownership`), its transaction is
    live, or it was over before the scan and has no decision; commit it if it is decided; otherwise roll it back
    (presumed abort). If a decider keeps the decision, it settles the transaction first.
 5. End a decision of ours read in step 1 only if every one of its resource managers was reached, and none of its
    branches is left. Resources that an operator has declared gone for this decision are exempt. A branch whose
    resource is not configured any more, and that this pass has found (by its xid) and finished under another name,
    is not left. A branch that was not found anywhere may be left, because its resource manager was not asked.
 6. Before that, look at the branches of such a decision that were not found at all. Usually they were committed before
    a crash; but somebody may have completed them by hand. Each is reported. A resource manager that has given a note
    of the branch with its vote is asked for the outcome: what was rolled back goes against the decision, and is noted
    as a heuristic outcome before the decision ends. So is what a resource that was restored from an older copy has
    lost: later it may not be able to tell that any more. Step 4 does the same with a branch that has gone since the
    scan.

Decisions and branches that are not ours are neither ended nor counted as undone. What a pass can't do stays as it is,
and is named in its report. Passes may run concurrently with transactions and with each other; a branch that another
process has finished is finished.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from tm.log import Branch, Decision, Heuristic
from tm.log.incarnations import IncarnationState
from tm.recovery.ownership import IN_LOG, Claim
from tm.recovery.report import Action, Finding, Report
from tm.two_phase.ports import code_of, text_of
from tm.two_phase.return_codes import HEURISTIC_CODE, MEANING, AnswerMeaning, Verb
from xa import Code, Gtrid, XaError
from xa.gtrid import OVER
from xa.outcome_notes import BranchOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tm.recovery.ownership import AtWork, Ownership
    from tm.recovery.ports import Decisions, RecoveryPorts, Scanned
    from tm.two_phase.ports import Answer
    from xa import Xid

AT_ONCE: Final = 256
"""How many branches are asked of at a time: what is outstanding stays bounded, however much is in doubt."""

_THIS_NODES: Final = frozenset({Claim.OURS, Claim.UNKNOWN})
"""Decisions that this pass carries out, now or when their owner is known."""

_STRANDED: Final = frozenset({Claim.ELSEWHERE, Claim.FINISHED})
"""The branches of this node that no pass here resolves."""

_FINISHED: Final = frozenset({Action.COMMITTED, Action.HEURISTIC, Action.FORGOTTEN, Action.NOT_THERE})
"""The actions after which a branch of a decision needs no further command."""

_DONE: Final = {Verb.COMMIT_AGAIN: Action.COMMITTED, Verb.ROLLBACK: Action.ROLLED_BACK}
_AGREES: Final = {Verb.COMMIT_AGAIN: AnswerMeaning.HEUR_COMMITTED, Verb.ROLLBACK: AnswerMeaning.HEUR_ROLLED_BACK}


_NOTED: Final = "it waits to be forgotten (`xabridge recover forget`)"
BEFORE: Final = "committed before, or completed by hand"
AGAINST: Final = "decided to commit, and somebody has rolled it back"
OLDER: Final = "decided to commit, and lost: the resource is older than this decision, restored from a back-up"
ELSEWHERE: Final = "it is prepared there, but not listed: another role or database has it"
_SINCE_THE_SCAN: Final = "finished since the scan, by another process or by hand"

_UNDONE: Final[dict[object, str]] = {BranchOutcome.ROLLED_BACK: AGAINST, BranchOutcome.LOST: OLDER}
"""The outcomes that go against a decision to commit, and what to say of each."""

Gone: TypeAlias = "Mapping[bytes, frozenset[str]]"
"""gtrid → the names, not configured any more, of resources whose branches of it an operator has taken care of."""


async def recover(ports: RecoveryPorts, ownership: Ownership, gone: Gone = MappingProxyType({})) -> Report:
    """One pass; see the module's docstring for its steps."""
    return await _RecoveryPass(ports, ownership, gone).run()


class _RecoveryPass:
    """One pass, and what it has read: `_before` are the decisions of step 1, `_now` those of step 3, `_scanned` is what
    step 2 has found."""

    _before: Decisions
    _scanned: Scanned
    _live: frozenset[bytes]
    _at_work: AtWork
    _now: Decisions

    def __init__(self, ports: RecoveryPorts, ownership: Ownership, gone: Gone) -> None:
        self._ports = ports
        self._ownership = ownership
        self._gone = gone
        self._settled: dict[bytes, Decision | XaError | None] = {}
        """gtrid → what its decider said of it."""
        self._commits: list[tuple[Branch, str]] = []
        self._rollbacks: list[tuple[Branch, str]] = []
        """The branches that are to be committed and rolled back, each with the reason."""
        self._report = Report()

    async def run(self) -> Report:
        """The report of what was done, and of what is left."""
        await self._read()
        report, scanned = self._report, self._scanned
        found: list[Branch] = []
        for resource, xids in scanned.items():
            if isinstance(xids, XaError):
                report.unreachable[resource] = xids.message
            else:
                found += [Branch(resource, xid) for xid in xids]

        for branch in found:
            await self._judge(branch)
        await self._complete(Verb.COMMIT_AGAIN, self._commits)
        await self._complete(Verb.ROLLBACK, self._rollbacks)

        owned = self._owned_decisions()
        await self._end_decisions(owned, {branch.xid for branch in found})
        report.findings += self._not_listed()
        report.ended_incarnations = _ended_incarnations(self._ownership, self._at_work)
        if not any(isinstance(xids, XaError) for xids in scanned.values()):
            gtrids = {branch.xid.gtrid for branch in found} | {decision.gtrid for _, decision, _ in owned}
            left_behind = {read.incarnation for read in map(_read, gtrids) if read is not None}
            report.left_nothing = {place: ended - left_behind for place, ended in report.ended_incarnations.items()}
        return report

    async def _read(self) -> None:
        """Steps 1 to 3. Floors rise when something has finished, so that they are read first; ceilings rise before
        something begins, so that they are read behind the scan."""
        ports, ownership = self._ports, self._ownership
        ownership = replace(ownership, floors=await ports.read_floors())
        self._before = await ports.read_decisions()
        self._scanned = await ports.scan()
        self._ownership = replace(ownership, ceilings=await ports.read_ceilings())
        self._live, self._at_work, self._now = await ports.read_live()

    # --- step 4: branches -----------------------------------------------------------------------------------------

    async def _judge(self, branch: Branch) -> None:
        """Puts one branch into the list it belongs to, or into the report."""
        gtrid = branch.xid.gtrid
        ours = Gtrid.of(branch.xid)
        if ours is None:
            return  # another product's transaction manager made it

        decision = self._now.find(gtrid)
        whose = self._ownership.whose(gtrid, self._at_work, decided=decision is not None)
        if whose.claim is Claim.UNKNOWN:
            self._note(branch, Action.PENDING, whose.why)
            return
        if not whose.is_ours:
            self._note(branch, Action.STRANDED if whose.claim in _STRANDED else Action.LEFT_ALONE, whose.why)
            return
        if gtrid in self._live:
            return  # its own completion takes care of it
        if branch.xid in self._now.heuristics:
            self._note(branch, Action.HEURISTIC, _waiting(self._now.heuristics[branch.xid]))
            return
        if decision is not None:
            self._commits.append((_as_decided(branch, decision), "decided to commit"))
            return
        if ours.log_id == self._ownership.log_id:
            self._rollbacks.append((branch, "no decision in the log: presumed rolled back"))
            return

        decider = self._ownership.deciders[ours.log_id]
        if gtrid not in self._settled:
            self._settled[gtrid] = await self._ports.settle(decider, gtrid)
        word = self._settled[gtrid]
        if isinstance(word, XaError):
            self._note(branch, Action.PENDING, f"{decider} can't tell the decision: {word.message}")
        elif word is not None:
            self._commits.append((_as_decided(branch, word), f"decided to commit, in {decider}"))
        else:
            self._rollbacks.append((branch, f"{decider} has no decision and will take none: rolled back"))

    def _note(self, branch: Branch, action: Action, why: str) -> None:
        self._report.findings.append(Finding(branch, action, why))

    async def _complete(self, verb: Verb, asked: Sequence[tuple[Branch, str]]) -> None:
        """Commits or rolls back the branches, and reports the result of each."""
        for first in range(0, len(asked), AT_ONCE):
            some = asked[first : first + AT_ONCE]
            answers = await self._ports.ask(verb, tuple(branch for branch, _ in some))
            await self._report_answers(verb, some, answers)

    async def _report_answers(self, verb: Verb, asked: Sequence[tuple[Branch, str]], answers: Sequence[Answer]) -> None:
        vanished: list[tuple[Branch, str]] = []
        for (branch, reason), answer in zip(asked, answers, strict=True):
            meaning = MEANING[verb][code_of(answer)]
            why = reason
            if verb is Verb.COMMIT_AGAIN and code_of(answer) is Code.XAER_NOTA:
                vanished.append((branch, _SINCE_THE_SCAN))
                continue

            if verb is Verb.ROLLBACK and code_of(answer) is Code.XAER_NOTA:
                action, why = Action.GONE, "finished since the scan: this pass does not know its outcome"
            elif meaning is AnswerMeaning.DONE:
                action = _DONE[verb]
            elif meaning is AnswerMeaning.LATER:
                action, why = Action.PENDING, f"{reason}; {text_of(answer)}"
            elif meaning is _AGREES[verb]:
                await self._ports.ask(Verb.FORGET, (branch,))
                action = Action.FORGOTTEN
            else:
                refused = await self._ports.note(Heuristic(branch, HEURISTIC_CODE[meaning], text_of(answer)))
                action = Action.HEURISTIC if refused is None else Action.PENDING
                why = f"{reason}; {text_of(answer)}" + ("" if refused is None else f"; {refused}")
            self._note(branch, action, why)
        await self._look_after(vanished)

    async def _look_after(self, missing: Sequence[tuple[Branch, str]]) -> None:
        """Reports the outcomes of branches that were decided to commit and are not there any more. Each comes with the
        words for an outcome that is unknown."""
        for first in range(0, len(missing), AT_ONCE):
            some = missing[first : first + AT_ONCE]
            outcomes = await self._ports.outcomes(tuple(branch for branch, _ in some))

            for (branch, unknown), outcome in zip(some, outcomes, strict=True):
                action, why = Action.NOT_THERE, unknown
                if outcome is BranchOutcome.COMMITTED:
                    why = "it was committed, as decided"
                elif outcome in _UNDONE:
                    refused = await self._ports.note(Heuristic(branch, Code.XA_HEURRB, _UNDONE[outcome]))
                    action = Action.HEURISTIC if refused is None else Action.PENDING
                    why = f"{_UNDONE[outcome]}; {_NOTED if refused is None else refused}"
                elif outcome is BranchOutcome.PREPARED:
                    action, why = Action.PENDING, ELSEWHERE
                elif isinstance(outcome, XaError):
                    action = Action.PENDING
                    why = f"it is not there any more, and its outcome is unknown: {outcome.message}"
                self._note(branch, action, why)

    # --- steps 5 and 6: decisions ---------------------------------------------------------------------------------

    def _owned_decisions(self) -> list[tuple[str | None, Decision, Claim]]:
        """The decisions of this node, read before the scan, each with its decider."""
        return [
            (decider, decision, whose.claim)
            for decider, decided in ((None, self._before.logged), *self._before.by_decider.items())
            for decision in decided.values()
            if (whose := self._ownership.whose(decision.gtrid, self._at_work, decided=True)).claim in _THIS_NODES
        ]

    async def _end_decisions(self, owned: Sequence[tuple[str | None, Decision, Claim]], found: set[Xid]) -> None:
        """Ends those that are over, and reports the others. `found` are the branches of the scan."""
        report, now, gone = self._report, self._now, self._gone
        finished = self._finished()
        for _, decision, _ in owned:
            for name in self._absent(decision, finished):
                if name not in gone.get(decision.gtrid, ()):
                    report.unreachable[name] = "not configured any more, but a decision names a branch there"

        left = self._left()
        over = {
            decision.gtrid
            for _, decision, claim in owned
            if claim is Claim.OURS and self._is_over(decision, left, finished)
        }
        met = found | now.heuristics.keys()
        missing = [
            (branch, BEFORE)
            for _, decision, _ in owned
            if decision.gtrid in over and now.find(decision.gtrid) is not None  # or it has ended since it was read
            for branch in decision.branches
            if branch.xid not in met and branch.resource not in gone.get(decision.gtrid, ())
        ]
        await self._look_after(missing)

        left = self._left()
        for decider, decision, _ in owned:
            if decision.gtrid in over and all(branch.xid not in left for branch in decision.branches):
                await self._ports.end(decision, decider)
                report.ended.append(decision.gtrid)
            elif decision.gtrid not in self._live and now.find(decision.gtrid) is not None:
                report.undone.append(decision.gtrid)
                absent = self._absent(decision, finished)
                if absent:
                    report.not_configured[decision.gtrid] = tuple(absent)

    def _is_over(self, decision: Decision, left: set[Xid], finished: set[Xid]) -> bool:
        """Whether a decision read before the scan has no branch left: each resource manager was reached, and each
        branch was either not found there or has been finished since; or it was finished under another name
        (`finished`).

        What is gone need not be reached, but everything else has to be: a branch may be there, under another name.
        """
        if decision.gtrid in self._live or not all(branch.xid not in left for branch in decision.branches):
            return False
        absent = self._absent(decision, finished)
        if absent:
            return absent.keys() <= self._gone.get(decision.gtrid, frozenset()) and not any(
                isinstance(xids, XaError) for xids in self._scanned.values()
            )
        return not any(isinstance(self._scanned.get(branch.resource), XaError) for branch in decision.branches)

    def _left(self) -> set[Xid]:
        """The branches for which something is still to be done."""
        return {finding.branch.xid for finding in self._report.findings if finding.action is Action.PENDING}

    def _finished(self) -> set[Xid]:
        """The branches that were found, under whatever name, and that nothing is left to be asked of."""
        findings, noted = self._report.findings, self._now.heuristics
        return {
            finding.branch.xid for finding in findings if finding.action in _FINISHED or finding.branch.xid in noted
        } - self._left()

    def _absent(self, decision: Decision, finished: set[Xid]) -> dict[str, None]:
        """The names in `decision` that no resource has any more, of branches that were not found and finished
        elsewhere."""
        return dict.fromkeys(
            branch.resource
            for branch in decision.branches
            if branch.resource not in self._scanned and branch.xid not in finished
        )

    def _not_listed(self) -> list[Finding]:
        """The heuristic outcomes that wait to be forgotten, of branches that no resource manager lists any more."""
        met = {finding.branch.xid for finding in self._report.findings}
        return [
            Finding(note.branch, Action.HEURISTIC, _waiting(note))
            for xid, note in self._now.heuristics.items()
            if xid not in met and xid.gtrid not in self._live
        ]


def _ended_incarnations(ownership: Ownership, at_work: AtWork) -> dict[str, frozenset[bytes]]:
    """The incarnations of this node that begin no more transactions, and whose floor is not raised yet."""
    ended = {}
    for place, floors in ownership.floors.items():
        if isinstance(floors, XaError):
            continue
        if place == IN_LOG:
            begun = {
                one for one, standing in ownership.incarnations.noted.items() if standing is IncarnationState.WHOLE
            }
        else:
            working = at_work.get(place)
            if not isinstance(working, frozenset):
                continue
            begun = floors.keys() - working - {ownership.own}
        ended[place] = frozenset(one for one in begun if floors.get(one, 0) < OVER)
    return ended


def _read(gtrid: bytes) -> Gtrid | None:
    try:
        return Gtrid.decode(gtrid)
    except ValueError:
        return None


def _waiting(note: Heuristic) -> str:
    """What to say of an outcome that was noted before."""
    return f"{note.why}; {_NOTED}" if note.why else _NOTED


def _as_decided(branch: Branch, decision: Decision) -> Branch:
    """A branch that was found, with the note that its decision has of it."""
    note = next((decided.note for decided in decision.branches if decided.xid == branch.xid), b"")
    return Branch(branch.resource, branch.xid, note) if note else branch
