"""What this instance knows of the branches that it began.

Broker-J keeps less of a branch than XA asks for. It prepares a branch that is rollback-only: work of a session that
died would be committed. It joins a prepared branch, and loses what is done there. Its timer rolls back prepared
branches. And it doesn't tell in which state a branch is. So the instance that begins a branch is the one that works in
it and prepares it, and keeps the rest of its state here. Whatever is prepared can be completed by anybody.

    ACTIVE --prepare is sent--> UNKNOWN --XA_OK--> PREPARED
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xa import Code, Xid

MAX_PREPARED: Final = 10_000
"""Prepared branches that are remembered; others may complete them without our knowledge."""
MARGIN: Final = 0.1
"""The part of a branch's time that is left to the broker's clock."""


class BranchState(Enum):
    """How far a branch is."""

    ACTIVE = "not prepared"
    UNKNOWN = "its prepare was sent, and not answered"
    PREPARED = "prepared"


@dataclass(slots=True)
class Branch:
    """A branch that this instance began."""

    until: float
    """Until when the broker's timer can't have touched it."""
    state: BranchState = BranchState.ACTIVE
    works: int = 0
    """Associations that have not ended."""
    failed: Code | None = None
    """Why it can only be rolled back."""


class Branches:
    """They, by their xids."""

    def __init__(self) -> None:
        self._branches: dict[Xid, Branch] = {}
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Branch]:
        return iter(list(self._branches.values()))

    def add(self, xid: Xid, branch: Branch) -> bool:
        """Notes a branch that is to be begun; False where there is one."""
        with self._lock:
            if xid in self._branches:
                return False
            self._branches[xid] = branch
            if len(self._branches) > MAX_PREPARED:
                self._forget_prepared()
            return True

    def get(self, xid: Xid) -> Branch | None:
        """The branch, if this instance began it and it is not complete."""
        return self._branches.get(xid)

    def remove(self, xid: Xid) -> None:
        """The branch is complete."""
        with self._lock:
            self._branches.pop(xid, None)

    def clear(self) -> None:
        """Forgets all of them, in a forked process."""
        self._lock = threading.Lock()
        self._branches = {}

    def joined(self, branch: Branch) -> None:
        """One more association."""
        with self._lock:
            branch.works += 1

    def left(self, branch: Branch, failed: Code | None = None) -> None:
        """One association less."""
        with self._lock:
            branch.works -= 1
            branch.failed = branch.failed or failed

    def _forget_prepared(self) -> None:
        found = next((xid for xid, branch in self._branches.items() if branch.state is BranchState.PREPARED), None)
        if found is not None:
            del self._branches[found]
