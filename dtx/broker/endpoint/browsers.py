"""Links that read without taking: a queue's messages as they come, and what a branch holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from dtx.amqp.conditions import Condition
from dtx.amqp.encoding import encode
from dtx.amqp.messages import VALUE, read_header, with_delivery_annotations, with_header
from dtx.amqp.performatives import SENDER_UNSETTLED
from dtx.amqp.values import Described, Symbol, Ulong
from dtx.broker.endpoint.link import MessageRead, SendingLink, claim_reader
from dtx.broker.queues.entry import State
from dtx.broker.queues.payloads import split_format
from dtx.broker.transactional_resource import fits_one_piece
from dtx.protocol.addresses import ORIGIN_QUEUE, ORIGIN_WORK
from dtx.protocol.conditions import Refusal
from xa import Code

if TYPE_CHECKING:
    from dtx.amqp.delivery import IncomingDelivery, OutgoingDelivery
    from dtx.amqp.link import SenderLink
    from dtx.amqp.values import Map
    from dtx.broker.endpoint.link import LinkConnection, Session
    from dtx.broker.queues.entry import Entry
    from dtx.broker.queues.queue import Queue
    from dtx.broker.queues.selector import Selector
    from dtx.broker.transactions.branches import Branch

AHEAD = 50
"""Messages whose payloads are asked for at once."""


class BrowsingLink(SendingLink, ABC):
    """Sends copies, settled unless the peer wants them unsettled. What it says of them changes nothing."""

    def __init__(self, connection: LinkConnection, session: Session, endpoint: SenderLink) -> None:
        super().__init__(connection, session, endpoint)
        self._resource = connection.container.resource
        self._settles = endpoint.snd_settle_mode != SENDER_UNSETTLED
        self._unsettled = 0
        self._asked: deque[MessageRead] = deque()

    kind = "browse"

    @property
    def unsettled(self) -> int:
        return self._unsettled

    @abstractmethod
    def next_entry(self) -> Entry | None:
        """The next message to send, None when there is none now."""

    def shown(self, entry: Entry, payload: bytes) -> bytes:
        """The message as it is shown."""
        header = read_header(payload)
        if entry.count:
            return with_header(payload, header, delivery_count=entry.count, ttl_ms=header.ttl_ms)
        return payload

    def shows(self, entry: Entry, payload: bytes) -> bool:
        """Whether the message is shown at all."""
        del entry, payload
        return True

    def returned(self, entry: Entry) -> None:
        """A message is available again: who has passed it does not show it twice."""

    def came_due(self, entry: Entry) -> None:
        """A message that was delayed is available: it has not been shown yet."""

    def group_freed(self, group: str) -> None:
        """Others may have messages of this group again. Here all of them are shown."""

    def missed(self, entry: Entry) -> None:
        """The message went while its payload was on its way here."""

    def flow_event(self) -> None:
        self.advance()
        super().flow_event()

    @property
    def has_nothing_to_send(self) -> bool:
        return not (self._asked or self._crowded or self._waits_for_turn)

    def advance(self) -> None:
        """Asks for the payloads of what the credit allows to send."""
        limits = self.container.limits
        self._waits_for_turn = False
        while (
            self.is_attached
            and len(self._asked) < min(AHEAD, self.sender.credit)
            and self._unsettled + len(self._asked) < limits.unsettled
        ):
            if self._crowded:
                return
            if self.waiting_octets > limits.output_octets:
                self._crowded = True
                self.room.when_sent(self, self._has_room)
                return
            if self.room.allowance <= 0:
                self._waits_for_turn = True
                self.room.wants_turn()
                return

            entry = self.next_entry()
            if entry is None:
                return
            self.room.allowance -= 1
            self._ask(entry)

    def _has_room(self) -> None:
        self._crowded = False
        self.advance()

    def _ask(self, entry: Entry) -> None:
        asked = MessageRead(entry)
        self._asked.append(asked)
        payload = self._resource.payloads.get(entry) if fits_one_piece(entry) else None
        if payload is not None:
            asked.payload, asked.known = payload, True
            self._flush()
        else:
            self._resource.fetch_message(entry, partial(self._arrived, asked), lambda: self.is_attached)

    def _arrived(self, asked: MessageRead, payload: bytes | None) -> None:
        """The store has answered. What is at hand at once is no reason to ask for more: `advance` is asking, and would
        be called in itself, message by message."""
        asked.payload, asked.known = payload, True
        if self.is_attached:
            self._flush()
            self.advance()

    def _flush(self) -> None:
        while self._asked and self._asked[0].known:
            asked = self._asked.popleft()
            entry, payload = asked.entry, asked.payload
            if payload is None:
                self.missed(entry)
            elif self.shows(entry, payload):
                message_format, octets = split_format(payload)
                self._send(octets if message_format else self.shown(entry, octets), message_format)

    def _send(self, octets: bytes, message_format: int) -> None:
        if self.largest and len(octets) > self.largest:
            message = f"a message has {len(octets)} octets, and the receiver takes {self.largest}"
            self.detach(Refusal(Condition.MESSAGE_SIZE, message, Code.XAER_INVAL))
            return
        self._tag = (self._tag + 1) & 0xFFFF_FFFF
        tag = self._tag.to_bytes(4, "big")
        self.sender.send(tag, octets, settled=self._settles, message_format=message_format)
        self._unsettled += not self._settles
        self.container.touch(self.connection)

    def disposed(self, delivery: IncomingDelivery | OutgoingDelivery, state: bytes | None, *, settled: bool) -> None:
        del state
        if settled:
            delivery.settle()
            self._unsettled -= 1
            self.advance()

    def gone(self) -> None:
        super().gone()
        self._asked.clear()


class QueueBrowser(BrowsingLink):
    """A queue's available messages, and those that come; with a selector those that it matches."""

    def __init__(
        self,
        connection: LinkConnection,
        session: Session,
        endpoint: SenderLink,
        queue: Queue,
        selector: Selector | None,
    ) -> None:
        super().__init__(connection, session, endpoint)
        self._queue = queue
        self._selector = selector
        self._position = 0
        self._ahead: deque[Entry] = deque()
        claim_reader(self, connection.identity, queue)

    def next_entry(self) -> Entry | None:
        while True:
            if not self._ahead:
                before = self._position
                self._position, found = self._queue.readers.behind(before)
                if self._position == before:
                    return None
                self._ahead.extend(entry for entry in found if entry.state is not State.DELAYED)
                continue
            entry = self._ahead.popleft()
            if entry.state is not State.AVAILABLE or entry.queue is not self._queue:
                continue
            if not entry.expires_ms or entry.expires_ms > self._resource.now_ms:
                return entry

    def came_due(self, entry: Entry) -> None:
        if entry.position <= self._position:
            self._ahead.append(entry)

    def shows(self, entry: Entry, payload: bytes) -> bool:
        return self._selector is None or self._selector.matches(payload, delivery_count=entry.count)

    def gone(self) -> None:
        super().gone()
        self._queue.readers.remove(self)
        self._ahead.clear()


class BranchBrowser(BrowsingLink):
    """A branch's holdings: the messages that it retires, in their order, then those that it posts."""

    def __init__(
        self,
        connection: LinkConnection,
        session: Session,
        endpoint: SenderLink,
        branch: Branch,
        work: str,
    ) -> None:
        super().__init__(connection, session, endpoint)
        retired = [held.entry for held in branch.work.retired.values() if work == "all" or held.taken]
        if work == "posted":
            retired = []
        posted = list(branch.work.posts) if work != "retired" else []
        self._branch = branch
        self._left = deque([(entry, "retired") for entry in retired] + [(entry, "posted") for entry in posted])
        self._work: dict[int, str] = {}

    def next_entry(self) -> Entry | None:
        if not self._left:
            return None
        entry, work = self._left.popleft()
        self._work[entry.number] = work
        return entry

    def shown(self, entry: Entry, payload: bytes) -> bytes:
        # the delivery annotations say where the message is from
        annotations: Map = {
            Symbol(ORIGIN_QUEUE): entry.queue.name,
            Symbol(ORIGIN_WORK): Symbol(self._work.pop(entry.number, "retired")),
        }
        return with_delivery_annotations(super().shown(entry, payload), annotations)

    def missed(self, entry: Entry) -> None:
        # The branch was decided meanwhile. Who reads it must not take the rest for the whole.
        message = f"the branch was decided while it was read, message {entry.number} is gone"
        self.detach(Refusal(Condition.ILLEGAL_STATE, message, Code.XAER_PROTO, self._branch.xid))

    def gone(self) -> None:
        super().gone()
        self._left.clear()


class DepthLink(SendingLink):
    """Sends one message: how many are available in a queue. Those that have expired since the last look count."""

    kind = "depth"

    def __init__(self, connection: LinkConnection, session: Session, endpoint: SenderLink, queue: Queue) -> None:
        super().__init__(connection, session, endpoint)
        self._queue = queue
        self._is_sent = False

    def flow_event(self) -> None:
        if not self._is_sent and self.sender.credit > 0:
            self._is_sent = True
            octets = encode(Described(Ulong(VALUE), Ulong(self._queue.available)))
            self.sender.send(b"0", octets, settled=True)
            self.container.touch(self.connection)
        super().flow_event()
