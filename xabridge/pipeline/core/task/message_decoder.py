"""The decoder of a source: AMQP messages into columns.

It reads hundreds of thousands of messages at a time, so frequent sections are read directly from the octets, without
making AMQP values of them. A message that can't be read, or that the user's function `bad_records` names bad, is left
out, and its place is noted; or it is kept as a row with the reason.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.composites import WireError
from dtx.amqp.decoding import DecodeError, decode_from, skip
from dtx.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    read_header,
)
from dtx.amqp.values import Symbol
from dtx.protocol.addresses import ORIGIN_QUEUE
from xabridge.pipeline.core.messages import Messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from dtx.amqp.messages import Header
    from dtx.amqp.values import Value

SHORT: Final = 3
"""Where the value of a message's first section begins, where its descriptor has its short form."""
NORMAL: Final = 4
"""The priority of a message that has none."""
_FIELDS: Final = ("message_id", None, None, "subject", "reply_to", "correlation_id", "content_type", None, None,
                  "creation_time_ms", "group_id")  # fmt: skip
"""The fields of the properties section that are columns, by their place."""
_KEPT: Final = tuple((place, name) for place, name in enumerate(_FIELDS) if name is not None)


class _Columns:
    """The columns of a chunk. A column is made when the first message has a value for it."""

    def __init__(self) -> None:
        self.body: list[Any] = []
        self.address: list[str | None] = []
        self.annotated: str | None = None
        """The queue in the delivery annotations of the message that is being read."""
        self.raw: list[bytes | str | None] = []
        """The bodies as they came, where they are needed."""
        self._others: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return len(self.body)

    def put(self, name: str, value: Any) -> None:
        """The value of the current message in a column."""
        column = self._others.get(name)
        count = len(self.body)
        if column is None:
            column = self._others[name] = []
        if len(column) < count:
            column.extend([None] * (count - len(column)))
        column.append(value)

    def drop(self) -> None:
        """Forgets the values of the current message."""
        count = len(self.body)
        for column in self._others.values():
            del column[count:]

    def end(self, body: Any, address: str | None) -> None:
        """The message is read."""
        self.body.append(body)
        self.address.append(address)

    def messages(self) -> Messages:
        """The columns."""
        count = len(self.body)
        for column in self._others.values():
            if len(column) < count:
                column.extend([None] * (count - len(column)))
        return Messages(self.body, self.address, **self._others)


@dataclass(slots=True)
class MessageFilter:
    """Which messages are left out: those at the first `aside` places; those that can't be read (with `text`, also those
    whose body is not UTF-8); and those that `is_bad` gives a reason for. `bad`: place → reason, of the latter two.
    `body` makes the value of the column body from a body; ValueError: it can't, and the message can't be read. With
    `keep` bad messages are not left out: they have the column `bad`."""

    aside: int = 0
    text: bool = False
    is_bad: Callable[[Mapping[str, Any]], object] | None = None
    body: Callable[[bytes | str | None], Any] | None = None
    keep: bool = False
    bad: dict[int, str] = field(default_factory=dict)


def decode_messages(
    messages: Iterable[tuple[str | None, bytes]], chunk: int, sorting: MessageFilter | None = None
) -> Iterator[Messages]:
    """Messages by columns, at most `chunk` at a time. Each comes with the queue that it was taken from, or None where
    its delivery annotations tell it, as in a browse of a branch."""
    kept = sorting if sorting is not None else MessageFilter()
    numbered = enumerate(messages)
    for _ in islice(numbered, kept.aside):
        pass

    while some := list(islice(numbered, chunk)):
        columns = _Columns()
        places = [place for place, (address, octets) in some if _read(place, octets, address, columns, kept)]
        read = columns.messages()
        if kept.is_bad is not None:
            named = _named_bad(read, kept.is_bad)
            if kept.keep:
                read = _with_reasons(read, named, columns.raw)
            else:
                kept.bad |= {places[at]: why for at, why in named.items()}
                read = _without(read, frozenset(named))
        if len(read):
            yield read


def _named_bad(messages: Messages, is_bad: Callable[[Mapping[str, Any]], object]) -> dict[int, str]:
    """The places of the messages for which the function gives a reason, and the reasons."""
    names = [one.name for one in fields(messages) if one.name != "bad" and getattr(messages, one.name) is not None]
    columns = zip(*(getattr(messages, name) for name in names), strict=True)
    named = {}
    for at, values in enumerate(columns):
        if messages.bad is None or messages.bad[at] is None:
            why = is_bad(dict(zip(names, values, strict=True)))
            if why:
                named[at] = str(why)
    return named


def _with_reasons(messages: Messages, named: Mapping[int, str], raw: Sequence[bytes | str | None]) -> Messages:
    """The messages, of which those at these places are bad."""
    if not named:
        return messages
    bad = list(messages.bad or [None] * len(messages))
    body = list(messages.body)
    for at, why in named.items():
        body[at], bad[at] = None, (_octets(raw[at]), why)
    return replace(messages, body=body, bad=bad)


def _octets(body: bytes | str | None) -> bytes | None:
    return body.encode(errors="surrogatepass") if isinstance(body, str) else body


def _without(messages: Messages, left_out: frozenset[int]) -> Messages:
    if not left_out:
        return messages
    kept = [at for at in range(len(messages)) if at not in left_out]
    columns: dict[str, Any] = {one.name: getattr(messages, one.name) for one in fields(messages)}
    chosen = {name: [column[at] for at in kept] for name, column in columns.items() if column is not None}
    return replace(messages, **chosen)


def _read(place: int, octets: bytes, address: str | None, columns: _Columns, sorting: MessageFilter) -> bool:
    """Reads a message into the columns. False: it is bad, and left out."""
    raw: bytes | str | None = octets
    value: Any = None
    sections = False
    try:
        raw = _sections(octets, columns)
        sections = True
        body = raw.decode("utf-8") if sorting.text and type(raw) is bytes else raw
        value = body if sorting.body is None else sorting.body(body)
    except (DecodeError, WireError, ValueError, IndexError) as error:
        why = f"it can't be read: {error}"
        if not sections or not sorting.keep:
            columns.drop()
        if not sorting.keep:
            sorting.bad[place] = why
            return False
        value = None
        columns.put("bad", (_octets(raw), why))

    if sorting.keep:
        columns.raw.append(raw)
    columns.end(value, address if address is not None else columns.annotated)
    return True


def _sections(octets: bytes, columns: _Columns) -> bytes | str | None:
    """Reads a message, and gives its body."""
    body: bytes | str | None = None
    parts: list[bytes] = []
    columns.annotated = None
    at, end = 0, len(octets)
    while at < end:
        if octets[at] or octets[at + 1] != 0x53:
            at, code = _long_section(octets, at)
        else:
            code = octets[at + 2]
            at += 3

        if code == DATA:
            start, at = _binary(octets, at)
            parts.append(octets[start:at])
        elif code in {VALUE, SEQUENCE}:
            body, at = _value(octets, at)
        else:
            at = _READERS.get(code, _skipped)(octets, at, columns)
    if parts:
        return parts[0] if len(parts) == 1 else b"".join(parts)
    return body


def _skipped(octets: bytes, at: int, _columns: _Columns) -> int:
    return skip(octets, at)


@lru_cache(maxsize=256)
def _known_header(octets: bytes) -> Header:
    """Most messages have one of a few headers."""
    return read_header(octets)


def _header(octets: bytes, at: int, columns: _Columns) -> int:
    short = at == SHORT and octets[at] == 0xC0
    header = _known_header(octets[: at + 2 + octets[at + 1]]) if short else read_header(octets)
    if header.end <= at:
        raise DecodeError("the header is not the first section")
    if header.delivery_count:
        columns.put("delivery_count", header.delivery_count)
    if header.priority != NORMAL:
        columns.put("priority", header.priority)
    return header.end


def _origin(octets: bytes, at: int, columns: _Columns) -> int:
    value, end = decode_from(octets, at)
    if type(value) is not dict:
        raise DecodeError("the delivery annotations are no map")
    annotated = value.get(Symbol(ORIGIN_QUEUE))
    columns.annotated = annotated if isinstance(annotated, str) else None
    return end


def _map_into(name: str) -> Callable[[bytes, int, _Columns], int]:
    def read(octets: bytes, at: int, columns: _Columns) -> int:
        value, end = decode_from(octets, at)
        if type(value) is not dict:
            raise DecodeError(f"{name} is no map")
        columns.put(name, {str(key): text_of(item) for key, item in value.items()})
        return end

    return read


def _long_section(octets: bytes, at: int) -> tuple[int, int]:
    """Where the value of a section begins whose descriptor is not in its short form, and its code."""
    if octets[at]:
        raise DecodeError(f"a section has to be a described value; there is none at {at}")
    descriptor, start = decode_from(octets, at + 1)
    if isinstance(descriptor, int):
        return start, int(descriptor)
    raise DecodeError(f"there is no section of a message at {at}")


def _binary(octets: bytes, at: int) -> tuple[int, int]:
    kind = octets[at]
    if kind == 0xA0:
        start = at + 2
        end = start + octets[at + 1]
    elif kind == 0xB0:
        start = at + 5
        end = start + int.from_bytes(octets[at + 1 : start], "big")
    else:
        raise DecodeError(f"a data section has to be binary; there is none at {at}")
    if end > len(octets):
        raise DecodeError(f"a value at {at} is cut off")
    return start, end


def _value(octets: bytes, at: int) -> tuple[bytes | str | None, int]:
    value, end = decode_from(octets, at)
    return (value if type(value) is bytes else text_of(value)), end


def _properties(octets: bytes, at: int, columns: _Columns) -> int:
    if octets[at] != 0xC0:  # a list of one octet's size; the others are rare
        items, end = decode_from(octets, at)
        if type(items) is not list:
            raise DecodeError("the properties are no list")
        for place, name in _KEPT:
            if place < len(items) and items[place] is not None:
                columns.put(name, _property(name, items[place]))
        return end
    end = at + 2 + octets[at + 1]
    count = octets[at + 2]
    at += 3
    value: Value
    for place in range(count):
        kind = octets[at]
        if kind == 0x40:
            at += 1
            continue

        if kind in {0xA1, 0xA3}:
            stop = at + 2 + octets[at + 1]
            value = octets[at + 2 : stop].decode("utf-8")
            at = stop
        else:
            value, at = decode_from(octets, at)
        field = _FIELDS[place] if place < len(_FIELDS) else None
        if field is not None:
            columns.put(field, _property(field, value))

    if at != end or end > len(octets):
        raise DecodeError("the properties don't end where their size says")
    return end


def _property(name: str, value: Any) -> Any:
    if name == "creation_time_ms":
        return int(value)
    return value if type(value) is str else text_of(value)


def text_of(value: Value) -> str | None:
    """A value of AMQP as text: octets in hex, lists and maps as JSON."""
    if value is None:
        return None
    if type(value) is str:
        return value
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(text_of(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)


_READERS: Final[dict[int, Callable[[bytes, int, _Columns], int]]] = {
    HEADER: _header,
    DELIVERY_ANNOTATIONS: _origin,
    MESSAGE_ANNOTATIONS: _map_into("annotations"),
    PROPERTIES: _properties,
    APPLICATION_PROPERTIES: _map_into("application_properties"),
}
