"""Return codes of XA and of the ax_ routines, with X/Open's names and values (xa.h)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Code(IntEnum):
    """The answer of an XA routine. Positive and zero codes are answers, negative ones are errors."""

    __hash__ = int.__hash__  # in C: tables are looked up for every answer

    XA_OK = 0
    XA_RDONLY = 3
    XA_RETRY = 4
    XA_HEURMIX = 5
    XA_HEURRB = 6
    XA_HEURCOM = 7
    XA_HEURHAZ = 8
    XA_NOMIGRATE = 9
    XA_RBROLLBACK = 100
    XA_RBCOMMFAIL = 101
    XA_RBDEADLOCK = 102
    XA_RBINTEGRITY = 103
    XA_RBOTHER = 104
    XA_RBPROTO = 105
    XA_RBTIMEOUT = 106
    XA_RBTRANSIENT = 107
    XAER_ASYNC = -2
    XAER_RMERR = -3
    XAER_NOTA = -4
    XAER_INVAL = -5
    XAER_PROTO = -6
    XAER_RMFAIL = -7
    XAER_DUPID = -8
    XAER_OUTSIDE = -9


class AxCode(IntEnum):
    """The answers of ax_reg and ax_unreg."""

    TM_OK = 0
    TM_RESUME = 1
    TM_JOIN = 2
    TMER_TMERR = -1
    TMER_INVAL = -2
    TMER_PROTO = -3


XA_RBBASE: Final = Code.XA_RBROLLBACK
XA_RBEND: Final = Code.XA_RBTRANSIENT

ROLLBACK_CODES: Final = frozenset(code for code in Code if XA_RBBASE <= code <= XA_RBEND)
"""XA_RB*: the branch was rolled back, or can only be rolled back."""

HEURISTIC_CODES: Final = frozenset({Code.XA_HEURMIX, Code.XA_HEURRB, Code.XA_HEURCOM, Code.XA_HEURHAZ})
"""XA_HEUR*: the branch was, or may have been, completed without the transaction manager."""

MEANING: Final[dict[Code, str]] = {
    Code.XA_OK: "normal execution",
    Code.XA_RDONLY: "the branch was read-only and has been committed",
    Code.XA_RETRY: "the routine returned with no effect and may be issued again",
    Code.XA_HEURMIX: "the branch was heuristically committed in part and rolled back in part",
    Code.XA_HEURRB: "the branch was heuristically rolled back",
    Code.XA_HEURCOM: "the branch was heuristically committed",
    Code.XA_HEURHAZ: "the branch may have been heuristically completed",
    Code.XA_NOMIGRATE: "the suspended work must be resumed where it was suspended",
    Code.XA_RBROLLBACK: "rolled back for an unspecified reason",
    Code.XA_RBCOMMFAIL: "rolled back because of a communication failure",
    Code.XA_RBDEADLOCK: "rolled back because of a deadlock",
    Code.XA_RBINTEGRITY: "rolled back because the resource's integrity would be violated",
    Code.XA_RBOTHER: "rolled back for a reason of the resource manager's own",
    Code.XA_RBPROTO: "rolled back because of a protocol error inside the resource manager",
    Code.XA_RBTIMEOUT: "rolled back because the branch took too long",
    Code.XA_RBTRANSIENT: "rolled back because of a transient error; the work may be tried again",
    Code.XAER_ASYNC: "an asynchronous operation is outstanding, or asynchrony is not offered",
    Code.XAER_RMERR: "an error of the resource manager in the branch",
    Code.XAER_NOTA: "the xid is not known",
    Code.XAER_INVAL: "invalid arguments",
    Code.XAER_PROTO: "the routine was called in an improper context",
    Code.XAER_RMFAIL: "the resource manager cannot be reached; the outcome of the call is unknown",
    Code.XAER_DUPID: "the xid exists already",
    Code.XAER_OUTSIDE: "the resource manager is doing work outside any global transaction",
}
"""One sentence for each code, for messages."""
