"""Defines the errors between us and a broker, and the XA code of each.

The steps of the protocol raise three things: `ConnectionLost`, `TimedOut` (it is unknown what was done), and
`RefusedError` of the protocol (the broker refused). The verbs and sessions turn them into an `XaError`, by the
functions at the end of this module.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from xa import EXCEPTIONS, ROLLBACK_CODES, Code, XaMisuse, xa_error

if TYPE_CHECKING:
    from dtx.protocol.conditions import Refusal
    from xa import XaError, Xid


class Cause(Enum):
    """Why there is no connection."""

    UNREACHABLE = "can't be reached"
    UNUSABLE = "can't be used"
    LOST = "was lost"
    CLOSED = "was closed"


class ConnectionLost(Exception):
    """There is no connection, or not any more. What was asked over it was carried out, or it was not.

    UNUSABLE: the broker was reached, and credentials or settings have to be corrected before a connection can be made.
    """

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message

    def again(self) -> ConnectionLost:
        """The same, to be raised once more."""
        return ConnectionLost(self.cause, self.message)


class TimedOut(Exception):
    """The answer did not come in time. What was asked was carried out, or it was not, or will be."""


class AllInUse(TimedOut):
    """Every channel of the pool has been at work all the time. The broker was not asked."""


def unreachable(broker: object, why: str) -> ConnectionLost:
    """There is no connection to this broker."""
    return ConnectionLost(Cause.UNREACHABLE, f"the broker at {broker} {Cause.UNREACHABLE.value}: {why}")


# --- as XA has it --------------------
_OPENS: Final = frozenset({"open", "start"})
"""Verbs at which a broker that can be reached and not used is XAER_RMERR. At the others that code would say something
of the branch: at commit and rollback, that its work was rolled back."""
_UNDECIDED: Final = frozenset({"commit", "rollback"})
"""Verbs for which a refusal means that nothing was done: the outcome of a branch comes as a result."""
LEFT_BEHIND: Final = {
    **dict.fromkeys(("start", "work", "end"), "; the branch was not prepared and is rolled back"),
    **dict.fromkeys(("prepare", "commit", "rollback"), "; its outcome is unknown here, and recovery finishes it"),
}
"""The words for what a lost connection leaves behind, by the verb."""
_WORK_CODES: Final = ROLLBACK_CODES | {Code.XAER_PROTO, Code.XAER_INVAL, Code.XA_RETRY, Code.XAER_RMFAIL}
"""Codes that mean the same when work is refused as when a verb is."""


class UnknownAddress(XaMisuse):
    """XAER_INVAL of work: the broker has no such queue. What else is the caller's mistake has another class."""


def lost_error(verb: str, why: ConnectionLost | TimedOut, xid: Xid | None = None) -> XaError:
    """XAER_RMFAIL, or XAER_RMERR where a connection to be opened is to a broker that can be reached and not used."""
    unusable = isinstance(why, ConnectionLost) and why.cause is Cause.UNUSABLE
    code = Code.XAER_RMERR if unusable and verb in _OPENS else Code.XAER_RMFAIL
    left = LEFT_BEHIND.get(verb, "") if code is Code.XAER_RMFAIL else ""
    return xa_error(code, f"{verb}: {why}{left}", xid)


def refusal_error(verb: str, refusal: Refusal, xid: Xid | None = None) -> XaError:
    """The error condition with which the broker refused."""
    code = refusal.code if refusal.code in EXCEPTIONS else Code.XAER_RMERR
    if code is Code.XAER_RMERR and verb in _UNDECIDED:
        code = Code.XA_RETRY
    return xa_error(code, f"{verb}: {refusal.description or refusal.condition}", xid or refusal.xid)


def work_error(refusal: Refusal) -> XaError:
    """What the broker refused of work: an address that it does not know is the caller's mistake."""
    if refusal.code in _WORK_CODES:
        return refusal_error("work", refusal)
    words = f"work: {refusal.description or refusal.condition} ({refusal.condition})"
    if refusal.code is Code.XAER_NOTA:
        return UnknownAddress(Code.XAER_INVAL, words, refusal.xid)
    return xa_error(Code.XAER_RMERR, words, refusal.xid)
