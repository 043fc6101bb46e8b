"""Groups: the messages of one group-id go to one consumer at a time, in their order.

A group is held as long as somebody holds a message of it. Meanwhile its next message is for that consumer only, and for
nobody where a prepared branch holds one (a branch in doubt holds its group): if it were given out, and the branch
rolled back then, the one behind would have been dealt with before the one in front.

Of each group at most one message, its `first`, is offered: in the queue's order for everybody if nobody holds the
group, else in the `own` order of the consumer that holds it. All others wait in the group. So a consumer never meets
messages that it may not have, and a million messages of a group that is held cost nobody else anything.

Whatever changes who may have the next message calls `_offer`, which decides anew. What was offered before may still
stand in some order: an offer counts if and only if it is the group's `first`, and who finds it may have it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from dtx.broker.queues.entry import Consumer, Entry, State

if TYPE_CHECKING:
    from collections.abc import Callable


class Group:
    """One group, as long as it has messages."""

    __slots__ = ("first", "held", "holder", "in_doubt", "reserved", "waiting")

    def __init__(self) -> None:
        self.first: Entry | None = None
        self.held = 0
        """How many of its messages are held."""
        self.holder: Consumer | None = None
        """Who holds it; None, while some are held: nobody who could get more."""
        self.in_doubt: set[int] | None = None
        """The numbers of those that prepared branches hold; None for none."""
        self.reserved = False
        """Whether the first is for the holder only."""
        self.waiting: list[tuple[int, Entry]] = []
        """The others that nobody holds, by position; also some that went meanwhile."""

    @property
    def shut(self) -> bool:
        """Whether nobody gets its messages now."""
        return self.in_doubt is not None or (self.held > 0 and self.holder is None)


class Groups:
    """The groups of one queue. `order` puts a message into the queue's order; `freed` hears of groups whose messages
    others may have now."""

    def __init__(self, order: Callable[[Entry], None], freed: Callable[[str], None]) -> None:
        self._groups: dict[str, Group] = {}
        self._order = order
        self._freed = freed
        self.reserved = 0
        """How many groups have a first message that is for their holder only."""

    def __len__(self) -> int:
        return len(self._groups)

    # -- what comes and goes
    def add(self, entry: Entry) -> None:
        """A message is available, behind all others of its group."""
        group = self._groups.get(entry.group)
        if group is None:
            group = self._groups[entry.group] = Group()
        heappush(group.waiting, (entry.position, entry))
        if group.first is None:
            self._offer(group)

    def come_due(self, entry: Entry) -> None:
        """A message is available at its place, in front of others perhaps."""
        self.add(entry)
        group = self._groups[entry.group]
        if group.first is not None and group.first.position > entry.position:
            self._offer(group)

    def restore(self, entry: Entry) -> None:
        """A prepared branch holds this message."""
        group = self._groups.get(entry.group)
        if group is None:
            group = self._groups[entry.group] = Group()
        group.held += 1
        self.prepared(entry)

    def taken(self, entry: Entry, consumer: Consumer | None) -> None:
        """`consumer` holds a message that was available; None: somebody who gets no more."""
        group = self._groups.get(entry.group)
        if group is None:
            return
        if group.held == 0:
            group.holder = consumer
        group.held += 1
        if group.first is entry:
            self._withdraw(group)
            self._offer(group)
        elif group.held == 1:  # the first is for this holder only from now on
            self._offer(group)

    def given_back(self, entry: Entry) -> None:
        """A held message is available again, at its place."""
        group = self._groups.get(entry.group)
        if group is None:  # the queue has been deleted
            return
        heappush(group.waiting, (entry.position, entry))
        self._released(group, entry, changed=True)

    def gone(self, entry: Entry) -> None:
        """A held message has left the queue."""
        group = self._groups.get(entry.group)
        if group is not None:
            self._released(group, entry, changed=False)

    def _released(self, group: Group, entry: Entry, *, changed: bool) -> None:
        group.held -= 1
        opened = self._decided(group, entry) or not group.held
        if not group.held:
            group.holder = None
        if changed or opened:
            self._offer(group)
        if group.first is None and not group.held and not group.waiting:
            del self._groups[entry.group]
        elif opened:
            self._freed(entry.group)

    def clear(self) -> None:
        """The queue is deleted."""
        self._groups.clear()
        self.reserved = 0

    # -- branches in doubt
    def prepared(self, entry: Entry) -> None:
        """A prepared branch holds this message: its group is shut until the branch is decided."""
        group = self._groups.get(entry.group)
        if group is not None:
            if group.in_doubt is None:
                group.in_doubt = set()
            group.in_doubt.add(entry.number)
            self._offer(group)

    def decided(self, entry: Entry) -> None:
        """The branch is decided, and its consumer holds this message still."""
        group = self._groups.get(entry.group)
        if group is not None and self._decided(group, entry):
            self._offer(group)
            self._freed(entry.group)

    def _decided(self, group: Group, entry: Entry) -> bool:
        if group.in_doubt is None:
            return False
        group.in_doubt.discard(entry.number)
        if group.in_doubt:
            return False
        group.in_doubt = None
        return True

    # -- who may have what
    def offers(self, entry: Entry) -> bool:
        """Whether a message that stands in the queue's order may be taken by everybody."""
        group = self._groups.get(entry.group)
        return group is not None and group.first is entry and not group.held

    def next_own(self, consumer: Consumer) -> Entry | None:
        """The next message that `consumer` may have because it holds the group; it stays where it is."""
        own = consumer.own
        while own:
            entry = own[0][1]
            group = self._groups.get(entry.group)
            if (
                group is not None
                and group.first is entry
                and group.holder is consumer
                and entry.state is State.AVAILABLE
            ):
                return entry
            heappop(own)
        return None

    def allows(self, entry: Entry, consumer: Consumer) -> bool:
        """Whether `consumer` may take this available message, though it is not the first one: a selector chose it."""
        group = self._groups.get(entry.group)
        return group is None or not (group.shut or (group.held and group.holder is not consumer))

    def pass_over(self, entry: Entry) -> None:
        """The first message of a group is expired: nobody waits for it to go."""
        group = self._groups.get(entry.group)
        if group is not None and group.first is entry:
            self._withdraw(group)
            self._offer(group)

    def _withdraw(self, group: Group) -> None:
        group.first = None
        if group.reserved:
            group.reserved = False
            self.reserved -= 1

    def _offer(self, group: Group) -> None:
        """Offers the message in front to whom it is for."""
        first, waiting = group.first, group.waiting
        if first is not None:
            self._withdraw(group)
            heappush(waiting, (first.position, first))
        if group.shut:
            return
        while waiting:
            position, entry = heappop(waiting)
            if entry.state is not State.AVAILABLE or entry.position != position:
                continue  # it went meanwhile
            group.first = entry
            if group.holder is None:
                self._order(entry)
            else:
                group.reserved = True
                self.reserved += 1
                heappush(group.holder.own, (position, entry))
            return
