"""LateEnding: a resource manager that can tell the end of an association together with the prepare of its branch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from xa.resource import ResourceManager

if TYPE_CHECKING:
    from xa.codes import Code
    from xa.resource import Handle
    from xa.xid import Xid


class LateEnding(ResourceManager, Protocol):
    """What a resource manager may offer for whom `end` and `prepare` are exchanges with somebody else: one is saved.
    Nothing depends on it: `end` instead is as right. Codes that any verb may raise are those of `ResourceManager`."""

    def end_late(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        """Ends the calling thread's association, as `end` does, if `prepare` or `rollback` of the branch follows at
        once, from the same thread of control; what is to be told to others may wait for that.

        Flags: TMSUCCESS.
        XA_OK: the thread is not associated any more. Until that next verb nobody else may rely on the end: to others
        the branch may be at work still. What `end` would have answered is told by it: `prepare` answers XA_RB* with
        the branch gone, or XAER_RMERR with the branch as it was, to be rolled back.
        Otherwise as `end`.
        """
        ...
