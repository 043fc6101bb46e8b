"""TracedSession: a session for messages, with a span for each send and each receive, by OpenTelemetry's semantic
conventions for messaging.

    send      one message: a PRODUCER, whose context the message carries
    create    each message of a batch: a PRODUCER, whose context the message carries
    send      a batch: a CLIENT, with links to what its messages carry
    receive   what a transaction has received by itself: a CLIENT, with links to what the messages carry

A message that carries a context already keeps it, and the span of its send is a CLIENT with a link to that. The
messages of a consumer have a span `process`, which the recorder makes, and none here. A receive that has waited in vain
has no span.

A session is whatever has `receive_batch`; a message carries a context in its `properties`, if it is of a dataclass that
has these, as `rm_amqp.Message` is.
"""

from __future__ import annotations

from contextlib import contextmanager
from copy import copy
from dataclasses import is_dataclass
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from tm.telemetry import metrics as table
from xa.telemetry.metric import QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer

OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
BATCH: Final = "messaging.batch.message_count"
CREATE, SEND, RECEIVE = "create", "send", "receive"


def is_for_messages(session: Any) -> bool:
    """Whether `session` is one for messages."""
    return hasattr(session, "receive_batch")


def carried(message: Any) -> Context:
    """The context that a message carries, with no valid span in it where it carries none."""
    properties = getattr(message, "properties", None)
    if not isinstance(properties, dict):
        return context.Context()
    headers = {name: value for name, value in properties.items() if isinstance(name, str) and isinstance(value, str)}
    return propagate.extract(headers, context.Context())


def carried_spans(messages: Iterable[Any]) -> list[SpanContext]:
    """The contexts of the spans in which messages were made, as far as they carry them."""
    contexts = (trace.get_current_span(carried(message)).get_span_context() for message in messages)
    return [one for one in contexts if one.is_valid]


class MessageSpans:
    """Makes the spans of one resource's messages. `is_waiting` tells whether the calling context is that of a consumer
    that waits for messages."""

    def __init__(
        self, tracer: Tracer, system: str, attributes: Mapping[str, str], is_waiting: Callable[[], bool]
    ) -> None:
        self._tracer = tracer
        self._attributes = {**attributes, table.SYSTEM: system}
        self.is_waiting = is_waiting

    def start(
        self,
        operation: str,
        address: str,
        kind: SpanKind,
        links: Sequence[SpanContext] = (),
        *,
        above: Context | None = None,
        message: Any = None,
        began_ns: int | None = None,
    ) -> Span:
        """A span of an operation on `address`."""
        attributes: dict[str, Any] = {
            **self._attributes,
            table.OPERATION: operation,
            OPERATION_TYPE: operation,
            QUEUE: address,
        }
        message_id = getattr(message, "id", None)
        if message_id is not None:
            attributes[MESSAGE_ID] = str(message_id)
        return self._tracer.start_span(
            f"{operation} {address}", above, kind, attributes, list(map(Link, links)), start_time=began_ns
        )

    @contextmanager
    def sending(self, address: str, message: Any) -> Iterator[Any]:
        """The block in which a message is sent; gives the message that is to be sent."""
        before = carried_spans([message])
        kind = SpanKind.CLIENT if before else SpanKind.PRODUCER
        with trace.use_span(self.start(SEND, address, kind, before, message=message), end_on_exit=True) as span:
            yield message if before else carrying(message, span)

    @contextmanager
    def sending_batch(self, address: str) -> Iterator[Callable[[Any], Any]]:
        """The block in which a batch is sent; gives what makes of each message the one that is to be sent."""
        above, count = context.get_current(), 0

        def made(message: Any) -> Any:
            nonlocal count
            count += 1
            before = carried_spans([message])
            if not before:
                created = self.start(CREATE, address, SpanKind.PRODUCER, above=above, message=message)
                message = carrying(message, created)
                created.end()
                before = [created.get_span_context()]
            for one in before:
                span.add_link(one)
            return message

        with trace.use_span(self.start(SEND, address, SpanKind.CLIENT), end_on_exit=True) as span:
            try:
                yield made
            finally:
                span.set_attribute(BATCH, count)

    @contextmanager
    def receiving(self, address: str, *, batch: bool) -> Iterator[list[Any]]:
        """The block in which messages are received, which puts them into the list that it gets."""
        began_ns, messages = time_ns(), list[Any]()
        failure: Exception | None = None
        try:
            yield messages
        except TimeoutError:  # there is none
            raise
        except Exception as error:
            failure = error
            raise
        finally:
            if (messages or failure is not None) and not self.is_waiting():
                links = carried_spans(messages)
                alone = None if batch or not messages else messages[0]
                span = self.start(RECEIVE, address, SpanKind.CLIENT, links, message=alone, began_ns=began_ns)
                if batch:
                    span.set_attribute(BATCH, len(messages))

                if failure is not None:
                    span.record_exception(failure)
                    span.set_status(Status(StatusCode.ERROR, f"{type(failure).__name__}: {failure}"))
                span.end()


def carrying(message: Any, span: Span) -> Any:
    """`message` with the context of `span`, if it is one that can carry it."""
    if not is_dataclass(message) or not hasattr(message, "properties"):
        return message
    headers: dict[str, str] = {}
    propagate.inject(headers, trace.set_span_in_context(span))
    own = message.properties or {}
    if not headers or not isinstance(own, dict) or not headers.keys().isdisjoint(own):
        return message
    message = copy(message)
    message.properties = {**own, **headers}
    return message


class TracedSession:
    """A session that blocks. All but what is here is the other's."""

    def __init__(self, session: Any, spans: MessageSpans) -> None:
        self._session = session
        self._spans = spans

    def __getattr__(self, name: str) -> Any:
        offered = getattr(self._session, name)
        return partial(self._send_batch, offered) if name == "send_batch" else offered

    @property
    def aio(self) -> TracedAsyncSession:
        """The same, for asyncio."""
        return TracedAsyncSession(self._session.aio, self._spans)

    def send(self, address: str, message: Any) -> None:
        with self._spans.sending(address, message) as made:
            self._session.send(address, made)

    def _send_batch(self, send: Callable[..., None], address: str, messages: Iterable[Any]) -> None:
        with self._spans.sending_batch(address) as made:
            send(address, map(made, messages))

    def receive(self, address: str, *arguments: Any, **named: Any) -> Any:
        with self._spans.receiving(address, batch=False) as received:
            message = self._session.receive(address, *arguments, **named)
            received.append(message)
        return message

    def receive_batch(self, address: str, *arguments: Any, **named: Any) -> Any:
        with self._spans.receiving(address, batch=True) as received:
            messages = self._session.receive_batch(address, *arguments, **named)
            received.extend(messages)
        return messages


class TracedAsyncSession:
    """A session for asyncio. All but what is here is the other's."""

    def __init__(self, session: Any, spans: MessageSpans) -> None:
        self._session = session
        self._spans = spans

    def __getattr__(self, name: str) -> Any:
        offered = getattr(self._session, name)
        return partial(self._send_batch, offered) if name == "send_batch" else offered

    async def send(self, address: str, message: Any) -> None:
        with self._spans.sending(address, message) as made:
            await self._session.send(address, made)

    async def _send_batch(self, send: Callable[..., Any], address: str, messages: Iterable[Any]) -> None:
        with self._spans.sending_batch(address) as made:
            await send(address, map(made, messages))

    async def receive(self, address: str, *arguments: Any, **named: Any) -> Any:
        with self._spans.receiving(address, batch=False) as received:
            message = await self._session.receive(address, *arguments, **named)
            received.append(message)
        return message

    async def receive_batch(self, address: str, *arguments: Any, **named: Any) -> Any:
        with self._spans.receiving(address, batch=True) as received:
            messages = await self._session.receive_batch(address, *arguments, **named)
            received.extend(messages)
        return messages
