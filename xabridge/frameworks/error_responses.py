"""What a service answers when the transaction of a request was not committed: the same for every framework."""

from __future__ import annotations

from typing import Final

from tm import HeuristicOutcomeError, ManagerUnusable, OutcomeUnknown, RolledBack, TransactionError
from tm.errors import is_misused

RETRY_AFTER: Final = {"Retry-After": "1"}
RESPONSES: Final[tuple[tuple[type[TransactionError], int, str, dict[str, str]], ...]] = (
    (OutcomeUnknown, 500, "it is not known yet whether it has happened; don't try again", {}),
    (RolledBack, 503, "nothing has happened; it is safe to try again", RETRY_AFTER),
    (ManagerUnusable, 503, "nothing has happened; try again later", RETRY_AFTER),
    (HeuristicOutcomeError, 500, "it has happened in part; somebody has to look at it; don't try again", {}),
)
"""What the caller gets: the status, the text, and headers."""
HANDLED: Final = tuple(kind for kind, *_ in RESPONSES)
MISUSED: Final = (500, "the service has failed, and a part of it may have happened; don't try again")
"""The same for a transaction that was rolled back because its own work has ended a branch."""
DECIDED: Final = (202, "it is decided, and will be finished")
"""The same for an unknown outcome whose decision is durable."""


def response_for(error: Exception) -> tuple[int, str, dict[str, str]]:
    """The status, the text and the headers for an error that is one of `HANDLED`."""
    kind = next(row for row in RESPONSES if isinstance(error, row[0]))
    _, status, text, headers = kind
    outcome = error.outcome if isinstance(error, TransactionError) else None
    if isinstance(error, OutcomeUnknown) and outcome is not None and outcome.decided:
        status, text = DECIDED
    if is_misused(error):
        return *MISUSED, {}
    return status, text, headers
