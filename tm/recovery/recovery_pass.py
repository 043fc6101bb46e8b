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
from tm.two_phase.return_codes import HEURISTIC_CODE, MEANING, Meaning, Verb
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
_AGREES: Final = {Verb.COMMIT_AGAIN: Meaning.HEUR_COMMITTED, Verb.ROLLBACK: Meaning.HEUR_ROLLED_BACK}


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
    ownership = replace(ownership, floors=await ports.read_floors())
    before = await ports.read_decisions()
    scanned = await ports.scan()
    ownership = replace(ownership, ceilings=await ports.read_ceilings())
    live, at_work, now = await ports.read_live()

    report = Report()
    found: list[Branch] = []
    for resource, xids in scanned.items():
        if isinstance(xids, XaError):
            report.unreachable[resource] = xids.message
        else:
            found += [Branch(resource, xid) for xid in xids]

    commits: list[tuple[Branch, str]] = []
    rollbacks: list[tuple[Branch, str]] = []
    settled: dict[bytes, Decision | XaError | None] = {}
    for branch in found:
        await _judge(ports, branch, ownership, live, at_work, now, settled, commits, rollbacks, report)
    await _tell(ports, Verb.COMMIT_AGAIN, commits, report)
    await _tell(ports, Verb.ROLLBACK, rollbacks, report)

    owned = [
        (decider, decision, whose.claim)
        for decider, decided in ((None, before.logged), *before.by_decider.items())
        for decision in decided.values()
        if (whose := ownership.whose(decision.gtrid, at_work, decided=True)).claim in _THIS_NODES
    ]
    finished = _finished(report, now.heuristics)
    for _, decision, _ in owned:
        for name in _absent(decision, scanned, finished):
            if name not in gone.get(decision.gtrid, ()):
                report.unreachable[name] = "not configured any more, but a decision names a branch there"
    left = _left(report)
    over = {
        decision.gtrid
        for _, decision, claim in owned
        if claim is Claim.OURS and _is_over(decision, live, scanned, left, finished, gone)
    }
    met = {branch.xid for branch in found} | now.heuristics.keys()
    missing = [
        (branch, BEFORE)
        for _, decision, _ in owned
        if decision.gtrid in over and now.find(decision.gtrid) is not None  # or it has ended since it was read
        for branch in decision.branches
        if branch.xid not in met and branch.resource not in gone.get(decision.gtrid, ())
    ]
    await _look_after(ports, missing, report)
    left = _left(report)
    for decider, decision, _ in owned:
        if decision.gtrid in over and all(branch.xid not in left for branch in decision.branches):
            await ports.end(decision, decider)
            report.ended.append(decision.gtrid)
        elif decision.gtrid not in live and now.find(decision.gtrid) is not None:
            report.undone.append(decision.gtrid)
            absent = _absent(decision, scanned, finished)
            if absent:
                report.not_configured[decision.gtrid] = tuple(absent)
    report.findings += _not_listed(report, now.heuristics, live)
    report.ended_incarnations = _ended_incarnations(ownership, at_work)
    if not any(isinstance(xids, XaError) for xids in scanned.values()):
        gtrids = {branch.xid.gtrid for branch in found} | {decision.gtrid for _, decision, _ in owned}
        left_behind = {read.incarnation for read in map(_read, gtrids) if read is not None}
        report.left_nothing = {place: ended - left_behind for place, ended in report.ended_incarnations.items()}
    return report


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


def _not_listed(report: Report, noted: Mapping[Xid, Heuristic], live: frozenset[bytes]) -> list[Finding]:
    """The heuristic outcomes that wait to be forgotten, of branches that no resource manager lists any more."""
    met = {finding.branch.xid for finding in report.findings}
    unlisted = [note for xid, note in noted.items() if xid not in met and xid.gtrid not in live]
    return [Finding(note.branch, Action.HEURISTIC, _waiting(note)) for note in unlisted]


def _waiting(note: Heuristic) -> str:
    """What to say of an outcome that was noted before."""
    return f"{note.why}; {_NOTED}" if note.why else _NOTED


def _left(report: Report) -> set[Xid]:
    """The branches for which something is still to be done."""
    return {finding.branch.xid for finding in report.findings if finding.action is Action.PENDING}


def _finished(report: Report, noted: Mapping[Xid, Heuristic]) -> set[Xid]:
    """The branches that were found, under whatever name, and that nothing is left to be asked of."""
    done = {finding.branch.xid for finding in report.findings if finding.action in _FINISHED}
    left = _left(report)
    return (done | {finding.branch.xid for finding in report.findings if finding.branch.xid in noted}) - left


def _absent(decision: Decision, scanned: Mapping[str, object], finished: set[Xid]) -> dict[str, None]:
    """The names in `decision` that no resource has any more, of branches that were not found and finished elsewhere."""
    return dict.fromkeys(
        branch.resource for branch in decision.branches if branch.resource not in scanned and branch.xid not in finished
    )


def _is_over(
    decision: Decision,
    live: frozenset[bytes],
    scanned: Scanned,
    left: set[Xid],
    finished: set[Xid],
    gone: Gone,
) -> bool:
    """Whether a decision read before the scan has no branch left: each resource manager was reached, and each
    branch was either not found there or has been finished since; or it was finished under another name (`finished`).

    What is gone need not be reached, but everything else has to be: a branch may be there, under another name.
    """
    if decision.gtrid in live or not all(branch.xid not in left for branch in decision.branches):
        return False
    absent = _absent(decision, scanned, finished)
    if absent:
        return absent.keys() <= gone.get(decision.gtrid, frozenset()) and not any(
            isinstance(xids, XaError) for xids in scanned.values()
        )
    return not any(isinstance(scanned.get(branch.resource), XaError) for branch in decision.branches)


async def _judge(
    ports: RecoveryPorts,
    branch: Branch,
    ownership: Ownership,
    live: frozenset[bytes],
    at_work: AtWork,
    now: Decisions,
    settled: dict[bytes, Decision | XaError | None],
    commits: list[tuple[Branch, str]],
    rollbacks: list[tuple[Branch, str]],
    report: Report,
) -> None:
    """Puts one branch into the list it belongs to, or into the report."""
    gtrid = branch.xid.gtrid
    ours = Gtrid.of(branch.xid)
    if ours is None:
        return  # another product's transaction manager made it

    decision = now.find(gtrid)
    whose = ownership.whose(gtrid, at_work, decided=decision is not None)
    if whose.claim is Claim.UNKNOWN:
        report.findings.append(Finding(branch, Action.PENDING, whose.why))
        return
    if not whose.is_ours:
        action = Action.STRANDED if whose.claim in _STRANDED else Action.LEFT_ALONE
        report.findings.append(Finding(branch, action, whose.why))
        return
    if gtrid in live:
        return  # its own completion takes care of it
    if branch.xid in now.heuristics:
        report.findings.append(Finding(branch, Action.HEURISTIC, _waiting(now.heuristics[branch.xid])))
        return
    if decision is not None:
        commits.append((_as_decided(branch, decision), "decided to commit"))
        return
    if ours.log_id == ownership.log_id:
        rollbacks.append((branch, "no decision in the log: presumed rolled back"))
        return

    decider = ownership.deciders[ours.log_id]
    if gtrid not in settled:
        settled[gtrid] = await ports.settle(decider, gtrid)
    word = settled[gtrid]
    if isinstance(word, XaError):
        report.findings.append(Finding(branch, Action.PENDING, f"{decider} can't tell the decision: {word.message}"))
    elif word is not None:
        commits.append((_as_decided(branch, word), f"decided to commit, in {decider}"))
    else:
        rollbacks.append((branch, f"{decider} has no decision and will take none: rolled back"))


def _as_decided(branch: Branch, decision: Decision) -> Branch:
    """A branch that was found, with the note that its decision has of it."""
    note = next((decided.note for decided in decision.branches if decided.xid == branch.xid), b"")
    return Branch(branch.resource, branch.xid, note) if note else branch


async def _tell(ports: RecoveryPorts, verb: Verb, asked: Sequence[tuple[Branch, str]], report: Report) -> None:
    """Commits or rolls back the branches, and reports the result of each."""
    for first in range(0, len(asked), AT_ONCE):
        some = asked[first : first + AT_ONCE]
        answers = await ports.ask(verb, tuple(branch for branch, _ in some))
        await _report(ports, verb, some, answers, report)


async def _look_after(ports: RecoveryPorts, missing: Sequence[tuple[Branch, str]], report: Report) -> None:
    """Reports what became of branches that were decided to commit and are not there any more. Each comes with what to
    say where that is unknown."""
    for first in range(0, len(missing), AT_ONCE):
        some = missing[first : first + AT_ONCE]
        outcomes = await ports.outcomes(tuple(branch for branch, _ in some))

        for (branch, unknown), outcome in zip(some, outcomes, strict=True):
            action, why = Action.NOT_THERE, unknown
            if outcome is BranchOutcome.COMMITTED:
                why = "it was committed, as decided"
            elif outcome in _UNDONE:
                refused = await ports.note(Heuristic(branch, Code.XA_HEURRB, _UNDONE[outcome]))
                action = Action.HEURISTIC if refused is None else Action.PENDING
                why = f"{_UNDONE[outcome]}; {_NOTED if refused is None else refused}"
            elif outcome is BranchOutcome.PREPARED:
                action, why = Action.PENDING, ELSEWHERE
            elif isinstance(outcome, XaError):
                action, why = (
                    Action.PENDING,
                    f"it is not there any more, and its outcome is unknown: {outcome.message}",
                )
            report.findings.append(Finding(branch, action, why))


async def _report(
    ports: RecoveryPorts, verb: Verb, asked: Sequence[tuple[Branch, str]], answers: Sequence[Answer], report: Report
) -> None:
    vanished: list[tuple[Branch, str]] = []
    for (branch, reason), answer in zip(asked, answers, strict=True):
        meaning = MEANING[verb][code_of(answer)]
        why = reason
        if verb is Verb.COMMIT_AGAIN and code_of(answer) is Code.XAER_NOTA:
            vanished.append((branch, _SINCE_THE_SCAN))
            continue

        if verb is Verb.ROLLBACK and code_of(answer) is Code.XAER_NOTA:
            action, why = Action.GONE, "finished since the scan: this pass does not know its outcome"
        elif meaning is Meaning.DONE:
            action = _DONE[verb]
        elif meaning is Meaning.LATER:
            action, why = Action.PENDING, f"{reason}; {text_of(answer)}"
        elif meaning is _AGREES[verb]:
            await ports.ask(Verb.FORGET, (branch,))
            action = Action.FORGOTTEN
        else:
            refused = await ports.note(Heuristic(branch, HEURISTIC_CODE[meaning], text_of(answer)))
            action = Action.HEURISTIC if refused is None else Action.PENDING
            why = f"{reason}; {text_of(answer)}" + ("" if refused is None else f"; {refused}")
        report.findings.append(Finding(branch, action, why))
    await _look_after(ports, vanished, report)
