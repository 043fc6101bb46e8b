"""Trying a change of the log again when the database did not carry it out, and what to answer in the end.

Each change is made so that doing it twice is harmless. So after an error that leaves its effect unknown it is simply
tried again: it had its effect, or has it now, or is refused. `change` does so for changes, `read` for reading.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tm.log.contract import DecisionRefused, LogFull, LogStopped
from xa.sql.errors import ErrorKind, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
"""How long to wait before each further attempt."""


class ErrorReaction(Enum):
    """The reaction to an error."""

    RETRY_IN_DOUBT = "the statement may have had its effect or not: try again"
    RETRY = "it had no effect, and may have one when tried again"
    FULL = "it had no effect: there is no space"
    REFUSE = "it had no effect, and won't have one when tried again"


REACTIONS: Final[dict[ErrorKind, ErrorReaction]] = {
    ErrorKind.LOST: ErrorReaction.RETRY_IN_DOUBT,
    ErrorKind.FAILED: ErrorReaction.RETRY_IN_DOUBT,
    ErrorKind.UNTOLD: ErrorReaction.RETRY_IN_DOUBT,
    ErrorKind.DEADLOCK: ErrorReaction.RETRY,
    ErrorKind.SERIALIZATION: ErrorReaction.RETRY,
    ErrorKind.LOCKED: ErrorReaction.RETRY,
    ErrorKind.CANCELLED: ErrorReaction.RETRY,
    ErrorKind.EXHAUSTED: ErrorReaction.RETRY,
    ErrorKind.UNAVAILABLE: ErrorReaction.RETRY,  # a standby: the other server is not there yet
    ErrorKind.FULL: ErrorReaction.FULL,
    ErrorKind.INVALID: ErrorReaction.REFUSE,
    ErrorKind.DENIED: ErrorReaction.REFUSE,
    ErrorKind.DAMAGED: ErrorReaction.REFUSE,
    ErrorKind.REFUSED: ErrorReaction.REFUSE,
}


PASSING: Final = frozenset({ErrorReaction.RETRY_IN_DOUBT, ErrorReaction.RETRY})
"""To what passes by itself."""


def reaction_to(error: SQLAlchemyError) -> ErrorReaction:
    """What follows from `error`. One that did not come from the driver came before a statement was sent: there was no
    connection to be had."""
    return REACTIONS[kind_of(error)] if isinstance(error, DBAPIError) else ErrorReaction.RETRY


def change(action: Callable[[], T], what: str, sleep: Callable[[float], None]) -> T:
    """The result of `action`, which is done again while there is hope, and must be harmless when done twice.

    LogFull, DecisionRefused: it had no effect. LogStopped: that is unknown.
    """
    doubt = False
    for pause_s in (*PAUSES_S, None):
        try:
            return action()
        except SQLAlchemyError as error:
            last = error
        reaction = reaction_to(last)
        if reaction is ErrorReaction.RETRY_IN_DOUBT:
            doubt = True
        elif reaction is not ErrorReaction.RETRY and not doubt:
            break
        if pause_s is not None:
            sleep(pause_s)

    if doubt:
        raise LogStopped(
            f"{what}: whether it was written is unknown, the database can't be reached: {_text(last)}"
        ) from last
    if reaction is ErrorReaction.FULL:
        raise LogFull(f"{what}: the database has no space: {_text(last)}") from last
    raise DecisionRefused(f"{what}: the database refuses it: {_text(last)}") from last


def read(action: Callable[[], T], what: str, sleep: Callable[[float], None]) -> T:
    """The result of `action`, which only reads. LogStopped: it can't be read."""
    try:
        return change(action, what, sleep)
    except (LogFull, DecisionRefused) as error:
        raise LogStopped(str(error)) from error


def _text(error: SQLAlchemyError) -> str:
    return str(error.orig if isinstance(error, DBAPIError) else error).strip()
