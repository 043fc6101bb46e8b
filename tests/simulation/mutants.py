"""Each class here is a mutant of the two-phase commit or of recovery. It makes one classic mistake by changing what a
core asks, or the answer that it gets.

A mutant puts ports of its own between a core and the ports of the world. The checker has to notice every mutant,
because a mistake that no schedule shows would be a hole in the simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tests.simulation.bent import Bent
from tm.log import Branch, LogFull, LogStopped
from tm.log.incarnations import Incarnations, Standing
from tm.recovery.ownership import Claim, Ownership, Whose
from tm.recovery.recovery_pass import recover
from tm.two_phase.return_codes import Verb
from xa import Code, Gtrid, XaError, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tm.log import Decision, Heuristic, LogError
    from tm.recovery.ownership import AtWork
    from tm.recovery.ports import Decisions, RecoveryPorts, Scanned
    from tm.recovery.report import Report
    from tm.two_phase.ports import Answer, Asked, Ports

    Live = tuple[frozenset[bytes], AtWork, Decisions]


def _unchanged(ports: Ports) -> Ports:
    return ports


@dataclass(frozen=True)
class Mutant:
    """A name, and what it puts in the place of the right thing: between a commit and its ports, or as recovery.

    `seed` is a schedule in which it was seen, where the first of those comes late: the search begins with it.
    """

    name: str
    commit_through: Callable[[Ports], Any] = _unchanged
    recovery: Callable[[RecoveryPorts, Ownership], Coroutine[None, None, Report]] = recover
    leasing: bool = True
    counting: bool = False
    leaving: bool = False
    seed: int = 0


def recovery_through(
    bent: Callable[[RecoveryPorts], Any],
) -> Callable[[RecoveryPorts, Ownership], Coroutine[None, None, Report]]:
    """A recovery pass through ports of a mutant."""
    return lambda ports, ownership: recover(bent(ports), ownership)


# --- the two-phase commit -------------------------------------------------------------------------------------
class _DecisionNotForced(Bent["Ports"]):
    async def force(self, decision: Decision) -> LogError | None:  # noqa: ARG002 — that is the mistake
        return None


class _AbortAfterDecision(Bent["Ports"]):
    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        answers = await self.ports.ask(verb, branches, flags)
        if verb in (Verb.COMMIT, Verb.COMMIT_AGAIN):
            failed = tuple(b for b, a in zip(branches, answers, strict=True) if isinstance(a, XaError))
            if failed:
                await self.ports.ask(Verb.ROLLBACK, failed)
        return answers


class _EndedTooEarly(Bent["Ports"]):
    async def force(self, decision: Decision) -> LogError | None:
        refused = await self.ports.force(decision)
        if refused is None:
            await self.ports.end(decision)
        return refused


class _LostVoteCountsAsYes(Bent["Ports"]):
    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        answers = await self.ports.ask(verb, branches, flags)
        if verb is Verb.PREPARE:
            return [Code.XA_OK if isinstance(a, XaError) and a.code is Code.XAER_RMFAIL else a for a in answers]
        return answers


class _RefusalCountsAsReadOnly(Bent["Ports"]):
    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        answers = await self.ports.ask(verb, branches, flags)
        if verb is Verb.PREPARE:
            return [Code.XA_RDONLY if isinstance(a, XaError) else a for a in answers]
        return answers


class _FailedForceCountsAsRefused(Bent["Ports"]):
    async def force(self, decision: Decision) -> LogError | None:
        refused = await self.ports.force(decision)
        return LogFull("taken for") if isinstance(refused, LogStopped) else refused

    async def note(self, heuristic: Heuristic) -> LogError | None:
        refused = await self.ports.note(heuristic)
        return LogFull("taken for") if isinstance(refused, LogStopped) else refused


class _HeuristicCountsAsDone(Bent["Ports"]):
    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        answers = await self.ports.ask(verb, branches, flags)
        if verb is Verb.COMMIT:
            return [Code.XA_OK if isinstance(a, XaError) and a.code.name.startswith("XA_HEUR") else a for a in answers]
        return answers


def _no_room_is_rolled_back(verb: Verb, answers: list[Answer]) -> list[Answer]:
    """What a resource manager says for which "no connection was free" is an error in the branch."""
    if verb not in (Verb.COMMIT, Verb.COMMIT_AGAIN, Verb.ROLLBACK):
        return answers
    return [xa_error(Code.XAER_RMERR) if isinstance(a, XaError) and a.code is Code.XA_RETRY else a for a in answers]


class _NoRoomCountsAsRolledBack(Bent["Ports"]):
    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        return _no_room_is_rolled_back(verb, await self.ports.ask(verb, branches, flags))


class _LostDecisionCountsAsRefused(Bent["Ports"]):
    async def decide(self, branch: Branch, decision: Decision) -> Answer:
        answer = await self.ports.decide(branch, decision)
        return xa_error(Code.XA_RBROLLBACK) if isinstance(answer, XaError) else answer


class _CommitBeforeTheDecider(Bent["Ports"]):
    async def decide(self, branch: Branch, decision: Decision) -> Answer:
        await self.ports.ask(Verb.COMMIT, decision.branches)
        return await self.ports.decide(branch, decision)


class _BranchForgotten(Bent["Ports"]):
    """Phase two tells the first branch only, and takes the others for told."""

    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        if verb is not Verb.COMMIT or len(branches) < 2:
            return await self.ports.ask(verb, branches, flags)
        answers = await self.ports.ask(verb, branches[:1], flags)
        return answers + [Code.XA_OK] * (len(branches) - 1)


class _LeftAnswersAreForgotten(Bent["Ports"]):
    """What was left is taken for XA_OK when somebody asks for it."""

    async def collect(self, asked: Asked) -> list[Answer]:
        left = set(asked.outstanding)
        answers = await self.ports.collect(asked)
        return [Code.XA_OK if index in left else answer for index, answer in enumerate(answers)]


class _UnknownIsAlwaysAHazard(Bent["Ports"]):
    async def is_held(self, gtrid: bytes, decider: str | None) -> bool:  # noqa: ARG002 — that is the mistake
        return True


# --- recovery -----------------------------------------------------------------------------------------------
class _LogBeforeScanOnly(Bent["RecoveryPorts"]):
    first: Live

    async def read_decisions(self) -> Decisions:
        self.first = await self.ports.read_live()
        return self.first[2]

    async def read_live(self) -> Live:
        return self.first


class _LiveIgnored(Bent["RecoveryPorts"]):
    async def read_live(self) -> Live:
        _, at_work, now = await self.ports.read_live()
        return frozenset(), at_work, now


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


class _DeciderNotSettled(Bent["RecoveryPorts"]):
    async def settle(self, decider: str, gtrid: bytes) -> Decision | XaError | None:  # noqa: ARG002 — as above
        return None


class _FinishedCountsAsPending(Bent["RecoveryPorts"]):
    """An unknown xid is never taken for done, and a branch that can't be told is never gone."""

    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        answers = await self.ports.ask(verb, branches, flags)
        return [xa_error(Code.XA_RETRY) for _ in answers] if verb is Verb.COMMIT_AGAIN else answers


class _NoRoomCountsAsRolledBackInRecovery(Bent["RecoveryPorts"]):
    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        return _no_room_is_rolled_back(verb, await self.ports.ask(verb, branches, flags))


class _HeuristicDropped(Bent["RecoveryPorts"]):
    async def note(self, heuristic: Heuristic) -> LogError | None:  # noqa: ARG002 — that is the mistake
        return None


# --- what is somebody else's ----------------------------------------------------------------------------------
def recovery_by(
    change: Callable[[Ownership], Ownership],
) -> Callable[[RecoveryPorts, Ownership], Coroutine[None, None, Report]]:
    """A recovery pass with another idea of what is whose."""
    return lambda ports, ownership: recover(ports, change(ownership))


class _EndsWhatIsOthers(Ownership):
    """A former fault: what is decided and has no branch that this pass may resolve is ended, whosever it is."""

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


class _NobodyElseAtWork(Bent["RecoveryPorts"]):
    async def read_live(self) -> Live:
        live, _, now = await self.ports.read_live()
        return live, {}, now


class _WhoCanNotBeToldIsNotAtWork(Bent["RecoveryPorts"]):
    async def read_live(self) -> Live:
        live, at_work, now = await self.ports.read_live()
        return live, {name: told for name, told in at_work.items() if not isinstance(told, XaError)}, now


class _AtWorkReadBeforeTheScan(Bent["RecoveryPorts"]):
    first: Live

    async def read_decisions(self) -> Decisions:
        self.first = await self.ports.read_live()
        return await self.ports.read_decisions()

    async def read_live(self) -> Live:
        live, _, now = await self.ports.read_live()
        return live, self.first[1], now


MUTANTS = (
    Mutant("the decision is not forced", commit_through=_DecisionNotForced, seed=331),
    Mutant("branches are rolled back after the decision", commit_through=_AbortAfterDecision, seed=102),
    Mutant("the decision is ended before it was told", commit_through=_EndedTooEarly),
    Mutant("a lost vote counts as yes", commit_through=_LostVoteCountsAsYes),
    Mutant("a refusal counts as read-only", commit_through=_RefusalCountsAsReadOnly),
    Mutant("a failed force counts as refused", commit_through=_FailedForceCountsAsRefused, seed=694),
    Mutant("a heuristic counts as done", commit_through=_HeuristicCountsAsDone, seed=2240),
    Mutant("a lost answer of the decider counts as no", commit_through=_LostDecisionCountsAsRefused, seed=737),
    Mutant('"no room" counts as rolled back', commit_through=_NoRoomCountsAsRolledBack, seed=102),
    Mutant("others commit before the decider", commit_through=_CommitBeforeTheDecider),
    Mutant("phase two forgets a branch", commit_through=_BranchForgotten),
    Mutant("recovery reads the log before the scan only", recovery=recovery_through(_LogBeforeScanOnly), seed=232),
    Mutant("recovery ignores live transactions", recovery=recovery_through(_LiveIgnored)),
    Mutant("recovery takes the unreachable for clean", recovery=recovery_through(_UnreachableCountsAsClean)),
    Mutant(
        "recovery scans before it reads what it ends", recovery=recovery_through(_EndedAsReadAfterTheScan), seed=2196
    ),
    Mutant("recovery presumes without asking the decider", recovery=recovery_through(_DeciderNotSettled), seed=4668),
    Mutant("recovery finishes nothing that is decided", recovery=recovery_through(_FinishedCountsAsPending), seed=1022),
    Mutant(
        'recovery takes "no room" for rolled back',
        recovery=recovery_through(_NoRoomCountsAsRolledBackInRecovery),
    ),
    Mutant("recovery drops heuristics", recovery=recovery_through(_HeuristicDropped)),
    Mutant("recovery ends what another node decided", recovery=recovery_by(_with(_EndsWhatIsOthers)), seed=303),
    Mutant("recovery rolls back another node's branches", recovery=recovery_through(_RollsBackOtherNodes)),
    Mutant("recovery presumes about what is not noted", recovery=recovery_by(_noted_or_not), seed=389),
    Mutant("recovery presumes about what a copy lacks", recovery=recovery_by(_cut_or_not), seed=414),
    Mutant("incarnations are counted", counting=True, seed=389),
    Mutant("recovery takes every other process for dead", recovery=recovery_through(_NobodyElseAtWork), seed=255),
    Mutant(
        "recovery takes whom it can't ask about for dead",
        recovery=recovery_through(_WhoCanNotBeToldIsNotAtWork),
        seed=19378,
    ),
    Mutant(
        "recovery reads who is at work before the scan",
        recovery=recovery_through(_AtWorkReadBeforeTheScan),
        seed=232,
    ),
    Mutant("answers that were left are forgotten", commit_through=_LeftAnswersAreForgotten, leaving=True, seed=102),
    Mutant("nobody takes a lease", leasing=False, seed=10981),
    Mutant("what another process has finished is a hazard", commit_through=_UnknownIsAlwaysAHazard, seed=7879),
)
