"""Messages of OpenWire, made of the application's `Message` and back.

| `Message` | OpenWire (JMS) |
|---|---|
| `body`: None, str, bytes, dict | message without a body, TextMessage, BytesMessage, MapMessage |
| `id` | property `xabridge_id`; of a received message without it, JMSMessageID |
| `subject` | JMSType |
| `correlation_id` | JMSCorrelationID |
| `reply_to` | JMSReplyTo |
| `address` | JMSDestination, of a received message |
| `properties` | properties |
| `priority` | JMSPriority |
| `ttl`, `expiry_time` | JMSExpiration |
| `creation_time` | JMSTimestamp |
| `delivery_count` | redelivery counter |
| `group_id`, `group_sequence` | JMSXGroupID, JMSXGroupSeq |
| `content_type`, `content_encoding` | properties `JMS_AMQP_ContentType`, `JMS_AMQP_ContentEncoding` |

A message is always sent as persistent, whatever `durable` says: Classic answers XA_OK to the prepare of a branch with
messages that are not, and keeps nothing of it. The application's id is a property, because Artemis can't deliver a
message, nor any that stands behind it, whose JMSMessageID was not made as its own clients make it. What OpenWire does
not have is refused, by its name.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from rm_amqp.message import Message
from rm_openwire.primitives import decode_map, encode_map
from rm_openwire.wire import (
    BlobMessage,
    BytesMessage,
    DecodeError,
    MapMessage,
    ObjectMessage,
    Queue,
    StreamMessage,
    TemporaryQueue,
    TemporaryTopic,
    TextMessage,
    Topic,
    WireMessage,
    decode_text,
    encode_text,
)
from xa import Code, xa_error
from xa.topics import is_topic, topic_of

if TYPE_CHECKING:
    from rm_amqp.message import Encodable
    from rm_openwire.wire import Destination, MessageId

QUEUE, TOPIC = "queue://", "topic://"
TEMPORARY_QUEUE, TEMPORARY_TOPIC = "temp-queue://", "temp-topic://"
ID: Final = "xabridge_id"
OF_THE_BROKER: Final = "__AMQ"
"""How the names of properties begin that Artemis adds."""
CONTENT_TYPE: Final = "JMS_AMQP_ContentType"
CONTENT_ENCODING: Final = "JMS_AMQP_ContentEncoding"
_LENGTH: Final = struct.Struct(">i")
_PLAIN: Final = (bool, int, float, str)
_RESERVED: Final = frozenset(
    f"JMS{name}"
    for name in (
        *("CorrelationID", "DeliveryMode", "DeliveryTime", "Destination", "Expiration", "MessageID", "Priority"),
        *("Redelivered", "ReplyTo", "Timestamp", "Type", "XDeliveryCount", "XGroupID", "XGroupSeq"),
    )
)
_RESERVED_BEGINNING: Final = "__HDR_"
"""Artemis reads properties of these names as headers. A message of which it can't read one stays in its queue, with all
that stands behind it, and reports nothing."""
_UNSENT: Final = (
    "annotations",
    "instructions",
    "user_id",
    "reply_to_group_id",
    "first_acquirer",
    "delay",
    "deliver_at",
)
"""The fields of a message that OpenWire has no place for."""
MAX_NAME: Final = 65_535
"""Octets that a string may have."""
MAX_INFLATED: Final = 268_435_456
"""Octets that a compressed body may have."""


_KINDS: Final[dict[str, type[Topic | TemporaryQueue | TemporaryTopic]]] = {
    TOPIC: Topic,
    TEMPORARY_QUEUE: TemporaryQueue,
    TEMPORARY_TOPIC: TemporaryTopic,
}
"""How an address begins that is no queue's that stays. A temporary queue of the same name is another one."""


def destination_of(address: str) -> Destination:
    """The destination that an address names: a queue, unless it says otherwise. XAER_INVAL: it is none; the brokers
    end a connection over an empty name."""
    if not isinstance(address, str):
        raise xa_error(Code.XAER_INVAL, f"work: an address is text, and not a {type(address).__name__}")
    if not address.startswith(TOPIC) and (is_topic(address) or topic_of(address) is not None):
        raise xa_error(Code.XAER_INVAL, f"work: {address}: over OpenWire there are no topics with that prefix")
    made: Destination = Queue(address.removeprefix(QUEUE))
    for prefix, kind in _KINDS.items():
        if address.startswith(prefix):
            made = kind(address[len(prefix) :])
    try:
        octets = len(encode_text(made.name))
    except ValueError as error:
        raise xa_error(Code.XAER_INVAL, f"work: an address can't be sent: {error}") from None
    if not 0 < octets <= MAX_NAME:
        raise xa_error(Code.XAER_INVAL, f"work: an address has a name of 1 to {MAX_NAME} octets, and not of {octets}")
    return made


def address_of(destination: Destination | None) -> str | None:
    """The address of a destination."""
    if destination is None:
        return None
    for prefix, kind in _KINDS.items():
        if isinstance(destination, kind):
            return f"{prefix}{destination.name}"
    return destination.name


# --- to the broker --------------------
def encoded_message(message: Encodable, now_s: float) -> WireMessage:
    """The message as OpenWire has it. XAER_INVAL: it holds something that can't be sent, which is named."""
    ours = message if isinstance(message, Message) else Message.from_octets(bytes(message.encode()))
    try:
        made = _with_body(ours.body)
        _fill(made, ours, now_s)
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise xa_error(Code.XAER_INVAL, f"work: the message can't be sent over OpenWire: {error}") from None
    return made


def _with_body(body: Any) -> WireMessage:
    if body is None:
        return WireMessage()
    if isinstance(body, str):
        octets = encode_text(body)
        return TextMessage(content=_LENGTH.pack(len(octets)) + octets)
    if isinstance(body, (bytes, bytearray, memoryview)):
        return BytesMessage(content=bytes(body))
    if type(body) is dict:
        for name, value in body.items():
            if value is not None and type(value) not in {*_PLAIN, bytes}:
                raise TypeError(
                    f"the body's entry {name!r} is a {type(value).__name__}: a map has text, numbers, octets and None"
                )
        return MapMessage(content=encode_map(body))
    raise TypeError(f"a body of type {type(body).__name__} is sent as text, octets or a dict")


def _fill(made: WireMessage, message: Message, now_s: float) -> None:
    _check(message)
    made.persistent = True
    made.timestamp_ms = round((message.creation_time or now_s) * 1000)
    expires_s = now_s + message.ttl if message.ttl else message.expiry_time
    made.expiration_ms = round(expires_s * 1000)
    for name, time_ms in (("creation_time", made.timestamp_ms), ("ttl", made.expiration_ms)):
        if not -(2**63) <= time_ms < 2**63:
            raise ValueError(f"{name} is larger than 64 bits, in milliseconds")
    made.priority = int(message.priority)
    made.correlation = _text(message.correlation_id)
    made.type = message.subject
    made.reply_to = destination_of(message.reply_to) if message.reply_to is not None else None
    made.group_id, made.group_sequence = message.group_id, message.group_sequence
    properties = _properties(message)
    made.properties = encode_map(properties) if properties else None


def _check(message: Message) -> None:
    for name in _UNSENT:
        if getattr(message, name):
            raise TypeError(f"{name} has no place in a message of OpenWire: use properties")
    for name in ("subject", "group_id", "content_type", "content_encoding"):
        if not isinstance(value := getattr(message, name), (str, type(None))):
            raise TypeError(f"{name} is text, and not a {type(value).__name__}")
    if message.priority not in range(10):
        raise ValueError(f"priority {message.priority} is not between 0 and 9")
    if not -(2**31) <= message.group_sequence < 2**31:
        raise ValueError(f"group_sequence {message.group_sequence} is larger than 32 bits")


def _properties(message: Message) -> dict[str, Any]:
    properties = dict(message.properties or {})
    for name, value in properties.items():
        if not isinstance(name, str):
            raise TypeError(f"{name!r} is no name of a property: it has to be text")
        if value is not None and type(value) not in _PLAIN:
            raise TypeError(f"the property {name!r} is a {type(value).__name__}: properties are text, numbers and None")
        if name in _RESERVED or name.startswith(_RESERVED_BEGINNING):
            raise ValueError(f"the property {name!r} has the name of a header, which the broker would read instead")
    if message.id is not None:
        properties[ID] = _text(message.id)
    if message.content_type is not None:
        properties[CONTENT_TYPE] = message.content_type
    if message.content_encoding is not None:
        properties[CONTENT_ENCODING] = message.content_encoding
    return properties


def _text(value: int | str | bytes | UUID | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (int, UUID)):
        return str(value)
    raise TypeError("an id of octets is no text")


# --- from the broker --------------------
def decoded_message(wire: WireMessage, redeliveries: int) -> Message:
    """The message that came. XAER_RMERR: its body is of a kind that is not read here, which is named."""
    try:
        return _decoded(wire, redeliveries)
    except (DecodeError, ValueError, zlib.error, struct.error) as error:
        raise xa_error(Code.XAER_RMERR, f"work: a message can't be read: {error}") from None


def _decoded(wire: WireMessage, redeliveries: int) -> Message:
    properties = decode_map(wire.properties) if wire.properties else {}
    message = Message(_body(wire), durable=wire.persistent, priority=wire.priority)
    for field, name in (("content_type", CONTENT_TYPE), ("content_encoding", CONTENT_ENCODING)):
        if (value := properties.pop(name, None)) is not None:
            setattr(message, field, str(value))

    message.id = properties.pop(ID, None) or _name(wire.message_id)
    for name in [name for name in properties if name.startswith(OF_THE_BROKER)]:
        del properties[name]
    message.properties = properties or None
    message.subject, message.correlation_id = wire.type, wire.correlation
    message.reply_to, message.address = address_of(wire.reply_to), address_of(wire.destination)
    message.delivery_count = max(redeliveries, wire.redeliveries, 0)
    message.group_id, message.group_sequence = wire.group_id, wire.group_sequence
    message.creation_time, message.expiry_time = wire.timestamp_ms / 1000, wire.expiration_ms / 1000
    if wire.expiration_ms and wire.timestamp_ms:
        message.ttl = max(wire.expiration_ms - wire.timestamp_ms, 0) / 1000
    return message


def _name(name: MessageId | None) -> str | None:
    if name is None or name.producer is None:
        return name.text if name is not None else None
    producer = name.producer
    return f"{producer.connection}:{producer.session}:{producer.value}:{name.producer_sequence}"


def _body(wire: WireMessage) -> Any:
    if isinstance(wire, (ObjectMessage, StreamMessage, BlobMessage)):
        raise DecodeError(f"a body of the kind {type(wire).__name__} is refused: send text, octets or a map")
    content = wire.content
    if isinstance(wire, BytesMessage):
        return _inflated_octets(content) if wire.compressed and content else content or b""
    if content is None:
        return {} if isinstance(wire, MapMessage) else None

    if wire.compressed:
        content = _inflated(content)
    if isinstance(wire, MapMessage):
        return decode_map(content)
    if isinstance(wire, TextMessage):
        (length,) = _LENGTH.unpack_from(content)
        if length < 0:
            return None
        if length != len(content) - 4:
            raise DecodeError(f"a text of {length} octets, of which {len(content) - 4} came")
        return decode_text(content[4:])
    return None


def _inflated(octets: bytes) -> bytes:
    inflater = zlib.decompressobj()
    body = inflater.decompress(octets, MAX_INFLATED)
    if inflater.unconsumed_tail:
        raise DecodeError(f"a compressed body of more than {MAX_INFLATED} octets")
    return body


def _inflated_octets(octets: bytes) -> bytes:
    """Compressed octets stand behind their length."""
    return _inflated(octets[4:])
