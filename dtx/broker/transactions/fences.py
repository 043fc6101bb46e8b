"""Fences: global transactions of which no branch can be started or prepared any more.

The coordinator of a global transaction fences it when it is decided, so that a late attempt somewhere
can't leave a prepared branch behind. A fence is durable, and goes after a time.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition
from dtx.broker.transactional_resource import not_stored
from dtx.protocol.conditions import refused
from dtx.protocol.replies import Result as ResultReply
from dtx.store.contract import Batch
from xa import Code
from xa.state_tables import BranchState, BranchVerb

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.broker.transactional_resource import TransactionalResource
    from dtx.broker.transactions.branches import Registry
    from dtx.protocol.replies import Reply
    from dtx.store.contract import NotStored, Restored
    from xa import Xid

    Answer = Callable[[Reply], None]


MAX_GTRID: Final = 64


class Fences:
    """Every fence: whose it is, and since when.

    One that is set by who may coordinate everybody's branches keeps all of them out. One that is set by who may
    coordinate their own only keeps their own out: a gtrid is no secret, and must not be taken from its owner.
    """

    def __init__(self, resource: TransactionalResource, registry: Registry) -> None:
        self._resource = resource
        self._registry = registry
        self._fences: dict[bytes, tuple[str, int]] = {}
        self._of_user: Counter[str] = Counter()

    def restore(self, restored: Restored) -> None:
        """Takes the stored fences."""
        self._fences = {fence.gtrid: (fence.owner, fence.fenced_ms) for fence in restored.fences}
        self._of_user = Counter(owner for owner, _ in self._fences.values())
        self._resource.after(60.0, self._drop_old)

    def __len__(self) -> int:
        return len(self._fences)

    def check(self, xid: Xid, owner: str) -> None:
        """RefusedError when the xid's global transaction is fenced, for branches of `owner`."""
        if self._fences and (
            fence_key(xid.format_id, xid.gtrid) in self._fences
            or fence_key(xid.format_id, xid.gtrid, owner) in self._fences
        ):
            message = "the global transaction is fenced: no branch of it can be started or prepared any more"
            raise refused(Code.XA_RBOTHER, message, xid)

    def put(self, format_id: int, gtrid: bytes, owner: str, answer: Answer, *, for_all: bool) -> None:
        """Fences a global transaction: durable before `answer` is called."""
        key = fence_key(format_id, gtrid, None if for_all else owner)
        limits, now_ms = self._resource.limits, self._resource.clock.wall_ms()
        known = self._fences.get(key)
        if known is None and len(self._fences) >= limits.fences:
            message = f"there are {len(self._fences)} fences"
            raise refused(Code.XAER_RMERR, message, condition=Condition.RESOURCE_LIMIT)
        if known is None and self._of_user[owner] >= limits.fences_per_user:
            message = f"{owner or 'anonymous'} has {self._of_user[owner]} fences, as many as a user may have"
            raise refused(Code.XAER_RMERR, message, condition=Condition.RESOURCE_LIMIT)
        batch = Batch()
        batch.fence(key, owner, now_ms)
        self._put(key, owner, now_ms)  # at once: what is started or prepared from here on comes too late
        for branch in self._registry.of(format_id, gtrid):
            if branch.state in {BranchState.S1, BranchState.S2} and branch.waiting is None:
                branch.undo(BranchVerb.EXPIRE, "the global transaction is fenced", Code.XA_RBOTHER)

        def done(error: NotStored | None) -> None:
            if error is None:
                answer(ResultReply(Code.XA_OK))
                return
            if known is None:
                self._drop(key)
            answer(not_stored(error, Code.XAER_RMERR))

        self._resource.submit(batch, done)

    def lift(self, format_id: int, gtrid: bytes, owner: str, answer: Answer, *, for_all: bool) -> None:
        """The fence goes: that of `owner`, or, `for_all`, that around everybody's branches."""
        key = fence_key(format_id, gtrid, None if for_all else owner)
        if key not in self._fences:
            raise refused(Code.XAER_NOTA, "there is no such fence")
        batch = Batch()
        batch.lift_fence(key)

        def done(error: NotStored | None) -> None:
            if error is None:
                self._drop(key)
                answer(ResultReply(Code.XA_OK))
            else:
                answer(not_stored(error, Code.XAER_RMERR))

        self._resource.submit(batch, done)

    def _put(self, key: bytes, owner: str, since_ms: int) -> None:
        self._drop(key)
        self._fences[key] = owner, since_ms
        self._of_user[owner] += 1

    def _drop(self, key: bytes) -> None:
        known = self._fences.pop(key, None)
        if known is not None:
            self._of_user[known[0]] -= 1

    def _drop_old(self) -> None:
        oldest = self._resource.clock.wall_ms() - 1000 * self._resource.settings.fence_s
        for key in [key for key, (_, since_ms) in self._fences.items() if since_ms < oldest]:
            self._drop(key)
            self._resource.turn.batch.lift_fence(key)
        self._resource.after(60.0, self._drop_old)


def fence_key(format_id: int, gtrid: bytes, owner: str | None = None) -> bytes:
    """A global transaction, as the store knows a fence: 4 octets of format, and the gtrid. Of a fence that keeps out
    the branches of one owner: the same, filled with zeros up to the longest gtrid, the gtrid's length in one octet,
    and the SHA-256 of the owner."""
    key = format_id.to_bytes(4, "big") + gtrid
    if owner is None:
        return key
    return key.ljust(4 + MAX_GTRID, b"\0") + bytes([len(gtrid)]) + hashlib.sha256(owner.encode()).digest()
