"""Order: which available message of a queue a consumer gets next; and Groups: the messages of one group-id go to one
consumer at a time, in their order.

A group is held as long as somebody holds a message of it. Meanwhile its next message is for that consumer only, and for
no consumer where a prepared branch holds one (a branch in doubt holds its group): if it were given out, and the branch
rolled back then, the one behind would have been dealt with before the one in front.

Of each group at most one message, its `first`, is offered: in the queue's order for everybody if no one holds the
group, else in the `own` order of the consumer that holds it. All others wait in the group. So a consumer never meets
messages that it may not have, and a million messages of a group that is held cost other consumers nothing.

Whatever changes who may have the next message calls `_offer`, which decides anew. What was offered before may still
stand in some order: an offer counts if and only if it is the group's `first`, and who finds it may have it.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final

from dtx.broker.queues.entry import Consumer, Entry, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.broker.queues.queue import Queue


FEW: Final = 1000
"""Messages that are gone and may wait until somebody would take them, before they are sorted out."""


class MessageGroup:
    """One group, as long as it has messages."""

    __slots__ = ("first", "held", "holder", "in_doubt", "reserved", "waiting")

    def __init__(self) -> None:
        self.first: Entry | None = None
        self.held = 0
        """How many of its messages are held."""
        self.holder: Consumer | None = None
        """The consumer that holds it; None, while some are held: by none that could get more."""
        self.in_doubt: set[int] | None = None
        """The numbers of those that prepared branches hold; None for none."""
        self.reserved = False
        """Whether the first is for the holder only."""
        self.waiting: list[tuple[int, Entry]] = []
        """The others that are not held, by position; also some that went meanwhile."""

    @property
    def shut(self) -> bool:
        """Whether no consumer gets its messages now."""
        return self.in_doubt is not None or (self.held > 0 and self.holder is None)


class Groups:
    """The groups of one queue. `order` puts a message into the queue's order; `freed` is called with groups whose
    messages others may have now."""

    def __init__(self, order: Callable[[Entry], None], freed: Callable[[str], None]) -> None:
        self._groups: dict[str, MessageGroup] = {}
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
            group = self._groups[entry.group] = MessageGroup()
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
            group = self._groups[entry.group] = MessageGroup()
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

    def _released(self, group: MessageGroup, entry: Entry, *, changed: bool) -> None:
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

    def _decided(self, group: MessageGroup, entry: Entry) -> bool:
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
        """The first message of a group is expired: no consumer waits for it to go."""
        group = self._groups.get(entry.group)
        if group is not None and group.first is entry:
            self._withdraw(group)
            self._offer(group)

    def _withdraw(self, group: MessageGroup) -> None:
        group.first = None
        if group.reserved:
            group.reserved = False
            self.reserved -= 1

    def _offer(self, group: MessageGroup) -> None:
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


class AvailableMessages:
    """The available messages of one queue, by their positions. `changed` is called when there is one for consumers that
    was not there before, `freed` with a group whose messages others may have now."""

    __slots__ = ("_changed", "groups", "ready", "returned")

    def __init__(self, changed: Callable[[], None], freed: Callable[[str], None], *, ordered_groups: bool) -> None:
        self._changed = changed
        self.ready: deque[Entry] = deque()
        """Messages in the order in which they came; also some that went meanwhile."""
        self.returned: list[tuple[int, Entry]] = []
        """Messages that are available at a place in front of others, by position; also some that went meanwhile."""
        self.groups = Groups(self._line_up, freed) if ordered_groups else None

    def _line_up(self, entry: Entry) -> None:
        """The message of a group that is in front may be taken by everybody."""
        ready = self.ready
        if ready and ready[-1].position > entry.position:
            heappush(self.returned, (entry.position, entry))
        else:
            ready.append(entry)
        self._changed()

    def put_back(self, entry: Entry) -> None:
        """A message is available at its place, which others are behind of."""
        heappush(self.returned, (entry.position, entry))

    def first(self, queue: Queue, now_ms: int, consumer: Consumer) -> Entry | None:
        """Takes the first message that `consumer` may have and has not given back as undeliverable out of the order;
        None when there is none. Expired ones are left out."""
        without = consumer.undeliverable
        passed: list[Entry] = []
        entry = self._next(queue, now_ms)
        while entry is not None and entry in without:
            passed.append(entry)
            entry = self._next(queue, now_ms)
        for one in passed:
            self.put_back(one)

        if self.groups is not None and self.groups.reserved:
            own = self._next_own(now_ms, consumer, self.groups)
            if own is not None and (entry is None or own.position < entry.position):
                if entry is not None:
                    self.put_back(entry)
                entry = own
        return entry

    def _next_own(self, now_ms: int, consumer: Consumer, groups: Groups) -> Entry | None:
        """The first message that is for `consumer` only."""
        entry = groups.next_own(consumer)
        while entry is not None and entry.expires_ms and entry.expires_ms <= now_ms:
            groups.pass_over(entry)
            entry = groups.next_own(consumer)
        return None if entry in consumer.undeliverable else entry

    def _next(self, queue: Queue, now_ms: int) -> Entry | None:
        """The first message that everybody may take, which stands nowhere in the order any more."""
        ready, returned = self.ready, self.returned
        while ready or returned:
            if returned and (not ready or returned[0][0] < ready[0].position):
                entry = heappop(returned)[1]
            else:
                entry = ready.popleft()
            if entry.state is not State.AVAILABLE or entry.queue is not queue:  # or it is a dead letter by now
                continue

            groups = self.groups
            if entry.group and groups is not None and not groups.offers(entry):
                continue
            if entry.expires_ms and entry.expires_ms <= now_ms:
                if entry.group and groups is not None:
                    groups.pass_over(entry)
                continue
            return entry
        return None

    def upcoming(self, count: int) -> list[Entry]:
        """Messages that will be taken soon: the first `count` that wait, as far as they are available."""
        return [entry for entry in islice(self.ready, count) if entry.state is State.AVAILABLE]

    def tidy(self, depth: int) -> None:
        """Forgets messages that went while they stood in the order, where there are many more than the queue has."""
        if len(self.ready) + len(self.returned) > 2 * depth + FEW:
            self.ready = deque(entry for entry in self.ready if entry.state is State.AVAILABLE)
            self.returned = [item for item in self.returned if item[1].state is State.AVAILABLE]
            heapify(self.returned)

    def clear(self) -> None:
        """The queue is deleted."""
        self.ready.clear()
        self.returned.clear()
        if self.groups is not None:
            self.groups.clear()
