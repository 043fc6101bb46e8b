"""SelectingLink: a consumer that takes only the messages that its selector matches.

It reads the queue in its order, some messages ahead of its decisions, and takes a message when its selector matches
and no other consumer has taken it meanwhile. A message that does not match is looked at once, and again only if it was
delivered to somebody and comes back. A turn looks at no more than LOOKS messages; the rest waits for the next turn,
so that a selector that matches nothing in a deep queue keeps no one waiting.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from dtx.broker.endpoint.link import MessageRead, claim_reader
from dtx.broker.endpoint.outgoing_link import OutgoingLink
from dtx.broker.endpoint.states import ATTACHED
from dtx.broker.queues.entry import State
from dtx.broker.transactional_resource import fits_one_piece

if TYPE_CHECKING:
    from dtx.amqp.link import SenderLink
    from dtx.broker.endpoint.link import LinkConnection, Session
    from dtx.broker.queues.entry import Entry
    from dtx.broker.queues.outcomes import Outcome
    from dtx.broker.queues.queue import Queue
    from dtx.broker.queues.selector import Selector

AHEAD: Final = 50
"""Messages whose payloads are read at once."""
LOOKS: Final = 200
TURN_S: Final = 0.004
"""How many messages are looked at in one turn, and how long, whichever is less."""
MOST_AGAIN: Final = 1000
"""Messages that came back, and that a link remembers while it takes none."""


class SelectingLink(OutgoingLink):
    """A link that consumes what `selector` matches."""

    def __init__(
        self,
        connection: LinkConnection,
        session: Session,
        endpoint: SenderLink,
        queue: Queue,
        selector: Selector,
        *,
        default: Outcome | None,
        dynamic: bool = False,
    ) -> None:
        super().__init__(connection, session, endpoint, queue, default=default, dynamic=dynamic)
        self._selector = selector
        self._position = 0
        """The position up to which the queue was read."""
        self._next: deque[Entry] = deque()
        self._again: list[tuple[int, Entry]] = []
        """Messages to be looked at before those, by position: they came back, or there was no credit for them."""
        self._barred: dict[str, list[Entry]] = {}
        """Messages that were passed because somebody else holds their group, by that."""
        self._examined: deque[MessageRead] = deque()
        claim_reader(self, connection.identity, queue)

    # -- reading the queue
    def wake(self) -> None:
        self._queue.look_for(self)

    def returned(self, entry: Entry) -> None:
        """A message is available again."""
        if entry.position > self._position:
            return
        if len(self._again) < MOST_AGAIN:
            heappush(self._again, (entry.position, entry))
        else:
            self._begin_again()

    def _begin_again(self) -> None:
        """More came back than it remembers while it took none: it reads the queue from its beginning."""
        self._position = 0
        self._again.clear()
        self._next.clear()
        self._barred.clear()

    def came_due(self, entry: Entry) -> None:
        """A message that was delayed is available."""
        self.returned(entry)

    def group_freed(self, group: str) -> None:
        """Messages of this group may be had again."""
        for entry in self._barred.pop(group, ()):
            heappush(self._again, (entry.position, entry))

    def advance(self) -> None:
        """There may be something to take."""
        if self._queue.quiet:
            return
        looks, over_s = 0, self.resource.clock.monotonic() + TURN_S
        while self.attachment is ATTACHED and len(self._examined) < AHEAD and self.wants():
            if looks == LOOKS or self.resource.clock.monotonic() > over_s:
                self.continue_later(self)
                return
            entry = self._following()
            if entry is None:
                return
            looks += 1
            self._examine(entry)

    def go_on(self) -> None:
        """Another turn of it."""
        self.advance()
        self.container.touch(self.connection)

    @property
    def searches(self) -> bool:
        return bool(self._examined or self._again or self._next or self._queue.reaches_beyond(self._position))

    def _following(self) -> Entry | None:
        """The next message to look at, None when there is none now."""
        while True:
            before = self._position
            if not self._next:
                self._position, found = self._queue.readers.behind(before)
                self._next.extend(found)
            if self._again and (not self._next or self._again[0][0] < self._next[0].position):
                entry = heappop(self._again)[1]
            elif self._next:
                entry = self._next.popleft()
            elif self._position > before:
                continue
            else:
                return None
            if self._is_available(entry):
                return entry

    def _is_available(self, entry: Entry) -> bool:
        return (
            entry.state is State.AVAILABLE
            and entry.queue is self._queue
            and not self._queue.quiet
            and entry not in self.undeliverable
            and (not entry.expires_ms or entry.expires_ms > self.resource.now_ms)
        )

    # -- deciding
    def _examine(self, entry: Entry) -> None:
        examined = MessageRead(entry)
        self._examined.append(examined)
        if not fits_one_piece(entry):  # what a selector needs is in front
            self.resource.fetch_piece(entry, 0, partial(self._read, examined))
            return
        payload = self.resource.payloads.get(entry)
        if payload is None:
            self.resource.payloads.fetch(entry, partial(self._read, examined))
        else:
            examined.payload, examined.known = payload, True
            self._decide()

    def _read(self, examined: MessageRead, payload: bytes | None) -> None:
        """The store has answered."""
        examined.payload, examined.known = payload, True
        if self.attachment is ATTACHED:
            self._decide()
            self.advance()
            self.container.touch(self.connection)

    def _decide(self) -> None:
        waiting = self._examined
        while waiting and waiting[0].known:
            examined = waiting.popleft()
            entry, payload = examined.entry, examined.payload
            if payload is None or not self._selector.matches(payload, delivery_count=entry.count):
                continue
            if not self._is_available(entry):
                continue

            if not self._queue.allows(entry, self):
                self._barred.setdefault(entry.group, []).append(entry)
                continue
            if not self.wants():
                heappush(self._again, (entry.position, entry))
                for other in waiting:
                    heappush(self._again, (other.entry.position, other.entry))
                waiting.clear()
                return
            self._queue.hold(entry, self)
            self.deliver(entry, payload if fits_one_piece(entry) else None)

    def leave_queue(self) -> None:
        self._queue.readers.remove(self)
        self._examined.clear()
        self._barred.clear()
        super().leave_queue()
