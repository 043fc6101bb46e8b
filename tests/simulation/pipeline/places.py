"""This module models a broker and a database as far as a pipeline needs them: branches, fences, queues and a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from xa import Code, XaError, Xid, xa_error
from xabridge.pipeline.core.protocol.partition_read import WithheldMessages

DELIVERIES = 3
"""How often a message is delivered in vain until it is dead."""


NOT_JUDGED = WithheldMessages()


@dataclass
class Branch:
    """What a branch took and posts. `holder`: who works on it; None once it is prepared."""

    holder: int | None
    taken: list[int] = field(default_factory=list)
    judged: WithheldMessages = NOT_JUDGED
    posts: list[str] = field(default_factory=list)


class Place:
    """One resource manager. A broker has fences and a queue, a database has neither: it starts any branch, and refuses
    to prepare one whose xid is taken."""

    def __init__(self, name: str, *, fences: bool) -> None:
        self.name = name
        self.has_fences = fences
        self.counts: Counter[int] = Counter()
        """How often a message was delivered in vain."""
        self.dead: list[int] = []
        self.staged: dict[tuple[bytes, str], list[str]] = {}
        """Rows by key: of which global transaction, and which attempt."""
        self.fences: set[bytes] = set()

        self.queue: list[int] = []
        self.output: list[str] = []
        self.committed: list[Xid] = []
        """The branches that were committed, in this order."""
        self.active: dict[tuple[Xid, int], Branch] = {}
        self.ended: dict[Xid, Branch] = {}
        self.doomed: set[Xid] = set()
        """Rollback-only, and remembered for who wants to hear of it."""
        self.prepared: dict[Xid, Branch] = {}

    # --- who works on a branch ----------------------------------------------------------------------------------
    def start(self, xid: Xid, actor: int) -> Code | XaError:
        """Associates an actor with a branch."""
        if xid.gtrid in self.fences:
            return xa_error(Code.XA_RBOTHER, "fenced", xid)
        if self.has_fences and (xid in self.prepared or xid in self.ended or xid in self.doomed or self._at_work(xid)):
            return xa_error(Code.XAER_DUPID, "known", xid)
        self.active[xid, actor] = Branch(actor)
        return Code.XA_OK

    def _at_work(self, xid: Xid) -> bool:
        return any(other == xid for other, _ in self.active)

    def take(self, actor: int, count: int) -> list[int] | XaError:
        """Messages that wait, for what the actor works on."""
        branch = next((branch for (_, holder), branch in self.active.items() if holder == actor), None)
        if branch is None:
            return xa_error(Code.XA_RBOTHER, "rolled back")
        some, self.queue = self.queue[:count], self.queue[count:]
        branch.taken += some
        return some

    def post(self, xid: Xid, actor: int, rows: Iterable[str]) -> Code | XaError:
        """Work that is there when the branch is committed."""
        branch = self.active.get((xid, actor))
        if branch is None:
            return xa_error(Code.XA_RBOTHER, "rolled back", xid)
        branch.posts += rows
        return Code.XA_OK

    def end(self, xid: Xid, actor: int) -> Code | XaError:
        """Ends the association."""
        branch = self.active.pop((xid, actor), None)
        if branch is None:
            return xa_error(Code.XA_RBOTHER, "rolled back", xid)
        self.ended[xid] = branch
        return Code.XA_OK

    def prepare(self, xid: Xid, judged: WithheldMessages = NOT_JUDGED) -> Code | XaError:
        """Prepares what is ended, also where it is empty."""
        if xid in self.doomed:
            self.doomed.discard(xid)
            return xa_error(Code.XA_RBROLLBACK, "rolled back", xid)
        branch = self.ended.pop(xid, None)
        if branch is None:
            known = xid in self.prepared or self._at_work(xid)
            return xa_error(Code.XAER_PROTO if known else Code.XAER_NOTA, "not ended", xid)
        if xid in self.prepared or xid.gtrid in self.fences:
            self._undo(branch)
            return xa_error(Code.XA_RBOTHER, "not prepared", xid)
        branch.holder, branch.judged = None, judged
        self.prepared[xid] = branch
        return Code.XA_OK

    def drop(self, actor: int) -> None:
        """The actor's connection is gone."""
        for key in [key for key in self.active if key[1] == actor]:
            self._undo(self.active.pop(key))
            if self.has_fences and key[0] not in self.prepared:
                self.doomed.add(key[0])
        if not self.has_fences:  # until it is prepared it is the connection's
            for xid in [xid for xid, branch in self.ended.items() if branch.holder == actor]:
                self._undo(self.ended.pop(xid))

    def expire(self) -> None:
        """The time of what is not prepared passes."""
        for xid in list(self.ended):
            self._undo(self.ended.pop(xid))

    # --- anybody ------------------------------------------------------------------------------------------------
    def hold(self, xid: Xid) -> Code | XaError:
        """Whether the branch can be read."""
        if xid in self.prepared:
            return Code.XA_OK
        known = self._at_work(xid) or xid in self.ended or xid in self.doomed
        code = Code.XAER_PROTO if known else Code.XAER_NOTA
        return xa_error(code, "not prepared", xid)

    def roll_back(self, xid: Xid, actor: int | None = None) -> Code | XaError:
        """Rolls a branch back: the actor's own, or a prepared one."""
        branch = self.active.pop((xid, actor), None) if actor is not None else None
        if branch is None and self.has_fences and self._at_work(xid):
            return xa_error(Code.XAER_PROTO, "at work", xid)
        self.doomed.discard(xid)
        branch = branch or self.ended.pop(xid, None) or self.prepared.pop(xid, None)
        if branch is None:
            return xa_error(Code.XAER_NOTA, "unknown", xid)
        self._undo(branch)
        return Code.XA_OK

    def commit(self, xid: Xid) -> Code | XaError:
        """Commits a prepared branch."""
        branch = self.prepared.pop(xid, None)
        if branch is None:
            return xa_error(Code.XAER_NOTA, "unknown", xid)
        self.output += branch.posts
        self.committed.append(xid)
        for place, number in enumerate(branch.taken):
            if place in branch.judged.failed:
                self.counts[number] += 1
                (self.dead if self.counts[number] >= DELIVERIES else self.queue).append(number)
            elif place in branch.judged.released:
                self.queue.append(number)
        self.queue.sort()
        return Code.XA_OK

    def fence(self, gtrid: bytes) -> None:
        """No branch of it can be started or prepared any more."""
        if self.has_fences:
            self.fences.add(gtrid)
            for key in [key for key in self.active if key[0].gtrid == gtrid]:
                self._undo(self.active.pop(key))
            for xid in [xid for xid in self.ended if xid.gtrid == gtrid]:
                self._undo(self.ended.pop(xid))

    def _undo(self, branch: Branch) -> None:
        self.queue = sorted(self.queue + branch.taken)
