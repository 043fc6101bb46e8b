"""The nodes that answer requests: the command channel's coordination, and management.

A request names a dynamic node of its own connection as reply-to; the response goes there with the request's
correlation-id, or else its message-id. A request that can't be answered there is rejected.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.amqp.encoding import encode
from dtx.amqp.messages import read_request, response_message
from dtx.broker.endpoint.link import ReceivingLink, refusal_of
from dtx.broker.management.operations import carry_out
from dtx.broker.queues.entry import Entry
from dtx.protocol.commands import COORDINATION
from dtx.protocol.conditions import Refusal, RefusedError, refused
from dtx.protocol.replies import encode_reply
from xa import Code

if TYPE_CHECKING:
    from dtx.amqp.delivery import IncomingDelivery
    from dtx.amqp.link import ReceiverLink
    from dtx.amqp.messages import Request
    from dtx.amqp.values import Map, Value
    from dtx.broker.endpoint.link import LinkConnection, Session
    from dtx.broker.transactions.contexts import WorkContext
    from dtx.protocol.replies import Reply

CREDIT: Final = 100
MAX_REQUEST: Final = 16_384


class RequestLink(ReceivingLink):
    """A link for requests."""

    def __init__(self, connection: LinkConnection, session: Session, endpoint: ReceiverLink) -> None:
        super().__init__(connection, session, endpoint, credit=CREDIT, limit=MAX_REQUEST)

    def message(self, delivery: IncomingDelivery, octets: bytes, context: WorkContext | None, *, settled: bool) -> None:
        try:
            if context is not None:
                raise refused(Code.XAER_PROTO, "a request to a $ node is no transactional work: nothing was done")
            request = read_request(octets)
            if request.reply_to not in self.connection.nodes.queues:
                raise refused(Code.XAER_INVAL, "reply-to is to be a dynamic node of this connection")
            if self.connection.nodes.queues[request.reply_to].full:
                raise refused(Code.XA_RETRY, "too many responses are waiting to be read")
        except (RefusedError, WireError) as error:
            if not settled:
                self.refuse(delivery, refusal_of(error), None)
            elif context is not None:  # no outcome says it, and the transaction would commit as if it were done
                context.refuse_success(refusal_of(error))
            else:
                self.lose_settled(refusal_of(error))
            return

        if not settled:
            self.accept(delivery)
        self.handle(request)

    @abstractmethod
    def handle(self, request: Request) -> None:
        """Carries out a request, and answers it."""

    def respond(self, request: Request, value: bytes, properties: Map | None = None) -> None:
        """Sends the response, if the requester waits for it still."""
        queue = self.connection.nodes.queues.get(request.reply_to or "")
        if queue is not None:
            octets = response_message(value, request.correlation, properties)
            entry = Entry(queue, self.container.resource.number(), len(octets), 0, octets)
            self.container.resource.post(entry, None)


class CommandLink(RequestLink):
    """The command channel."""

    decides = True
    kind = "commands"

    def handle(self, request: Request) -> None:

        def answer(reply: Reply) -> None:
            self.respond(request, encode_reply(reply))

        refusal = self.container.coordination.refusal_of_all(self.connection.identity)
        if refusal is not None:  # of this peer nothing is decoded
            answer(refusal)
            return
        try:
            command = COORDINATION.decode(request.body)
        except WireError as error:
            answer(refusal_of(error))
            return
        self.container.coordination.handle(command, self.connection.identity, self.session.demarcation, answer)


class ManagementLink(RequestLink):
    """Requests about the broker itself."""

    kind = "management"

    def handle(self, request: Request) -> None:
        def answer(value: Value | Refusal) -> None:
            self.respond(request, encode_reply(value) if isinstance(value, Refusal) else encode(value))

        try:
            carry_out(
                self.container,
                self.connection,
                request,
                answer,
                lambda: request.reply_to in self.connection.nodes.queues,
            )
        except (RefusedError, WireError) as error:
            answer(refusal_of(error))
