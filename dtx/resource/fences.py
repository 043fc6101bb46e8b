"""Fences: global transactions of which no branch can be started or prepared any more.

Whoever coordinates a global transaction fences it when it is decided, so that a late attempt somewhere
can't leave a prepared branch behind. A fence is durable, and goes after a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtx.protocol.conditions import Condition, refused
from dtx.protocol.replies import Result as Told
from dtx.resource.resource import not_stored
from dtx.store.contract import Batch
from xa import Code
from xa.tables import BranchState, BranchVerb

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.protocol.replies import Reply
    from dtx.resource.branches import Registry
    from dtx.resource.resource import Resource
    from dtx.store.contract import NotStored, Restored
    from xa import Xid

    Answer = Callable[[Reply], None]


class Fences:
    """Every fence: whose it is, and since when."""

    def __init__(self, resource: Resource, registry: Registry) -> None:
        self._resource = resource
        self._registry = registry
        self._fences: dict[bytes, tuple[str, int]] = {}

    def restore(self, restored: Restored) -> None:
        """Takes the stored fences."""
        self._fences = {fence.gtrid: (fence.owner, fence.fenced_ms) for fence in restored.fences}
        self._resource.after(60.0, self._drop_old)

    def __len__(self) -> int:
        return len(self._fences)

    def owner(self, format_id: int, gtrid: bytes) -> str | None:
        """Whose fence stands around a global transaction, None where there is none."""
        found = self._fences.get(fence_key(format_id, gtrid))
        return found[0] if found is not None else None

    def check(self, xid: Xid) -> None:
        """RefusedError when the xid's global transaction is fenced."""
        if self._fences and fence_key(xid.format_id, xid.gtrid) in self._fences:
            told = "the global transaction is fenced: no branch of it can be started or prepared any more"
            raise refused(Code.XA_RBOTHER, told, xid)

    def put(self, format_id: int, gtrid: bytes, owner: str, answer: Answer) -> None:
        """Fences a global transaction: durable before `answer` hears it."""
        key, now_ms = fence_key(format_id, gtrid), self._resource.clock.wall_ms()
        known = self._fences.get(key)
        if known is None and len(self._fences) >= self._resource.limits.fences:
            told = f"there are {len(self._fences)} fences"
            raise refused(Code.XAER_RMERR, told, condition=Condition.RESOURCE_LIMIT)
        batch = Batch()
        batch.fence(key, owner, now_ms)
        self._fences[key] = (
            owner,
            now_ms,
        )  # at once: what is started or prepared from here on comes too late
        for branch in self._registry.of(format_id, gtrid):
            if branch.state in {BranchState.S1, BranchState.S2} and branch.waiting is None:
                branch.undo(BranchVerb.EXPIRE, "the global transaction is fenced", Code.XA_RBOTHER)

        def done(error: NotStored | None) -> None:
            if error is None:
                answer(Told(Code.XA_OK))
                return
            if known is None:
                self._fences.pop(key, None)
            answer(not_stored(error, Code.XAER_RMERR))

        self._resource.submit(batch, done)

    def lift(self, format_id: int, gtrid: bytes, answer: Answer) -> None:
        """The fence goes."""
        key = fence_key(format_id, gtrid)
        if key not in self._fences:
            raise refused(Code.XAER_NOTA, "there is no such fence")
        batch = Batch()
        batch.lift_fence(key)

        def done(error: NotStored | None) -> None:
            if error is None:
                self._fences.pop(key, None)
                answer(Told(Code.XA_OK))
            else:
                answer(not_stored(error, Code.XAER_RMERR))

        self._resource.submit(batch, done)

    def _drop_old(self) -> None:
        oldest = self._resource.clock.wall_ms() - 1000 * self._resource.settings.fence_s
        for key in [key for key, (_, since_ms) in self._fences.items() if since_ms < oldest]:
            del self._fences[key]
            self._resource.turn.batch.lift_fence(key)
        self._resource.after(60.0, self._drop_old)


def fence_key(format_id: int, gtrid: bytes) -> bytes:
    """A global transaction, as the store knows a fence: 4 octets of format, and the gtrid."""
    return format_id.to_bytes(4, "big") + gtrid
