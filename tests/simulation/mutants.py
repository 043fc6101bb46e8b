"""Each class here is a mutant of the two-phase commit or of recovery. It makes one classic mistake by changing what a
core asks, or the answer that it gets.

A mutant puts ports of its own between a core and the ports of the world. The checker has to notice every mutant,
because a mistake that no schedule shows would be a hole in the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tests.simulation.bent import Bent, without
from tests.simulation.world import Mutant
from tm.log import Branch, Decision, Heuristic, LogError, LogFull, LogStopped
from tm.log.incarnations import Incarnations, IncarnationState
from tm.recovery.ownership import AtWork, Ceilings, Claim, Floors, Ownership, OwnershipClaim
from tm.recovery.ports import Decisions, RecoveryPorts, Scanned
from tm.sequences import Sequences
from tm.two_phase.ports import Answer, AskedBranches, Ports
from tm.two_phase.return_codes import Verb
from xa import HEURISTIC_CODES, Code, Gtrid, XaError, xa_error
from xa.outcome_notes import BranchOutcome

Live = tuple[frozenset[bytes], AtWork, Decisions]


# --- answers --------------------------------------------------------------------------------------------------
def _hears(told: Answer, codes: Collection[Code], *verbs: Verb) -> Callable[[Any], Any]:
    """Of these verbs these answers are taken for that one."""

    class Hears(Bent[Any]):
        async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
            answers = await self.ports.ask(verb, branches, flags)
            return [told if verb in verbs and _code(answer) in codes else answer for answer in answers]

    return Hears


def _code(answer: Answer) -> Code:
    return answer.code if isinstance(answer, XaError) else answer


REFUSALS = frozenset(Code) - {Code.XA_OK, Code.XA_RDONLY}
NO_ROOM = _hears(xa_error(Code.XAER_RMERR), {Code.XA_RETRY}, Verb.COMMIT, Verb.COMMIT_AGAIN, Verb.ROLLBACK)
"""What a resource manager says for which "no connection was free" is an error in the branch."""


# --- the two-phase commit -------------------------------------------------------------------------------------
class _AbortAfterDecision(Bent[Ports]):
    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        answers = await self.ports.ask(verb, branches, flags)
        if verb in (Verb.COMMIT, Verb.COMMIT_AGAIN):
            failed = tuple(b for b, a in zip(branches, answers, strict=True) if isinstance(a, XaError))
            if failed:
                await self.ports.ask(Verb.ROLLBACK, failed)
        return answers


class _EndedTooEarly(Bent[Ports]):
    async def force(self, decision: Decision) -> LogError | None:
        refused = await self.ports.force(decision)
        if refused is None:
            await self.ports.end(decision)
        return refused


class _FailedForceCountsAsRefused(Bent[Ports]):
    async def force(self, decision: Decision) -> LogError | None:
        refused = await self.ports.force(decision)
        return LogFull("taken for") if isinstance(refused, LogStopped) else refused

    async def note(self, heuristic: Heuristic) -> LogError | None:
        refused = await self.ports.note(heuristic)
        return LogFull("taken for") if isinstance(refused, LogStopped) else refused


class _LostDecisionCountsAsRefused(Bent[Ports]):
    async def decide(self, branch: Branch, decision: Decision) -> Answer:
        answer = await self.ports.decide(branch, decision)
        return xa_error(Code.XA_RBROLLBACK) if isinstance(answer, XaError) else answer


class _CommitBeforeTheDecider(Bent[Ports]):
    async def decide(self, branch: Branch, decision: Decision) -> Answer:
        await self.ports.ask(Verb.COMMIT, decision.branches)
        return await self.ports.decide(branch, decision)


class _BranchForgotten(Bent[Ports]):
    """Phase two tells the first branch only, and takes the others for told."""

    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        if verb is not Verb.COMMIT or len(branches) < 2:
            return await self.ports.ask(verb, branches, flags)
        answers = await self.ports.ask(verb, branches[:1], flags)
        return answers + [Code.XA_OK] * (len(branches) - 1)


class _LeftAnswersAreForgotten(Bent[Ports]):
    """What was left is taken for XA_OK when somebody asks for it."""

    async def collect(self, asked: AskedBranches) -> list[Answer]:
        left = set(asked.outstanding)
        answers = await self.ports.collect(asked)
        return [Code.XA_OK if index in left else answer for index, answer in enumerate(answers)]


# --- recovery -----------------------------------------------------------------------------------------------
class _LogBeforeScanOnly(Bent["RecoveryPorts"]):
    first: Live

    async def read_decisions(self) -> Decisions:
        self.first = await self.ports.read_live()
        return self.first[2]

    async def read_live(self) -> Live:
        return self.first


class _UnreachableCountsAsClean(Bent["RecoveryPorts"]):
    async def scan(self) -> Scanned:
        scanned = await self.ports.scan()
        return {name: [] if isinstance(xids, XaError) else xids for name, xids in scanned.items()}


class _EndedAsReadAfterTheScan(Bent["RecoveryPorts"]):
    """Ends decisions that were read behind the scan: a branch may have been prepared between."""

    scanned: Scanned

    async def read_decisions(self) -> Decisions:
        self.scanned = await self.ports.scan()
        return await self.ports.read_decisions()

    async def scan(self) -> Scanned:
        return self.scanned


def _reads(change: Callable[[frozenset[bytes], Any], tuple[frozenset[bytes], Any]]) -> Callable[[RecoveryPorts], Any]:
    """Makes something else of what is live and who is at work."""

    class Reads(Bent["RecoveryPorts"]):
        async def read_live(self) -> Live:
            live, at_work, now = await self.ports.read_live()
            return *change(live, at_work), now

    return Reads


class _AtWorkReadBeforeTheScan(Bent["RecoveryPorts"]):
    first: Live

    async def read_decisions(self) -> Decisions:
        self.first = await self.ports.read_live()
        return await self.ports.read_decisions()

    async def read_live(self) -> Live:
        live, _, now = await self.ports.read_live()
        return live, self.first[1], now


# --- what an operator does by hand --------------------------------------------------------------------------
class _OutcomesAreIgnored(Bent[Any]):
    """What is not there any more was finished before."""

    async def outcomes(self, branches: tuple[Branch, ...]) -> list[BranchOutcome]:
        return [BranchOutcome.UNKNOWN] * len(branches)


class _NotesAreLost(Bent[Ports]):
    async def with_notes(self, branches: tuple[Branch, ...]) -> tuple[Branch, ...]:
        return branches


class _EndedInSilence(Bent["RecoveryPorts"]):
    """A decision of which no branch was found is taken for one that has ended."""

    found: frozenset[bytes]

    async def scan(self) -> Scanned:
        scanned = await self.ports.scan()
        self.found = frozenset(xid.gtrid for xids in scanned.values() if not isinstance(xids, XaError) for xid in xids)
        return scanned

    async def read_live(self) -> Live:
        live, at_work, now = await self.ports.read_live()
        return live, at_work, replace(now, logged=self._kept(now.logged), by_decider={})

    def _kept(self, decisions: Any) -> Any:
        return {gtrid: decision for gtrid, decision in decisions.items() if gtrid in self.found}


class _EndedBeforeItIsNoted(Bent["RecoveryPorts"]):
    decided: Decisions

    async def read_decisions(self) -> Decisions:
        self.decided = await self.ports.read_decisions()
        return self.decided

    async def outcomes(self, branches: tuple[Branch, ...]) -> list[Any]:
        outcomes = await self.ports.outcomes(branches)
        for branch in branches:
            decision = self.decided.logged.get(branch.xid.gtrid)
            if decision is not None:
                await self.ports.end(decision)
        return outcomes


# --- what is somebody else's ----------------------------------------------------------------------------------
class _EndsWhatIsOthers(Ownership):
    """A former fault: what is decided and has no branch that this pass may resolve is ended, whosever it is."""

    __slots__ = ()

    def whose(self, gtrid: bytes, at_work: AtWork = MappingProxyType({}), *, decided: bool = False) -> OwnershipClaim:
        whose = super().whose(gtrid, at_work, decided=decided)
        return OwnershipClaim(Claim.OURS) if decided and Gtrid.decode(gtrid).node != self.node else whose


def _with(kind: type[Ownership]) -> Callable[[Ownership], Ownership]:
    return lambda own: kind(own.node, own.log_id, own.incarnations, own.deciders, own.own, own.floors, own.ceilings)


class _Everything(dict[bytes, IncarnationState]):
    """Knows of every incarnation."""

    def get(self, _key: bytes, _default: Any = None) -> Any:
        return IncarnationState.WHOLE


def _noted_or_not(own: Ownership) -> Ownership:
    """Whatever has this log's id is presumed about."""
    return replace(own, incarnations=Incarnations(_Everything()))


def _cut_or_not(own: Ownership) -> Ownership:
    """A copy presumes about what was at work when it was made."""
    return replace(own, incarnations=Incarnations(dict.fromkeys(own.incarnations.noted, IncarnationState.WHOLE)))


class _RollsBackOtherNodes(Bent["RecoveryPorts"]):
    """Rolls back whatever is prepared and has no decision that it sees, as a node that is alone could."""

    scanned: Scanned

    async def scan(self) -> Scanned:
        self.scanned = await self.ports.scan()
        return self.scanned

    async def read_live(self) -> Live:
        live, at_work, now = await self.ports.read_live()
        for resource, xids in self.scanned.items():
            found = [] if isinstance(xids, XaError) else xids
            lost = tuple(
                Branch(resource, xid)
                for xid in found
                if now.find(xid.gtrid) is None and xid.gtrid not in live and Gtrid.decode(xid.gtrid).node == "sim-2"
            )
            if lost:
                await self.ports.ask(Verb.ROLLBACK, lost)
        return live, at_work, now


def _can_be_told(live: frozenset[bytes], at_work: Any) -> tuple[frozenset[bytes], Any]:
    return live, {name: told for name, told in at_work.items() if not isinstance(told, XaError)}


class _NeverDoubts(Sequences):
    """Takes a branch that gave no answer for finished."""

    def doubt(self, gtrid: bytes, _resources: Iterable[str]) -> None:
        self.over(gtrid)


class _CountsWhatWasBegun(Sequences):
    """Takes every transaction that has begun for over."""

    def floor(self) -> int:
        return self.skip()


class _NotesNoCeiling(Sequences):
    """Begins transactions at once."""

    def extend(self, _number: int, _note: Callable[[int], None]) -> None:
        self.ceiling = 2**63


class _CeilingsReadBeforeTheScan(Bent["RecoveryPorts"]):
    ceilings: Ceilings

    async def scan(self) -> Scanned:
        self.ceilings = await self.ports.read_ceilings()
        return await self.ports.scan()

    async def read_ceilings(self) -> Ceilings:
        return self.ceilings


class _FloorsReadBehindTheScan(Bent["RecoveryPorts"]):
    scanned: Scanned

    async def read_floors(self) -> Floors:
        self.scanned = await self.ports.scan()
        return await self.ports.read_floors()

    async def scan(self) -> Scanned:
        return self.scanned


MUTANTS = (
    Mutant("the decision is not forced", without(force=None), seed=542),
    Mutant("branches are rolled back after the decision", _AbortAfterDecision, seed=250),
    Mutant("the decision is ended before it was told", _EndedTooEarly),
    Mutant("a lost vote counts as yes", _hears(Code.XA_OK, {Code.XAER_RMFAIL}, Verb.PREPARE)),
    Mutant("a refusal counts as read-only", _hears(Code.XA_RDONLY, REFUSALS, Verb.PREPARE)),
    Mutant("a failed force counts as refused", _FailedForceCountsAsRefused, seed=694),
    Mutant("a heuristic counts as done", _hears(Code.XA_OK, HEURISTIC_CODES, Verb.COMMIT), seed=2240),
    Mutant("a lost answer of the decider counts as no", _LostDecisionCountsAsRefused, seed=2196),
    Mutant('"no room" counts as rolled back', NO_ROOM, seed=368),
    Mutant("others commit before the decider", _CommitBeforeTheDecider),
    Mutant("phase two forgets a branch", _BranchForgotten),
    Mutant("recovery reads the log before the scan only", recovery_through=_LogBeforeScanOnly, seed=299),
    Mutant("recovery ignores live transactions", recovery_through=_reads(lambda _, at_work: (frozenset(), at_work))),
    Mutant("recovery takes the unreachable for clean", recovery_through=_UnreachableCountsAsClean, seed=976),
    Mutant("recovery scans before it reads what it ends", recovery_through=_EndedAsReadAfterTheScan, seed=2196),
    Mutant(
        "recovery presumes without asking the decider",
        recovery_through=without(settle=None),
        often={"decider_mode": True, "siblings": True, "stop_rate": 0.04},
        seed=362,
    ),
    Mutant(
        "recovery finishes nothing that is decided",
        recovery_through=_hears(xa_error(Code.XA_RETRY), frozenset(Code), Verb.COMMIT_AGAIN),
        seed=729,
    ),
    Mutant('recovery takes "no room" for rolled back', recovery_through=NO_ROOM),
    Mutant("recovery drops heuristics", recovery_through=without(note=None)),
    Mutant("recovery ends what another node decided", ownership=_with(_EndsWhatIsOthers), seed=5395),
    Mutant("recovery rolls back another node's branches", recovery_through=_RollsBackOtherNodes),
    Mutant("recovery presumes about what is not noted", ownership=_noted_or_not, seed=1871),
    Mutant("recovery presumes about what a copy lacks", ownership=_cut_or_not, seed=1871),
    Mutant("incarnations are counted", counting=True, often={"copy_rate": 0.15, "crash_rate": 0.06}, seed=5214),
    Mutant(
        "recovery takes every other process for dead", recovery_through=_reads(lambda live, _: (live, {})), seed=255
    ),
    Mutant("recovery takes whom it can't ask about for dead", recovery_through=_reads(_can_be_told), seed=19378),
    Mutant("recovery reads who is at work before the scan", recovery_through=_AtWorkReadBeforeTheScan, seed=374),
    Mutant("answers that were left are forgotten", _LeftAnswersAreForgotten, leaving=True, seed=415),
    Mutant("nobody takes a lease", leasing=False, seed=32),
    Mutant("what gave no answer counts as over", sequences=_NeverDoubts, seed=82),
    Mutant("what is under way counts as over", sequences=_CountsWhatWasBegun),
    Mutant("recovery presumes about what was over", recovery_through=without(read_floors={})),
    Mutant("recovery reads what is over behind the scan", recovery_through=_FloorsReadBehindTheScan, seed=1496),
    Mutant("what another process has finished is a hazard", without(is_held=True), seed=7879),
    Mutant("recovery presumes about what was begun later", recovery_through=without(read_ceilings={}), seed=1142),
    Mutant("recovery reads what was begun before the scan", recovery_through=_CeilingsReadBeforeTheScan, seed=204),
    Mutant("no ceiling is noted", sequences=_NotesNoCeiling),
    Mutant(
        "what is left of an incarnation is not looked for",
        left_nothing=lambda report: report.ended_incarnations,
        seed=5718,
    ),
)

MUTANTS_OF_HANDS = (
    Mutant("recovery ends a decision in silence", recovery_through=_EndedInSilence, hands=True),
    Mutant("recovery ignores outcomes", recovery_through=_OutcomesAreIgnored, hands=True),
    Mutant("the commit ignores outcomes", _OutcomesAreIgnored, hands=True, seed=793),
    Mutant("notes are lost", _NotesAreLost, hands=True),
    Mutant("recovery does not note what it was told", recovery_through=without(note=None), hands=True),
    Mutant("recovery ends a decision before it notes", recovery_through=_EndedBeforeItIsNoted, hands=True, seed=1134),
)
