"""Outcome: what a completed global transaction came to, and the exceptions that tell the application.

One class for each decision that the caller takes: RolledBack (try again), the heuristics (call someone),
OutcomeUnknown (ask recovery, don't try again), ProtocolMisuse (mend the code), and for the manager as a whole
ManagerUnusable (nothing can be decided any more; restart it once the cause is mended).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from xa import Code, Gtrid
from xa.codes import MEANING

if TYPE_CHECKING:
    from tm.log import Branch, Heuristic
    from tm.two_phase.ports import Answer


class Verdict(Enum):
    """What became of a global transaction as a whole."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    HEUR_COMMITTED = "heuristically committed"
    HEUR_ROLLED_BACK = "heuristically rolled back"
    MIXED = "in part committed, in part rolled back"
    HAZARD = "possibly in part committed, in part rolled back"
    UNKNOWN = "not known yet"


@dataclass(frozen=True, slots=True)
class Reason:
    """One branch that did not answer as asked (None: there is none), and what was said. `where` names the resource
    where there is no branch; neither: the log or the manager itself."""

    branch: Branch | None
    said: Answer | BaseException | str
    where: str = ""

    @property
    def resource(self) -> str:
        """The name of the resource, where it was one."""
        return self.branch.resource if self.branch is not None else self.where

    def __str__(self) -> str:
        where = f"{self.resource}: " if self.resource else ""
        said = self.said
        if isinstance(said, Code):
            return f"{where}{said.name}: {MEANING[said]}"
        return f"{where}{getattr(said, 'message', None) or said}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a completion. `decided` says whether a decision to commit is durable (None: unknown);
    `pending` are the branches that recovery still has to tell."""

    gtrid: bytes
    verdict: Verdict
    decided: bool | None
    pending: tuple[Branch, ...] = ()
    heuristics: tuple[Heuristic, ...] = ()
    reasons: tuple[Reason, ...] = ()


class TransactionError(Exception):
    """What became of a transaction, where it was not a plain commit. `outcome` has the details, where it ended."""

    outcome: Outcome | None = None


class RolledBack(TransactionError):
    """Nothing was written, consumed or sent. It is safe to try again."""


class HeuristicOutcomeError(TransactionError):
    """A resource manager completed a branch on its own. Somebody has to look at the data."""


class HeuristicMixed(HeuristicOutcomeError):
    """Some branches were committed, some rolled back."""


class HeuristicHazard(HeuristicOutcomeError):
    """Some branches may have been committed while others were rolled back."""


class HeuristicCommitted(HeuristicOutcomeError):
    """Everything was committed, against the decision."""


class HeuristicRolledBack(HeuristicOutcomeError):
    """Everything was rolled back, against the decision."""


class OutcomeUnknown(TransactionError):
    """A connection or the log was lost at a moment that leaves the outcome, or its completion, open. Don't try
    again: ask recovery."""


class ProtocolMisuse(TransactionError):
    """The call does not fit the state; the message says which. Mend the code."""


class ManagerUnusable(TransactionError):
    """The manager can decide nothing any more, its log stopped or was closed."""


def named(gtrid: bytes) -> str:
    """A gtrid as people read it: node·incarnation·sequence where it is ours, hexadecimal otherwise."""
    try:
        return str(Gtrid.decode(gtrid))
    except ValueError:
        return gtrid.hex()


def _because(outcome: Outcome) -> str:
    return "; ".join(str(reason) for reason in outcome.reasons)


_SAFE: Final = "Nothing was written, consumed or sent. It is safe to try again."


def error_of(outcome: Outcome) -> TransactionError | None:
    """The exception that tells `outcome` to the application; None for a plain commit."""
    what = f"transaction {named(outcome.gtrid)}"
    because = _because(outcome)
    error: TransactionError
    match outcome.verdict:
        case Verdict.COMMITTED:
            return None
        case Verdict.ROLLED_BACK:
            error = RolledBack(f"{what} was rolled back{': ' + because if because else ''}. {_SAFE}")
        case Verdict.UNKNOWN:
            error = OutcomeUnknown(_unknown(outcome, what, because))
        case _:
            who = ", ".join(f"{h.branch.resource} ({h.code.name}, xid {h.branch.xid})" for h in outcome.heuristics)
            wanted = "commit" if outcome.decided else "rollback"
            message = f"{what} was {outcome.verdict.value}; the decision was {wanted}, and these did otherwise: {who}."
            error = _HEURISTIC_ERRORS[outcome.verdict](
                f"{message} The outcome is in the log; look at the data, then let it be forgotten."
            )
    error.outcome = outcome
    return error


_HEURISTIC_ERRORS: Final[dict[Verdict, type[HeuristicOutcomeError]]] = {
    Verdict.MIXED: HeuristicMixed,
    Verdict.HAZARD: HeuristicHazard,
    Verdict.HEUR_COMMITTED: HeuristicCommitted,
    Verdict.HEUR_ROLLED_BACK: HeuristicRolledBack,
}


def _unknown(outcome: Outcome, what: str, because: str) -> str:
    if outcome.decided:
        left = ", ".join(dict.fromkeys(branch.resource for branch in outcome.pending))
        return (
            f"{what} could not be completed on {left}: {because}. The decision is COMMIT and is durable; "
            f"recovery will finish it when {left} can be reached."
        )
    if outcome.pending:
        left = ", ".join(dict.fromkeys(branch.resource for branch in outcome.pending))
        return f"the outcome of {what} is not known: {because}. Recovery will find out and finish it on {left}."
    return (
        f"the outcome of {what} is not known: {because}. It was committed in one phase, so that only this "
        "resource knows: look at its data before you try again."
    )
