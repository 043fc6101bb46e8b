"""These tests drive the recovery pass by hand: which branches it resolves, how, in which order, and what its report
says.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases import each
from tests.tm.two_phase.staging import as_answer
from tm.log import Branch, Decision, Heuristic, LogFull
from tm.log.incarnations import Incarnations, IncarnationState
from tm.recovery import Action, Report
from tm.recovery.ownership import AtWork, Ceilings, Floors, Ownership
from tm.recovery.ports import Decisions, Scanned
from tm.recovery.recovery_pass import recover
from tm.recovery.service import pause_after
from tm.two_phase.ports import Answer
from tm.two_phase.return_codes import MEANING, AnswerMeaning, Verb
from xa import FORMAT_ID, Code, Gtrid, XaError, Xid, xa_error
from xa.coroutines import drive
from xa.outcome_notes import BranchOutcome

NODE, LOG, DECIDER = "orders-1", b"the log.", b"decider."
WHOLE, CUT, OWN, SIBLING = b"noted ok", b"it's cut", b"this one", b"another."
KNOWN = Incarnations({WHOLE: IncarnationState.WHOLE, CUT: IncarnationState.CUT, OWN: IncarnationState.OPEN})


def gtrid(sequence: int = 1, *, node: str = NODE, log: bytes = LOG, incarnation: bytes | int = WHOLE) -> bytes:
    return Gtrid(node, log, incarnation, sequence).encode()


def branch(resource: str, of: bytes) -> Branch:
    return Branch(resource, Xid(FORMAT_ID, of, resource.encode()))


class Pass:
    """One pass over what is set, and its ports; `asked` has a line for each call of a port."""

    def __init__(self, **scanned: list[Branch] | XaError) -> None:
        self.scanned: dict[str, Any] = {
            name: found if isinstance(found, XaError) else [b.xid for b in found] for name, found in scanned.items()
        }
        self.before = self.now = Decisions({}, {}, {})
        self.live: frozenset[bytes] = frozenset()
        self.deciders: dict[bytes, str] = {}
        self.at_work: dict[str, Any] = {}
        self.floors: dict[str, Any] = {}
        self.ceilings: dict[str, Any] = {}

        self.words: dict[bytes, Decision | XaError | None] = {}
        self.answers: dict[tuple[Verb, Branch], Code] = {}
        self.refused: LogFull | None = None
        self.outcome: BranchOutcome | XaError = BranchOutcome.UNKNOWN
        """What is told of branches with a note."""
        self.gone: dict[bytes, frozenset[str]] = {}
        self.asked: list[str] = []

    def logged(self, *decided: Decision, before: bool = True, now: bool = True) -> Pass:
        decisions = Decisions({d.gtrid: d for d in decided}, {}, {})
        if before:
            self.before = decisions
        if now:
            self.now = decisions
        return self

    def run(self) -> Report:
        return drive(recover(self, Ownership(NODE, LOG, KNOWN, self.deciders, OWN), self.gone))

    # --- the ports --------------------------------------------------------------------------------------------
    async def read_floors(self) -> Floors:
        self.asked.append("read floors")
        return self.floors

    async def read_ceilings(self) -> Ceilings:
        assert self.asked[-1] == "scan", "what begins during the scan is below"
        return self.ceilings

    async def read_decisions(self) -> Decisions:
        self.asked.append("read decisions")
        return self.before

    async def scan(self) -> Scanned:
        self.asked.append("scan")
        return self.scanned

    async def read_live(self) -> tuple[frozenset[bytes], AtWork, Decisions]:
        self.asked.append("read live and decisions")
        return self.live, self.at_work, self.now

    async def settle(self, decider: str, gtrid: bytes) -> Decision | XaError | None:
        self.asked.append(f"settle {Gtrid.decode(gtrid).sequence} in {decider}")
        return self.words.get(gtrid)

    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:  # noqa: ARG002
        who = " ".join(f"{b.resource}{Gtrid.decode(b.xid.gtrid).sequence}" for b in branches)
        self.asked.append(f"{verb.value}: {who}")
        return [as_answer(self.answers.get((verb, b), Code.XA_OK)) for b in branches]

    async def outcomes(self, branches: tuple[Branch, ...]) -> list[BranchOutcome | XaError]:
        noted = [branch.resource for branch in branches if branch.note]
        if noted:
            self.asked.append(f"outcome: {' '.join(noted)}")
        return [self.outcome if branch.note else BranchOutcome.UNKNOWN for branch in branches]

    async def note(self, heuristic: Heuristic) -> LogFull | None:
        self.asked.append(f"note {heuristic.branch.resource} {heuristic.code.name}")
        return self.refused

    async def end(self, decision: Decision, decider: str | None = None) -> None:
        where = f" in {decider}" if decider else ""
        self.asked.append(f"ended {Gtrid.decode(decision.gtrid).sequence}{where}")


ORDER = ["read floors", "read decisions", "scan", "read live and decisions"]
A, B = branch("a", gtrid()), branch("b", gtrid())
DECISION = Decision(gtrid(), (A, B))


def actions(report: Report) -> dict[str, Action]:
    return {finding.branch.resource: finding.action for finding in report.findings}


def reason(report: Report) -> str:
    (finding,) = report.findings
    return finding.why


@each(
    ("one", "asked", "action"),
    [
        (Pass(a=[], b=[]), [], None),
        (Pass(a=[A], b=[B]), ["rollback: a1 b1"], Action.ROLLED_BACK),
        (Pass(a=[A], b=[B]).logged(DECISION), ["commit, again: a1 b1", "ended 1"], Action.COMMITTED),
        (  # made during the scan: it counts, and is not ended by this pass
            Pass(a=[A], b=[]).logged(DECISION, before=False),
            ["commit, again: a1"],
            Action.COMMITTED,
        ),
        (  # of earlier openings of the log, and of this one
            Pass(a=[branch("a", gtrid(number, incarnation=of)) for number, of in ((1, WHOLE), (2, WHOLE), (3, OWN))]),
            ["rollback: a1 a2 a3"],
            Action.ROLLED_BACK,
        ),
    ],
)
def test_what_is_ours_is_committed_where_it_is_decided_and_rolled_back_where_not(
    one: Pass, asked: list[str], action: Action | None
) -> None:
    report = one.run()
    assert one.asked == [*ORDER, *asked]
    assert {finding.action for finding in report.findings} == ({action} if action else set())
    assert report.ended == ([gtrid()] if "ended 1" in asked else [])
    assert report.clean
    if action is Action.ROLLED_BACK:
        assert "presumed" in report.findings[0].why


FOREIGN = {
    "another product's format id": Branch("a", Xid(4711, gtrid(), b"a")),
    "octets of somebody else's": Branch("a", Xid(FORMAT_ID, b"\xff" * 20, b"a")),
    "too short a tail": Branch("a", Xid(FORMAT_ID, gtrid()[:-1], b"a")),
    "no separator": Branch("a", Xid(FORMAT_ID, b"x" * 30, b"a")),
}


@pytest.mark.parametrize("found", FOREIGN.values(), ids=FOREIGN)
def test_what_another_manager_made_is_not_touched_nor_listed(found: Branch) -> None:
    one = Pass(a=[found])
    report = one.run()
    assert one.asked == ORDER
    assert not report.findings


NOT_OURS = {
    "another node": (gtrid(node="orders-2"), "orders-2"),
    "a node whose name begins like ours": (gtrid(node="orders-10"), "orders-10"),
    "another log": (gtrid(log=b"elsewhr."), b"elsewhr.".hex()),
    "a decider taken out of the configuration": (gtrid(log=DECIDER), DECIDER.hex()),
    "a later opening of the log, of which this is an old copy": (gtrid(incarnation=b"a later1"), "old copy"),
    "an opening that was at work when this copy was made": (gtrid(incarnation=CUT), CUT.hex()),
    "a pipeline that has this log": (gtrid(incarnation=8), "a pipeline made it"),
    "a counter that no manager has, in a decider": (gtrid(log=DECIDER, incarnation=3), "which no manager has"),
}


@pytest.mark.parametrize(("of", "why"), NOT_OURS.values(), ids=NOT_OURS)
def test_what_is_decided_elsewhere_is_left_alone_and_says_why(of: bytes, why: str) -> None:
    one = Pass(a=[branch("a", of)])
    if "which no manager has" in why:
        one.deciders = {DECIDER: "d"}
    report = one.run()
    assert one.asked == ORDER
    others = b"orders-1\0" not in of
    assert actions(report) == {"a": Action.LEFT_ALONE if others else Action.STRANDED}
    assert why in reason(report)
    assert report.clean == others, "what is in doubt of this very node somebody has to look at"
    assert not report.is_worth_repeating


@pytest.mark.parametrize("incarnation", [CUT, b"a later1", 8])
def test_what_a_copy_says_is_decided_is_decided_whatever_else_it_lacks(incarnation: bytes | int) -> None:
    found = branch("a", gtrid(incarnation=incarnation))
    decision = Decision(found.xid.gtrid, (found,))
    one = Pass(a=[found]).logged(decision)
    report = one.run()
    assert one.asked == [*ORDER, "commit, again: a1", "ended 1"]
    assert report.ended == [decision.gtrid]


# --- whose decision in a decider ------------------------------------------------------------------------------
def in_decider(of: bytes, *, scanned: bool = True) -> Pass:
    """A pass that finds a decision of `of` in the decider d, and its branch or nothing of it."""
    found = branch("a", of)
    one = Pass(a=[found] if scanned else [], d=[])
    one.deciders = {DECIDER: "d"}
    one.before = one.now = Decisions({}, {"d": {of: Decision(of, (found,))}}, {})
    return one


@each("scanned", [True, False])
@each("whose", ["a process at work", "another node", "a process at work that has not decided"])
def test_the_decision_of_another_node_or_of_a_process_at_work_is_left_to_it(whose: str, *, scanned: bool) -> None:
    """It is neither carried out, nor ended, nor counted; and where there is none, none is asked for."""
    sibling = whose != "another node"
    of = gtrid(log=DECIDER, incarnation=SIBLING) if sibling else gtrid(node="orders-2", log=DECIDER)
    one = in_decider(of, scanned=scanned)
    if sibling:
        one.at_work = {"d": frozenset({SIBLING})}
    if whose.endswith("decided"):
        one.before = one.now = Decisions({}, {"d": {}}, {})
    report = one.run()
    if sibling and scanned:
        assert "another process of this node is working on it" in reason(report)
    assert one.asked == ORDER
    assert (report.ended, report.undone) == ([], [])
    assert actions(report) == ({"a": Action.LEFT_ALONE} if scanned else {})
    assert report.clean


@pytest.mark.parametrize("incarnation", [SIBLING, OWN])
def test_the_decision_of_a_process_that_is_gone_is_carried_out_and_ended(incarnation: bytes) -> None:
    of = gtrid(log=DECIDER, incarnation=incarnation)
    one = in_decider(of)
    one.at_work = {"d": frozenset({b"a third."})}
    assert one.run().ended == [of]
    assert one.asked == [*ORDER, "commit, again: a1", "ended 1 in d"]


@pytest.mark.parametrize("decided", [True, False])
def test_while_nobody_can_tell_who_is_at_work_a_siblings_branch_waits(*, decided: bool) -> None:
    of = gtrid(log=DECIDER, incarnation=SIBLING)
    one = in_decider(of)
    if not decided:
        one.before = one.now = Decisions({}, {"d": {}}, {})
    one.at_work = {"d": xa_error(Code.XAER_RMFAIL, "connection refused")}
    report = one.run()
    assert one.asked == ORDER
    assert actions(report) == {"a": Action.PENDING}
    assert "it is unknown who is working on it, because d can't be asked: connection refused" in reason(report)
    assert report.undone == ([of] if decided else [])


def test_what_lives_is_not_touched_and_does_not_protect_its_neighbours() -> None:
    one = Pass(a=[A, branch("a", gtrid(2))], b=[B]).logged(DECISION)
    one.live = frozenset({gtrid()})
    report = one.run()
    assert one.asked == [*ORDER, "rollback: a2"]
    assert [finding.branch.xid.gtrid for finding in report.findings] == [gtrid(2)]
    assert not report.ended


# --- who could not be reached ---------------------------------------------------------------------------------
LOST = xa_error(Code.XAER_RMFAIL, "connection refused, 127.0.0.1:5433")


@each(("b", "why"), [(LOST, "connection refused, 127.0.0.1:5433"), (None, "not configured")])
def test_the_unreachable_and_the_unconfigured_are_named_and_keep_their_decisions(b: XaError | None, why: str) -> None:
    one = Pass(a=[A], **({} if b is None else {"b": b})).logged(DECISION)
    report = one.run()
    assert one.asked == [*ORDER, "commit, again: a1"]
    assert list(report.unreachable) == ["b"]
    assert why in report.unreachable["b"]
    assert not report.clean
    assert not report.ended


def test_a_decision_is_ended_without_what_is_gone() -> None:
    other = Decision(gtrid(2), (branch("a", gtrid(2)), branch("b", gtrid(2))))
    one = Pass(a=[A]).logged(DECISION, other)
    one.gone = {gtrid(): frozenset("b")}
    report = one.run()
    assert one.asked == [*ORDER, "commit, again: a1", "ended 1"]
    assert report.ended == [gtrid()]
    assert report.undone == [gtrid(2)], "gone is said of one decision"
    assert list(report.unreachable) == ["b"], "the other decision names it still"


TROUBLES = ["renamed pending", "own pending", "own unreachable", "old name unreachable", "another one", "live", "other"]


@each("gone", [frozenset(), frozenset("b")])
@each("trouble", TROUBLES)
def test_a_decision_is_not_ended_while_a_branch_may_be_left(trouble: str, gone: frozenset[str]) -> None:
    """Beside one that is found under a new name, or that is said to be gone."""
    renamed = Branch("renamed", B.xid)
    scanned: dict[str, list[Branch] | XaError] = {"a": [A], "renamed": [renamed]}
    decision = DECISION
    if trouble == "own unreachable":
        scanned["a"] = LOST
    elif trouble == "old name unreachable":
        scanned["b"] = LOST
    elif trouble == "other":
        scanned["renamed"] = LOST
    elif trouble == "another one":
        decision = Decision(gtrid(), (A, B, branch("c", gtrid())))

    one = Pass(**scanned).logged(decision)
    one.gone = {gtrid(): gone}
    if trouble == "renamed pending":
        one.answers[Verb.COMMIT_AGAIN, renamed] = Code.XA_RETRY
    elif trouble == "own pending":
        one.answers[Verb.COMMIT_AGAIN, A] = Code.XA_RETRY
    elif trouble == "live":
        one.live = frozenset({gtrid()})
    assert one.run().ended == []


@each("code", [Code.XA_OK, Code.XAER_NOTA, Code.XA_HEURCOM, Code.XA_HEURRB])
@each("gone", [frozenset(), frozenset("b")])
def test_a_resource_with_a_new_name_has_its_branches_committed(code: Code, gone: frozenset[str]) -> None:
    """The exact xids decide, not the names: a branch that was found and finished is done, wherever that was, also where
    somebody says that it is gone."""
    one = Pass(a=[A], renamed=[Branch("renamed", B.xid)]).logged(DECISION)
    one.gone = {gtrid(): gone}
    one.answers[Verb.COMMIT_AGAIN, Branch("renamed", B.xid)] = code
    report = one.run()
    assert one.asked[len(ORDER)] == "commit, again: a1 renamed1"
    assert one.asked[-1] == "ended 1"
    assert report.ended == [gtrid()]
    assert report.clean == (Action.HEURISTIC not in actions(report).values())
    assert not report.unreachable
    assert not report.not_configured


@each("found", [True, False])
def test_a_noted_branch_keeps_no_decision_where_it_is_found_under_a_new_name(*, found: bool) -> None:
    """Found nowhere, it may be left where nobody looks: the note of a command is written before the branch is told."""
    one = Pass(a=[A], renamed=[Branch("renamed", B.xid)] if found else [])
    one.before = one.now = Decisions({gtrid(): DECISION}, {}, {B.xid: Heuristic(B, Code.XA_HEURRB)})
    report = one.run()
    assert report.ended == ([gtrid()] if found else [])
    assert [(one.branch.xid, one.action) for one in report.findings if one.branch.xid == B.xid] == [
        (B.xid, Action.HEURISTIC)
    ]
    assert not report.clean
    assert report.not_configured == ({} if found else {gtrid(): ("b",)})


def test_a_name_is_told_for_those_branches_only_that_were_not_found() -> None:
    second = Decision(gtrid(2), (branch("a", gtrid(2)), branch("b", gtrid(2))))
    one = Pass(a=[A], renamed=[Branch("renamed", B.xid)]).logged(DECISION, second)
    report = one.run()
    assert report.ended == [gtrid()]
    assert report.undone == [gtrid(2)]
    assert report.not_configured == {gtrid(2): ("b",)}
    assert list(report.unreachable) == ["b"]


@each("code", [Code.XAER_RMFAIL, Code.XA_RETRY])
def test_a_branch_that_can_not_be_told_stays_pending_with_its_decision_and_others_are_ended(code: Code) -> None:
    second = Decision(gtrid(2), (branch("b", gtrid(2)),))
    one = Pass(a=[A], b=[B, *second.branches]).logged(DECISION, second)
    one.answers[Verb.COMMIT_AGAIN, B] = code
    report = one.run()
    assert [finding.action for finding in report.findings] == [Action.COMMITTED, Action.PENDING, Action.COMMITTED]
    assert "decided to commit" in report.findings[1].why
    assert not report.clean
    assert report.ended == [gtrid(2)]


# --- heuristics -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["a", "renamed"])
def test_a_noted_heuristic_waits_to_be_forgotten_whatever_the_resource_is_called_now(name: str) -> None:
    """Its decision is ended with the last branch that is not noted."""
    one = Pass(**{name: [Branch(name, A.xid)]}, b=[])
    one.before = one.now = Decisions({gtrid(): DECISION}, {}, {A.xid: Heuristic(A, Code.XA_HEURRB)})
    report = one.run()
    assert one.asked == [*ORDER, "ended 1"]
    assert actions(report) == {"b": Action.NOT_THERE, name: Action.HEURISTIC}
    assert any("forgotten" in finding.why for finding in report.findings if finding.action is Action.HEURISTIC)
    assert not report.clean
    assert not report.is_worth_repeating
    assert report.ended == [gtrid()]


def test_a_heuristic_that_can_not_be_noted_stays_pending() -> None:
    one = Pass(a=[A], b=[B]).logged(DECISION)
    one.answers[Verb.COMMIT_AGAIN, A] = Code.XA_HEURRB
    one.refused = LogFull("no space left")
    report = one.run()
    assert one.asked == [*ORDER, "commit, again: a1 b1", "note a XA_HEURRB"]
    assert actions(report) == {"a": Action.PENDING, "b": Action.COMMITTED}
    assert not report.ended


@each("verb", [Verb.COMMIT_AGAIN, Verb.ROLLBACK])
@each("code", sorted(Code))
def test_every_answer_to_what_recovery_asks(verb: Verb, code: Code) -> None:
    one = Pass(a=[A], b=[])
    if verb is Verb.COMMIT_AGAIN:
        one.logged(DECISION)
    one.answers[verb, A] = code
    report = one.run()
    agreed = AnswerMeaning.HEUR_COMMITTED if verb is Verb.COMMIT_AGAIN else AnswerMeaning.HEUR_ROLLED_BACK
    meaning = MEANING[verb][code]
    asked = [*ORDER, f"{verb.value}: a1"]
    if meaning is AnswerMeaning.DONE:
        expected = Action.COMMITTED if verb is Verb.COMMIT_AGAIN else Action.ROLLED_BACK
        if code is Code.XAER_NOTA:
            expected = Action.GONE if verb is Verb.ROLLBACK else Action.NOT_THERE
    elif meaning is AnswerMeaning.LATER:
        expected = Action.PENDING
    elif meaning is agreed:
        expected = Action.FORGOTTEN
        asked.append("forget: a1")
    else:
        expected = Action.HEURISTIC
        asked.append(one.asked[5])
        assert asked[-1].startswith("note a XA_HEUR")

    over = verb is Verb.COMMIT_AGAIN and expected is not Action.PENDING
    assert actions(report) == {"a": expected} | ({"b": Action.NOT_THERE} if over else {})
    assert report.clean == (expected not in {Action.PENDING, Action.HEURISTIC})
    assert one.asked == asked + ["ended 1"] * over


# --- what is not there any more ---------------------------------------------------------------------------------
NOTED = Branch(B.resource, B.xid, b"note")
WITH_NOTE = Decision(gtrid(), (A, NOTED))


@each(
    ("outcome", "asked", "action", "why"),
    [
        (BranchOutcome.COMMITTED, ["ended 1"], Action.NOT_THERE, "it was committed, as decided"),
        (BranchOutcome.UNKNOWN, ["ended 1"], Action.NOT_THERE, "committed before, or completed by hand"),
        (BranchOutcome.ROLLED_BACK, ["note b XA_HEURRB", "ended 1"], Action.HEURISTIC, "somebody has rolled it back"),
        (BranchOutcome.LOST, ["note b XA_HEURRB", "ended 1"], Action.HEURISTIC, "is older than this decision"),
        (BranchOutcome.PREPARED, [], Action.PENDING, "prepared there, but not listed"),
        (xa_error(Code.XAER_RMFAIL, "it went away"), [], Action.PENDING, "it went away"),
    ],
)
def test_a_branch_that_was_not_found_is_told_and_its_outcome_asked_where_that_is_known(
    outcome: BranchOutcome | XaError, asked: list[str], action: Action, why: str
) -> None:
    one = Pass(a=[A], b=[]).logged(WITH_NOTE)
    one.outcome = outcome
    report = one.run()
    assert one.asked == [*ORDER, "commit, again: a1", "outcome: b", *asked]
    assert actions(report) == {"a": Action.COMMITTED, "b": action}
    assert why in report.findings[1].why
    assert report.ended == [gtrid()] * ("ended 1" in asked)
    assert report.undone == [gtrid()] * ("ended 1" not in asked)
    assert report.clean == (action is Action.NOT_THERE)


def test_a_decision_is_not_ended_before_it_is_noted_that_a_branch_was_rolled_back() -> None:
    one = Pass(a=[], b=[]).logged(WITH_NOTE)
    one.outcome = BranchOutcome.ROLLED_BACK
    one.refused = LogFull("no space left")
    report = one.run()
    assert actions(report) == {"a": Action.NOT_THERE, "b": Action.PENDING}
    assert "no space left" in report.findings[1].why
    assert not report.ended
    assert report.undone == [gtrid()]


def test_a_branch_that_goes_between_the_scan_and_its_commit_is_asked_after_too() -> None:
    one = Pass(a=[A], b=[B]).logged(WITH_NOTE)
    one.answers[Verb.COMMIT_AGAIN, B] = Code.XAER_NOTA
    one.outcome = BranchOutcome.ROLLED_BACK
    report = one.run()
    assert one.asked == [*ORDER, "commit, again: a1 b1", "outcome: b", "note b XA_HEURRB", "ended 1"]
    assert actions(report) == {"a": Action.COMMITTED, "b": Action.HEURISTIC}


@each("ended", [True, False])
def test_what_has_ended_during_the_pass_or_waits_to_be_forgotten_is_not_told_again(*, ended: bool) -> None:
    one = Pass(a=[], b=[]).logged(WITH_NOTE, now=not ended)
    if not ended:
        noted = {branch.xid: Heuristic(branch, Code.XA_HEURRB) for branch in (A, B)}
        one.now = Decisions(one.now.logged, {}, noted)
    report = one.run()
    assert one.asked == [*ORDER, "ended 1"]
    assert all(finding.action is Action.HEURISTIC and "forget" in finding.why for finding in report.findings)


# --- deciders ---------------------------------------------------------------------------------------------------
D1 = gtrid(log=DECIDER)
DA, DB = branch("a", D1), branch("b", D1)
IN_DECIDER = Decision(D1, (DA, DB))


def with_decider(**scanned: list[Branch] | XaError) -> Pass:
    one = Pass(**scanned, d=[])
    one.deciders = {DECIDER: "d"}
    return one


@each(
    ("word", "asked", "action", "why"),
    [
        (None, ["rollback: a1 b1"], Action.ROLLED_BACK, "will take none"),
        (IN_DECIDER, ["commit, again: a1 b1"], Action.COMMITTED, "in d"),
        (xa_error(Code.XA_RETRY, "it decides at this moment"), [], Action.PENDING, "decides at this moment"),
    ],
)
def test_the_decider_is_asked_once_per_transaction_before_anything_is_presumed(
    word: Decision | XaError | None, asked: list[str], action: Action, why: str
) -> None:
    one = with_decider(a=[DA], b=[DB])
    one.words[D1] = word
    report = one.run()
    assert one.asked == [*ORDER, "settle 1 in d", *asked]
    assert actions(report) == {"a": action, "b": action}
    assert why in report.findings[0].why


def test_decisions_of_an_unreachable_decider_end_nothing_and_presume_nothing() -> None:
    one = with_decider(a=[DA], b=[])
    one.scanned["d"] = xa_error(Code.XAER_RMFAIL, "gone")
    one.words[D1] = xa_error(Code.XAER_RMFAIL, "gone")
    report = one.run()
    assert one.asked == [*ORDER, "settle 1 in d"]
    assert report.unreachable == {"d": "gone"}


@pytest.mark.parametrize(
    ("pause_s", "took_s", "next_s"),
    [
        (0.1, 0.0, 0.2),
        (4.0, 0.001, 8.0),
        (8.0, 0.1, 10.0),  # not beyond the interval
        (10.0, 2.0, 40.0),  # but where there is much to look through: a twentieth of the time
        (10.0, 30.0, 60.0),
        (0.1, 1.0, 20.0),
    ],
)
def test_a_pass_rests_longer_the_longer_it_took(pause_s: float, took_s: float, next_s: float) -> None:
    assert pause_after(pause_s, 10.0, took_s) == pytest.approx(next_s)
