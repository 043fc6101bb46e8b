"""Messages, mapped both ways between `rm_amqp.Message` and AMQP 0-10. docs/qpid.md has the table.

A body is text, octets, a map, a list, or nothing: the content type says which of them it is. What AMQP 0-10 has no
field for stands in the application headers: `qpid.subject`, `JMSXGroupID`, `JMSXGroupSeq` as Qpid's clients have them,
the others with `x-amqp-`, and message annotations that begin with `x-opt-` under their own names. Whatever can't be
sent is refused.

Every message is sent persistent. A branch that is prepared has to be there after the broker's restart, and Broker-J
would say that it is, without the messages.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from dtx.amqp.decoding import DecodeError
from dtx.amqp.values import Int
from rm_amqp.amqp010.session import MessageContent
from rm_amqp.amqp010.structs import DeliveryProperties, MessageProperties, ReplyTo, write_fields
from rm_amqp.amqp010.typed_octets import JMS_MAP, JMS_STREAM, read_map_message, read_stream_message
from rm_amqp.amqp010.values import Reader, WireError, read_list, read_map, write_list, write_map
from rm_amqp.message import DEFAULT_PRIORITY, Message, encoded, is_delayed
from rm_amqp.unsendable_values import refusals
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rm_amqp.amqp010.session import Transfer
    from rm_amqp.message import Encodable
    from xa import XaError

PERSISTENT: Final = 2
TEXT, OCTETS, MAP, LIST = "text/plain", "application/octet-stream", "amqp/map", "amqp/list"
_MAPS: Final = frozenset({MAP, "amqp-0-10/map"})
_LISTS: Final = frozenset({LIST, "amqp-0-10/list"})
SUBJECT, GROUP, SEQUENCE = "qpid.subject", "JMSXGroupID", "JMSXGroupSeq"
ID, CORRELATION, REPLY_GROUP = "x-amqp-message-id", "x-amqp-correlation-id", "x-amqp-reply-to-group-id"
_OWN: Final = frozenset({SUBJECT, GROUP, SEQUENCE, ID, CORRELATION, REPLY_GROUP})
_STRUCTURED: Final = _MAPS | _LISTS | {JMS_MAP, JMS_STREAM}
ANNOTATION: Final = "x-opt-"
MAX_PRIORITY: Final = 9
GZIP: Final = "gzip"
PIECE: Final = 1 << 16
MAX_NAME: Final = 255


def content_of(message: Encodable, address: str) -> MessageContent:
    """The message as it is sent to a queue. XaMisuse: it holds what can't be sent, which is named."""
    if not isinstance(message, Message):
        try:
            message = Message.from_octets(encoded(message))
        except DecodeError as error:
            raise _unsendable(str(error)) from None
    if is_delayed(message):
        raise _unsendable("it is to be delivered later, and the broker does not do that")

    try:
        content = MessageContent(_delivery(message, address), _properties(message), b"")
        kind, body = _body(message)
        properties = _typed(content.properties, kind, message)
        _check_body(properties, body)
        write_fields(content.delivery)
        write_fields(properties)
    except (TypeError, ValueError, struct.error, OverflowError) as error:
        for what in ("body", "properties"):
            for why in refusals(f"the message's {what}", getattr(message, what)):
                raise xa_error(Code.XAER_INVAL, f"work: {why}") from error
        raise _unsendable(str(error)) from error
    return MessageContent(content.delivery, properties, body)


def _unsendable(why: str) -> XaError:
    return xa_error(Code.XAER_INVAL, f"work: the message can't be sent over AMQP 0-10: {why}")


def _delivery(message: Message, address: str) -> DeliveryProperties:
    if message.priority > MAX_PRIORITY:  # the broker would end the connection, and with it the branch
        raise ValueError(f"its priority is {message.priority}, and at most {MAX_PRIORITY} fits")
    return DeliveryProperties(
        priority=message.priority,
        delivery_mode=PERSISTENT,
        ttl=round(message.ttl * 1000) if message.ttl else None,
        timestamp=round(message.creation_time * 1000) if message.creation_time else None,
        expiration=round(message.expiry_time * 1000) if message.expiry_time and not message.ttl else None,
        routing_key=address,
    )


def _properties(message: Message) -> MessageProperties:
    headers: dict[str, Any] = {}
    for name, value in (message.properties or {}).items():
        if name in _OWN or str(name).startswith(ANNOTATION):
            raise ValueError(f"the property {name!r} has a meaning of its own in AMQP 0-10; give it another name")
        headers[name] = value

    for key, value in (message.annotations or {}).items():
        if not str(key).startswith(ANNOTATION):
            raise ValueError(f"the annotation {key!r} has no place there; annotations begin with {ANNOTATION}")
        headers[str(key)] = value

    if message.instructions:
        raise ValueError("delivery annotations (instructions) have no place there")
    further = {
        SUBJECT: message.subject,
        GROUP: message.group_id,
        SEQUENCE: _sequence(message.group_sequence) if message.group_sequence else None,
        REPLY_GROUP: message.reply_to_group_id,
        ID: None if isinstance(message.id, UUID) else message.id,
        CORRELATION: message.correlation_id if isinstance(message.correlation_id, int | UUID) else None,
    }
    headers.update((name, value) for name, value in further.items() if value is not None)
    return MessageProperties(
        message_id=message.id if isinstance(message.id, UUID) else None,
        correlation_id=_octets(message.correlation_id),
        reply_to=ReplyTo("", message.reply_to) if message.reply_to is not None else None,
        content_encoding=message.content_encoding,
        user_id=message.user_id or None,
        application_headers=headers or None,
    )


def _sequence(number: int) -> int:
    """JMS reads its JMSXGroupSeq as an int, and refuses a long."""
    return Int(number) if number < 1 << 31 else number


def _octets(value: int | str | bytes | UUID | None) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else None


def _typed(properties: MessageProperties, kind: str | None, message: Message) -> MessageProperties:
    """The properties with the body's content type. For text and octets it is the application's, if that says one."""
    given = message.content_type
    if given is not None and kind in {MAP, LIST} and given != kind:
        raise ValueError(f"a {type(message.body).__name__} has the content type {kind}, not {given}")
    return MessageProperties(
        message_id=properties.message_id,
        correlation_id=properties.correlation_id,
        reply_to=properties.reply_to,
        content_type=given if given is not None else kind,
        content_encoding=properties.content_encoding,
        user_id=properties.user_id,
        application_headers=properties.application_headers,
    )


def _check_body(properties: MessageProperties, body: bytes) -> None:
    """ValueError: the body is not what the properties say, and its receiver could not read it."""
    content_type = properties.content_type
    if content_type in _STRUCTURED:
        try:
            _read_body(content_type, body)
        except WireError as error:
            raise ValueError(f"its content type is {content_type}, and its body is none: {error}") from None
    if properties.content_encoding == GZIP and not _is_gzip(body):
        raise ValueError("its content encoding is gzip, and its body is not: the broker would deliver an empty one")


def _is_gzip(octets: bytes) -> bool:
    reader = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        while octets and not reader.eof:
            reader.decompress(octets, PIECE)
            octets = reader.unconsumed_tail
    except zlib.error:
        return False
    return reader.eof


def _body(message: Message) -> tuple[str | None, bytes]:
    body = message.body
    if body is None:
        return None, b""
    if isinstance(body, str):
        return TEXT, body.encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return OCTETS, bytes(body)
    if isinstance(body, dict):
        return MAP, write_map(body, 0)
    if isinstance(body, list | tuple):
        return LIST, write_list(body, 0)
    raise TypeError(f"a body is text, octets, a map, a list or None, and not {type(body).__name__}; put it into a list")


# --- received ---------------------------------------------------------------------------------------------------------
def message_of(transfer: Transfer) -> Message:
    """The message that arrived. A body that is not what its content type says is its octets, with that type: if it were
    refused, it would stand before all others, as this protocol rejects nothing inside of a transaction."""
    delivery, properties = transfer.delivery, transfer.properties
    headers = dict(properties.application_headers or {})
    own = {name: headers.pop(name) for name in _OWN if name in headers}
    annotations = {name: headers.pop(name) for name in list(headers) if name.startswith(ANNOTATION)}
    reply = properties.reply_to
    content_type = properties.content_type
    known = content_type in {TEXT, OCTETS, *_STRUCTURED}
    try:
        body, inferred = _read_body(content_type, transfer.body)
    except WireError:
        body, inferred, known = transfer.body, True, False

    return Message(
        body,
        id=properties.message_id if properties.message_id is not None else own.get(ID),
        subject=_text(own.get(SUBJECT)),
        correlation_id=own[CORRELATION] if CORRELATION in own else _correlation(properties.correlation_id),
        reply_to=None if reply is None else "/".join(filter(None, (reply.exchange, reply.routing_key))),
        address=delivery.routing_key,
        properties=headers or None,
        annotations=annotations or None,
        durable=delivery.delivery_mode == PERSISTENT,
        priority=delivery.priority if delivery.priority is not None else DEFAULT_PRIORITY,
        ttl=(delivery.ttl or 0) / 1000,
        delivery_count=1 if delivery.redelivered else 0,
        content_type=None if known else content_type,
        content_encoding=properties.content_encoding or None,  # Broker-J empties it where it has inflated the body
        user_id=properties.user_id or b"",
        expiry_time=(delivery.expiration or 0) / 1000,
        creation_time=(delivery.timestamp or 0) / 1000,
        group_id=_text(own.get(GROUP)),
        group_sequence=int(own[SEQUENCE]) if isinstance(own.get(SEQUENCE), int) else 0,
        reply_to_group_id=_text(own.get(REPLY_GROUP)),
        inferred=inferred,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _correlation(octets: bytes | None) -> str | bytes | None:
    if octets is None:
        return None
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return octets


def _is_text(content_type: str) -> bool:
    main, _, kind = content_type.partition(";")[0].strip().lower().partition("/")
    return main == "text" or kind in {"json", "xml"} or kind.endswith(("+json", "+xml"))


def _read_body(content_type: str | None, octets: bytes) -> tuple[Any, bool]:
    """The body, and whether it is octets."""
    if content_type == JMS_MAP:
        return read_map_message(octets), False
    if content_type == JMS_STREAM:
        return read_stream_message(octets), False
    if content_type in _MAPS | _LISTS:
        reader = Reader(octets)
        value = read_map(reader, 0) if content_type in _MAPS else read_list(reader, 0)
        reader.end("the body")
        return value, False
    if content_type is None and not octets:
        return None, False

    if content_type is not None and _is_text(content_type):
        try:
            return octets.decode(), False
        except UnicodeDecodeError:
            if content_type == TEXT:
                raise WireError("text is not UTF-8") from None
    return octets, True


def dead_letter_of(transfer: Transfer, address: str, annotations: Mapping[str, str | int]) -> MessageContent:
    """A message as it came, for a queue of dead letters: with annotations beside its own, and no time to live."""
    properties, delivery = transfer.properties, transfer.delivery
    headers = dict(properties.application_headers or {})
    headers.update((f"{ANNOTATION}dead-{name.removesuffix('-ms')}", value) for name, value in annotations.items())

    return MessageContent(
        DeliveryProperties(
            priority=delivery.priority,
            delivery_mode=PERSISTENT,
            timestamp=delivery.timestamp,
            routing_key=address,
        ),
        MessageProperties(
            message_id=properties.message_id,
            correlation_id=properties.correlation_id,
            reply_to=properties.reply_to,
            content_type=properties.content_type,
            content_encoding=properties.content_encoding,
            user_id=properties.user_id,
            app_id=properties.app_id,
            application_headers=headers,
        ),
        transfer.body,
    )


def check_address(address: str) -> None:
    """XAER_INVAL for what can't be the name of a queue."""
    if not address or len(address.encode()) > MAX_NAME:
        raise xa_error(Code.XAER_INVAL, f"work: {address[:40]!r}: a queue's name has 1 to {MAX_NAME} octets")
