"""A message as applications have it, and its octets.

    session.send("orders", Message({"number": 7}, durable=True, id="o-7"))

`Message` has the attributes that people know from `proton.Message`. A session sends a `proton.Message` as well (it
sends whatever has `encode`); what it receives is always a `Message`.

Values are those of AMQP 1.0, as Python has them:

    null None              boolean bool           long int              double float
    binary bytes           string str             list list             map dict        uuid uuid.UUID

Every other type of AMQP has a class in `dtx.amqp.values` (Ulong, Symbol, Timestamp, Described, …), and is read as
one. The classes that proton has for them are sent too. What AMQP does not have is refused, with a sentence that says
what to send instead.

Nearly all messages have values of the types above only, so that these are written and read here, without a call for
each; the others by the codec of the protocol. Sequences are written in their long form, as proton writes them.
"""

from __future__ import annotations

import struct
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from uuid import UUID

from dtx.amqp import values
from dtx.amqp.decoding import MAX_DEPTH, DecodeError, decode_from, keys_collide
from dtx.amqp.encoding import element_constructor, encode, encode_list
from dtx.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    DELIVERY_DELAY,
    DELIVERY_TIME,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    read_section,
)
from dtx.amqp.values import Array, Described, Long, Symbol, Timestamp, Ubyte, Uint, Ulong
from rm_amqp.unsendable_values import refusals
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dtx.amqp.values import Value

DEFAULT_PRIORITY: Final = 4
_NONE: Final = type(None)
_LONG: Final = struct.Struct(">Bq")
_DOUBLE: Final = struct.Struct(">Bd")
_COMPOUND: Final = struct.Struct(">BII")
_SIZED: Final = struct.Struct(">BI")
_U32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")
_F64: Final = struct.Struct(">d")
_NO_FIELDS: Final = b"\x00\x53\x70\x45\x00\x53\x73\x45"
"""A header and properties that say nothing."""
_NO_HEADER: Final = _NO_FIELDS[:4]
_NO_PROPERTIES: Final = _NO_FIELDS[4:]
_NO_BODY: Final = b"\x00\x53\x77\x40"
"""A body that is null: a message has a body."""


class Encodable(Protocol):
    """A message that can be sent: a `Message`, or a `proton.Message`."""

    def encode(self) -> bytes:
        """Its octets."""
        ...


@dataclass(slots=True, eq=False)
class Message:
    """A message. Two messages are equal if they are the same object. Times and `ttl` are in seconds."""

    body: Any = None
    _: KW_ONLY
    id: int | str | bytes | UUID | None = None
    subject: str | None = None
    correlation_id: int | str | bytes | UUID | None = None
    reply_to: str | None = None
    address: str | None = None
    """Where it is meant to go; a broker may look at it, and `send` does not."""
    properties: dict[str, Any] | None = None
    """The application's properties."""
    annotations: Mapping[Any, Any] | None = None
    """Message annotations. Keys are symbols, as which text is sent."""
    instructions: Mapping[Any, Any] | None = None
    """Delivery annotations, for the next node only; keys as above."""
    durable: bool = False
    priority: int = DEFAULT_PRIORITY
    ttl: float = 0.0
    """How long it is of use, 0 for ever."""
    delay: float = 0.0
    """How long after the commit of its transaction it is to be delivered, for a broker that offers DELAYED_DELIVERY.
    Only of a message that is sent: of one that was received it is among the annotations."""
    deliver_at: float = 0.0
    """When it is to be delivered, in seconds since the epoch, in place of `delay`."""
    first_acquirer: bool = False
    delivery_count: int = 0
    """How often it was delivered before, in vain."""
    content_type: str | None = None
    content_encoding: str | None = None
    user_id: bytes = b""
    expiry_time: float = 0.0
    creation_time: float = 0.0
    group_id: str | None = None
    group_sequence: int = 0
    reply_to_group_id: str | None = None
    inferred: bool = False
    """Whether a body of octets, or a list, is its own kind of section (amqp-data, amqp-sequence), and not a value."""

    def encode(self) -> bytes:
        """Its octets. TypeError, ValueError or struct.error for a value that AMQP does not have."""
        pieces: list[bytes] = []
        header = self._header()
        properties = self._properties()
        annotations = self.annotations
        if self.delay or self.deliver_at:
            annotations = {**(annotations or {}), **_delivery(self.delay, self.deliver_at)}
        if annotations is None and self.instructions is None and not header and not properties:
            pieces.append(_NO_FIELDS)
        else:
            pieces.append(b"\x00\x53\x70" + encode_list(header) if header else _NO_HEADER)
            _write_annotations(pieces, DELIVERY_ANNOTATIONS, self.instructions)
            _write_annotations(pieces, MESSAGE_ANNOTATIONS, annotations)
            pieces.append(b"\x00\x53\x73" + encode_list(properties) if properties else _NO_PROPERTIES)

        if self.properties is not None:
            if type(self.properties) is not dict:
                raise TypeError("the properties are a dict")
            pieces.append(b"\x00\x53\x74")
            _write(pieces, self.properties, 0)
        if self.body is None:
            pieces.append(_NO_BODY)
        else:
            pieces.append(self._section())
            _write(pieces, self.body, 0)
        return b"".join(pieces)

    def _section(self) -> bytes:
        """The octets that the body's section begins with."""
        if self.inferred and type(self.body) in _BINARIES:
            return b"\x00\x53\x75"
        if self.inferred and type(self.body) in _LISTS:
            return b"\x00\x53\x76"
        return b"\x00\x53\x77"

    def _header(self) -> list[bytes]:
        """The fields of the header, up to the last one that says something."""
        if not (
            self.durable or self.priority != DEFAULT_PRIORITY or self.ttl or self.first_acquirer or self.delivery_count
        ):
            return []
        return _trimmed(
            [
                True if self.durable else None,
                Ubyte(self.priority) if self.priority != DEFAULT_PRIORITY else None,
                Uint(round(self.ttl * 1000)) if self.ttl else None,
                True if self.first_acquirer else None,
                Uint(self.delivery_count) if self.delivery_count else None,
            ]
        )

    def _properties(self) -> list[bytes]:
        """The fields of the properties, up to the last one that says something."""
        fields = (
            self.id,
            self.user_id or None,
            self.address,
            self.subject,
            self.reply_to,
            self.correlation_id,
            self.content_type,
            self.content_encoding,
            self.expiry_time or None,
            self.creation_time or None,
            self.group_id,
            self.group_sequence or None,
            self.reply_to_group_id,
        )
        if fields[1:] == _NO_PROPERTY_BUT_ID:
            return [_encoded_id(self.id)] if self.id is not None else []
        kind = self.content_type
        if type(kind) is str and fields[1:6] + fields[7:] == _NO_PROPERTY_BUT_ID[1:]:
            return [_NULL if self.id is None else _encoded_id(self.id), *_encoded_content_type(kind)]

        return _trimmed(
            [convert(field) if field is not None else None for convert, field in zip(_KINDS, fields, strict=True)]
        )

    @classmethod
    def from_octets(cls, octets: bytes) -> Message:
        """The message that these octets are; DecodeError for octets that are none."""
        message = cls()
        at = last = 0
        if octets.startswith(_NO_FIELDS):
            at = len(_NO_FIELDS)
        elif octets.startswith(_NO_HEADER):
            at, last = len(_NO_HEADER), HEADER

        sections: list[Any] = []
        while at < len(octets):
            code, start = read_section(octets, at)
            if code < last or (code == last and code not in _REPEATED):
                raise DecodeError(f"section {code:#x} is at the wrong place")
            value, at = _read_value(octets, start)
            _SECTIONS[code](message, value)
            if code in _REPEATED:
                sections.append(value)
            last = code
        if len(sections) > 1:
            message.body = b"".join(sections) if type(message.body) is bytes else list(chain.from_iterable(sections))
        return message


def encoded(message: Encodable) -> bytes:
    """The octets of a message that is to be sent. XaMisuse: it holds a value that can't be sent, which is named."""
    try:
        octets = bytes(message.encode())
    except Exception as error:
        for what in ("body", "properties"):
            for why in refusals(f"the message's {what}", getattr(message, what, None)):
                raise xa_error(Code.XAER_INVAL, f"work: {why}") from error
        if isinstance(message, Message):
            raise xa_error(Code.XAER_INVAL, f"work: the message can't be encoded: {error}") from error
        raise
    if not isinstance(message, Message) and getattr(message, "body", octets) is None:
        octets += _NO_BODY  # proton leaves it out
    return octets


def read(octets: bytes) -> Message:
    """The message that these octets are; XAER_RMERR for octets that are none."""
    try:
        return Message.from_octets(octets)
    except DecodeError as error:
        raise xa_error(Code.XAER_RMERR, f"work: a message can't be decoded: {error}") from error


# --- sections --------------------
def _as_id(value: Any) -> Ulong | UUID | bytes | str:
    if isinstance(value, int) and not isinstance(value, bool):
        return Ulong(value)
    if isinstance(value, UUID):
        return value
    return bytes(value) if type(value) in _BINARIES else _as_text(value)


def _delivery(delay: float, deliver_at: float) -> dict[str, int]:
    if delay < 0 or deliver_at < 0 or (delay and deliver_at):
        raise ValueError("a message has a delay, or a time at which it is delivered, and neither is negative")
    return {DELIVERY_TIME: round(deliver_at * 1000)} if deliver_at else {DELIVERY_DELAY: round(delay * 1000)}


def is_delayed(message: Encodable) -> bool:
    """Whether a broker has to keep the message back."""
    return isinstance(message, Message) and bool(message.delay or message.deliver_at)


def _as_milliseconds(value: float) -> Timestamp:
    return Timestamp(round(value * 1000))


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} in the properties is no text")
    return str(value)


def _as_symbol(value: Any) -> Symbol:
    return Symbol(_as_text(value))


_KINDS: Final[tuple[Callable[[Any], Any], ...]] = (
    _as_id, bytes, _as_text, _as_text, _as_text, _as_id, _as_symbol, _as_symbol, _as_milliseconds, _as_milliseconds,
    _as_text, Uint, _as_text,
)  # fmt: skip
"""The types that the fields of the properties are sent as, in their order."""
_NULL: Final = encode(None)
_NO_PROPERTY_BUT_ID: Final = (None,) * (len(_KINDS) - 1)


def _encoded_id(value: Any) -> bytes:
    if type(value) is str and len(octets := value.encode()) < 256:
        return b"\xa1" + _OCTET[len(octets)] + octets
    return encode(_as_id(value))


@lru_cache(maxsize=100)
def _encoded_content_type(content_type: str) -> list[bytes]:
    """The fields from behind the id up to this one."""
    return [*[_NULL] * 5, encode(Symbol(content_type))]


def _trimmed(fields: list[Any]) -> list[bytes]:
    while fields and fields[-1] is None:
        fields.pop()
    return [encode(field) for field in fields]


def _write_annotations(pieces: list[bytes], code: int, annotations: Mapping[Any, Any] | None) -> None:
    if annotations is not None:
        pieces.append(bytes((0x00, 0x53, code)))
        keys = ((Ulong(key) if isinstance(key, int) else _as_symbol(key), item) for key, item in annotations.items())
        _write_map(pieces, keys, len(annotations), 0)


def _seconds(milliseconds: int) -> float:
    return milliseconds / 1000


def _plain_id(value: Ulong | UUID | bytes | str) -> int | UUID | bytes | str:
    return int(value) if type(value) is Ulong else value


_Field: TypeAlias = tuple[str, tuple[type, ...], "Callable[[Any], Any] | None"]
"""An attribute, the types that it may have on the wire, and what makes the attribute of these."""
_ID: Final = (Ulong, UUID, bytes, str)
_TEXT: Final = (str, Symbol)
_HEADER_FIELDS: Final[tuple[_Field, ...]] = (
    ("durable", (bool,), None),
    ("priority", (Ubyte,), int),
    ("ttl", (Uint,), _seconds),
    ("first_acquirer", (bool,), None),
    ("delivery_count", (Uint,), int),
)
_PROPERTY_FIELDS: Final[tuple[_Field, ...]] = (
    ("id", _ID, _plain_id),
    ("user_id", (bytes,), None),
    ("address", _TEXT, None),
    ("subject", _TEXT, None),
    ("reply_to", _TEXT, None),
    ("correlation_id", _ID, _plain_id),
    ("content_type", _TEXT, str),
    ("content_encoding", _TEXT, str),
    ("expiry_time", (Timestamp,), _seconds),
    ("creation_time", (Timestamp,), _seconds),
    ("group_id", _TEXT, None),
    ("group_sequence", (Uint,), int),
    ("reply_to_group_id", _TEXT, None),
)


def _read_fields(fields: tuple[_Field, ...]) -> Callable[[Message, Any], None]:
    def section(message: Message, value: Any) -> None:
        if type(value) is not list or len(value) > len(fields):
            raise DecodeError(f"header and properties are lists, here of at most {len(fields)} fields")
        for item, (attribute, types, convert) in zip(value, fields, strict=False):
            if item is None:
                continue
            if type(item) not in types:
                raise DecodeError(f"the field {attribute} has a wrong type")
            setattr(message, attribute, item if convert is None else convert(item))

    return section


def _read_map(attribute: str) -> Callable[[Message, Any], None]:
    def section(message: Message, value: Any) -> None:
        if type(value) is not dict:
            raise DecodeError(f"the {attribute} are a map")
        setattr(message, attribute, value)

    return section


_ONE_KIND: Final = "the body is of one kind of section"


def _read_data(message: Message, value: Any) -> None:
    if type(value) is not bytes:
        raise DecodeError("an amqp-data section is binary")
    message.body = value
    message.inferred = True


def _read_sequence(message: Message, value: Any) -> None:
    if type(value) is not list:
        raise DecodeError("an amqp-sequence section is a list")
    if type(message.body) is bytes:
        raise DecodeError(_ONE_KIND)
    message.body = value
    message.inferred = True


def _read_body(message: Message, value: Any) -> None:
    if message.inferred:
        raise DecodeError(_ONE_KIND)
    message.body = value


_SECTIONS: Final[dict[int, Callable[[Message, Any], None]]] = {
    HEADER: _read_fields(_HEADER_FIELDS),
    DELIVERY_ANNOTATIONS: _read_map("instructions"),
    MESSAGE_ANNOTATIONS: _read_map("annotations"),
    PROPERTIES: _read_fields(_PROPERTY_FIELDS),
    APPLICATION_PROPERTIES: _read_map("properties"),
    DATA: _read_data,
    SEQUENCE: _read_sequence,
    VALUE: _read_body,
    FOOTER: lambda _message, _value: None,
}
_REPEATED: Final = frozenset({DATA, SEQUENCE})


# --- writing values --------------------
_OCTET: Final = tuple(bytes((number,)) for number in range(256))
_SMALL_LONGS: Final = {number: bytes((0x55, number & 0xFF)) for number in range(-128, 128)}
_LISTS: Final = frozenset({list, tuple})
_BINARIES: Final = frozenset({bytes, bytearray, memoryview})


def _write(pieces: list[bytes], value: Any, depth: int) -> None:
    kind = type(value)
    if kind is str or kind is bytes:
        octets = value.encode() if kind is str else value
        size = len(octets)

        if size < 256:
            pieces.append(bytes((0xA1 if kind is str else 0xA0, size)))
        else:
            pieces.append(_SIZED.pack(0xB1 if kind is str else 0xB0, size))
        pieces.append(octets)
    elif kind is int:
        if -128 <= value < 128:
            pieces.append(bytes((0x55, value & 0xFF)))
        else:
            pieces.append(_LONG.pack(0x81, value))
    elif kind is dict:
        _write_map(pieces, value.items(), len(value), depth)
    elif kind in _LISTS:
        _write_list(pieces, value, depth)
    elif kind is bool:
        pieces.append(b"\x41" if value else b"\x42")
    elif kind is float:
        pieces.append(_DOUBLE.pack(0x82, value))
    elif kind is _NONE:
        pieces.append(b"\x40")
    else:
        _write_unusual(pieces, bytes(value) if kind in _BINARIES else _converted(value), depth)


def _write_unusual(pieces: list[bytes], value: Any, depth: int) -> None:
    if type(value) is Described:
        _check_depth(depth)
        pieces.append(b"\x00")
        _write(pieces, value.descriptor, depth + 1)
        _write(pieces, value.value, depth + 1)
    else:
        pieces.append(encode(value))


def _write_list(pieces: list[bytes], value: list[Any] | tuple[Any, ...], depth: int) -> None:
    if not value:
        pieces.append(b"\x45")
        return
    _check_depth(depth)
    items: list[bytes] = []
    for item in value:
        _write(items, item, depth + 1)
    _write_compound(pieces, 0xD0, len(value), items)


def _write_map(pieces: list[bytes], pairs: Any, count: int, depth: int) -> None:
    _check_depth(depth)
    items: list[bytes] = []
    append = items.append
    for pair in pairs:
        for value in pair:  # short text and numbers without a call for each: maps consist of them
            kind = type(value)
            if kind is str and len(octets := value.encode()) < 256:
                append(b"\xa1" + _OCTET[len(octets)] + octets)
            elif kind is int:
                append(_SMALL_LONGS.get(value) or _LONG.pack(0x81, value))
            else:
                _write(items, value, depth + 1)
    _write_compound(pieces, 0xD1, 2 * count, items)


def _write_compound(pieces: list[bytes], constructor: int, count: int, items: list[bytes]) -> None:
    octets = b"".join(items)
    pieces.append(_COMPOUND.pack(constructor, len(octets) + 4, count))
    pieces.append(octets)


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise ValueError(f"values are nested deeper than {MAX_DEPTH}")


def _converted(value: Any) -> Any:
    """The value as one of the protocol's types, where its type is one of proton's."""
    kind = type(value)
    if kind.__module__.partition(".")[0] == "proton" and kind.__name__ in _OF_PROTON:
        return _OF_PROTON[kind.__name__](value)
    return value


_ELEMENT_TYPES: Final[dict[int, type]] = {
    2: bool,
    3: Ubyte,
    4: values.Byte,
    5: values.Ushort,
    6: values.Short,
    7: Uint,
    8: values.Int,
    9: values.Char,
    10: Ulong,
    11: Long,
    12: Timestamp,
    13: values.Float,
    14: float,
    18: UUID,
    19: bytes,
    20: str,
    21: Symbol,
}
"""The number that proton has for a type (`proton.Data.INT`, …) → the type of an array's elements."""


def _element(kind: type, value: Any) -> Value:
    element: Any = value
    if type(value) is not kind:
        element = kind(value)
    converted: Value = element
    return converted


def _array(value: Any) -> Array:
    """A `proton.Array` as the protocol has it; TypeError for one whose elements are compound."""
    kind = _ELEMENT_TYPES.get(value.type)
    if kind is None:
        raise TypeError(f"a proton.Array with elements of type {value.type} is not sent")
    is_described = repr(value.descriptor) != "UNDESCRIBED"
    descriptor: Value = _converted(value.descriptor)

    elements = [_element(kind, element) for element in value.elements]
    array = Array([Described(descriptor, element) for element in elements] if is_described else elements)
    array.empty_of = (b"\x00" + encode(descriptor) if is_described else b"") + element_constructor(kind)
    return array


_OF_PROTON: Final[dict[str, Callable[[Any], Any]]] = {
    "ubyte": Ubyte,
    "ushort": values.Ushort,
    "uint": Uint,
    "ulong": Ulong,
    "byte": values.Byte,
    "short": values.Short,
    "int32": values.Int,
    "long": Long,
    "timestamp": Timestamp,
    "char": values.Char,
    "symbol": Symbol,
    "float32": values.Float,
    "decimal32": lambda value: values.Decimal(0x74, struct.pack(">I", value)),
    "decimal64": lambda value: values.Decimal(0x84, struct.pack(">Q", value)),
    "decimal128": lambda value: values.Decimal(0x94, bytes(value)),
    "Described": lambda value: Described(value.descriptor, value.value),
    "Array": _array,
}
"""The name of a class of proton's → the value as the protocol has it."""


# --- reading values --------------------
class _UncommonValue(Exception):
    """The value is for the codec of the protocol: it is of another type, or it is none."""


def _read_value(octets: bytes, at: int) -> tuple[Any, int]:
    """The value at `at`, and where it ends; DecodeError."""
    try:
        return _read(octets, at, 0)
    except (_UncommonValue, ValueError, IndexError, TypeError, struct.error):
        value, at = decode_from(octets, at)
        return _plain(value), at


def _plain(value: Any) -> Any:
    """The value with integers of AMQP's type long as int; an array's elements keep their type."""
    kind = type(value)
    if kind is Long:
        return int(value)
    if kind is list:
        return [_plain(item) for item in value]
    if kind is dict:
        return {_plain(key): _plain(item) for key, item in value.items()}
    if kind is Described:
        return Described(_plain(value.descriptor), _plain(value.value))
    return value


def _read(octets: bytes, at: int, depth: int) -> tuple[Any, int]:
    """A value of one of the usual types, and where it ends."""
    constructor = octets[at]
    at += 1
    if constructor in _SHORT:
        stop = at + 1 + octets[at]
        return _text(octets, at + 1, stop, constructor == 0xA1), stop
    if constructor == 0x81:
        return _I64.unpack_from(octets, at)[0], at + 8
    if constructor == 0x55:
        return (octets[at] ^ 0x80) - 0x80, at + 1

    if constructor in _COMPOUNDS:
        return _read_compound(octets, at, constructor, depth)
    if constructor in _CONSTANTS:
        return _CONSTANTS[constructor], at
    if constructor == 0x82:
        return _F64.unpack_from(octets, at)[0], at + 8
    if constructor in _WIDE:
        stop = at + 4 + _U32.unpack_from(octets, at)[0]
        return _text(octets, at + 4, stop, constructor == 0xB1), stop
    raise _UncommonValue


_SHORT: Final = frozenset({0xA0, 0xA1})
_WIDE: Final = frozenset({0xB0, 0xB1})
_CONSTANTS: Final = {0x40: None, 0x41: True, 0x42: False}
_COMPOUNDS: Final = frozenset({0x45, 0xC0, 0xC1, 0xD0, 0xD1})


def _text(octets: bytes, at: int, stop: int, string: bool) -> str | bytes:
    if stop > len(octets):
        raise _UncommonValue
    if not string:
        return octets[at:stop]
    if 2 * (stop - at) > len(octets):  # nearly all of the message: not copied once more
        return str(memoryview(octets)[at:stop], "utf-8")
    return octets[at:stop].decode()


def _read_compound(octets: bytes, at: int, constructor: int, depth: int) -> tuple[Any, int]:
    if constructor == 0x45:
        return [], at
    if depth >= MAX_DEPTH:
        raise _UncommonValue

    if constructor < 0xD0:
        stop, count, at = at + 1 + octets[at], octets[at + 1], at + 2
    else:
        stop, count, at = at + 4 + _U32.unpack_from(octets, at)[0], _U32.unpack_from(octets, at + 4)[0], at + 8
    if stop > len(octets) or count > stop - at:
        raise _UncommonValue

    items: list[Any] = []
    append = items.append
    for _ in range(count):  # short text and numbers without a call for each; what is too long does not end at `stop`
        kind = octets[at]
        if kind == 0xA1:
            end = at + 2 + octets[at + 1]
            append(octets[at + 2 : end].decode())
            at = end
        elif kind == 0x55:
            append((octets[at + 1] ^ 0x80) - 0x80)
            at += 2
        elif kind == 0x81:
            append(_I64.unpack_from(octets, at + 1)[0])
            at += 9
        else:
            item, at = _read(octets, at, depth + 1)
            append(item)
    if at != stop or (constructor & count & 1):
        raise _UncommonValue
    return (_as_map(items) if constructor & 1 else items), stop


def _as_map(items: list[Any]) -> dict[Any, Any]:
    keys = items[::2]
    if keys_collide(keys):
        raise _UncommonValue
    return dict(zip(keys, items[1::2], strict=True))
