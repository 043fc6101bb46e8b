"""IncomingLink: messages for a queue."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.messages import NO_FACTS, check_sections, read_destination, read_facts, read_header, with_header
from dtx.broker.endpoint.link import FATAL, ReceivingLink, refusal_of
from dtx.broker.queues.dead_letters import noted_origin
from dtx.broker.queues.entry import Entry
from dtx.broker.queues.payloads import with_format
from dtx.protocol.conditions import Refusal, RefusedError, refused
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.delivery import IncomingDelivery
    from dtx.amqp.events import Transferred
    from dtx.amqp.link import ReceiverLink
    from dtx.broker.endpoint.link import LinkConnection, Session
    from dtx.broker.queues.queue import Queue
    from dtx.broker.transactions.contexts import WorkContext


LONGEST_GROUP: Final = 128


def _destination(octets: bytes) -> str:
    """Where a message says that it goes, for people; "" where it does not say, or can't be read."""
    try:
        return read_destination(octets)[0] or ""
    except WireError:
        return ""


def name_of_group(group_id: str) -> str:
    """The name under which the store knows a group: the group-id, or a hash of one that is long, or that a database
    could not keep."""
    if len(group_id) <= LONGEST_GROUP and "\0" not in group_id:
        return group_id
    return "sha256:" + sha256(group_id.encode()).hexdigest()


class IncomingLink(ReceivingLink):
    """A link whose messages go to queues. `queue_for` gives the queue for the octets of a message; RefusedError or
    WireError refuse it. A node that is `dynamic` is deleted with the link. Where its target `lasts` until its session
    ends, the sender gets the outcomes of its deliveries also when it has detached the link without closing it.

    A link that `relays` has no address: each message says in `to` where it goes, and a message that can't be passed on
    is no reason to close the link, unless it was sent settled: then nothing else would tell its sender. If it belongs
    to a transaction, the transaction can't succeed any more, which says it as well.

    A link that is closed with an error is closed when the outcomes of earlier messages are sent: after the detach they
    could not be, and the sender would send what was taken a second time."""

    kind = "produce"

    def __init__(
        self,
        connection: LinkConnection,
        session: Session,
        endpoint: ReceiverLink,
        queue_for: Callable[[bytes], Queue],
        dynamic: Queue | None = None,
        *,
        relays: bool = False,
    ) -> None:
        limits = connection.container.limits
        super().__init__(connection, session, endpoint, credit=limits.credit, limit=limits.message_octets)
        self._queue_for = queue_for
        self._dynamic = dynamic
        self._relays = relays
        self._resource = connection.container.resource
        self._outside = connection.container.outside
        self.lasts = False
        self._on_their_way = 0
        """Messages that were sent unsettled, outside of transactions, and are not in their queues yet."""

    @property
    def address(self) -> str:
        return self.terminus_address() if self._dynamic is None else self._dynamic.name

    def transferred(self, event: Transferred) -> None:
        if self.ending is None:
            super().transferred(event)
        elif event.state is not None:
            self._txns.refuse_success(event.state, self.ending)

    def message(self, delivery: IncomingDelivery, octets: bytes, context: WorkContext | None, *, settled: bool) -> None:
        try:
            entry = self._entry(octets) if not delivery.format else self._foreign_entry(octets, delivery.format)
            if context is not None:
                answer = partial(self.decided, self.wait(delivery)) if delivery.settles_second and not settled else None
                state = context.post(entry, answer)

                if not settled and state is not None:
                    self.answer(delivery, state)
            elif settled:
                self.connection.unanswered = self._resource.turn.answers
                relayed = partial(self._relayed_settled, delivery, entry.queue.name)
                self._outside.post(entry, relayed if self._relays else self._stored_settled)
            else:
                self._on_their_way += 1
                self.connection.outcomes_due = self._resource.turn.answers
                self._outside.post(entry, partial(self._posted, self.wait(delivery)))
        except (RefusedError, WireError) as error:
            to = _destination(octets) if self._relays and settled else ""
            self._refused(delivery, context, refusal_of(error), settled=settled, to=to)

    def _queue_with_room(self, octets: bytes) -> Queue:
        queue = self._queue_for(octets)
        if queue.deleted or queue.closing:
            raise WireError(Condition.NOT_FOUND, f"the queue {queue.name} is gone")
        full = queue.refusal(len(octets))
        if not full:
            return queue
        if 0 < queue.largest < len(octets):
            message = f"a message of {len(octets)} octets; {queue.name} takes at most {queue.largest} in all"
            raise WireError(Condition.MESSAGE_SIZE, message)
        raise refused(Code.XA_RETRY, full)

    def _foreign_entry(self, octets: bytes, message_format: int) -> Entry:
        """A message of another format than 0: it is passed on as the octets that it is, with its format."""
        if self._relays:
            message = f"a message of format {message_format} can't say in `to` where it goes"
            raise WireError(Condition.NOT_IMPLEMENTED, message)
        queue = self._queue_with_room(octets)
        payload = with_format(octets, message_format)
        ttl_ms = queue.settings.ttl_ms
        expires_ms = self._resource.now_ms + ttl_ms if ttl_ms else 0
        return Entry(queue, self._resource.number(), len(payload), expires_ms, payload)

    def _entry(self, octets: bytes) -> Entry:
        queue = self._queue_with_room(octets)
        header = read_header(octets)
        check_sections(octets, header.end)
        facts = read_facts(octets, header.end)
        if header.delivery_count or header.first_acquirer:  # both are for the queue to say
            octets = with_header(octets, header, delivery_count=0, ttl_ms=header.ttl_ms)
        if (header.ttl_ms or facts.expires_ms) and queue.for_dead_letters:
            header, facts = replace(header, ttl_ms=None), replace(facts, expires_ms=0)  # they live as long as it says
        ttl_ms = header.ttl_ms or queue.settings.ttl_ms
        expires_ms = self._resource.now_ms + ttl_ms if ttl_ms else 0
        due_ms, group = 0, ""
        if facts is not NO_FACTS:
            if facts.expires_ms and (not header.ttl_ms or facts.expires_ms < expires_ms):
                expires_ms = facts.expires_ms
            due_ms, group = facts.due_ms or -facts.delay_ms, name_of_group(facts.group)

        entry = Entry(queue, self._resource.number(), len(octets), expires_ms, octets, due_ms=due_ms, group=group)
        if queue.for_dead_letters:
            entry.origin = noted_origin(octets, read_header(octets).end)
        return entry

    def _refused(
        self,
        delivery: IncomingDelivery,
        context: WorkContext | None,
        refusal: Refusal,
        *,
        settled: bool,
        to: str = "",
    ) -> None:
        """A message can't be taken: a peer that sent it unsettled gets the outcome, and may still discharge the
        transaction; who sent it settled may not, and outside of a transaction it is lost."""
        fatal = refusal.condition in FATAL and not self._relays
        if not settled:
            rolled_back = refusal.condition in {Condition.ROLLBACK, Condition.TIMEOUT, Condition.UNKNOWN_ID}
            self.refuse(delivery, refusal, None if rolled_back else context)
        elif context is not None:
            context.refuse_success(refusal)
        else:
            self.lose_settled(refusal, to)
            fatal = fatal or self._relays
        if fatal:
            self.detach_for(delivery, refusal)

    @property
    def outlives_detach(self) -> bool:
        return self.lasts and bool(self._unsettled)

    def suspend(self) -> None:
        self._end_partial()
        self._drop_parts()

    def end_deliveries(self) -> None:
        self._unsettled.clear()
        self.receiver.session.forget(self.receiver)

    def gone(self) -> None:
        super().gone()
        if self._dynamic is not None:
            self.connection.nodes.drop(self._dynamic)

    def _stored_settled(self, refusal: Refusal | None) -> None:
        """A message that was sent settled is in its queue, or the store did not take it."""
        if refusal is not None:
            self.lose_settled(refusal)
            if refusal.condition in FATAL:
                self.detach(refusal)

    def _relayed_settled(self, delivery: IncomingDelivery, to: str, refusal: Refusal | None) -> None:
        """The same on a link without an address."""
        if refusal is not None:
            self._refused(delivery, None, refusal, settled=True, to=to)

    def _posted(self, delivery: IncomingDelivery, refusal: Refusal | None) -> None:
        self._on_their_way -= 1
        if self.waits(delivery):
            if refusal is None:
                self.accept(delivery)
            else:
                self._refused(delivery, None, refusal, settled=False)
        if self.ending is not None and not self._on_their_way:
            super().detach(self.ending)

    def detach(self, refusal: Refusal) -> None:
        if not self._on_their_way:
            super().detach(self.ending or refusal)
        elif self.ending is None:
            self.ending = refusal
            if self._partial is not None:
                self._partial.refuse_success(refusal)
            self._end_partial()
            self._drop_parts()
