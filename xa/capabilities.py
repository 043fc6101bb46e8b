"""Optional capabilities of a resource manager. Each is a method: an instance offers the capability if and only if it
has the method. A caller that never uses one is right, too.

`xa.diagnosis`, `xa.holdings` and `xa.deciding_resource` have others, with what they tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from xa.resource_manager import ResourceManager

if TYPE_CHECKING:
    from xa.codes import Code
    from xa.pool import Connections
    from xa.resource_manager import Handle
    from xa.xid import Xid


class BreakingOff(ResourceManager, Protocol):
    """Its connections can be broken while a thread waits for them."""

    def break_off(self) -> None:
        """Breaks every connection at once, as a network does that fails: whatever is being asked over one of them comes
        to XAER_RMFAIL, and the next `open` connects anew. Called by any thread, at any moment, while others are inside
        of a verb; it waits for none of them."""
        ...


class LateEnding(ResourceManager, Protocol):
    """It can end an association and prepare its branch in one exchange with its server instead of two.
    docs/decisions/0008 says why this is a verb of its own. Codes that any verb may raise are those of
    `ResourceManager`."""

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


class StartingAtOnce(ResourceManager, Protocol):
    """It knows whether `start` would have to wait, so that a task of an event loop need not ask a worker thread to call
    it."""

    def starts_at_once(self, rmid: int) -> bool:
        """Whether `start` of a new branch with TMNOWAIT, called now by the same thread of control, would return without
        waiting for its server or for another thread, as far as is known. It never raises.

        It is a forecast: another thread may take the last free connection meanwhile. Then `start` answers XA_RETRY, or
        makes a connection."""
        ...


class ConnectionUsage(Protocol):
    """It keeps a pool of connections, and tells how that is, for metrics."""

    def connections(self) -> Connections | None:
        """How its pool is now; None while it is not open. It asks nobody, and never raises."""
        ...
