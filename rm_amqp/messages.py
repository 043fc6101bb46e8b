"""Messages as octets and back. proton's `Message` walks through every value of a body with several calls of its
library; what nearly all messages are made of is written and read here without that, and the rest by proton.

A message goes the short way if and only if it has no annotations, application properties (if any) and a body of null,
booleans, integers (long), floats (double), strings, binaries, lists and maps of these, and its body is one
amqp-value, or one data section. Header and properties are proton's in either case. The octets that are written are
proton's (a test compares them); what looks odd when it is read is left to proton, and so is every error.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from cproton_ffi import ffi  # type: ignore[import-not-found]
from proton import Array, Described, Message

from rm_amqp.engine import LIB
from rm_amqp.refusals import refusals
from xa import Code, xa_error

APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"
VALUE: Final = b"\x00\x53\x77"
DATA: Final = b"\x00\x53\x75"
BINARIES: Final = frozenset({0xA0, 0xB0})
SKIPPED: Final = frozenset({0x70, 0x73})
"""Sections that proton reads: header, properties."""
MAX_DEPTH: Final = 8
ROOM: Final = 512
"""Octets of header and properties, usually."""
_NONE: Final = type(None)
_LONG: Final = struct.Struct(">Bq")
_DOUBLE: Final = struct.Struct(">Bd")
_COMPOUND: Final = struct.Struct(">BII")
_SIZED: Final = struct.Struct(">BI")
_U32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")
_F64: Final = struct.Struct(">d")


class _LongWayError(Exception):
    """proton has to do it."""


# --- writing --------------------
def encoded(message: Any) -> bytes:
    """The octets of a proton.Message. XaMisuse: it holds a value that can't be sent, which is named."""
    short = type(message) is Message and not message.instructions and not message.annotations
    if short:
        try:
            pieces: list[bytes] = []
            if message.properties is not None:
                _write_properties(pieces, message.properties)
            if message.inferred or message.body is not None:
                pieces.append(_section(message))
                _write(pieces, message.body, 0)
            return b"".join((_head(message), *pieces))
        except (_LongWayError, ValueError, struct.error):
            pass
    try:
        return bytes(message.encode())
    except Exception as error:
        for what in ("body", "properties"):
            for why in refusals(f"the message's {what}", getattr(message, what, None)):
                raise xa_error(Code.XAER_INVAL, f"work: {why}") from error
        raise


def _section(message: Any) -> bytes:
    """What the body's section begins with."""
    if not message.inferred:
        return VALUE
    if type(message.body) is not bytes:
        raise _LongWayError
    return DATA


def _head(message: Message) -> bytes:
    """Header and properties."""
    pointer = message._msg  # noqa: SLF001 — of the library, which has no other name for it
    for part in (
        LIB.pn_message_instructions, LIB.pn_message_annotations, LIB.pn_message_properties, LIB.pn_message_body,
    ):  # fmt: skip
        LIB.pn_data_clear(part(pointer))
    buffer = bytearray(ROOM)
    count = LIB.pn_message_encode_py(pointer, ffi.from_buffer(buffer), ROOM)
    if count < 0:
        raise _LongWayError
    return bytes(memoryview(buffer)[:count])


def _write_properties(pieces: list[bytes], properties: Any) -> None:
    if type(properties) is not dict or not all(type(key) is str for key in properties):
        raise _LongWayError
    pieces.append(APPLICATION_PROPERTIES)
    _write(pieces, properties, 0)


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
    elif kind is dict or kind is list:
        _write_compound(pieces, value, kind, depth)
    elif kind is bool:
        pieces.append(b"\x41" if value else b"\x42")
    elif kind is float:
        pieces.append(_DOUBLE.pack(0x82, value))
    elif kind is _NONE:
        pieces.append(b"\x40")
    else:
        raise _LongWayError


def _write_compound(pieces: list[bytes], value: Any, kind: type, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise _LongWayError
    items: list[bytes] = []
    if kind is dict:
        for key, item in value.items():
            _write(items, key, depth + 1)
            _write(items, item, depth + 1)
        count, constructor = 2 * len(value), 0xD1
    elif value:
        for item in value:
            _write(items, item, depth + 1)
        count, constructor = len(value), 0xD0
    else:
        pieces.append(b"\x45")
        return
    octets = b"".join(items)
    pieces.append(_COMPOUND.pack(constructor, len(octets) + 4, count))
    pieces.append(octets)


# --- reading --------------------
def decoded(octets: bytes) -> Message:
    """The message; MessageException, ValueError or OverflowError where it is none."""
    message = Message()
    try:
        end, properties, body, inferred = _read_parts(octets)
    except (_LongWayError, ValueError, IndexError, TypeError, struct.error):
        return _decode(message, octets)
    pointer = message._msg  # noqa: SLF001 — as above
    if end and LIB.pn_message_decode(pointer, ffi.from_buffer(octets), end) < 0:
        return _decode(message, octets)
    message.properties, message.body, message.inferred = properties, body, inferred
    return message


def _decode(message: Message, octets: bytes) -> Message:
    """The long way. proton's binaries are views of memory that goes with the message: they become bytes, for whoever
    keeps a body and not its message."""
    message.decode(octets)
    message.body, message.properties = _kept(message.body), _kept(message.properties)
    message.annotations, message.instructions = _kept(message.annotations), _kept(message.instructions)
    return message


def _kept(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        items = [(_kept(key), _kept(item)) for key, item in value.items()]
        value.clear()
        value.update(items)
    elif isinstance(value, list):
        value[:] = map(_kept, value)
    elif isinstance(value, Described):
        value.value = _kept(value.value)
    elif isinstance(value, Array):
        value.elements = type(value.elements)(map(_kept, value.elements))
    return value


def _read_parts(octets: bytes) -> tuple[int, Any, Any, bool]:
    """Where the properties end, the application properties, the body, and whether that is a data section."""
    at, properties = 0, None
    while octets[at] == 0 and octets[at + 1] == 0x53 and octets[at + 2] in SKIPPED:
        at = _behind(octets, at + 3)
    end = at
    if octets.startswith(APPLICATION_PROPERTIES, at):
        properties, at = _read(octets, at + 3, 0)
        if type(properties) is not dict:
            raise _LongWayError
    inferred = octets.startswith(DATA, at) and octets[at + 3] in BINARIES
    if not inferred and not octets.startswith(VALUE, at):
        raise _LongWayError
    body, at = _read(octets, at + 3, 0)
    if at != len(octets):
        raise _LongWayError
    return end, properties, body, inferred


def _behind(octets: bytes, at: int) -> int:
    """Where the list ends that is at `at`."""
    constructor = octets[at]
    if constructor == 0x45:
        return at + 1
    if constructor == 0xC0:
        return at + 2 + octets[at + 1]
    if constructor == 0xD0:
        return at + 5 + int(_U32.unpack_from(octets, at + 1)[0])
    raise _LongWayError


def _read(octets: bytes, at: int, depth: int) -> tuple[Any, int]:
    """A value, and where it ends."""
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
    raise _LongWayError


_SHORT: Final = frozenset({0xA0, 0xA1})
_WIDE: Final = frozenset({0xB0, 0xB1})
_CONSTANTS: Final = {0x40: None, 0x41: True, 0x42: False}
_COMPOUNDS: Final = frozenset({0x45, 0xC0, 0xC1, 0xD0, 0xD1})


def _text(octets: bytes, at: int, stop: int, string: bool) -> str | bytes:
    if stop > len(octets):
        raise _LongWayError
    if not string:
        return octets[at:stop]
    if 2 * (stop - at) > len(octets):  # nearly all of the message: not copied once more
        return str(memoryview(octets)[at:stop], "utf-8")
    return octets[at:stop].decode()


def _read_compound(octets: bytes, at: int, constructor: int, depth: int) -> tuple[Any, int]:
    if constructor == 0x45:
        return [], at
    if depth >= MAX_DEPTH:
        raise _LongWayError
    if constructor < 0xD0:
        stop, count, at = at + 1 + octets[at], octets[at + 1], at + 2
    else:
        stop, count, at = at + 4 + _U32.unpack_from(octets, at)[0], _U32.unpack_from(octets, at + 4)[0], at + 8
    if stop > len(octets) or count > stop - at:
        raise _LongWayError
    value: Any
    if constructor & 1:
        value = {}
        for _ in range(count >> 1):
            key, at = _read(octets, at, depth + 1)
            value[key], at = _read(octets, at, depth + 1)
    else:
        value = []
        for _ in range(count):
            item, at = _read(octets, at, depth + 1)
            value.append(item)
    if at != stop or (constructor & count & 1):
        raise _LongWayError
    return value, stop
