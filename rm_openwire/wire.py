"""The codec of OpenWire: frames and the structures in them, in the loose encoding with the cache switched off, as both
sides agree in their first frame (`WireFormatInfo`). It does no I/O.

A frame is its length and one structure, all in network byte order:

    length    int, the octets that follow
    type      octet, the number of a class in `STRUCTURES`
    fields    as `STRUCTURES` lists them, one after the other; versions 10, 11 and 12 of the protocol have the same ones

A field is of one of these kinds (`Kind`):

    BOOL, BYTE, INT, LONG   1, 1, 4, 8 octets, signed
    STRING                  a BOOL whether there is one; its length in 2 octets; modified UTF-8, as Java has it
    OCTETS                  a BOOL whether there are any; their length in 4 octets; the octets
    NESTED                  a BOOL whether there is one; a structure with its type
    ARRAY                   a BOOL whether there is one; the number of its elements in 2 octets; each as NESTED
    ERROR                   a BOOL whether there is one; class and message, each a STRING (there are no stack traces)
    MAGIC                   the 8 octets "ActiveMQ"

A frame is valid if and only if its type is known, each field is complete, and nothing follows the last one. What is
not raises `DecodeError`; the connection can't be used any further then.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC: Final = b"ActiveMQ"
MIN_VERSION: Final = 10
MAX_VERSION: Final = 12
MAX_FRAME: Final = 104_857_600
MAX_GREETING: Final = 65_536
"""The longest frame that is read, and the one that brokers set by themselves."""
MAX_DEPTH: Final = 16
"""How deep structures may be nested."""
MAX_STRING: Final = 65_535
"""Octets of a STRING."""

_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">H")


class DecodeError(ValueError):
    """These octets are no frame of OpenWire, or not one in the encoding that was agreed on."""


class Kind(Enum):
    """How a field is encoded; see the head of this module."""

    BOOL = "bool"
    BYTE = "byte"
    INT = "int"
    LONG = "long"
    STRING = "string"
    OCTETS = "octets"
    NESTED = "nested"
    ARRAY = "array"
    ERROR = "error"
    MAGIC = "magic"


@dataclass(frozen=True, slots=True)
class Throwable:
    """An exception of the broker's: the name of its class, and its message."""

    name: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.name.rpartition('.')[2]}: {self.message}" if self.message else self.name


# --- what identifies something --------------------
@dataclass(frozen=True, slots=True)
class ConnectionId:
    value: str = ""


@dataclass(frozen=True, slots=True)
class SessionId:
    connection: str = ""
    value: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerId:
    connection: str = ""
    session: int = 0
    value: int = 0


@dataclass(frozen=True, slots=True)
class ProducerId:
    connection: str = ""
    value: int = 0
    session: int = 0


@dataclass(frozen=True, slots=True)
class BrokerId:
    value: str = ""


@dataclass(frozen=True, slots=True)
class MessageId:
    text: str | None = None
    producer: ProducerId | None = None
    producer_sequence: int = 0
    broker_sequence: int = 0


@dataclass(frozen=True, slots=True)
class LocalTransactionId:
    value: int = 0
    connection: ConnectionId | None = None


@dataclass(frozen=True, slots=True)
class XATransactionId:
    format_id: int = 0
    gtrid: bytes = b""
    bqual: bytes = b""


@dataclass(frozen=True, slots=True)
class Queue:
    name: str = ""


@dataclass(frozen=True, slots=True)
class Topic:
    name: str = ""


@dataclass(frozen=True, slots=True)
class TemporaryQueue:
    name: str = ""


@dataclass(frozen=True, slots=True)
class TemporaryTopic:
    name: str = ""


Destination: TypeAlias = Queue | Topic | TemporaryQueue | TemporaryTopic


# --- commands --------------------
@dataclass(slots=True)
class Command:
    """What both sides send. `command_id` numbers it, and its answer repeats the number as `correlation_id`."""

    command_id: int = 0
    response_required: bool = False


@dataclass(slots=True)
class WireFormatInfo:
    """The first frame of either side: what it offers. `properties` is a map as in `rm_openwire.primitives`."""

    magic: bytes = MAGIC
    version: int = MAX_VERSION
    properties: bytes | None = None


@dataclass(slots=True)
class BrokerInfo(Command):
    broker_id: BrokerId | None = None
    url: str | None = None
    peers: tuple[Any, ...] | None = None
    name: str | None = None
    slave: bool = False
    master: bool = False
    fault_tolerant: bool = False
    duplex: bool = False
    network: bool = False
    connection_id: int = 0
    upload_url: str | None = None
    network_properties: str | None = None


@dataclass(slots=True)
class ConnectionInfo(Command):
    connection_id: ConnectionId | None = None
    client_id: str | None = None
    password: str | None = field(default=None, repr=False)
    user: str | None = None
    broker_path: tuple[Any, ...] | None = None
    broker_master: bool = False
    manageable: bool = False
    client_master: bool = True
    fault_tolerant: bool = False
    failover_reconnect: bool = False
    client_ip: str | None = None


@dataclass(slots=True)
class SessionInfo(Command):
    session_id: SessionId | None = None


@dataclass(slots=True)
class ConsumerInfo(Command):
    consumer_id: ConsumerId | None = None
    browser: bool = False
    destination: Destination | None = None
    prefetch: int = 0
    pending_limit: int = 0
    dispatch_async: bool = True
    selector: str | None = None
    client_id: str | None = None
    subscription: str | None = None
    no_local: bool = False
    exclusive: bool = False
    retroactive: bool = False
    priority: int = 0
    broker_path: tuple[Any, ...] | None = None
    predicate: Any = None
    network: bool = False
    optimized_acknowledge: bool = False
    no_range_acks: bool = False
    network_path: tuple[Any, ...] | None = None


@dataclass(slots=True)
class ProducerInfo(Command):
    producer_id: ProducerId | None = None
    destination: Destination | None = None
    broker_path: tuple[Any, ...] | None = None
    dispatch_async: bool = False
    window: int = 0


class TransactionKind(Enum):
    """What a `TransactionInfo` asks for."""

    BEGIN = 0
    PREPARE = 1
    COMMIT_ONE_PHASE = 2
    COMMIT_TWO_PHASE = 3
    ROLLBACK = 4
    RECOVER = 5
    FORGET = 6
    END = 7


@dataclass(slots=True)
class TransactionInfo(Command):
    """`kind` is the number of a `TransactionKind`."""

    connection_id: ConnectionId | None = None
    transaction_id: XATransactionId | LocalTransactionId | None = None
    kind: int = 0


@dataclass(slots=True)
class DestinationInfo(Command):
    connection_id: ConnectionId | None = None
    destination: Destination | None = None
    operation: int = 0
    timeout_ms: int = 0
    broker_path: tuple[Any, ...] | None = None


@dataclass(slots=True)
class KeepAliveInfo(Command):
    """Says that its sender is alive."""


@dataclass(slots=True)
class ShutdownInfo(Command):
    """The connection ends."""


@dataclass(slots=True)
class RemoveInfo(Command):
    """A connection, session, consumer or producer ends. `last_delivered` is for a consumer: the broker_sequence of the
    last message that the application had, or one of the constants."""

    object_id: ConnectionId | SessionId | ConsumerId | ProducerId | None = None
    last_delivered: int = -1


LAST_DELIVERED_NONE: Final = -1
"""The application had no message that is not acknowledged."""
LAST_DELIVERED_UNKNOWN: Final = -2
"""It may have had them all: each is counted as delivered."""


@dataclass(slots=True)
class ControlCommand(Command):
    command: str | None = None


@dataclass(slots=True)
class ConnectionFault(Command):
    """The broker's connection came to this, without an answer to anything in particular."""

    exception: Throwable | None = None
    connection_id: ConnectionId | None = None


@dataclass(slots=True)
class ConsumerControl(Command):
    destination: Destination | None = None
    close: bool = False
    consumer_id: ConsumerId | None = None
    prefetch: int = 0
    flush: bool = False
    start: bool = False
    stop: bool = False


@dataclass(slots=True)
class ConnectionControl(Command):
    close: bool = False
    exit: bool = False
    fault_tolerant: bool = False
    resume: bool = False
    suspend: bool = False
    connected_brokers: str | None = None
    reconnect_to: str | None = None
    rebalance: bool = False
    token: bytes | None = None


@dataclass(slots=True)
class ProducerAck(Command):
    producer_id: ProducerId | None = None
    size: int = 0


@dataclass(slots=True)
class MessagePull(Command):
    """Asks for one message. timeout_ms: -1 for one that is there, 0 for however long it takes."""

    consumer_id: ConsumerId | None = None
    destination: Destination | None = None
    timeout_ms: int = 0
    correlation: str | None = None
    message_id: MessageId | None = None


@dataclass(slots=True)
class MessageDispatch(Command):
    """A message for a consumer; None: there is none in time, or no further one to browse."""

    consumer_id: ConsumerId | None = None
    destination: Destination | None = None
    message: WireMessage | None = None
    redeliveries: int = 0


class AckKind(Enum):
    """What a `MessageAck` says of messages."""

    DELIVERED = 0
    POISON = 1
    STANDARD = 2
    REDELIVERED = 3
    INDIVIDUAL = 4


@dataclass(slots=True)
class MessageAck(Command):
    """`kind` is the number of an `AckKind`, `count` that of the messages from `first` to `last`."""

    destination: Destination | None = None
    transaction_id: XATransactionId | LocalTransactionId | None = None
    consumer_id: ConsumerId | None = None
    kind: int = 0
    first: MessageId | None = None
    last: MessageId | None = None
    count: int = 0
    poison_cause: Throwable | None = None


@dataclass(slots=True)
class WireMessage(Command):
    """A message without a body, and what all messages have. The times are milliseconds since 1970."""

    producer_id: ProducerId | None = None
    destination: Destination | None = None
    transaction_id: XATransactionId | LocalTransactionId | None = None
    original_destination: Destination | None = None
    message_id: MessageId | None = None
    original_transaction_id: XATransactionId | LocalTransactionId | None = None
    group_id: str | None = None
    group_sequence: int = 0
    correlation: str | None = None
    persistent: bool = False
    expiration_ms: int = 0
    priority: int = 4
    reply_to: Destination | None = None
    timestamp_ms: int = 0
    type: str | None = None
    content: bytes | None = None
    properties: bytes | None = None
    data: Any = None
    target: ConsumerId | None = None
    compressed: bool = False
    redeliveries: int = 0
    broker_path: tuple[Any, ...] | None = None
    arrival_ms: int = 0
    user: str | None = None
    received_by_bridge: bool = False
    droppable: bool = False
    cluster: tuple[Any, ...] | None = None
    broker_in_ms: int = 0
    broker_out_ms: int = 0
    first_of_group: bool = False


@dataclass(slots=True)
class TextMessage(WireMessage):
    """Its content is the length of the text in 4 octets, and the text in modified UTF-8."""


@dataclass(slots=True)
class BytesMessage(WireMessage):
    """Its content is the octets."""


@dataclass(slots=True)
class MapMessage(WireMessage):
    """Its content is a map as in `rm_openwire.primitives`."""


@dataclass(slots=True)
class StreamMessage(WireMessage):
    """Values one after the other. It is neither read nor written here."""


@dataclass(slots=True)
class ObjectMessage(WireMessage):
    """A serialized object of Java's. It is neither read nor written here."""


@dataclass(slots=True)
class BlobMessage(WireMessage):
    """A message whose body is elsewhere. It is neither read nor written here."""

    remote_url: str | None = None
    mime_type: str | None = None
    deleted_by_broker: bool = False


@dataclass(slots=True)
class Response(Command):
    correlation_id: int = 0


@dataclass(slots=True)
class ExceptionResponse(Response):
    exception: Throwable | None = None


@dataclass(slots=True)
class DataResponse(Response):
    data: Any = None


@dataclass(slots=True)
class DataArrayResponse(Response):
    data: tuple[Any, ...] | None = None


@dataclass(slots=True)
class IntegerResponse(Response):
    result: int = 0


_B, _Y, _I, _L, _S = Kind.BOOL, Kind.BYTE, Kind.INT, Kind.LONG, Kind.STRING
_O, _N, _A, _E = Kind.OCTETS, Kind.NESTED, Kind.ARRAY, Kind.ERROR
_MESSAGE: Final = (_N, _N, _N, _N, _N, _N, _S, _I, _S, _B, _L, _Y, _N, _L, _S, _O, _O, _N, _N, _B, _I, _A, _L, _S, _B,
                   _B, _A, _L, _L, _B)  # fmt: skip

STRUCTURES: Final[dict[int, tuple[type[Any], tuple[Kind, ...]]]] = {
    1: (WireFormatInfo, (Kind.MAGIC, _I, _O)),
    2: (BrokerInfo, (_N, _S, _A, _S, _B, _B, _B, _B, _B, _L, _S, _S)),
    3: (ConnectionInfo, (_N, _S, _S, _S, _A, _B, _B, _B, _B, _B, _S)),
    4: (SessionInfo, (_N,)),
    5: (ConsumerInfo, (_N, _B, _N, _I, _I, _B, _S, _S, _S, _B, _B, _B, _Y, _A, _N, _B, _B, _B, _A)),
    6: (ProducerInfo, (_N, _N, _A, _B, _I)),
    7: (TransactionInfo, (_N, _N, _Y)),
    8: (DestinationInfo, (_N, _N, _Y, _L, _A)),
    10: (KeepAliveInfo, ()),
    11: (ShutdownInfo, ()),
    12: (RemoveInfo, (_N, _L)),
    14: (ControlCommand, (_S,)),
    16: (ConnectionFault, (_E, _N)),
    17: (ConsumerControl, (_N, _B, _N, _I, _B, _B, _B)),
    18: (ConnectionControl, (_B, _B, _B, _B, _B, _S, _S, _B, _O)),
    19: (ProducerAck, (_N, _I)),
    20: (MessagePull, (_N, _N, _L, _S, _N)),
    21: (MessageDispatch, (_N, _N, _N, _I)),
    22: (MessageAck, (_N, _N, _N, _Y, _N, _N, _I, _E)),
    23: (WireMessage, _MESSAGE),
    24: (BytesMessage, _MESSAGE),
    25: (MapMessage, _MESSAGE),
    26: (ObjectMessage, _MESSAGE),
    27: (StreamMessage, _MESSAGE),
    28: (TextMessage, _MESSAGE),
    29: (BlobMessage, (*_MESSAGE, _S, _S, _B)),
    30: (Response, (_I,)),
    31: (ExceptionResponse, (_I, _E)),
    32: (DataResponse, (_I, _N)),
    33: (DataArrayResponse, (_I, _A)),
    34: (IntegerResponse, (_I, _I)),
    100: (Queue, (_S,)),
    101: (Topic, (_S,)),
    102: (TemporaryQueue, (_S,)),
    103: (TemporaryTopic, (_S,)),
    110: (MessageId, (_S, _N, _L, _L)),
    111: (LocalTransactionId, (_L, _N)),
    112: (XATransactionId, (_I, _O, _O)),
    120: (ConnectionId, (_S,)),
    121: (SessionId, (_S, _L)),
    122: (ConsumerId, (_S, _L, _L)),
    123: (ProducerId, (_S, _L, _L)),
    124: (BrokerId, (_S,)),
}
"""Type → class, and the kinds of its fields, in their order. Every `Command` begins with an INT and a BOOL besides."""

_COMMAND: Final = (_I, _B)
_LAYOUTS: Final[dict[int, tuple[type[Any], tuple[tuple[str, Kind], ...]]]] = {
    number: (
        made,
        tuple(
            (declared.name, kind)
            for declared, kind in zip(
                fields(made), (*_COMMAND, *kinds) if issubclass(made, Command) else kinds, strict=True
            )
        ),
    )
    for number, (made, kinds) in STRUCTURES.items()
}
_COMMANDS: Final = frozenset(made for number, (made, _) in STRUCTURES.items() if number < 100)
_NUMBERS: Final = {made: number for number, (made, _) in STRUCTURES.items()}


# --- text --------------------
def encode_text(text: str) -> bytes:
    """Modified UTF-8: NUL takes two octets, and what takes four in UTF-8 is two surrogates of three each. ValueError
    for a surrogate that stands alone."""
    if text.isascii() and "\0" not in text:
        return text.encode("ascii")
    text.encode("utf-8")  # refuses lone surrogates
    units = text.encode("utf-16-be")
    spread = "".join(chr(units[at] << 8 | units[at + 1]) for at in range(0, len(units), 2))
    return spread.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


def decode_text(octets: bytes) -> str:
    """The text of these octets; DecodeError for octets that are none."""
    try:
        if octets.isascii():
            return octets.decode("ascii")
        spread = octets.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return spread.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
    except UnicodeError as error:
        raise DecodeError(f"a string is no modified UTF-8: {error}") from None


# --- writing --------------------
def encode(structure: Any) -> bytes:
    """The frame of a command. ValueError: a string, or the frame, is longer than the protocol can say."""
    pieces: list[bytes] = []
    _write(pieces, structure)
    octets = b"".join(pieces)
    if len(octets) > MAX_FRAME:
        raise ValueError(f"a frame of {len(octets)} octets is longer than {MAX_FRAME}")
    return _INT.pack(len(octets)) + octets


def _write(pieces: list[bytes], structure: Any) -> None:
    number = _NUMBERS[type(structure)]
    pieces.append(bytes((number,)))
    for name, kind in _LAYOUTS[number][1]:
        _write_field(pieces, kind, getattr(structure, name))


def _write_field(pieces: list[bytes], kind: Kind, value: Any) -> None:
    if kind is _B:
        pieces.append(b"\1" if value else b"\0")
    elif kind is _N:
        _write_nested(pieces, value)
    elif kind is _S:
        _write_string(pieces, value)
    elif kind is _I:
        pieces.append(_INT.pack(value))
    elif kind is _L:
        pieces.append(_LONG.pack(value))
    elif kind is _O:
        if value is None:
            pieces.append(b"\0")
        else:
            pieces.append(b"\1" + _INT.pack(len(value)) + value)
    elif kind is _Y:
        pieces.append(value.to_bytes(1, "big", signed=True))
    else:
        _write_rare(pieces, kind, value)


def _write_rare(pieces: list[bytes], kind: Kind, value: Any) -> None:
    if kind is Kind.MAGIC:
        pieces.append(value)
        return
    if value is None:
        pieces.append(b"\0")
        return
    pieces.append(b"\1")
    if kind is _E:
        _write_string(pieces, value.name)
        _write_string(pieces, value.message)
    else:
        pieces.append(_LENGTH.pack(len(value)))
        for item in value:
            _write_nested(pieces, item)


def _write_nested(pieces: list[bytes], structure: Any) -> None:
    if structure is None:
        pieces.append(b"\0")
    else:
        pieces.append(b"\1")
        _write(pieces, structure)


def _write_string(pieces: list[bytes], text: str | None) -> None:
    if text is None:
        pieces.append(b"\0")
        return
    octets = encode_text(text)
    if len(octets) > MAX_STRING:
        raise ValueError(f"a string of {len(octets)} octets is longer than {MAX_STRING}")
    pieces.append(b"\1" + _LENGTH.pack(len(octets)) + octets)


# --- reading --------------------
def decode(octets: bytes) -> Any:
    """The command of a frame, without its length; DecodeError."""
    structure, at = _read(octets, 0, 0)
    if type(structure) not in _COMMANDS:
        raise DecodeError(f"a {type(structure).__name__} is no command")
    if at != len(octets):
        raise DecodeError(f"{len(octets) - at} octets after a {type(structure).__name__}")
    return structure


def _read(octets: bytes, at: int, depth: int) -> tuple[Any, int]:
    if at >= len(octets):
        raise DecodeError("the frame ends before a structure")
    number = octets[at]
    at += 1
    if depth >= MAX_DEPTH:
        raise DecodeError(f"structures are nested deeper than {MAX_DEPTH}")
    layout = _LAYOUTS.get(number)
    if layout is None:
        raise DecodeError(f"the type {number} is not known")

    made, kinds = layout
    values: list[Any] = []
    try:
        for _, kind in kinds:
            if kind is _B:
                values.append(octets[at] != 0)
                at += 1
            elif kind is _I:
                values.append(_INT.unpack_from(octets, at)[0])
                at += 4
            elif kind is _L:
                values.append(_LONG.unpack_from(octets, at)[0])
                at += 8
            elif kind is _N:
                value, at = _read_nested(octets, at, depth)
                values.append(value)
            else:
                value, at = _READERS[kind](octets, at, depth)
                values.append(value)
    except (IndexError, struct.error):
        raise DecodeError(f"the frame ends inside of a {made.__name__}") from None
    _check(number, made, values)
    return made(*values), at


def _read_nested(octets: bytes, at: int, depth: int) -> tuple[Any, int]:
    if not octets[at]:
        return None, at + 1
    return _read(octets, at + 1, depth + 1)


_NESTED: Final[dict[str, tuple[type[Any], ...]]] = {
    "connection_id": (ConnectionId,),
    "consumer_id": (ConsumerId,),
    "session_id": (SessionId,),
    "producer_id": (ProducerId,),
    "producer": (ProducerId,),
    "target": (ConsumerId,),
    "broker_id": (BrokerId,),
    "message_id": (MessageId,),
    "first": (MessageId,),
    "last": (MessageId,),
    "message": (WireMessage,),
    "destination": (Queue, Topic, TemporaryQueue, TemporaryTopic),
    "original_destination": (Queue, Topic, TemporaryQueue, TemporaryTopic),
    "reply_to": (Queue, Topic, TemporaryQueue, TemporaryTopic),
    "transaction_id": (XATransactionId, LocalTransactionId),
    "original_transaction_id": (XATransactionId, LocalTransactionId),
    "connection": (ConnectionId,),
    "object_id": (ConnectionId, SessionId, ConsumerId, ProducerId),
}
"""The field of a nested structure → the classes that it may have."""


def _check(number: int, made: type[Any], values: list[Any]) -> None:
    for (name, kind), value in zip(_LAYOUTS[number][1], values, strict=True):
        if kind is _N and value is not None and name in _NESTED and not isinstance(value, _NESTED[name]):
            raise DecodeError(f"the field {name} of a {made.__name__} is a {type(value).__name__}")
        if number >= 100 and value is None and kind in {_S, _O} and name != "text":
            raise DecodeError(f"a {made.__name__} has no {name}")


def _read_byte(octets: bytes, at: int, _depth: int) -> tuple[int, int]:
    return (octets[at] ^ 0x80) - 0x80, at + 1


def _read_string(octets: bytes, at: int, _depth: int) -> tuple[str | None, int]:
    if not octets[at]:
        return None, at + 1
    stop = at + 3 + _LENGTH.unpack_from(octets, at + 1)[0]
    if stop > len(octets):
        raise DecodeError("the frame ends inside of a string")
    return decode_text(octets[at + 3 : stop]), stop


def _read_octets(octets: bytes, at: int, _depth: int) -> tuple[bytes | None, int]:
    if not octets[at]:
        return None, at + 1
    (length,) = _INT.unpack_from(octets, at + 1)
    stop = at + 5 + length
    if length < 0 or stop > len(octets):
        raise DecodeError(f"{length} octets are announced, and the frame has {len(octets) - at - 5} more")
    return octets[at + 5 : stop], stop


def _read_array(octets: bytes, at: int, depth: int) -> tuple[tuple[Any, ...] | None, int]:
    if not octets[at]:
        return None, at + 1
    (length,) = _LENGTH.unpack_from(octets, at + 1)
    at += 3
    items = []
    for _ in range(length):
        item, at = _read_nested(octets, at, depth)
        items.append(item)
    return tuple(items), at


def _read_error(octets: bytes, at: int, depth: int) -> tuple[Throwable | None, int]:
    if not octets[at]:
        return None, at + 1
    name, at = _read_string(octets, at + 1, depth)
    message, at = _read_string(octets, at, depth)
    return Throwable(name or "", message or ""), at


def _read_magic(octets: bytes, at: int, _depth: int) -> tuple[bytes, int]:
    if octets[at : at + 8] != MAGIC:
        raise DecodeError("the peer does not speak OpenWire")
    return MAGIC, at + 8


_READERS: Final = {
    _Y: _read_byte,
    _S: _read_string,
    _O: _read_octets,
    _A: _read_array,
    _E: _read_error,
    Kind.MAGIC: _read_magic,
}


class FrameReader:
    """Cuts octets into frames, in whatever pieces they come."""

    def __init__(self) -> None:
        self.longest = MAX_GREETING
        """Octets of a frame. MAX_FRAME, once the other side has said that it speaks OpenWire."""
        self._octets = bytearray()

    def feed(self, octets: bytes) -> Iterator[Any]:
        """The commands that are complete now; DecodeError for the first that is none."""
        self._octets += octets
        while len(self._octets) >= 4:
            (length,) = _INT.unpack_from(self._octets, 0)
            if not 0 < length <= self.longest:
                raise DecodeError(f"a frame of {length} octets; at most {self.longest} are read")
            if len(self._octets) < 4 + length:
                return
            with memoryview(self._octets) as view:
                frame = bytes(view[4 : 4 + length])
            del self._octets[: 4 + length]
            yield decode(frame)
