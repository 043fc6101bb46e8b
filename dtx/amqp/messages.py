"""Messages as octets: the sections of AMQP 1.0 as far as a resource and its controllers have to look at them.

A message is a sequence of described values, in this order, each at most once but for the body: header (70),
delivery-annotations (71), message-annotations (72), properties (73), application-properties (74), body (75
data, 76 amqp-sequence, 77 amqp-value), footer (78). A resource stores and forwards messages as the octets
that they are; what it changes, the header and the delivery annotations, stands in front, and the rest is
never decoded. `check_sections` says whether octets are such a sequence; what a store of an earlier version holds
may be none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import DecodeError, decode, decode_from, entries, find, list_head, skip
from dtx.amqp.encoding import encode, encode_list, encode_pairs
from dtx.amqp.values import Byte, Described, Symbol, Timestamp, Ubyte, Uint, Ulong

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dtx.amqp.values import Map, Value

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

_NAMES: Final = {
    Symbol("amqp:header:list"): HEADER,
    Symbol("amqp:delivery-annotations:map"): DELIVERY_ANNOTATIONS,
    Symbol("amqp:message-annotations:map"): MESSAGE_ANNOTATIONS,
    Symbol("amqp:properties:list"): PROPERTIES,
    Symbol("amqp:application-properties:map"): APPLICATION_PROPERTIES,
    Symbol("amqp:data:binary"): DATA,
    Symbol("amqp:amqp-sequence:list"): SEQUENCE,
    Symbol("amqp:amqp-value:*"): VALUE,
    Symbol("amqp:footer:map"): FOOTER,
}


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says that matters to a queue; `end` is where the section ends, 0 where there is none."""

    durable: bool = False
    priority: int = 4
    ttl_ms: int | None = None
    delivery_count: int = 0
    end: int = 0
    first_acquirer: bool = False


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """What a message says, behind its header, that matters to a queue. Times are milliseconds, 0 and "" are for what it
    does not say."""

    due_ms: int = 0
    """When it may be delivered, since the epoch."""
    delay_ms: int = 0
    """How long after it was posted it may be delivered."""
    expires_ms: int = 0
    """When it is of no use any more, since the epoch."""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """A request: the value in its body, still encoded, and where the response goes. `correlation` is what the
    response carries as correlation-id, in the type in which it came."""

    body: bytes
    reply_to: str | None
    correlation: Value
    application: bytes
    """Its application properties, still encoded; empty where it has none."""

    def application_properties(self) -> Map:
        """Its application properties; WireError where they are none."""
        if not self.application:
            return {}
        try:
            value = decode(self.application)
        except DecodeError as error:
            raise WireError(Condition.DECODE_ERROR, f"application-properties: {error}") from None
        if type(value) is not dict:
            raise WireError(Condition.INVALID_FIELD, "application-properties are a map")
        return value


NO_HEADER: Final = Header()
NO_FACTS: Final = MessageFacts()
DELIVERY_TIME: Final = "x-opt-delivery-time"
DELIVERY_DELAY: Final = "x-opt-delivery-delay"
"""Message annotations that say when a message may be delivered, or how long after it was posted: those that Qpid JMS
and ActiveMQ Artemis know."""
_DELAYS: Final = frozenset({DELIVERY_TIME.encode(), DELIVERY_DELAY.encode()})
_JMS_DESTINATION: Final = b"x-opt-jms-dest"
MAX_ANNOTATIONS: Final = 65_536
"""Octets of the message annotations of which a broker reads what it needs."""
_NO_PROPERTIES: Final = bytes((0x00, 0x53, PROPERTIES, 0x45))
"""Properties that say nothing, as our own client writes them."""
_ABOUT_DELIVERY: Final = b"x-opt-delivery-"
_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""
_PASSED_MS: Final = 1
"""For what has expired before the epoch, since 0 stands for nothing."""
_EXPIRY: Final = 8
_GROUP: Final = 10
"""The places of absolute-expiry-time and group-id among the properties."""
_REQUEST_FIELDS: Final = (0, 4, 5)
"""The places of message-id, reply-to and correlation-id."""
_IDS: Final = frozenset({Ulong, UUID, bytes, str})
_PROPERTIES: Final = b"\x00" + encode(Ulong(PROPERTIES))
_JMS_TOPICS: Final = frozenset({Byte(1), Byte(3)})
"""What JMS calls a topic and a temporary topic."""
_ANNOTATIONS: Final = b"\x00" + encode(Ulong(MESSAGE_ANNOTATIONS))
_VALUE: Final = b"\x00" + encode(Ulong(VALUE))
_NO_ADDRESSES: Final = (b"\x40",) * 5
"""The fields of the properties in front of the correlation-id, null."""


def read_section(octets: bytes, at: int) -> tuple[int, int]:
    """The code of the section that begins at `at`, and where its value begins."""
    if octets[at : at + 2] == b"\x00\x53" and len(octets) > at + 2:
        code = octets[at + 2]
        if HEADER <= code <= FOOTER:
            return code, at + 3
    if octets[at : at + 1] != b"\x00":
        raise DecodeError(f"a section has to be a described value; there is none at {at}")
    descriptor, start = decode_from(octets, at + 1)
    code = 0
    if type(descriptor) is Symbol:
        code = _NAMES.get(descriptor, 0)
    elif type(descriptor) is Ulong:
        code = int(descriptor)
    if not HEADER <= code <= FOOTER:
        raise DecodeError(f"there is no section of a message at {at}")
    return code, start


_BEHIND: Final[dict[int, frozenset[int]]] = {
    0: frozenset(range(HEADER, FOOTER)),
    **{code: frozenset(range(code + 1, FOOTER)) for code in range(HEADER, DATA)},
    DATA: frozenset({DATA, FOOTER}),
    SEQUENCE: frozenset({SEQUENCE, FOOTER}),
    VALUE: frozenset({FOOTER}),
    FOOTER: frozenset(),
}
"""Which sections may stand behind a section; 0 is for the beginning of a message."""
_SHORT_BODIES: Final = frozenset(bytes((0x00, 0x53, *end)) for end in ((DATA, 0xA0), (VALUE, 0xA0), (VALUE, 0xA1)))
_LONG_BODIES: Final = frozenset(bytes((0x00, 0x53, *end)) for end in ((DATA, 0xB0), (VALUE, 0xB0), (VALUE, 0xB1)))
"""How bodies of octets and text begin; the number of these follows, in one octet or in four."""


def check_sections(octets: bytes, at: int) -> None:
    """WireError unless the octets behind the header, which ends at `at`, are the other sections of a message: in their
    order, with a body, and nothing behind them. `at` is 0 for a message without a header. A message that has properties
    needs no body."""
    if _has_one_body(octets, at):
        return
    try:
        _check_sections(octets, at)
    except DecodeError as error:
        raise WireError(Condition.DECODE_ERROR, str(error)) from None


def _has_one_body(octets: bytes, at: int) -> bool:
    """Whether one section with octets or text is all that stands there, behind properties that say nothing: so are most
    messages."""
    if octets[at : at + 4] == _NO_PROPERTIES:
        at += 4
    begin = octets[at : at + 4]
    if begin in _SHORT_BODIES:
        return len(octets) > at + 4 and at + 5 + octets[at + 4] == len(octets)
    return begin in _LONG_BODIES and at + 8 + int.from_bytes(octets[at + 4 : at + 8], "big") == len(octets)


def _check_sections(octets: bytes, at: int) -> None:
    last, end = HEADER if at else 0, len(octets)
    behind = _BEHIND[last]
    while at < end:
        code, start = read_section(octets, at)
        if code not in behind:
            raise DecodeError(f"section {code:#x} is at the wrong place")
        at = skip(octets, start)
        last, behind = code, _BEHIND[code]
    if last < PROPERTIES:  # with properties Qpid JMS and proton leave out a body that says nothing
        raise DecodeError("a message has a body")


def read_header(octets: bytes) -> Header:
    """The header in front of a message; WireError when the message begins with no section, or a wrong
    header."""
    begin = octets[:4]
    if begin == _EMPTY:
        return _EMPTY_HEADER
    if begin[:3] in _NOT_A_HEADER:
        return NO_HEADER
    if begin == _SHORT and octets[4:5] < _LONGEST:
        return _short_header(octets[: 5 + int.from_bytes(octets[4:5], "big")])
    return _header(octets)


def _header(octets: bytes) -> Header:
    try:
        code, start = read_section(octets, 0)
        if code != HEADER:
            return NO_HEADER
        items, end = decode_from(octets, start)
    except DecodeError as error:
        raise WireError(Condition.DECODE_ERROR, f"header: {error}") from None
    if type(items) is not list or len(items) > 5:
        raise WireError(Condition.INVALID_FIELD, "the header is a list of at most 5 fields")

    durable, priority, ttl, first, count = (*items, None, None, None, None, None)[:5]
    if (
        (durable is not None and not isinstance(durable, bool))
        or (priority is not None and not isinstance(priority, Ubyte))
        or (ttl is not None and not isinstance(ttl, Uint))
        or (first is not None and not isinstance(first, bool))
        or (count is not None and not isinstance(count, Uint))
    ):
        raise WireError(Condition.INVALID_FIELD, "a field of the header has a wrong type")
    return Header(bool(durable), 4 if priority is None else int(priority), ttl, int(count or 0), end, bool(first))


_NOT_A_HEADER: Final = frozenset(bytes((0x00, 0x53, code)) for code in range(HEADER + 1, FOOTER + 1))
_EMPTY: Final = bytes((0x00, 0x53, HEADER, 0x45))
"""A header without fields, as proton and our own client write it."""
_EMPTY_HEADER: Final = Header(end=len(_EMPTY))
_SHORT: Final = bytes((0x00, 0x53, HEADER, 0xC0))
_LONGEST: Final = b"\x20"
"""Of so many octets or more it is not worth remembering a header."""
_short_header: Final = lru_cache(maxsize=256)(_header)
"""Headers are few, and come thousands of times."""


def read_facts(octets: bytes, at: int) -> MessageFacts:
    """What a message says to a queue behind its header, which ends at `at`. What can't be read there says nothing: a
    message is taken as it is. WireError for a time that is none, or that stands in annotations that are too long, since
    the sender relies on it."""
    if octets[at : at + 4] == _NO_PROPERTIES:
        return NO_FACTS
    due_ms = delay_ms = 0

    try:
        while at < len(octets):
            code, start = read_section(octets, at)
            if code > PROPERTIES:
                break
            if code == PROPERTIES:
                expires_ms, group = _read_properties(octets, start)
                if expires_ms or group:
                    return MessageFacts(due_ms, delay_ms, expires_ms, group)
                break
            at = skip(octets, start)
            if code == MESSAGE_ANNOTATIONS and octets.find(_ABOUT_DELIVERY, start, at) >= 0:
                _check_size(at - start)
                due_ms, delay_ms = _read_delivery(octets, start)
    except DecodeError:
        return NO_FACTS
    return MessageFacts(due_ms, delay_ms) if due_ms or delay_ms else NO_FACTS


def read_notes(octets: bytes, at: int, names: frozenset[bytes]) -> dict[bytes, Value]:
    """What the message annotations, or else the application properties, have under these names, behind the header,
    which ends at `at`. Of a section that can't be read, or is longer than MAX_ANNOTATIONS, there is nothing."""
    found: dict[bytes, Value] = {}
    try:
        while at < len(octets):
            code, start = read_section(octets, at)
            if code > APPLICATION_PROPERTIES:
                break
            at = skip(octets, start)
            if code in {MESSAGE_ANNOTATIONS, APPLICATION_PROPERTIES} and at - start <= MAX_ANNOTATIONS:
                found = find(octets, start, names) | found
    except DecodeError:
        return found
    return found


def _check_size(octets: int) -> None:
    if octets > MAX_ANNOTATIONS:
        limit = f"{MAX_ANNOTATIONS} are allowed where a broker has to read them"
        raise WireError(Condition.INVALID_FIELD, f"message annotations of {octets} octets; {limit}")


def _read_delivery(octets: bytes, start: int) -> tuple[int, int]:
    annotations = find(octets, start, _DELAYS)
    due_ms, delay_ms = (_milliseconds(name, annotations.get(name.encode())) for name in (DELIVERY_TIME, DELIVERY_DELAY))
    return due_ms, delay_ms


def _milliseconds(name: str, value: Value) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LATEST_MS:
        raise WireError(Condition.INVALID_FIELD, f"{name} is a number of milliseconds")
    return int(value)


def _read_properties(octets: bytes, start: int) -> tuple[int, str]:
    """The absolute-expiry-time and the group-id; nothing else is decoded. A time before 1970 has passed, and 0 says
    nothing, as some clients write it."""
    at, stop, count = list_head(octets, start, len(octets))
    if count <= _EXPIRY:
        return 0, ""
    for _ in range(_EXPIRY):
        at = skip(octets, at, stop)
    expires_ms, group = 0, ""
    value, at = decode_from(octets, at, stop)
    if type(value) is Timestamp:
        expires_ms = min(int(value), _LATEST_MS) if value >= 0 else _PASSED_MS
    if count > _GROUP:
        value, _ = decode_from(octets, skip(octets, at, stop), stop)
        if type(value) is str:
            group = value
    return expires_ms, group


def with_header(octets: bytes, header: Header, *, delivery_count: int, ttl_ms: int | None) -> bytes:
    """The message with a header that tells `delivery_count` and `ttl_ms`; `header` is what `read_header`
    found."""
    items: list[Value] = [
        header.durable or None,
        Ubyte(header.priority) if header.priority != 4 else None,
        None if ttl_ms is None else Uint(min(ttl_ms, 0xFFFF_FFFF)),
        None,
        Uint(delivery_count) if delivery_count else None,
    ]
    while items and items[-1] is None:
        items.pop()
    section = encode(Described(Ulong(HEADER), items)) if items else b""
    return section + octets[header.end :]


def with_delivery_annotations(octets: bytes, annotations: Map) -> bytes:
    """The message with these delivery annotations in place of those that it has."""
    at = read_header(octets).end
    end = at
    try:
        if at < len(octets) and read_section(octets, at)[0] == DELIVERY_ANNOTATIONS:
            end = skip(octets, at)
    except DecodeError:
        end = at  # it was taken as it is, and is passed on as it is
    section = encode(Described(Ulong(DELIVERY_ANNOTATIONS), annotations))
    return octets[:at] + section + octets[end:]


def with_message_annotations(octets: bytes, annotations: Map, *, without: str = "") -> bytes:
    """The message with these message annotations beside those that it has, but for those of its own that would delay it
    again, or begin with `without`; WireError where it has something else in their place."""
    found = _front_of(octets)
    start, behind = found.get(MESSAGE_ANNOTATIONS, (0, 0))
    kept = _without(octets, start, {*_DELAYS, *[str(name).encode() for name in annotations]}, without) if start else []
    count = 2 * (len(kept) + len(annotations))
    added = b"".join([encode(name) + encode(value) for name, value in annotations.items()])
    before = max((found[code][1] for code in (HEADER, DELIVERY_ANNOTATIONS) if code in found), default=0)
    section = _ANNOTATIONS + encode_pairs(count, b"".join(kept) + added)
    return octets[:before] + section + octets[behind or before :]


def _without(octets: bytes, start: int, names: set[bytes], prefix: str) -> list[bytes]:
    """The entries of annotations, encoded, but for those with these names or this prefix."""
    unwanted = prefix.encode()
    try:
        return [
            octets[key_at:end]
            for name, key_at, _, end in entries(octets, start)
            if name not in names and not (unwanted and name.startswith(unwanted))
        ]
    except DecodeError as error:
        raise WireError(Condition.DECODE_ERROR, f"message annotations: {error}") from None


def _sections(octets: bytes, before: int = FOOTER + 1) -> dict[int, tuple[int, int]]:
    """Where the value of each section begins and ends, of those in front of the first one whose code is `before`, or a
    later one."""
    found: dict[int, tuple[int, int]] = {}
    at = 0
    last = 0
    while at < len(octets):
        code, start = read_section(octets, at)
        if code >= before:
            break
        at = skip(octets, start)
        if code in found or code < last:
            raise DecodeError(f"section {code:#x} is at the wrong place")
        found[code] = (start, at)
        last = code
    return found


def body_value(octets: bytes | bytearray) -> bytes:
    """The value, still encoded, of a message whose body is one amqp-value section; WireError for any
    other."""
    octets = bytes(octets)
    if octets.startswith(_VALUE):  # nearly every command
        try:
            if skip(octets, len(_VALUE)) == len(octets):
                return octets[len(_VALUE) :]
        except DecodeError as error:
            raise WireError(Condition.DECODE_ERROR, str(error)) from None
    return _body(octets, _sections_of(octets))


def _sections_of(octets: bytes, before: int = FOOTER + 1) -> dict[int, tuple[int, int]]:
    try:
        return _sections(octets, before)
    except DecodeError as error:
        raise WireError(Condition.DECODE_ERROR, str(error)) from None


def _front_of(octets: bytes) -> dict[int, tuple[int, int]]:
    """The sections in front of the body, which may have any number of sections itself."""
    return _sections_of(octets, DATA)


def _body(octets: bytes, found: dict[int, tuple[int, int]]) -> bytes:
    if VALUE not in found or DATA in found or SEQUENCE in found:
        raise WireError(Condition.DECODE_ERROR, "the body is to be a single amqp-value section")
    start, end = found[VALUE]
    return octets[start:end]


def read_request(octets: bytes) -> Request:
    """A message as a request; WireError where it can't be one. Some clients leave a body out that says nothing:
    it is empty then."""
    found = _sections_of(octets)
    body = _body(octets, found) if DATA in found or SEQUENCE in found or VALUE in found else b""
    try:
        message_id, reply_to, correlation = _fields(octets, found, _REQUEST_FIELDS)
    except DecodeError as error:
        raise WireError(Condition.DECODE_ERROR, f"properties: {error}") from None
    if reply_to is not None and type(reply_to) is not str:
        raise WireError(Condition.INVALID_FIELD, "reply-to is a string")
    if correlation is None:
        correlation = message_id
    if correlation is not None and type(correlation) not in _IDS:
        raise WireError(Condition.INVALID_FIELD, "a correlation-id is a ulong, a UUID, binary or a string")
    start, end = found.get(APPLICATION_PROPERTIES, (0, 0))
    return Request(body, reply_to, correlation, octets[start:end])


def _fields(octets: bytes, found: dict[int, tuple[int, int]], places: Sequence[int]) -> list[Value]:
    """The fields of the properties at these places, in this order; nothing else is decoded."""
    values: list[Value] = []
    if PROPERTIES in found:
        at, stop, count = list_head(octets, *found[PROPERTIES])
        for place in range(min(count, places[-1] + 1)):
            if place in places:
                value, at = decode_from(octets, at, stop)
                values.append(value)
            else:
                at = skip(octets, at, stop)
    return values + [None] * (len(places) - len(values))


def _properties(octets: bytes, found: dict[int, tuple[int, int]]) -> list[Value]:
    if PROPERTIES not in found:
        return []
    value = _value(octets, found, PROPERTIES)
    if type(value) is not list:
        raise WireError(Condition.INVALID_FIELD, f"section {PROPERTIES:#x} is a list")
    return value


def _value(octets: bytes, found: dict[int, tuple[int, int]], code: int) -> Value:
    start, end = found[code]
    try:
        return decode(octets[start:end])
    except DecodeError as error:
        raise WireError(Condition.DECODE_ERROR, f"section {code:#x}: {error}") from None


def read_destination(octets: bytes) -> tuple[str | None, bool]:
    """The address in the properties of a message, None where it has none, and whether its sender means a topic (in the
    mapping of JMS, which says so in an annotation). WireError for what is no message."""
    found = _front_of(octets)
    properties = _properties(octets, found)
    to = properties[2] if len(properties) > 2 else None
    if to is not None and type(to) is not str:
        raise WireError(Condition.INVALID_FIELD, "to is a string")
    return to, _destination_kind(octets, found) in _JMS_TOPICS


def _destination_kind(octets: bytes, found: dict[int, tuple[int, int]]) -> Value:
    """What a client of JMS says of the kind of its destination."""
    if MESSAGE_ANNOTATIONS not in found:
        return None
    start, end = found[MESSAGE_ANNOTATIONS]
    _check_size(end - start)
    try:
        value = find(octets, start, (_JMS_DESTINATION,)).get(_JMS_DESTINATION)
    except DecodeError as error:
        raise WireError(Condition.DECODE_ERROR, f"message annotations: {error}") from None
    return value if type(value) is Byte else None


def with_to(octets: bytes, address: str) -> bytes:
    """The message with `address` as the `to` of its properties; WireError for what is no message."""
    found = _front_of(octets)
    properties = _properties(octets, found)
    properties += [None] * (3 - len(properties))
    properties[2] = address
    before = [DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, HEADER]
    at = max((found[code][1] for code in before if code in found), default=0)
    end = found[PROPERTIES][1] if PROPERTIES in found else at
    return octets[:at] + encode(Described(Ulong(PROPERTIES), properties)) + octets[end:]


def value_message(value: bytes) -> bytes:
    """A message that is one amqp-value section; `value` is encoded already."""
    return _VALUE + value


def request_message(value: bytes, reply_to: str, correlation: Value) -> bytes:
    """A request: `value` is encoded already, `correlation` a Ulong, a UUID, binary or string."""
    properties = [None, None, None, None, reply_to, correlation]
    return encode(Described(Ulong(PROPERTIES), properties)) + value_message(value)


def response_message(value: bytes, correlation: Value, application_properties: Map | None = None) -> bytes:
    """The response to the request with this correlation; `value` is encoded already."""
    octets = b""
    if correlation is not None:
        octets = _PROPERTIES + encode_list([*_NO_ADDRESSES, encode(correlation)])
    if application_properties:
        octets += encode(Described(Ulong(APPLICATION_PROPERTIES), application_properties))
    return octets + value_message(value)
