"""BranchIndex: which prepared branches hold messages of which queue.

What a prepared branch holds does not change any more. So it is put into the index only when somebody asks for the first
time after it was prepared: transactions cost next to nothing more, and a request costs as much as its answer is long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dtx.broker.transactions.branches import Branch


class BranchIndex:
    """An index of the prepared branches by the queues whose messages they retire or post."""

    def __init__(self) -> None:
        self._fresh: dict[Branch, None] = {}
        """Branches that were prepared since somebody asked."""
        self._holdings: dict[Branch, Mapping[str, tuple[int, int]]] = {}
        self._by_queue: dict[str, dict[Branch, None]] = {}

    def add(self, branch: Branch) -> None:
        """A branch is prepared."""
        self._fresh[branch] = None

    def drop(self, branch: Branch) -> None:
        """A branch is decided, or never was prepared."""
        if branch in self._fresh:
            del self._fresh[branch]
        elif self._holdings:
            for queue in self._holdings.pop(branch, ()):
                branches = self._by_queue[queue]
                del branches[branch]
                if not branches:
                    del self._by_queue[queue]

    def holdings(self, branch: Branch) -> Mapping[str, tuple[int, int]]:
        """By queue: how many messages the branch retires, and how many it posts."""
        known = self._holdings.get(branch)
        return branch.work.holdings() if known is None else known

    def of(self, queue: str) -> Collection[Branch]:
        """The prepared branches that hold messages of a queue."""
        while self._fresh:
            branch, _ = self._fresh.popitem()
            held = self._holdings[branch] = branch.work.holdings()
            for name in held:
                self._by_queue.setdefault(name, {})[branch] = None
        return self._by_queue.get(queue, {})
