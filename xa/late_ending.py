"""LateEnding: a resource manager that can end an association and prepare its branch in one exchange with its server
instead of two. docs/decisions/0008 says why this is a verb of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from xa.resource_manager import ResourceManager

if TYPE_CHECKING:
    from xa.codes import Code
    from xa.resource_manager import Handle
    from xa.xid import Xid


class LateEnding(ResourceManager, Protocol):
    """An optional capability of a resource manager: it has the method, or it has not. `end` instead is always as right.
    Codes that any verb may raise are those of `ResourceManager`."""

    def end_late(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        """Ends the calling thread's association, as `end` does, for a caller that will call `prepare` or `rollback` of
        the branch at once, from the same thread of control. The server may get the end together with that verb.

        Flags: TMSUCCESS.
        XA_OK: the thread is not associated any more. Until the next verb no other caller may rely on the end, because
        for others the branch may still be active. The next verb returns what `end` would have returned: `prepare`
        answers XA_RB* if the branch has ended, or XAER_RMERR if it is as it was and has to be rolled back.
        Otherwise as `end`.
        """
        ...
