"""The errors that a transaction manager raises.

There is one class for each decision that the caller takes:

- RolledBack: try again.
- The heuristic outcomes: somebody has to look at the data.
- OutcomeUnknown: ask recovery, and don't try again.
- ProtocolMisuse: fix the code.
- ManagerUnusable: nothing can be decided any more. Restart the manager when the cause is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tm.outcome import Verdict, named
from xa import BranchRolledBack, Code
from xa.sql.errors import IN_THE_WAY, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tm.outcome import Outcome, Reason


class TransactionError(Exception):
    """A transaction came to another end than a plain commit. `outcome` has the details, where it ended."""

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
    """The state does not allow the call; the message names the state. Correct the code."""


class ManagerUnusable(TransactionError):
    """The manager can decide nothing any more, its log stopped or was closed."""


def _because(outcome: Outcome) -> str:
    return "; ".join(str(reason) for reason in outcome.reasons)


class InheritedTransaction(ManagerUnusable, OutcomeUnknown):
    """This process is a fork of the one that has the transaction: what becomes of it is not known here. Don't do its
    work again because of this error."""


_SAFE: Final = "Nothing was written, consumed or sent. It is safe to try again."
_LOOK: Final = "The transaction manager has committed nothing. Correct the code before you try again."
"""A program that has ended a branch itself may have committed a part of it, which its resource manager says."""


def _was_misused(reason: Reason) -> bool:
    said = reason.said
    return (said if isinstance(said, Code) else getattr(said, "code", None)) is Code.XA_RBPROTO


def error_of(outcome: Outcome) -> TransactionError | None:
    """The exception that tells `outcome` to the application; None for a plain commit."""
    what = f"transaction {named(outcome.gtrid)}"
    because = _because(outcome)
    error: TransactionError

    match outcome.verdict:
        case Verdict.COMMITTED:
            return None
        case Verdict.ROLLED_BACK:
            return rolled_back_error(outcome)
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


def rolled_back_error(outcome: Outcome) -> RolledBack:
    """The exception of a transaction that was rolled back."""
    then = _LOOK if any(_was_misused(reason) for reason in outcome.reasons) else _SAFE
    because = _because(outcome).rstrip(".")
    said = f"transaction {named(outcome.gtrid)} was rolled back{': ' + because if because else ''}"
    error = RolledBack(f"{said}. {then}")
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


def is_transient(error: BaseException) -> bool:
    """Whether the same work may succeed in a new transaction, as `error`, or what it was made from, says. A manager
    says so with RolledBack. A database says it already when a statement fails: a serialization failure, a deadlock, a
    lock that could not be acquired in time (`xa.sql.errors`). Work that has ended its branch itself is not done again:
    a part of it may be committed."""
    if is_misused(error):
        return False
    return any(isinstance(one, RolledBack | BranchRolledBack) or kind_of(one) in IN_THE_WAY for one in _chain(error))


def is_misused(error: BaseException) -> bool:
    """Whether a transaction was rolled back because its own work has ended a branch, or has done else what only the
    transaction manager may: then a part of the work may be committed, and the program has to be corrected."""
    return any(
        isinstance(one, RolledBack)
        and one.outcome is not None
        and any(_was_misused(reason) for reason in one.outcome.reasons)
        for one in _chain(error)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    following: object = error
    while isinstance(following, BaseException) and following not in seen:
        seen.append(following)
        yield following
        following = getattr(following, "orig", None) or following.__cause__
