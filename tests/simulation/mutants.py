"""Mutants of the completion and of recovery: each makes one classic mistake, by bending what a core asks or hears.

The checker has to see every one of them; a mistake that no schedule shows would be a hole in the simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tm.completion import Completion
from tm.effects import Call, Decide, End, Force, Held, Note
from tm.log import Branch, LogFull, LogStopped
from tm.log.incarnations import Incarnations, Standing
from tm.ownership import Claim, Ownership, Whose
from tm.recovery import ReadDecisions, ReadLive, Scan, Settle, recover
from tm.verdicts import Verb
from xa import Code, Gtrid, XaError, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tm.ownership import AtWork


def bent(steps: Any, bend: Callable[[Any], Generator[Any, Any, Any]]) -> Generator[Any, Any, Any]:
    """The steps; every effect goes through `bend`, which yields what is really asked and returns what is heard."""
    answer: Any = None
    while True:
        try:
            effect = steps.send(answer)
        except StopIteration as stop:
            return stop.value
        answer = yield from bend(effect)


def completion_bent_by(bend: Callable[[Any], Generator[Any, Any, Any]]) -> type[Completion]:
    """A Completion whose commit goes through `bend`."""

    class Mutant(Completion):
        def commit(self) -> Any:
            return bent(super().commit(), bend)

    return Mutant


def recovery_bent_by(bend_of: Callable[[], Callable[[Any], Generator[Any, Any, Any]]]) -> Callable[[Ownership], Any]:
    """A recovery pass that goes through a bend of its own."""
    return lambda ownership: bent(recover(ownership), bend_of())


@dataclass(frozen=True)
class Mutant:
    """A name, and what it puts in the place of the right thing."""

    name: str
    completion: type[Completion] = Completion
    recovery: Callable[[Ownership], Any] = recover
    leasing: bool = True
    counting: bool = False


# --- completion ---------------------------------------------------------------------------------------------
def _decision_not_forced(effect: Any) -> Generator[Any, Any, Any]:
    return None if isinstance(effect, Force) else (yield effect)


def _abort_after_decision(effect: Any) -> Generator[Any, Any, Any]:
    answers = yield effect
    if isinstance(effect, Call) and effect.verb in (Verb.COMMIT, Verb.COMMIT_AGAIN):
        failed = tuple(b for b, a in zip(effect.branches, answers, strict=True) if isinstance(a, XaError))
        if failed:
            yield Call(Verb.ROLLBACK, failed)
    return answers


def _ended_too_early(effect: Any) -> Generator[Any, Any, Any]:
    answer = yield effect
    if isinstance(effect, Force) and answer is None:
        yield End(effect.decision)
    return answer


def _lost_vote_counts_as_yes(effect: Any) -> Generator[Any, Any, Any]:
    answers = yield effect
    if isinstance(effect, Call) and effect.verb is Verb.PREPARE:
        return [Code.XA_OK if isinstance(a, XaError) and a.code is Code.XAER_RMFAIL else a for a in answers]
    return answers


def _refusal_counts_as_read_only(effect: Any) -> Generator[Any, Any, Any]:
    answers = yield effect
    if isinstance(effect, Call) and effect.verb is Verb.PREPARE:
        return [Code.XA_RDONLY if isinstance(a, XaError) else a for a in answers]
    return answers


def _failed_force_counts_as_refused(effect: Any) -> Generator[Any, Any, Any]:
    answer = yield effect
    return LogFull("taken for") if isinstance(answer, LogStopped) else answer


def _heuristic_counts_as_done(effect: Any) -> Generator[Any, Any, Any]:
    answers = yield effect
    if isinstance(effect, Call) and effect.verb is Verb.COMMIT:
        return [Code.XA_OK if isinstance(a, XaError) and a.code.name.startswith("XA_HEUR") else a for a in answers]
    return answers


def _not_now_counts_as_rolled_back(effect: Any) -> Generator[Any, Any, Any]:
    """What a resource manager says for which "no connection was free" is an error in the branch."""
    answers = yield effect
    if isinstance(effect, Call) and effect.verb in (Verb.COMMIT, Verb.COMMIT_AGAIN, Verb.ROLLBACK):
        return [_rolled_back(answer) for answer in answers]
    return answers


def _rolled_back(answer: Any) -> Any:
    return xa_error(Code.XAER_RMERR) if isinstance(answer, XaError) and answer.code is Code.XA_RETRY else answer


def _lost_decision_counts_as_refused(effect: Any) -> Generator[Any, Any, Any]:
    answer = yield effect
    if isinstance(effect, Decide) and isinstance(answer, XaError):
        return xa_error(Code.XA_RBROLLBACK)
    return answer


def _commit_before_the_decider(effect: Any) -> Generator[Any, Any, Any]:
    if isinstance(effect, Decide):
        yield Call(Verb.COMMIT, effect.decision.branches)
    return (yield effect)


def _commit_not_told(effect: Any) -> Generator[Any, Any, Any]:
    """Phase two tells the first branch only, and takes the others for told."""
    if isinstance(effect, Call) and effect.verb is Verb.COMMIT and len(effect.branches) > 1:
        answers = yield replace(effect, branches=effect.branches[:1])
        return answers + [Code.XA_OK] * (len(effect.branches) - 1)
    return (yield effect)


# --- recovery -----------------------------------------------------------------------------------------------
def _log_before_scan_only() -> Callable[[Any], Generator[Any, Any, Any]]:
    first: list[Any] = []

    def bend(effect: Any) -> Generator[Any, Any, Any]:
        if isinstance(effect, ReadDecisions):
            first.append((yield ReadLive()))
            return first[0][2]
        return first[0] if isinstance(effect, ReadLive) else (yield effect)

    return bend


def _live_ignored() -> Callable[[Any], Generator[Any, Any, Any]]:
    def bend(effect: Any) -> Generator[Any, Any, Any]:
        answer = yield effect
        return (frozenset(), *answer[1:]) if isinstance(effect, ReadLive) else answer

    return bend


def _unreachable_counts_as_clean() -> Callable[[Any], Generator[Any, Any, Any]]:
    def bend(effect: Any) -> Generator[Any, Any, Any]:
        answer = yield effect
        if isinstance(effect, Scan):
            return {name: [] if isinstance(xids, XaError) else xids for name, xids in answer.items()}
        return answer

    return bend


def _ended_as_read_after_the_scan() -> Callable[[Any], Generator[Any, Any, Any]]:
    """Ends decisions that were read behind the scan: a branch may have been prepared between."""
    scanned: list[Any] = []

    def bend(effect: Any) -> Generator[Any, Any, Any]:
        if isinstance(effect, ReadDecisions):
            scanned.append((yield Scan()))
            return (yield effect)
        return scanned[0] if isinstance(effect, Scan) else (yield effect)

    return bend


def _decider_not_settled() -> Callable[[Any], Generator[Any, Any, Any]]:
    def bend(effect: Any) -> Generator[Any, Any, Any]:
        return None if isinstance(effect, Settle) else (yield effect)

    return bend


def _finished_counts_as_pending() -> Callable[[Any], Generator[Any, Any, Any]]:
    """An unknown xid is never taken for done, and a branch that can't be told is never gone."""

    def bend(effect: Any) -> Generator[Any, Any, Any]:
        answers = yield effect
        if isinstance(effect, Call) and effect.verb is Verb.COMMIT_AGAIN:
            return [xa_error(Code.XA_RETRY) for _ in answers]
        return answers

    return bend


def _not_now_counts_as_rolled_back_in_recovery() -> Callable[[Any], Generator[Any, Any, Any]]:
    return _not_now_counts_as_rolled_back


def _heuristic_dropped() -> Callable[[Any], Generator[Any, Any, Any]]:
    def bend(effect: Any) -> Generator[Any, Any, Any]:
        if isinstance(effect, Note):
            return None
        return (yield effect)

    return bend


# --- what is somebody else's ----------------------------------------------------------------------------------
def recovery_by(change: Callable[[Ownership], Ownership]) -> Callable[[Ownership], Any]:
    """A recovery pass with another idea of what is whose."""
    return lambda ownership: recover(change(ownership))


class _EndsWhatIsOthers(Ownership):
    """As it was: what is decided and has no branch that this pass may resolve is ended, whosever it is."""

    __slots__ = ()

    def whose(self, gtrid: bytes, at_work: AtWork = MappingProxyType({}), *, decided: bool = False) -> Whose:
        whose = super().whose(gtrid, at_work, decided=decided)
        return Whose(Claim.OURS) if decided and Gtrid.decode(gtrid).node != self.node else whose


def _with(kind: type[Ownership]) -> Callable[[Ownership], Ownership]:
    return lambda own: kind(own.node, own.log_id, own.incarnations, own.deciders, own.own)


class _Everything(dict[bytes, Standing]):
    """Knows of every incarnation."""

    def get(self, _key: bytes, _default: Any = None) -> Any:
        return Standing.WHOLE


def _noted_or_not(own: Ownership) -> Ownership:
    """Whatever has this log's id is presumed about."""
    return replace(own, incarnations=Incarnations(_Everything()))


def _cut_or_not(own: Ownership) -> Ownership:
    """A copy presumes about what was at work when it was made."""
    return replace(own, incarnations=Incarnations(dict.fromkeys(own.incarnations.noted, Standing.WHOLE)))


def _rolls_back_other_nodes() -> Callable[[Any], Generator[Any, Any, Any]]:
    """Rolls back whatever is prepared and has no decision that it sees, as a node that is alone could."""
    scanned: dict[str, Any] = {}

    def bend(effect: Any) -> Generator[Any, Any, Any]:
        answer = yield effect
        if isinstance(effect, Scan):
            scanned.update(answer)
        if isinstance(effect, ReadLive):
            live, _, now = answer
            for resource, xids in scanned.items():
                found = [] if isinstance(xids, XaError) else xids
                lost = tuple(
                    Branch(resource, xid)
                    for xid in found
                    if now.find(xid.gtrid) is None and xid.gtrid not in live and Gtrid.decode(xid.gtrid).node == "sim-2"
                )
                if lost:
                    yield Call(Verb.ROLLBACK, lost)
        return answer

    return bend


def _nobody_else_at_work() -> Callable[[Any], Generator[Any, Any, Any]]:
    def bend(effect: Any) -> Generator[Any, Any, Any]:
        answer = yield effect
        return (answer[0], {}, answer[2]) if isinstance(effect, ReadLive) else answer

    return bend


def _who_is_at_work_can_not_be_told_so_nobody_is() -> Callable[[Any], Generator[Any, Any, Any]]:
    def bend(effect: Any) -> Generator[Any, Any, Any]:
        answer = yield effect
        if isinstance(effect, ReadLive):
            return answer[0], {k: v for k, v in answer[1].items() if not isinstance(v, XaError)}, answer[2]
        return answer

    return bend


def _who_is_at_work_is_read_before_the_scan() -> Callable[[Any], Generator[Any, Any, Any]]:
    first: list[Any] = []

    def bend(effect: Any) -> Generator[Any, Any, Any]:
        if isinstance(effect, ReadDecisions):
            first.append((yield ReadLive()))
            return (yield effect)
        answer = yield effect
        return (answer[0], first[0][1], answer[2]) if isinstance(effect, ReadLive) else answer

    return bend


def _unknown_is_always_a_hazard(effect: Any) -> Generator[Any, Any, Any]:
    return True if isinstance(effect, Held) else (yield effect)


MUTANTS = (
    Mutant("the decision is not forced", completion=completion_bent_by(_decision_not_forced)),
    Mutant("branches are rolled back after the decision", completion=completion_bent_by(_abort_after_decision)),
    Mutant("the decision is ended before it was told", completion=completion_bent_by(_ended_too_early)),
    Mutant("a lost vote counts as yes", completion=completion_bent_by(_lost_vote_counts_as_yes)),
    Mutant("a refusal counts as read-only", completion=completion_bent_by(_refusal_counts_as_read_only)),
    Mutant("a failed force counts as refused", completion=completion_bent_by(_failed_force_counts_as_refused)),
    Mutant("a heuristic counts as done", completion=completion_bent_by(_heuristic_counts_as_done)),
    Mutant(
        "a lost answer of the decider counts as no", completion=completion_bent_by(_lost_decision_counts_as_refused)
    ),
    Mutant('"no room" counts as rolled back', completion=completion_bent_by(_not_now_counts_as_rolled_back)),
    Mutant("others commit before the decider", completion=completion_bent_by(_commit_before_the_decider)),
    Mutant("phase two forgets a branch", completion=completion_bent_by(_commit_not_told)),
    Mutant("recovery reads the log before the scan only", recovery=recovery_bent_by(_log_before_scan_only)),
    Mutant("recovery ignores live transactions", recovery=recovery_bent_by(_live_ignored)),
    Mutant("recovery takes the unreachable for clean", recovery=recovery_bent_by(_unreachable_counts_as_clean)),
    Mutant("recovery scans before it reads what it ends", recovery=recovery_bent_by(_ended_as_read_after_the_scan)),
    Mutant("recovery presumes without asking the decider", recovery=recovery_bent_by(_decider_not_settled)),
    Mutant("recovery finishes nothing that is decided", recovery=recovery_bent_by(_finished_counts_as_pending)),
    Mutant(
        'recovery takes "no room" for rolled back',
        recovery=recovery_bent_by(_not_now_counts_as_rolled_back_in_recovery),
    ),
    Mutant("recovery drops heuristics", recovery=recovery_bent_by(_heuristic_dropped)),
    Mutant("recovery ends what another node decided", recovery=recovery_by(_with(_EndsWhatIsOthers))),
    Mutant("recovery rolls back another node's branches", recovery=recovery_bent_by(_rolls_back_other_nodes)),
    Mutant("recovery presumes about what is not noted", recovery=recovery_by(_noted_or_not)),
    Mutant("recovery presumes about what a copy lacks", recovery=recovery_by(_cut_or_not)),
    Mutant("incarnations are counted", counting=True),
    Mutant("recovery takes every other process for dead", recovery=recovery_bent_by(_nobody_else_at_work)),
    Mutant(
        "recovery takes whom it can't ask about for dead",
        recovery=recovery_bent_by(_who_is_at_work_can_not_be_told_so_nobody_is),
    ),
    Mutant(
        "recovery reads who is at work before the scan",
        recovery=recovery_bent_by(_who_is_at_work_is_read_before_the_scan),
    ),
    Mutant("nobody takes a lease", leasing=False),
    Mutant("what another process has finished is a hazard", completion=completion_bent_by(_unknown_is_always_a_hazard)),
)
