"""The encoder of a sink: columns into AMQP messages. All messages are durable."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.encoding import encode
from dtx.amqp.messages import APPLICATION_PROPERTIES, DATA, HEADER, PROPERTIES, VALUE
from dtx.amqp.values import Described, Long, Symbol, Timestamp, Ubyte, Ulong

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from xabridge.pipeline.core.messages import Messages

DURABLE: Final = encode(Described(Ulong(HEADER), [True]))
_DATA: Final = b"\x00\x53" + bytes((DATA,))
_VALUE: Final = b"\x00\x53" + bytes((VALUE,))
_PROPERTIES: Final = b"\x00\x53" + bytes((PROPERTIES,))
_NULL: Final = b"\x40"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def encode_messages(messages: Messages) -> list[bytes]:
    """Each message as octets."""
    headers = _headers(messages)
    properties = _properties(messages)
    described = _described(messages)
    return [
        b"".join((header, fields, more, _body(body)))
        for header, fields, more, body in zip(headers, properties, described, messages.body, strict=False)
    ]


def _headers(messages: Messages) -> Iterable[bytes]:
    if messages.priority is None:
        return repeat(DURABLE)
    return (
        DURABLE if priority is None else encode(Described(Ulong(HEADER), [True, Ubyte(priority)]))
        for priority in messages.priority
    )


def _described(messages: Messages) -> Iterable[bytes]:
    if messages.application_properties is None:
        return repeat(b"")
    return (
        encode(Described(Ulong(APPLICATION_PROPERTIES), {name: _simple(value) for name, value in properties.items()}))
        if properties
        else b""
        for properties in messages.application_properties
    )


def _properties(messages: Messages) -> Iterable[bytes]:
    columns: list[Sequence[Any] | None] = [
        messages.message_id,
        None,
        None,
        messages.subject,
        messages.reply_to,
        messages.correlation_id,
        messages.content_type,
        None,
        None,
        messages.creation_time_ms,
        messages.group_id,
    ]
    while columns and columns[-1] is None:
        columns.pop()
    if not columns:
        return repeat(b"")

    writers = [_text, _text, _text, _text, _text, _text, _symbol, _symbol, _time, _time, _text]
    return (
        _list([write(value) for write, value in zip(writers, values, strict=False)])
        for values in zip(*(repeat(None) if column is None else column for column in columns), strict=False)
    )


def _simple(value: Any) -> Any:
    """The value of an application property. Decimals, dates and times without a zone are text, because AMQP has no such
    types that are in use."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return Long(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return Timestamp((value - _EPOCH) // _MILLISECOND)
    if isinstance(value, date):
        return value.isoformat()
    return f"{value:f}" if isinstance(value, Decimal) else value


def _list(items: list[bytes]) -> bytes:
    octets = b"".join(items)
    if len(octets) < 255:
        return b"".join((_PROPERTIES, b"\xc0", bytes((len(octets) + 1, len(items))), octets))
    return b"".join((_PROPERTIES, b"\xd0", (len(octets) + 4).to_bytes(4, "big"), len(items).to_bytes(4, "big"), octets))


def _text(value: Any) -> bytes:
    if value is None:
        return _NULL
    octets = value.encode("utf-8") if type(value) is str else str(value).encode("utf-8")
    if len(octets) < 256:
        return b"\xa1" + bytes((len(octets),)) + octets
    return b"\xb1" + len(octets).to_bytes(4, "big") + octets


def _symbol(value: Any) -> bytes:
    return _NULL if value is None else encode(Symbol(value))


def _time(value: Any) -> bytes:
    return _NULL if value is None else encode(Timestamp(value))


def _body(body: bytes | str | None) -> bytes:
    if body is None:
        return _VALUE + _NULL
    if isinstance(body, str):
        return _VALUE + _text(body)
    count = len(body)
    if count < 256:
        return b"".join((_DATA, b"\xa0", bytes((count,)), body))
    return b"".join((_DATA, b"\xb0", count.to_bytes(4, "big"), body))
