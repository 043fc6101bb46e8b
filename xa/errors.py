"""Exceptions of the XA routines: one class for each decision that the caller has to take.

`EXCEPTIONS` maps every code that is not an answer to its class; the code itself is in `.code`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xa.codes import HEURISTIC_CODES, MEANING, ROLLBACK_CODES, Code
from xa.secrets import masked

if TYPE_CHECKING:
    from xa.xid import Xid


class XaError(Exception):
    """An XA routine did not do what was asked. `code` says why, `xid` for which branch, where there is one."""

    def __init__(self, code: Code, message: str = "", xid: Xid | None = None) -> None:
        self.code = code
        self.xid = xid
        self.message = masked(message) or MEANING[code]
        super().__init__(code, self.message, xid)

    def __str__(self) -> str:
        of = f" ({self.xid})" if self.xid is not None else ""
        return f"{self.code.name}: {self.message}{of}"

    def __reduce__(self) -> tuple[type[XaError], tuple[Code, str, Xid | None]]:
        return type(self), (self.code, self.message, self.xid)


class BranchRolledBack(XaError):
    """XA_RB*: the branch was or can only be rolled back. Roll back the others; the work may be tried again."""


class HeuristicOutcome(XaError):
    """XA_HEUR*: the branch was completed without the transaction manager. Log it, report it, then forget it."""


class TryAgain(XaError):
    """XA_RETRY: nothing happened; issue the same call again later."""


class ResourceError(XaError):
    """XAER_RMERR: the resource manager failed in this branch; its state tables say what became of it."""


class ResourceUnavailable(XaError):
    """XAER_RMFAIL: the outcome of the call is unknown. Open again, and leave the branch to recovery."""


class UnknownBranch(XaError):
    """XAER_NOTA: the resource manager has no such branch; what that means depends on what was asked before."""


class XaMisuse(XaError):
    """XAER_PROTO, INVAL, DUPID, OUTSIDE, ASYNC: the call was wrong and had no effect. Correct the caller."""


EXCEPTIONS: Final[dict[Code, type[XaError]]] = {
    **dict.fromkeys(sorted(ROLLBACK_CODES), BranchRolledBack),
    **dict.fromkeys(sorted(HEURISTIC_CODES), HeuristicOutcome),
    Code.XA_RETRY: TryAgain,
    Code.XAER_RMERR: ResourceError,
    Code.XAER_RMFAIL: ResourceUnavailable,
    Code.XAER_NOTA: UnknownBranch,
    Code.XAER_PROTO: XaMisuse,
    Code.XAER_INVAL: XaMisuse,
    Code.XAER_DUPID: XaMisuse,
    Code.XAER_OUTSIDE: XaMisuse,
    Code.XAER_ASYNC: XaMisuse,
}
"""Code → exception. What is missing here (XA_OK, XA_RDONLY, XA_NOMIGRATE) is an answer, never raised."""


def xa_error(code: Code, message: str = "", xid: Xid | None = None) -> XaError:
    """The exception for `code`, to be raised by the caller."""
    return EXCEPTIONS[code](code, message, xid)
