"""FairQueue: who is served next, so that no one is kept waiting by those who have much to do.

What is served (a connection, a piece of work that goes on, the computation of a password) belongs to a payer: a user,
or an address where no user is known. `take` decides in this order:

1. Each payer has an account: the seconds that were spent on it. The payer with the lowest account is next. So payers
   that want more than they can have get equal shares of the time, however many connections each of them has. A payer
   that was away begins at the account of the one that is being served: no one saves time up, and a payer that asks for
   little is next at once.
2. Where something urgent of a payer waits, its account counts as AHEAD_S lower. So urgent work of one payer goes before
   other work of all, until that payer is AHEAD_S ahead of the others; then shares are equal again.
3. Among what belongs to one payer, the urgent ones are first, but after URGENT_IN_A_ROW of them comes one that is not.
   Otherwise they take turns: one that was served and has more to do waits behind the others.

No one can starve: an account that is charged only grows, so each payer that waits becomes the lowest one, and has each
of its connections served in turn.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush, nlargest
from typing import Final, Generic, TypeVar

T = TypeVar("T")

AHEAD_S: Final = 0.01
URGENT_IN_A_ROW: Final = 3
FEWEST: Final = 64
"""Accounts that are kept anyway."""


class _Account(Generic[T]):
    """One payer: what it has waiting, and its account."""

    __slots__ = ("entry", "in_a_row", "ready", "spent_s", "urgent")

    def __init__(self, spent_s: float) -> None:
        self.spent_s = spent_s
        self.entry = 0
        """The number of its entry in the heap that counts; 0: none does."""
        self.ready: OrderedDict[T, None] = OrderedDict()
        self.urgent: OrderedDict[T, None] = OrderedDict()
        self.in_a_row = 0

    @property
    def waits(self) -> bool:
        return bool(self.ready or self.urgent)

    def next(self) -> T:
        if self.urgent and not (self.ready and self.in_a_row >= URGENT_IN_A_ROW):
            self.in_a_row += 1
            return self.urgent.popitem(last=False)[0]
        self.in_a_row = 0
        return self.ready.popitem(last=False)[0]


class FairQueue(Generic[T]):
    """Those that wait for their turn. The caller that takes one serves it, says with `spent` how long that took, and
    adds it again where there is more to do."""

    def __init__(self) -> None:
        self._payers: dict[str, _Account[T]] = {}
        self._payer_of: dict[T, str] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._number = 0
        self._now_s = 0.0
        """The account of the payer that was served last: where others begin."""
        self._swept_at = FEWEST

    def __len__(self) -> int:
        return len(self._payer_of)

    def __contains__(self, one: T) -> bool:
        return one in self._payer_of

    def waits(self, payer: str) -> bool:
        """Whether something of `payer` waits."""
        account = self._payers.get(payer)
        return account is not None and account.waits

    def add(self, one: T, payer: str, *, urgent: bool = False) -> None:
        """`one`, which `payer` pays for, waits for its turn. Without effect where it waits already."""
        if one in self._payer_of:
            return
        account = self._account(payer)
        if not account.waits:
            account.spent_s = max(account.spent_s, self._now_s)
        self._payer_of[one] = payer
        (account.urgent if urgent else account.ready)[one] = None
        self._enter(payer, account)

    def remove(self, one: T) -> None:
        """It does not wait any more."""
        payer = self._payer_of.pop(one, None)
        if payer is None:
            return
        account = self._payers[payer]
        account.ready.pop(one, None)
        account.urgent.pop(one, None)
        self._enter(payer, account)

    @property
    def next_payer(self) -> str:
        """Who pays for the next one. IndexError: no one waits."""
        while True:
            _, number, payer = self._heap[0]
            account = self._payers.get(payer)
            if account is not None and account.entry == number:
                return payer
            heappop(self._heap)

    def take(self) -> T:
        """The next one, which does not wait any more. IndexError: no one waits."""
        payer = self.next_payer
        account = self._payers[payer]
        self._now_s = max(self._now_s, heappop(self._heap)[0])
        one = account.next()
        del self._payer_of[one]
        self._enter(payer, account)
        return one

    def spent(self, payer: str, seconds: float) -> None:
        """So long was spent on something that belongs to `payer`."""
        account = self._account(payer)
        account.spent_s = max(account.spent_s, self._now_s) + seconds
        if account.waits:
            self._enter(payer, account)
        elif not self._payer_of:  # no one waits for what this one had
            self._now_s = account.spent_s

    @property
    def accounts(self) -> int:
        """How many payers are remembered."""
        return len(self._payers)

    def _account(self, payer: str) -> _Account[T]:
        account = self._payers.get(payer)
        if account is None:
            if len(self._payers) >= self._swept_at:
                self._sweep()
            account = self._payers[payer] = _Account(self._now_s)
        return account

    def _enter(self, payer: str, account: _Account[T]) -> None:
        """The account has changed: its place among the others, too."""
        account.entry = 0
        if account.waits:
            self._number += 1
            account.entry = self._number
            ahead_s = AHEAD_S if account.urgent else 0.0
            heappush(self._heap, (account.spent_s - ahead_s, self._number, payer))
        if len(self._heap) > 4 * (FEWEST + len(self._payers)):
            self._sweep()

    def _sweep(self) -> None:
        """Forgets accounts that say no more than that of somebody new; of those that do not wait it keeps a few, the
        ones that have had most."""
        idle = [(one.spent_s, payer) for payer, one in self._payers.items() if not one.waits]
        most = {payer for spent_s, payer in nlargest(FEWEST, idle) if spent_s > self._now_s}
        kept = {payer: one for payer, one in self._payers.items() if one.waits or payer in most}
        self._payers = kept
        self._heap = [entry for entry in self._heap if entry[2] in kept and kept[entry[2]].entry == entry[1]]
        heapify(self._heap)
        self._swept_at = FEWEST + 2 * len(kept)
