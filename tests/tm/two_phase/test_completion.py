"""These tests drive the completion by hand: for every code at every verb and position they check its next step and the
outcome.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.cases import each
from tests.tm.two_phase.staging import DECIDER, Script, Stage, branch
from tm.errors import (
    HeuristicCommitted,
    HeuristicHazard,
    HeuristicMixed,
    HeuristicRolledBack,
    OutcomeUnknown,
    RolledBack,
    error_of,
)
from tm.log import DecisionRefused, LogError, LogFull, LogStopped
from tm.outcome import Verdict
from tm.two_phase.return_codes import HEURISTIC_CODE, MEANING, Verb
from tm.two_phase.states import GlobalState
from xa import HEURISTIC_CODES, ROLLBACK_CODES, Code, XaError, xa_error
from xa.outcome_notes import BranchOutcome

V = Verdict
COMMITTED, ROLLED_BACK, UNKNOWN = V.COMMITTED, V.ROLLED_BACK, V.UNKNOWN
OK, NOTA, RMFAIL, RMERR, RETRY = Code.XA_OK, Code.XAER_NOTA, Code.XAER_RMFAIL, Code.XAER_RMERR, Code.XA_RETRY
RDONLY, NOMIGRATE = Code.XA_RDONLY, Code.XA_NOMIGRATE
HEURCOM, HEURRB, HEURMIX, HEURHAZ = Code.XA_HEURCOM, Code.XA_HEURRB, Code.XA_HEURMIX, Code.XA_HEURHAZ
RB = sorted(ROLLBACK_CODES)
WRONG = [Code.XAER_PROTO, Code.XAER_INVAL, Code.XAER_ASYNC, Code.XAER_DUPID, Code.XAER_OUTSIDE]

GOOD = ["end: a b", "prepare: a b", "force: a b", "commit: a b", "ended"]
GOOD_DECIDED = ["end: a b d", "prepare: a b", "decide: a b", "commit: a b", "ended in d"]


def check(stage: Stage, asked: list[str], verdict: Verdict, *, decided: bool | None, state: GlobalState) -> None:
    outcome = stage.outcome
    assert stage.asked == asked
    assert (outcome.verdict, outcome.decided, stage.completion.state) == (verdict, decided, state)


def rolled_back(stage: Stage, asked: list[str]) -> None:
    check(stage, asked, ROLLED_BACK, decided=False, state=GlobalState.ROLLED_BACK)
    assert isinstance(error_of(stage.outcome), RolledBack)


def committed(stage: Stage, asked: list[str]) -> None:
    check(stage, asked, COMMITTED, decided=True, state=GlobalState.COMMITTED)
    assert error_of(stage.outcome) is None
    assert not stage.outcome.pending


# --- the plain ways -----------------------------------------------------------------------------------------
def test_two_branches_are_prepared_decided_and_committed() -> None:
    stage = Stage("ab")
    stage.commit()
    committed(stage, GOOD)
    assert stage.states == [
        GlobalState.ACTIVE,
        GlobalState.PREPARING,
        GlobalState.COMMITTING,
        GlobalState.COMMITTED,
    ]


@each(
    ("names", "settings", "asked"),
    [
        ("abd", {}, GOOD_DECIDED),  # nothing is forced here
        ("a", {}, ["end: a", "commit, one phase: a"]),
        ("d", {}, ["end: d", "commit, one phase: d"]),
        ("", {}, []),
        ("ab", {"associated": ""}, GOOD[1:]),
        ("a", {"late": True}, ["end: a", "commit, one phase: a"]),
        ("d", {"late": True}, ["end: d", "commit, one phase: d"]),
        ("ab", {"late": True}, ["end, with prepare: a b", *GOOD[1:]]),
        ("abd", {"late": True}, ["end, with prepare: a b d", *GOOD_DECIDED[1:]]),
    ],
)
def test_who_takes_part_says_what_is_asked(names: str, settings: Any, asked: list[str]) -> None:
    stage = Stage(names, **settings)
    stage.commit()
    committed(stage, asked)


@each("state", [GlobalState.ACTIVE, GlobalState.MARKED])
@each("names", ["", "a", "ab", "abc", "d", "ad", "abd"])
def test_a_rollback_and_the_commit_of_a_marked_one_end_and_roll_back_everybody(names: str, state: GlobalState) -> None:
    stage = Stage(names, state=state)
    if state is GlobalState.MARKED:
        stage.commit()
    else:
        stage.rollback()
    who = " ".join(names)
    rolled_back(stage, [f"end: {who}", f"rollback: {who}"] if names else [])


# --- end ----------------------------------------------------------------------------------------------------
ENDS_WELL = {OK, RDONLY, NOMIGRATE}


@each("code", sorted(Code))
@each(
    ("names", "who", "late"),
    [("a", "a", False), ("ab", "a", False), ("ab", "b", False), ("ab", "b", True), ("abd", "a", False),
     ("abd", "d", False)],
)  # fmt: skip
def test_a_branch_that_can_not_be_ended_refuses(names: str, who: str, late: bool, code: Code) -> None:
    stage = Stage(names, {(Verb.END_LATE if late else Verb.END, who): code}, late=late)
    stage.commit()
    everybody = " ".join(names)
    end = f"end, with prepare: {everybody}" if late else f"end: {everybody}"
    if code in ENDS_WELL:
        good = {"a": ["", "commit, one phase: a"], "ab": GOOD, "abd": GOOD_DECIDED}[names]
        committed(stage, [end, *good[1:]])
    else:
        rolled_back(stage, [end, f"rollback: {everybody}"])
        assert [reason.branch and reason.branch.resource for reason in stage.outcome.reasons] == [who]


@each("code", sorted(Code))
def test_a_rollback_does_not_mind_how_the_ends_went(code: Code) -> None:
    stage = Stage("ab", {(Verb.END, "a"): code})
    stage.rollback()
    rolled_back(stage, ["end: a b", "rollback: a b"])


# --- prepare ------------------------------------------------------------------------------------------------
GONE = {*RB, NOTA}
"""After such a vote nothing is left to be rolled back."""


@each("code", sorted(Code))
@each("decider", ["", "d"])
@each("who", ["a", "b"])
def test_one_vote_of_two(who: str, decider: str, code: Code) -> None:
    stage = Stage("ab" + decider, {(Verb.PREPARE, who): code})
    stage.commit()
    other = "b" if who == "a" else "a"
    end = f"end: a b {decider}".strip()
    if code is OK:
        committed(stage, GOOD_DECIDED if decider else GOOD)
    elif code is RDONLY and decider:
        committed(stage, [end, "prepare: a b", f"decide: {other}", f"commit: {other}", "ended in d"])
    elif code is RDONLY:
        committed(stage, [end, "prepare: a b", f"commit: {other}"])
    else:
        left = [name for name in "ab" if name != who or code not in GONE] + [*decider]
        rolled_back(stage, [end, "prepare: a b", "rollback: " + " ".join(left)])


@each("codes", itertools.product((OK, RDONLY, RB[0], RMERR, RMFAIL), repeat=3))
@each("decider", ["", "d"])
def test_three_votes(codes: tuple[Code, ...], decider: str) -> None:
    votes = dict(zip("abc", codes, strict=True))
    stage = Stage("abc" + decider, {(Verb.PREPARE, name): code for name, code in votes.items()})
    stage.commit()
    yes = " ".join(name for name in votes if votes[name] is OK)

    asked = [f"end: a b c {decider}".strip(), "prepare: a b c"]
    if set(votes.values()) - {OK, RDONLY}:
        left = [name for name in votes if votes[name] not in (RDONLY, RB[0])] + [*decider]
        rolled_back(stage, asked + (["rollback: " + " ".join(left)] if left else []))
    elif not yes:
        committed(stage, asked + (["commit, one phase: d"] if decider else []))
    elif decider:
        committed(stage, [*asked, f"decide: {yes}", f"commit: {yes}", "ended in d"])
    elif len(yes) == 1:
        committed(stage, [*asked, f"commit: {yes}"])
    else:
        committed(stage, [*asked, f"force: {yes}", f"commit: {yes}", "ended"])


# --- the decision -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [LogFull("full"), DecisionRefused("fenced")], ids=repr)
def test_a_log_that_takes_no_decision_rolls_back(error: LogError) -> None:
    stage = Stage("ab", force=error)
    stage.commit()
    rolled_back(stage, ["end: a b", "prepare: a b", "force: a b", "rollback: a b"])


def test_a_force_that_failed_touches_nothing_and_says_unknown() -> None:
    stage = Stage("ab", force=LogStopped("force failed"))
    stage.commit()
    check(stage, ["end: a b", "prepare: a b", "force: a b"], UNKNOWN, decided=None, state=GlobalState.IN_DOUBT)
    assert [b.resource for b in stage.outcome.pending] == ["a", "b"]
    assert isinstance(error_of(stage.outcome), OutcomeUnknown)


DECIDER_ASKED = ["end: a b d", "prepare: a b", "decide: a b"]


@each("code", sorted(Code))
def test_what_the_decider_answers(code: Code) -> None:
    stage = Stage("abd", {(Verb.DECIDE, DECIDER): code})
    stage.commit()
    if code is OK:
        committed(stage, GOOD_DECIDED)
    elif code in {*RB, RMERR, NOTA}:
        rolled_back(stage, [*DECIDER_ASKED, "rollback: a b"])
    elif code in {*WRONG, RETRY, NOMIGRATE}:
        rolled_back(stage, [*DECIDER_ASKED, "rollback: a b d"])
    else:
        check(stage, DECIDER_ASKED, UNKNOWN, decided=None, state=GlobalState.IN_DOUBT)
        assert [b.resource for b in stage.outcome.pending] == ["a", "b"]


# --- one phase ----------------------------------------------------------------------------------------------
ALONE = {
    HEURRB: (V.HEUR_ROLLED_BACK, HeuristicRolledBack),
    HEURMIX: (V.MIXED, HeuristicMixed),
    HEURHAZ: (V.HAZARD, HeuristicHazard),
}


@each("code", sorted(Code))
@each(("names", "script"), [("a", {}), ("d", {}), ("ad", {(Verb.PREPARE, "a"): RDONLY})])
def test_the_only_branch(names: str, script: Script, code: Code) -> None:
    who = names[-1]
    stage = Stage(names, {**script, (Verb.COMMIT_ONE_PHASE, who): code})
    stage.commit()

    asked = ["end: " + " ".join(names), *(["prepare: a"] if len(names) > 1 else []), f"commit, one phase: {who}"]
    if code in {OK, RDONLY}:
        committed(stage, asked)
    elif code is HEURCOM:
        committed(stage, [*asked, f"forget: {who}"])
    elif code in {*RB, RMERR, NOTA}:
        rolled_back(stage, asked)
    elif code in ALONE:
        check(stage, [*asked, f"note: {who} {code.name}"], ALONE[code][0], decided=True, state=GlobalState.HEURISTIC)
        assert type(error_of(stage.outcome)) is ALONE[code][1]
    elif code is RMFAIL:
        check(stage, asked, UNKNOWN, decided=None, state=GlobalState.IN_DOUBT)
        assert not stage.outcome.pending
    else:
        rolled_back(stage, [*asked, f"rollback: {who}"])


# --- one prepared branch beside read-only ones --------------------------------------------------------------
SOLO = ["end: a b", "prepare: a b", "commit: a"]


def solo(*codes: Code, force: LogError | None = None) -> Stage:
    script: Script = {(Verb.PREPARE, "b"): RDONLY, (Verb.COMMIT, "a"): codes[0]}
    if codes[1:]:
        script[Verb.COMMIT_AGAIN, "a"] = list(codes[1:])
    stage = Stage("ab", script, force=force)
    stage.commit()
    return stage


@each("code", sorted(Code))
def test_one_prepared_branch_decides_by_its_own_commit(code: Code) -> None:
    stage = solo(code)
    if code in {OK, RDONLY}:
        committed(stage, SOLO)
    elif code is HEURCOM:
        committed(stage, [*SOLO, "forget: a"])
    elif code in {*RB, RMERR}:
        rolled_back(stage, SOLO)
    elif code in ALONE:
        check(stage, [*SOLO, f"note: a {code.name}"], ALONE[code][0], decided=True, state=GlobalState.HEURISTIC)
    elif code is NOTA:
        check(stage, [*SOLO, "held?", "note: a XA_HEURHAZ"], V.HAZARD, decided=True, state=GlobalState.HEURISTIC)
    else:  # it may be committed, or prepared still: recovery has to know that it is to be committed
        committed(stage, [*SOLO, "force: a", "commit, again: a", "ended"])


def test_a_lone_commit_that_was_carried_out_unheard_is_committed() -> None:
    committed(solo(RMFAIL, NOTA), [*SOLO, "force: a", "commit, again: a", "ended"])


@pytest.mark.parametrize("error", [LogFull("full"), DecisionRefused("fenced"), LogStopped("stopped")], ids=repr)
def test_a_lone_commit_unheard_that_can_not_be_logged_is_unknown(error: LogError) -> None:
    stage = solo(RMFAIL, force=error)
    check(stage, [*SOLO, "force: a"], UNKNOWN, decided=None, state=GlobalState.IN_DOUBT)
    assert [b.resource for b in stage.outcome.pending] == ["a"]


# --- commit after the decision ------------------------------------------------------------------------------
AGAIN = {RMFAIL, RETRY, NOMIGRATE, *WRONG}
NOTED = {**dict.fromkeys([*RB, RMERR, HEURRB], HEURRB), HEURMIX: HEURMIX, HEURHAZ: HEURHAZ, NOTA: HEURHAZ}
"""Code at commit → the code it is noted under."""


@each("code", sorted(Code))
@each("decider", ["", "d"])
@each("who", ["a", "b"])
def test_one_commit_of_two(who: str, decider: str, code: Code) -> None:
    stage = Stage("ab" + decider, {(Verb.COMMIT, who): code})
    stage.commit()
    *asked, ended = GOOD_DECIDED if decider else GOOD
    if code in {OK, RDONLY}:
        committed(stage, [*asked, ended])
    elif code is HEURCOM:
        committed(stage, [*asked, f"forget: {who}", ended])
    elif code in AGAIN:
        committed(stage, [*asked, "pause", f"commit, again: {who}", ended])
    else:
        noted = NOTED[code]
        verdict = V.HAZARD if noted is HEURHAZ else V.MIXED
        if code is NOTA:
            asked.append("held?")
        check(stage, [*asked, f"note: {who} {noted.name}", ended], verdict, decided=True, state=GlobalState.HEURISTIC)


@pytest.mark.parametrize("decider", ["", "d"], ids=["log", "decider"])
@pytest.mark.parametrize("unknown", ["a", "b", "ab"])
def test_what_another_process_may_have_finished_is_no_hazard(unknown: str, decider: str) -> None:
    """This one was stopped behind its decision, and somebody else has recovered it."""
    stage = Stage("ab" + decider, {(Verb.COMMIT, who): NOTA for who in unknown}, held=False)
    stage.commit()
    *asked, ended = GOOD_DECIDED if decider else GOOD
    committed(stage, [*asked, "held?", ended])


@each("code", sorted(Code))
def test_a_lost_lease_changes_the_meaning_of_nothing_else(code: Code) -> None:
    lost, standing = (
        Stage("abc", {(Verb.COMMIT, "a"): code, (Verb.COMMIT, "b"): NOTA}, held=held) for held in (False, True)
    )
    told = lost.commit()
    if code is NOTA:
        assert told.verdict is V.COMMITTED
        return
    b = branch("b")
    expected = standing.commit()
    assert told.pending == expected.pending
    assert told.heuristics == tuple(one for one in expected.heuristics if one.branch != b)


@pytest.mark.parametrize(("held", "verdict"), [(True, V.HAZARD), (False, V.UNKNOWN)])
def test_an_only_branch_that_is_not_known_any_more(*, held: bool, verdict: Verdict) -> None:
    """No decision is logged for it: who took the log over has rolled it back, if it was still there."""
    stage = Stage("ab", {(Verb.PREPARE, "b"): RDONLY, (Verb.COMMIT, "a"): NOTA}, held=held)
    assert stage.commit().verdict is verdict
    assert stage.asked[:4] == ["end: a b", "prepare: a b", "commit: a", "held?"]


# --- what is not known any more, and was noted -------------------------------------------------------------------
GONE_AWAY = xa_error(RMFAIL, "it went away")


@each(
    ("outcome", "asked", "verdict"),
    [
        (BranchOutcome.COMMITTED, ["ended"], COMMITTED),
        (BranchOutcome.ROLLED_BACK, ["note: b XA_HEURRB", "ended"], V.MIXED),
        (BranchOutcome.LOST, ["note: b XA_HEURRB", "ended"], V.MIXED),
        (BranchOutcome.UNKNOWN, ["held?", "note: b XA_HEURHAZ", "ended"], V.HAZARD),
        (BranchOutcome.PREPARED, ["pause", "commit, again: b", "ended"], COMMITTED),
        (GONE_AWAY, ["pause", "commit, again: b", "ended"], COMMITTED),
    ],
)
def test_a_resource_manager_that_can_tell_the_outcome_of_an_unknown_branch_is_asked(
    outcome: BranchOutcome | XaError, asked: list[str], verdict: Verdict
) -> None:
    stage = Stage("ab", {(Verb.COMMIT, "b"): NOTA}, outcomes={"b": outcome})
    assert stage.commit().verdict is verdict
    assert stage.asked == [*GOOD[:-1], "outcome: b", *asked]


def test_a_branch_rolled_back_by_hand_between_two_tries_is_not_taken_for_committed() -> None:
    script: Script = {(Verb.COMMIT, "b"): RMFAIL, (Verb.COMMIT_AGAIN, "b"): NOTA}
    stage = Stage("ab", script, outcomes={"b": BranchOutcome.ROLLED_BACK})
    assert stage.commit().verdict is V.MIXED
    assert stage.asked[-3:] == ["outcome: b", "note: b XA_HEURRB", "ended"]


@each(("outcome", "verdict"), [(BranchOutcome.COMMITTED, COMMITTED), (BranchOutcome.ROLLED_BACK, ROLLED_BACK)])
def test_an_only_branch_that_was_completed_by_hand_decides_where_its_outcome_is_known(
    outcome: BranchOutcome, verdict: Verdict
) -> None:
    script: Script = {(Verb.PREPARE, "b"): RDONLY, (Verb.COMMIT, "a"): NOTA}
    stage = Stage("ab", script, outcomes={"a": outcome})
    assert stage.commit().verdict is verdict
    assert stage.asked == ["end: a b", "prepare: a b", "commit: a", "outcome: a"]


@each("code", sorted(Code))
@each("first", [RMFAIL, RETRY])
def test_one_commit_asked_again(first: Code, code: Code) -> None:
    stage = Stage("ab", {(Verb.COMMIT, "b"): first, (Verb.COMMIT_AGAIN, "b"): code})
    stage.commit()
    asked = [*GOOD[:-1], "pause", "commit, again: b"]
    if code in {OK, RDONLY, NOTA}:  # unknown by now: the first was carried out
        committed(stage, [*asked, "ended"])
    elif code is HEURCOM:
        committed(stage, [*asked, "forget: b", "ended"])
    elif code in AGAIN:
        check(stage, [*asked, "pause", "commit, again: b"], UNKNOWN, decided=True, state=GlobalState.IN_DOUBT)
        assert [b.resource for b in stage.outcome.pending] == ["b"]
        assert isinstance(error_of(stage.outcome), OutcomeUnknown)
    else:
        noted = NOTED[code]
        verdict = V.HAZARD if noted is HEURHAZ else V.MIXED
        check(stage, [*asked, f"note: b {noted.name}", "ended"], verdict, decided=True, state=GlobalState.HEURISTIC)


def test_only_those_who_could_not_be_told_are_asked_again() -> None:
    script: Script = {
        (Verb.COMMIT, "a"): RMFAIL,
        (Verb.COMMIT, "c"): RETRY,
        (Verb.COMMIT_AGAIN, "a"): OK,
        (Verb.COMMIT_AGAIN, "c"): [RETRY, OK],
    }
    stage = Stage("abc", script)
    stage.commit()
    asked = ["commit: a b c", "pause", "commit, again: a c", "pause", "commit, again: c", "ended"]
    committed(stage, ["end: a b c", "prepare: a b c", "force: a b c", *asked])


def test_a_decision_is_not_ended_while_a_branch_is_pending_beside_a_damaged_one() -> None:
    script: Script = {(Verb.COMMIT, "a"): HEURRB, (Verb.COMMIT, "b"): RMFAIL, (Verb.COMMIT_AGAIN, "b"): RMFAIL}
    stage = Stage("ab", script)
    outcome = stage.commit()
    assert "ended" not in stage.asked
    assert outcome.verdict is V.MIXED
    assert [b.resource for b in outcome.pending] == ["b"]


def test_a_decision_is_not_ended_when_its_damage_could_not_be_noted() -> None:
    stage = Stage("ab", {(Verb.COMMIT, "a"): HEURRB}, note=LogStopped("stopped"))
    outcome = stage.commit()
    assert stage.asked == [*GOOD[:-1], "note: a XA_HEURRB"]
    assert outcome.verdict is V.MIXED


# --- rollback -----------------------------------------------------------------------------------------------
ROLLS_BACK = {OK, RDONLY, *RB, RMERR, NOTA}


@each("code", sorted(Code))
@each(("names", "who"), [("a", "a"), ("ab", "a"), ("ab", "b"), ("abd", "b"), ("abd", "d")])
def test_what_a_rollback_hears(names: str, who: str, code: Code) -> None:
    stage = Stage(names, {(Verb.ROLLBACK, who): code})
    outcome = stage.rollback()
    everybody = " ".join(names)
    asked = [f"end: {everybody}", f"rollback: {everybody}"]

    if code in ROLLS_BACK:
        rolled_back(stage, asked)
        assert not outcome.pending
    elif code is HEURRB:
        rolled_back(stage, [*asked, f"forget: {who}"])
    elif code in AGAIN:
        rolled_back(stage, asked)
        assert [b.resource for b in outcome.pending] == [who]
    else:
        verdict = {HEURCOM: V.HEUR_COMMITTED if names == "a" else V.MIXED, HEURMIX: V.MIXED, HEURHAZ: V.HAZARD}[code]
        check(stage, [*asked, f"note: {who} {code.name}"], verdict, decided=False, state=GlobalState.HEURISTIC)
        if verdict is V.HEUR_COMMITTED:
            assert type(error_of(outcome)) is HeuristicCommitted


# --- the summary --------------------------------------------------------------------------------------------
def summary(ends: set[str], *, asked_for: str) -> Verdict:
    """What became of a whole whose parts came to `ends`, among c(ommitted), r(olled back), m(ixed) and ? (hazard)."""
    if "m" in ends or {"c", "r"} <= ends:
        return V.MIXED
    if "?" in ends:
        return V.HAZARD
    if ends == {"r"}:
        return V.HEUR_ROLLED_BACK if asked_for == "c" else V.ROLLED_BACK
    if ends == {"c"}:
        return V.HEUR_COMMITTED if asked_for == "r" else V.COMMITTED
    raise AssertionError(ends)


COMMIT_ENDS = {OK: "c", HEURCOM: "c", HEURRB: "r", HEURMIX: "m", HEURHAZ: "?", NOTA: "?", RMERR: "r", RB[3]: "r"}


def test_the_table_of_meanings_is_total_and_every_damage_has_a_code_to_be_noted_under() -> None:
    assert MEANING.keys() == set(Verb)
    assert all(row.keys() == set(Code) for row in MEANING.values())
    meanings = {meaning for row in MEANING.values() for meaning in row.values()}
    damages = {meaning for meaning in meanings if meaning.name.startswith(("HEUR_", "LOST_"))}
    assert {HEURISTIC_CODE[meaning] for meaning in damages} == HEURISTIC_CODES
    assert all(HEURISTIC_CODE[MEANING[Verb.COMMIT][code]] is code for code in HEURISTIC_CODES)


def test_the_summary_of_three_commits() -> None:
    for codes in itertools.product(COMMIT_ENDS, repeat=3):
        stage = Stage("abc", {(Verb.COMMIT, n): c for n, c in zip("abc", codes, strict=True)})
        outcome = stage.commit()
        assert outcome.verdict is summary({COMMIT_ENDS[code] for code in codes}, asked_for="c"), codes
        assert stage.asked[-1] == "ended"
        damaged = [n for n, c in zip("abc", codes, strict=True) if c not in (OK, HEURCOM)]
        assert [h.branch.resource for h in outcome.heuristics] == damaged
        assert [line.split()[1] for line in stage.asked if line.startswith("note")] == damaged


def test_the_summary_of_two_commits_behind_a_decider_which_did_commit() -> None:
    for codes in itertools.product(COMMIT_ENDS, repeat=2):
        stage = Stage("abd", {(Verb.COMMIT, n): c for n, c in zip("ab", codes, strict=True)})
        outcome = stage.commit()
        assert outcome.verdict is summary({"c"} | {COMMIT_ENDS[code] for code in codes}, asked_for="c"), codes


ROLLBACK_ENDS = {OK: "r", NOTA: "r", HEURRB: "r", RMFAIL: "r", HEURCOM: "c", HEURMIX: "m", HEURHAZ: "?"}


@pytest.mark.parametrize("names", ["abc", "abd"])
def test_the_summary_of_three_rollbacks(names: str) -> None:
    for codes in itertools.product(ROLLBACK_ENDS, repeat=3):
        stage = Stage(names, {(Verb.ROLLBACK, n): c for n, c in zip(names, codes, strict=True)})
        outcome = stage.rollback()
        assert outcome.verdict is summary({ROLLBACK_ENDS[code] for code in codes}, asked_for="r"), codes


@pytest.mark.parametrize(
    ("names", "script", "expected"),
    [
        ("ab", {(Verb.PREPARE, "a"): RB[0], (Verb.ROLLBACK, "b"): HEURCOM}, V.MIXED),
        ("abd", {(Verb.DECIDE, "d"): RB[0], (Verb.ROLLBACK, "a"): HEURCOM, (Verb.ROLLBACK, "b"): HEURCOM}, V.MIXED),
        ("ad", {(Verb.PREPARE, "a"): RMFAIL, (Verb.ROLLBACK, "a"): HEURCOM, (Verb.ROLLBACK, "d"): RMFAIL}, V.MIXED),
        (  # one who had nothing to commit was not rolled back either
            "abc",
            {(Verb.PREPARE, "a"): RDONLY, (Verb.PREPARE, "b"): RMFAIL, (Verb.ROLLBACK, "b"): HEURCOM,
             (Verb.ROLLBACK, "c"): HEURCOM},
            V.HEUR_COMMITTED,
        ),
    ],
)  # fmt: skip
def test_the_summary_counts_those_who_were_rolled_back_by_their_vote(
    names: str, script: Script, expected: Verdict
) -> None:
    outcome = Stage(names, script).commit()
    assert outcome.verdict is expected
    assert outcome.decided is False


# --- answers that are left --------------------------------------------------------------------------------------
@pytest.mark.parametrize("names", ["ab", "abd"])
@pytest.mark.parametrize("left", ["a", "b"])
def test_answers_are_left_when_everybody_was_told(names: str, left: str) -> None:
    good = GOOD_DECIDED if "d" in names else GOOD
    stage = Stage(names, leaves=left)
    goes_on = stage.commit_and_leave()
    assert callable(goes_on)
    assert stage.asked == [*good[:3], "send commit: a b"]
    assert stage.completion.state is GlobalState.COMMITTING
    goes_on()
    committed(stage, [*good[:3], "send commit: a b", f"collect commit: {left}", good[-1]])


@each(
    ("script", "leaves", "asked"),
    [
        (  # another one has more to do
            {(Verb.COMMIT, "a"): RMFAIL, (Verb.COMMIT_AGAIN, "a"): OK},
            "b",
            ["collect commit: b", "pause", "commit, again: a"],
        ),
        ({}, "c", ["collect commit"]),  # that resource takes no part
    ],
)
def test_nothing_is_left_where_it_would_not_be_the_last(script: Script, leaves: str, asked: list[str]) -> None:
    stage = Stage("ab", script, leaves=leaves)
    stage.commit()
    committed(stage, [*GOOD[:3], "send commit: a b", *asked, "ended"])


@each(
    ("code", "verdict"),
    [(HEURRB, V.MIXED), (HEURHAZ, V.HAZARD), (RMERR, V.MIXED), (RMFAIL, V.UNKNOWN)],
)
def test_what_was_left_is_heuristic_or_lost(code: Code, verdict: Verdict) -> None:
    """What is lost is asked for again, and left to recovery in the end."""
    stage = Stage("ab", {(Verb.COMMIT, "b"): code, (Verb.COMMIT_AGAIN, "b"): RMFAIL}, leaves="b")
    goes_on = stage.commit_and_leave()
    assert callable(goes_on)
    outcome = goes_on()
    assert (outcome.verdict, outcome.decided) == (verdict, True)
    assert any(line.startswith("note: b") for line in stage.asked) == (code is not RMFAIL)
    assert outcome.pending == ((branch("b"),) if code is RMFAIL else ())
    assert ("ended" in stage.asked) == (code is not RMFAIL)
