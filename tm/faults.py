"""Faults: whose fault it is that a transaction came to nothing: a resource was down, another transaction in the way, or
its own work was at fault. What was received in it is not counted as delivered in vain in the first two cases.

It is seen from the exception, from what that was raised from, and from what was being handled when it was raised, by
tables: SQLSTATEs, numbers of MariaDB, codes of XA.
"""

from __future__ import annotations

import sqlite3
from enum import Enum
from typing import TYPE_CHECKING, Final

from tm.errors import HeuristicOutcomeError, ManagerUnusable, OutcomeUnknown, RolledBack
from xa import ROLLBACK_CODES, Code, XaError
from xa.sql.errors import IN_THE_WAY, ErrorKind, kind_of, mariadb_number, sqlstate_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tm.outcome import Reason

CONFLICTS: Final = IN_THE_WAY
OUTAGES: Final = frozenset({ErrorKind.LOST, ErrorKind.UNAVAILABLE, ErrorKind.EXHAUSTED, ErrorKind.FULL})
_CONFLICT_CODES: Final = frozenset({Code.XA_RBDEADLOCK, Code.XA_RBTRANSIENT})
_OUTAGE_CODES: Final = frozenset({Code.XAER_RMFAIL, Code.XA_RBCOMMFAIL, Code.XA_RETRY})
_FAULT_CODES: Final = frozenset({Code.XA_RBINTEGRITY, Code.XA_RBPROTO, Code.XAER_RMERR, Code.XAER_PROTO})
_AFTER_AN_ERROR: Final = "25P02"
"""The SQLSTATE of a statement behind one that has failed, which the handler has not passed on."""
_WITHOUT_CODE: Final = frozenset({"OperationalError", "InterfaceError"})
"""The classes of a driver's errors which, without a code of the server, say that it could not be reached."""


class Fault(Enum):
    """Whose fault it is that a message was not handled."""

    MESSAGE = "its handler has raised, or what it has done can't be committed"
    CONFLICT = "another transaction was in the way"
    OUTAGE = "a resource or the log could not be reached"
    UNTOLD = "its transaction took too long, or was rolled back for a reason that is not known"

    @property
    def is_excused(self) -> bool:
        """Whether the attempt does not count."""
        return self in (Fault.CONFLICT, Fault.OUTAGE)


def fault_of(error: BaseException) -> Fault:
    """Whose fault it is that an attempt has come to `error`."""
    faults = [_fault_of_one(one) for one in chain(error, context=True)]
    for fault in (Fault.CONFLICT, Fault.OUTAGE, Fault.UNTOLD):
        if fault in faults:
            return fault
    return Fault.MESSAGE


def is_excused(error: BaseException | None, reasons: Sequence[Reason]) -> bool:
    """Whether a transaction comes to nothing because a resource was down, or another transaction in the way: as the
    error says that it is rolled back for, or one of the reasons for which it can only be rolled back."""
    faults = [] if error is None else [fault_of(error)]
    faults += [fault_of_reason(reason.said) for reason in reasons]
    return any(fault.is_excused for fault in faults)


def _fault_of_one(error: BaseException) -> Fault:
    if isinstance(error, RolledBack) and error.outcome is not None:
        faults = [fault_of_reason(reason.said) for reason in error.outcome.reasons]
        return next((fault for fault in Fault if fault in faults and fault is not Fault.MESSAGE), Fault.MESSAGE)
    if isinstance(error, OutcomeUnknown | ManagerUnusable):
        return Fault.OUTAGE
    if isinstance(error, HeuristicOutcomeError):
        return Fault.UNTOLD
    if isinstance(error, XaError):
        return _fault_of_code(error.code, Fault.UNTOLD if error.code in ROLLBACK_CODES else Fault.MESSAGE)
    if sqlstate_of(error) == _AFTER_AN_ERROR:
        return Fault.UNTOLD
    kind = kind_of(error)
    if kind in CONFLICTS:
        return Fault.CONFLICT
    return Fault.OUTAGE if kind in OUTAGES or (kind is ErrorKind.UNTOLD and _is_lost(error)) else Fault.MESSAGE


def fault_of_reason(said: object) -> Fault:
    """The same of why a commit was refused. What the application has marked is its own fault; what a resource manager
    gives no reason for is not known to be."""
    if isinstance(said, Code):
        return _fault_of_code(said, Fault.UNTOLD)
    if isinstance(said, XaError):
        found = _fault_of_code(said.code, Fault.UNTOLD)
        return (
            found
            if found.is_excused
            else next((fault for one in chain(said) if (fault := _fault_of_one(one)).is_excused), found)
        )
    return Fault.UNTOLD if isinstance(said, TimeoutError) else Fault.MESSAGE


def _fault_of_code(code: Code | None, otherwise: Fault) -> Fault:
    if code in _CONFLICT_CODES:
        return Fault.CONFLICT
    if code in _OUTAGE_CODES:
        return Fault.OUTAGE
    return Fault.MESSAGE if code in _FAULT_CODES else otherwise


def is_broken(error: BaseException) -> bool:
    """Whether a connection broke, or could not be made, and no server has said why. It may be an outage; or the message
    makes a statement that is too long, or ends the server's process, or names a server that is not there."""
    return any(
        kind is ErrorKind.LOST if mariadb_number(one) else kind is ErrorKind.UNTOLD and _is_lost(one)
        for one in chain(error, context=True)
        if (kind := kind_of(one)) in (ErrorKind.LOST, ErrorKind.UNTOLD)
    )


def _is_lost(error: BaseException) -> bool:
    original = getattr(error, "orig", None) or error
    return type(original).__name__ in _WITHOUT_CODE and not isinstance(original, sqlite3.Error)


def chain(error: BaseException, *, context: bool = False) -> Iterator[BaseException]:
    """The error and what it was made from; with `context` also what was being handled when it was raised."""
    seen: list[BaseException] = []
    following: object = error
    while isinstance(following, BaseException) and following not in seen:
        seen.append(following)
        yield following
        cause = following.__cause__
        if context and cause is None and not following.__suppress_context__:
            cause = following.__context__
        following = getattr(following, "orig", None) or cause
