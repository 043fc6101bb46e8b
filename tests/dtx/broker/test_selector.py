"""Message selectors: the language of JMS with its three truth values, over messages as octets."""

from __future__ import annotations

import operator
import random
import re
import struct
import time
from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtx.amqp.encoding import encode
from dtx.amqp.messages import APPLICATION_PROPERTIES, HEADER, PROPERTIES, VALUE, with_delivery_annotations
from dtx.amqp.values import (
    Byte,
    Char,
    Decimal,
    Described,
    Float,
    Int,
    Long,
    Map,
    Short,
    Symbol,
    Timestamp,
    Ubyte,
    Uint,
    Ulong,
    Ushort,
    Value,
)
from dtx.broker.queues.selector import (
    FILTER_CODE,
    FILTER_NAME,
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_OPERANDS,
    MAX_PROPERTIES,
    MAX_SECTION,
    Selector,
    SelectorError,
    selector_of,
)
from tests.cases import each

BODY = encode(Described(Ulong(VALUE), "body"))
ID = UUID("12345678-1234-5678-1234-567812345678")
Node: TypeAlias = "tuple[Any, ...]"


def section(code: int, value: Any) -> bytes:
    return encode(Described(Ulong(code), value))


def message(properties: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """A message with these application properties; `fields` are those of the header and the properties."""
    header = [fields.pop(name, None) for name in ("durable", "priority", "ttl", "first", "count")]
    names = "message_id user_id to subject reply_to correlation_id _ _ _ creation_time group_id group_sequence"
    listed = [fields.pop(name, None) for name in names.split()]
    assert not fields
    octets = section(HEADER, header) if any(item is not None for item in header) else b""
    if any(item is not None for item in listed):
        octets += section(PROPERTIES, listed)
    if properties is not None:
        octets += section(APPLICATION_PROPERTIES, properties)
    return octets + BODY


def truth(text: str, octets: bytes) -> bool | None:
    """What a selector is for a message; None for UNKNOWN."""
    matches = Selector.parse(text).matches(octets)
    opposite = Selector.parse(f"NOT ({text})").matches(octets)
    assert not (matches and opposite)
    return True if matches else False if opposite else None


PROPERTIES_OF_TABLE = {
    "color": "red",
    "quoted": "it's",
    "weight": Int(12),
    "price": 2.5,
    "half": 0.5,
    "yes": True,
    "no": False,
    "nothing": None,
    "big": Ulong(2**64 - 1),
    "least": Long(-(2**63)),
    "octets": b"red",
    "id": ID,
    "list": ["a"],
    "symbol": Symbol("red"),
    "char": Char("r"),
    "single": Float(1.100000023841858),
    "empty": "",
    "$a_1": Byte(1),
    "größe": Short(7),
    "Color": "blue",
    "andy": 1.0,
    "percent": "50%",
    "under": "a_b",
    "line": "a\nb",
    "time": Timestamp(1000),
    "nan": float("nan"),
}

MESSAGE_OF_TABLE = message(PROPERTIES_OF_TABLE)
TABLE: list[tuple[str, bool | None]] = [
    # What follows from the types and truth values of one part each, the naive evaluator at the end says.
    # comparisons
    ("color = 'red'", True),
    ("quoted = 'it''s'", True),
    ("symbol = 'red' AND symbol = color", True),
    ("char = 'r'", True),
    ("time = 1000", True),
    # exact and approximate numbers are one type
    ("9007199254740993 = 9007199254740992.0", True),
    ("9007199254740993 = 9007199254740992", False),
    ("single = 1.1", False),
    ("single = 1.1F", True),
    ("nan = nan", False),
    ("nan <> nan", True),
    # comparisons of two types are false, and strings and booleans have no order
    ("color < weight", False),
    ("yes > no", False),
    ("'1' = 1", False),
    ("octets = 'red'", False),
    ("octets = octets", False),
    ("list = 1", False),
    # what there is no value for
    ("nothing = 'red'", None),
    ("nothing IS NULL", True),
    ("octets IS NOT NULL", True),
    ("(color) IS NOT NULL", True),
    ("weight-2=10", True),
    # arithmetic
    ("7 / 2 = 3", True),
    ("-7 / 2 = -3", True),
    ("weight / price = 4.8", True),
    ("weight / 0 = 1", None),
    ("1 + 2 * 3 = 7 AND 10 - 4 - 3 = 3", True),
    ("- -weight = 12 AND --weight = 12", True),
    ("0.0 / 0 = 1", None),
    ("octets + 1 = 1", None),
    ("big = 18446744073709551615", True),
    ("least = -9223372036854775808", True),
    ("big + 1 > 0", None),
    ("big * big > 0", None),
    ("least - 1 < 0", None),
    ("-least > 0", True),
    ("1e308 * 10 > 1", True),
    ("weight BETWEEN 12 AND 12", True),
    ("weight NOT BETWEEN 12 AND 12", False),
    ("color BETWEEN 1 AND 2", False),
    ("color NOT BETWEEN 1 AND 2", False),
    ("weight BETWEEN 1 AND 20 AND yes", True),
    ("quoted IN ('it''s')", True),
    ("weight NOT IN ('12')", True),
    # LIKE
    ("color LIKE 'RED'", False),
    ("color LIKE '.*'", False),
    ("percent LIKE '50!%' ESCAPE '!'", True),
    ("percent LIKE '5!0%' ESCAPE '!'", True),
    ("color LIKE 're!%' ESCAPE '!'", False),
    (r"under LIKE 'a\_b' ESCAPE '\'", True),
    (r"color LIKE 'r\_d' ESCAPE '\'", False),
    ("quoted LIKE '%''s'", True),
    ("quoted LIKE 'it''''s' ESCAPE ''''", True),
    ("line LIKE 'a%b' AND line LIKE 'a_b'", True),
    # literals
    ("weight = 0xC AND weight = 0X0c AND weight = 0xCL", True),
    ("weight = 014 AND weight = 014L", True),
    ("weight = 12L AND weight = 12l", True),
    ("weight = 12. AND weight = 12.0D AND weight = 12d AND weight = 12F", True),
    ("weight = 1.2E1 AND weight = 1.2e+1 AND weight = 120e-1 AND weight = 1.2E1f", True),
    ("half = .5 AND half = 5E-1 AND half = +0.5", True),
    ("0xFFFFFFFF = 4294967295", True),
    ("0x1e5 = 485", True),
    # keywords in any case, identifiers in theirs; white space
    ("color = 'red' and not no Or no", True),
    ("weight between 1 And 20", True),
    ("color Like 'r%' eScApE '!'", True),
    ("color in('red')", True),
    ("absent is null", True),
    ("tRuE", True),
    ("Color = 'blue'", True),
    ("COLOR IS NULL", True),
    ("$a_1 = 1", True),
    ("größe = 7", True),
    ("andy = 1", True),
    (" \t\n\r\fweight\n=\t12 ", True),
    ("(((weight)))=((12))", True),
]


@each(("text", "expected"), TABLE)
def test_the_language(text: str, expected: bool | None) -> None:
    assert truth(text, MESSAGE_OF_TABLE) is expected


DECIMALS = {"32800001": "= 1", "b200000f": "= -1.5", "6cb8967f": "= 9999999", "6cbfffff": "= 0", "78000000": "> 1e308"}


@each(
    ("value", "compared"),
    [
        *((kind(100), "= 100") for kind in (Ubyte, Ushort, Uint, Ulong, Byte, Short, Int, Long, Timestamp)),
        (0.25, "= 0.25"),
        (Float(0.25), "= 0.25"),
        *((Decimal(0x74, bytes.fromhex(octets)), compared) for octets, compared in DECIMALS.items()),
        (Decimal(0x84, bytes.fromhex("31c0000000000001")), "= 1"),
        (Decimal(0x84, bytes.fromhex("6c7386f26fc0ffff")), "= 9999999999999999"),
        (Decimal(0x94, bytes.fromhex("30400000000000000000000000000001")), "= 1"),
        *(
            (Float(struct.unpack(">f", struct.pack(">f", float(literal)))[0]), f"= {literal}F")
            for literal in ("0.1", "1e-45", "3.4028234e38", "16777217")
        ),
    ],
)
def test_every_number_of_amqp_is_a_number(value: object, compared: str) -> None:
    """Literals of floats are rounded as the producer rounds them; a decimal may be infinite, or no number."""
    assert truth(f"x {compared}", message({"x": value})) is True
    for octets in ("f8000000", "7c000000"):
        assert truth("x > 1e308", message({"x": Decimal(0x74, bytes.fromhex(octets))})) is False


HEADERS: list[tuple[str, bytes, bool | None]] = [
    ("JMSDeliveryMode = 'PERSISTENT'", message(durable=True), True),
    ("JMSDeliveryMode = 'NON_PERSISTENT'", message(durable=False), True),
    ("JMSDeliveryMode = 'NON_PERSISTENT'", message(), True),
    ("JMSPriority = 7", message(priority=Ubyte(7)), True),
    ("JMSPriority = 9", message(priority=Ubyte(200)), True),
    ("JMSPriority = 4", message(), True),
    ("JMSTimestamp = 1700000000000", message(creation_time=Timestamp(1700000000000)), True),
    ("JMSTimestamp = 0", message(), True),
    ("JMSType = 'order'", message(subject="order"), True),
    ("JMSType IS NULL", message(), True),
    ("JMSType = 'order'", message({"JMSType": "order"}), None),
    ("JMSXGroupID = 'g'", message(group_id="g"), True),
    ("JMSXGroupID IS NULL", message(), True),
    ("JMSXGroupSeq = 3", message(group_sequence=Uint(3)), True),
    ("JMSXGroupSeq = -1", message(group_sequence=Uint(2**32 - 1)), True),
    ("JMSXGroupSeq IS NULL", message(), True),
    ("JMSXUserID = 'zoë'", message(user_id="zoë".encode()), True),
    ("JMSXUserID IS NULL", message(user_id=b""), True),
    ("JMSXUserID = 'a'", message(user_id=b"\xff"), False),
    ("JMSXUserID IS NOT NULL", message(user_id=b"\xff"), True),
    ("JMSXDeliveryCount = 1", message(), True),
    ("JMSXDeliveryCount = 3", message(count=Uint(2)), True),
    ("JMSXState = 2", message({"JMSXState": Int(2)}), True),
    ("JMS_AMQP_TTL IS NULL", message(), True),
    ("JMSMessageID IS NULL", message(), True),
    ("JMSMessageID = 'ID:abc'", message(message_id="ID:abc"), True),
    ("JMSMessageID = 'ID:AMQP_NO_PREFIX:abc'", message(message_id="abc"), True),
    ("JMSMessageID = 'ID:AMQP_NO_PREFIX:AMQP_UUID:abc'", message(message_id="AMQP_UUID:abc"), True),
    ("JMSMessageID = 'ID:AMQP_STRING:ID:AMQP_ULONG:7'", message(message_id="ID:AMQP_ULONG:7"), True),
    ("JMSMessageID = 'ID:AMQP_STRING:ID:AMQP_NO_PREFIX:a'", message(message_id="ID:AMQP_NO_PREFIX:a"), True),
    ("JMSMessageID = 'ID:AMQP_ULONG:7'", message(message_id=Ulong(7)), True),
    (f"JMSMessageID = 'ID:AMQP_UUID:{ID}'", message(message_id=ID), True),
    ("JMSMessageID = 'ID:AMQP_BINARY:00AF'", message(message_id=b"\x00\xaf"), True),
    ("JMSCorrelationID = 'abc'", message(correlation_id="abc"), True),
    ("JMSCorrelationID = 'ID:abc'", message(correlation_id="ID:abc"), True),
    ("JMSCorrelationID = 'ID:AMQP_STRING:ID:AMQP_UUID:x'", message(correlation_id="ID:AMQP_UUID:x"), True),
    ("JMSCorrelationID LIKE 'ID:AMQP_ULONG:%'", message(correlation_id=Ulong(7)), True),
    ("JMSCorrelationID IS NULL", message(message_id="abc"), True),
]


@each(("text", "octets", "expected"), HEADERS)
def test_headers(text: str, octets: bytes, expected: bool | None) -> None:
    assert truth(text, octets) is expected


def test_the_delivery_count_of_a_queue_goes_before_that_of_the_header() -> None:
    selector = Selector.parse("JMSXDeliveryCount = 6")
    assert selector.matches(message(count=Uint(2)), delivery_count=5)
    assert not selector.matches(message(count=Uint(5)), delivery_count=0)


def test_sections_are_found_behind_others() -> None:
    octets = message({"color": "red"}, durable=True, subject="order")
    octets = with_delivery_annotations(octets, {Symbol("x-opt-a"): "annotation"})
    assert truth("JMSType = 'order' AND color = 'red' AND JMSPriority = 4", octets) is True
    assert truth("JMSDeliveryMode = 'PERSISTENT' AND JMSPriority = 4 AND JMSXGroupID IS NULL", octets) is True
    assert truth("JMSType = 'order' AND JMSXGroupID IS NULL", octets) is True
    assert truth("color = 'red' AND JMSType = 'order'", octets) is True
    named = b"\0" + encode(Symbol("amqp:application-properties:map")) + encode({"color": "red"})
    assert truth("color = 'red'", named + BODY) is True


# -- messages that can't be read
@pytest.mark.parametrize(
    "octets",
    [
        b"",
        b"\0",
        b"no message",
        b"\0\x53\x74",
        section(APPLICATION_PROPERTIES, ["a"]) + BODY,
        section(PROPERTIES, {}) + BODY,
        section(PROPERTIES, [1.5]) + section(APPLICATION_PROPERTIES, {}),
        section(APPLICATION_PROPERTIES, {"a": "b"})[:-1],
        section(PROPERTIES, []) * 2 + BODY,
        section(PROPERTIES, []) + section(HEADER, []) + BODY,
        section(HEADER, ["a"]) + BODY,
        section(HEADER, []) + b"\0\x53\x73\xd0\xff\xff\xff\xff\0\0\0\0",
        b"\0\x53\x74\xc1\x05\x04\x40\x40\x40\x40" + BODY,
    ],
)
def test_a_message_with_a_wrong_section_does_not_match(octets: bytes) -> None:
    everything = "(absent IS NULL OR TRUE) AND (JMSMessageID IS NULL OR TRUE) AND JMSPriority >= 0"
    assert Selector.parse(everything).matches(message())
    assert not Selector.parse(everything).matches(octets)
    assert not Selector.parse(f"NOT ({everything})").matches(octets)


def test_sections_that_are_not_needed_may_be_wrong() -> None:
    """And those that are too large are not read."""
    selector = Selector.parse("color = 'red'")
    properties = section(APPLICATION_PROPERTIES, {"color": "red"})
    assert selector.matches(section(PROPERTIES, [1.5]) + properties)
    assert selector.matches(properties + b"\0\x53\x77\xb1\xff\xff\xff\xff")
    assert Selector.parse("JMSType = 'a' OR JMSPriority = 4").matches(section(PROPERTIES, [None] * 3 + ["a"]) + b"?")
    assert selector.matches(message({"color": "red", "other": "x" * (MAX_SECTION - 100)}))
    assert not selector.matches(message({"color": "red", "other": "x" * MAX_SECTION}))
    assert selector.matches(properties + section(VALUE, b"x" * MAX_SECTION))


SELECTABLE = sorted({text.split()[0] for text, _, _ in HEADERS if "JMS_" not in text})
EVERY_IDENTIFIER = Selector.parse(
    " AND ".join(
        f"({name} IS NULL OR {name} = {name} OR {name} > 0 OR {name} LIKE '%_%' OR TRUE)" for name in ["a", *SELECTABLE]
    )
)


@given(st.data())
def test_no_damage_makes_matching_fail(data: st.DataObject) -> None:
    whole = message({"a": Decimal(0x74, b"1234")}, durable=True, message_id=ID, user_id=b"u", group_sequence=Uint(1))
    octets = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    EVERY_IDENTIFIER.matches(bytes(octets[: data.draw(st.integers(0, len(octets)))]))


# -- texts that are no selectors
MALFORMED = {
    "": "at 0: a value is expected, not the end",
    "color = ": "at 8: a value is expected, not the end",
    "color == 'red'": "at 7: a value is expected, not =",
    "color = 'red": "at 8: a string does not end",
    "color = 'red' weight > 5": "at 14: AND, OR or the end is expected, not weight",
    "(a = 1": "at 6: ) is expected, not the end",
    "a = 1)": "at 5: AND, OR or the end is expected, not )",
    "a = b = c": "at 6: AND, OR or the end is expected, not =",
    "amqp.message_id = 'a'": "at 4: '.' belongs to no identifier or operator",
    "co-lor! = 1": "at 6: '!' belongs to no identifier or operator",
    'color = "red"': "at 8: '\"' belongs to no identifier or operator",
    "5": "at 0: a condition is expected, not a number",
    "'red'": "at 0: a condition is expected, not a string",
    "NOT 'red'": "at 4: a condition is expected, not a string",
    "a AND 1 + 2": "at 6: a condition is expected, not a number",
    "a < 'red'": "at 4: a number is expected, not a string",
    "a > TRUE": "at 4: a number is expected, not a condition",
    "a + 'red' = 1": "at 4: a number is expected, not a string",
    "-'red' = 1": "at 1: a number is expected, not a string",
    "a BETWEEN 1": "at 11: AND is expected, not the end",
    "a BETWEEN 'x' AND 'y'": "at 10: a number is expected, not a string",
    "a IN ()": "at 6: a string is expected, not )",
    "a IN ('x' 'y')": "at 10: , or ) is expected, not 'y'",
    "a IN (1)": "at 6: a string is expected, not 1",
    "1 IN ('x')": "at 0: an identifier is expected in front of IN, not a number",
    "a + 1 IS NULL": "at 0: an identifier is expected in front of IS, not a number",
    "'a' LIKE 'a'": "at 0: an identifier is expected in front of LIKE, not a string",
    "a LIKE b": "at 7: a pattern is expected, not b",
    "a LIKE 'b' ESCAPE '!!'": "at 18: an escape is one character, not '!!'",
    "a LIKE 'b!' ESCAPE '!'": "at 7: nothing follows the escape character at the pattern's end",
    "a IS": "at 4: NULL or NOT NULL is expected, not the end",
    "a IS NOT 5": "at 9: NULL is expected, not 5",
    "a = NULL": "at 4: a value is expected, not NULL",
    "a NOT = 5": "at 2: AND, OR or the end is expected, not NOT",
    "a AND": "at 5: a value is expected, not the end",
    "OR a": "at 0: a value is expected, not OR",
    "a = NOT b": "at 4: a value is expected, not NOT",
    "a = 09": "at 4: 09 begins no number",
    "a = 5x": "at 4: 5x begins no number",
    "a = 1_000": "at 4: 1_ begins no number",
    "a = 1.2.3": "at 4: 1.2. begins no number",
    "a = 0x": "at 4: 0x begins no number",
    "a = 18446744073709551616": "at 4: 18446744073709551616 has more than 64 bits",
    "a = 1e999": "at 4: 1e999 is too large",
    "a = 1e39F": "at 4: 1e39F is too large",
    "JMSDestination = 'q'": "at 0: JMSDestination is no header that selectors know; they know JMSDeliveryMode, "
    "JMSPriority, JMSMessageID, JMSTimestamp, JMSCorrelationID, JMSType",
}


@each(("text", "expected"), MALFORMED.items())
def test_what_is_no_selector_is_told_where_and_why(text: str, expected: str) -> None:
    with pytest.raises(SelectorError, match=f"^{re.escape(expected)}$") as raised:
        Selector.parse(text)
    assert str(raised.value) == f"at {raised.value.position}: {raised.value.reason}"


@each("text", ["a ıs NULL", "a IſNULL", "a\u00a0= 1", "1a = 1", "a = 1 ; b", "a;b", "a % 2 = 0"])
def test_other_malformed_selectors(text: str) -> None:
    with pytest.raises(SelectorError):
        Selector.parse(text)


@pytest.mark.parametrize(("begin", "end"), [("(", ")"), ("NOT ", ""), ("(NOT ", ")")])
def test_nesting_is_bounded(begin: str, end: str) -> None:
    levels = MAX_DEPTH // (2 if begin == "(NOT " else 1)
    deepest = begin * levels + "a" + end * levels
    assert Selector.parse(deepest).matches(message({"a": True})) is True
    with pytest.raises(SelectorError, match="nested deeper"):
        Selector.parse(begin + deepest + end)
    with pytest.raises(SelectorError):
        Selector.parse(begin * (MAX_LENGTH // len(begin)))


def test_length_is_bounded() -> None:
    with pytest.raises(SelectorError, match=f"^at {MAX_LENGTH}: a selector has at most 8192 characters, not 1000000"):
        Selector.parse("(" * 1_000_000)
    text = "long_name" + " OR long_name" * ((MAX_LENGTH - 20) // 13)
    assert truth(text, message({"long_name": False})) is False
    Selector.parse("1=1" + " " * (MAX_LENGTH - 3))
    with pytest.raises(SelectorError):
        Selector.parse("1=1" + " " * (MAX_LENGTH - 2))


@each(
    ("begin", "operand", "end", "others"),
    [
        ("a", " OR a", "", 1),
        ("1", "+1", " > 5", 2),
        ("a LIKE '", "a%", "'", 2),
        ("a BETWEEN 1 AND 1", "+1", "", 3),
    ],
)
def test_operands_are_bounded(begin: str, operand: str, end: str, others: int) -> None:
    Selector.parse(begin + operand * (MAX_OPERANDS - others) + end)
    with pytest.raises(SelectorError, match="at most 1024 identifiers, literals and parts of patterns"):
        Selector.parse(begin + operand * (MAX_OPERANDS - others + 1) + end)


def test_long_chains_need_no_depth_and_a_list_of_strings_is_one_operand() -> None:
    for sign in "+-*/":
        assert truth(f"a{f'{sign}a' * (MAX_OPERANDS - 2)} <> 5", message({"a": 1.0})) is True
    strings = ",".join(f"'{number}'" for number in range(1200))
    assert truth(f"a IN ({strings})", message({"a": "1199"})) is True


# What is the most that a selector, a message, or both, can cost?
LETTERS = "a" * 60_000
MOST = MAX_OPERANDS // 2
WORST: dict[str, tuple[str, bytes]] = {
    "many parts": ("a LIKE '" + "%a" * (MAX_OPERANDS - 3) + "%b'", message({"a": LETTERS})),
    "a long part with _": ("a LIKE '%" + "_a" * 4000 + "b%'", message({"a": LETTERS})),
    "_ of two kinds": ("a LIKE '%" + "a" * 2000 + "_" * 4000 + "b%'", message({"a": LETTERS})),
    "parts of _": ("a LIKE '" + "%_" * 1000 + "b%'", message({"a": LETTERS})),
    "a short part with _": ("a LIKE '%a_b%'", message({"a": LETTERS})),
    "many LIKEs": (" OR ".join(["a LIKE '%_b%'"] * 250), message({"a": LETTERS})),
    "many literal LIKEs": (" OR ".join(["a LIKE '%ab%'"] * 250), message({"a": LETTERS})),
    "many LIKEs that almost match": (" OR ".join(["a LIKE 'a%a%b%'"] * 200), message({"a": LETTERS})),
    "a part that almost matches": (f"a LIKE '%{'a' * 3900}b{'a' * 3900}%'", message({"a": "a" * 29_000})),
    "comparisons": (" OR ".join(["a=b"] * MOST), message({"a": 1.0, "b": Int(2)})),
    "comparisons of long strings": (" OR ".join(["a<>b"] * MOST), message({"a": "a" * 30_000, "b": "a" * 30_000})),
    "comparisons of symbols": (" OR ".join(["a=b"] * MOST), message({"a": Symbol("x" * 30_000), "b": Symbol("y")})),
    "memberships of symbols": (" OR ".join(["a IN('b')"] * 600), message({"a": Symbol("x" * 60_000)})),
    "long ids": (" OR ".join(["JMSMessageID=a"] * 450), message({"a": "x"}, message_id=b"a" * 60_000)),
    "long users": (" OR ".join(["JMSXUserID=a"] * 500), message({"a": "x"}, user_id=b"a" * 60_000)),
    "arithmetic": ("(" + "*".join(["b"] * 1000) + ") > 1", message({"b": Ulong(2**64 - 1)})),
    "arithmetic of integers": ("+".join(["b"] * 1000) + " < 1", message({"b": Int(1)})),
    "arithmetic of decimals": ("+".join(["b"] * 1000) + " < 0", message({"b": Decimal(0x94, b"\x30" * 16)})),
    "many properties": ("a = 1", message({str(number): None for number in range(30_000 // 6)})),
    "as many properties as may be": ("a = 1", message({str(number): None for number in range(MAX_PROPERTIES)})),
    "a nested property": ("a = 1", message({"a": [None] * 60_000})),
    "a nested id": ("JMSMessageID = 'a'", section(PROPERTIES, [[None] * 60_000])),
    "many fields": ("JMSType = 'a'", section(PROPERTIES, [None] * 60_000)),
}


@pytest.mark.slow
@each("case", WORST)
def test_no_message_takes_long(case: str) -> None:
    text, octets = WORST[case]
    selector = Selector.parse(text)
    assert not selector.matches(octets)
    assert is_quick(lambda: selector.matches(octets), 0.005), "docs/broker.md says half a millisecond"


MALFORMED_TEXTS = ("'" + "''" * 4000, "-" * 4000 + "a = 1", "(" * 8000, "a=1 OR " * 1100)


@pytest.mark.slow
@each("text", [*(text for text, _ in WORST.values()), *MALFORMED_TEXTS])
def test_no_selector_takes_long_to_parse(text: str) -> None:
    def parse() -> None:
        try:
            Selector.parse(text)
        except SelectorError:
            assert "LIKE" not in text

    assert is_quick(parse, 0.25), "some microseconds for each character"


def is_quick(function: Callable[[], object], seconds: float) -> bool:
    """Whether some call of seven takes less of the processor than this: the machine may be busy."""

    def took() -> float:
        began = time.process_time()
        function()
        return time.process_time() - began

    return any(took() < seconds for _ in range(7))


def test_long_strings_may_match_as_well() -> None:
    """The bound of the work is far from what a selector in use needs."""
    octets = message({"a": "x" * 30_000 + "needle" + "y" * 30_000, "b": "lorem ipsum dolor sit amet " * 100 + "a_d"})
    assert truth("a LIKE '%needle%'", octets) is True
    assert truth("a LIKE '%n__dl_y%y'", octets) is True
    assert truth("b LIKE '%a!_d' ESCAPE '!' AND b LIKE '%m_t%l_r%s__%'", octets) is True
    assert truth("b NOT LIKE '%a_x%'", octets) is True


def test_a_message_that_takes_too_much_work_matches_neither_a_selector_nor_its_opposite() -> None:
    octets = message({"a": LETTERS})
    assert truth("a LIKE '%a_b%'", octets) is None
    assert truth("a LIKE '%a_b%' OR TRUE", octets) is None
    assert truth("a LIKE '%a_a%'", octets) is True


# -- against a naive evaluator

COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NAMES = st.sampled_from(["a", "b", "c", "d", "JMSPriority"])
STRINGS = st.text("abA%_'!\n.*\U0001f600", max_size=6)
NUMBERS_OF_NODES = st.one_of(
    st.integers(0, 20).map(lambda number: ("literal", number)),
    st.integers(0, 40).map(lambda number: ("literal", number / 4)),
    NAMES.map(lambda name: ("name", name)),
)
ARITHMETIC = st.recursive(
    NUMBERS_OF_NODES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-*/"), inner, inner),
        st.tuples(st.just("minus"), inner),
        st.tuples(st.just("plus"), inner),
    ),
    max_leaves=5,
)
ANY_VALUE = st.one_of(
    ARITHMETIC, STRINGS.map(lambda string: ("literal", string)), st.booleans().map(lambda b: ("literal", b))
)
PREDICATES = st.one_of(
    st.tuples(st.sampled_from(["=", "<>"]), ANY_VALUE, ANY_VALUE),
    st.tuples(st.sampled_from(["<", "<=", ">", ">="]), ARITHMETIC, ARITHMETIC),
    st.tuples(st.just("between"), ARITHMETIC, ARITHMETIC, ARITHMETIC, st.booleans()),
    st.tuples(st.just("in"), NAMES, st.lists(STRINGS, min_size=1, max_size=3), st.booleans()),
    st.tuples(st.just("like"), NAMES, STRINGS, st.none(), st.booleans()),
    st.tuples(st.just("like"), NAMES, STRINGS.filter(lambda s: not s.endswith("!")), st.just("!"), st.booleans()),
    st.tuples(st.just("null"), NAMES, st.booleans()),
    st.booleans().map(lambda b: ("literal", b)),
    NAMES.map(lambda name: ("name", name)),
)
CONDITIONS = st.recursive(
    PREDICATES,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner),
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(["=", "<>"]), st.tuples(st.just("()"), inner), st.tuples(st.just("()"), inner)),
    ),
    max_leaves=6,
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    STRINGS,
    st.integers(-20, 20).map(Int),
    st.integers(-40, 40).map(lambda number: number / 4),
    st.just(b"ab"),
)
LEVELS = {
    "or": 0,
    "and": 1,
    "not": 2,
    "+": 4,
    "-": 4,
    "*": 5,
    "/": 5,
    "minus": 6,
    "plus": 6,
    "literal": 7,
    "name": 7,
    "()": 7,
}


def quoted(string: str) -> str:
    return "'" + string.replace("'", "''") + "'"


def written(node: Node) -> str:
    """The node as text, with the parentheses that it needs and no others; a comparison is of level 3."""

    def inside(child: Node, level: int) -> str:
        return written(child) if LEVELS.get(child[0], 3) >= level else f"({written(child)})"

    kind, *parts = node
    negation = "NOT " if parts[-1] is True and kind in {"between", "in", "like", "null"} else ""
    match kind:
        case "literal":
            return quoted(parts[0]) if isinstance(parts[0], str) else str(parts[0])
        case "name":
            return str(parts[0])
        case "()":
            return f"({written(parts[0])})"
        case "minus" | "plus":
            return ("- " if kind == "minus" else "+ ") + inside(parts[0], 6)
        case "not":
            return "not " + inside(parts[0], 2)
        case "and" | "or" | "+" | "-" | "*" | "/":
            return f"{inside(parts[0], LEVELS[kind])} {kind} {inside(parts[1], LEVELS[kind] + 1)}"
        case "between":
            return f"{inside(parts[0], 4)} {negation}BETWEEN {inside(parts[1], 4)} AND {inside(parts[2], 4)}"
        case "in":
            return f"{parts[0]} {negation}IN ({', '.join(map(quoted, parts[1]))})"
        case "like":
            escape = f" ESCAPE {quoted(parts[2])}" if parts[2] else ""
            return f"{parts[0]} {negation}LIKE {quoted(parts[1])}{escape}"
        case "null":
            return f"{parts[0]} IS {negation}NULL"
        case _:
            return f"{inside(parts[0], 4)} {kind} {inside(parts[1], 4)}"


def naive(node: Node, values: dict[str, Any]) -> Any:
    kind, *parts = node

    match kind:
        case "literal":
            return parts[0]
        case "name":
            return values.get(parts[0])
        case "minus" | "plus":
            return calculated("*", naive(parts[0], values), -1 if kind == "minus" else 1)
        case "+" | "-" | "*" | "/":
            return calculated(kind, naive(parts[0], values), naive(parts[1], values))
        case "()":
            return naive(parts[0], values)
        case "not":
            return opposite(as_condition(naive(parts[0], values)))
        case "and" | "or":
            both = {as_condition(naive(part, values)) for part in parts}
            decisive = kind == "or"
            return decisive if decisive in both else None if None in both else not decisive
        case _:
            return naive_predicate(node, values)


def naive_predicate(node: Node, values: dict[str, Any]) -> bool | None:
    kind, *parts = node
    match kind:
        case "between":
            value, low, high, negated = parts
            bounds = ("or", ("<", value, low), (">", value, high)), ("and", (">=", value, low), ("<=", value, high))
            return as_condition(naive(bounds[0 if negated else 1], values))
        case "in":
            name, strings, negated = parts
            equal: Node = ("literal", False)

            for string in strings:
                equal = ("or", equal, ("=", ("name", name), ("literal", string)))
            return as_condition(naive(("not", equal) if negated else equal, values))
        case "like":
            name, pattern, escape, negated = parts
            value = values.get(name)
            like = None if value is None else isinstance(value, str) and fits(value, pattern, escape)
            return opposite(like) if negated else like
        case "null":
            return (values.get(parts[0]) is None) is not parts[1]
        case _:
            return compared(kind, naive(parts[0], values), naive(parts[1], values))


def as_condition(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def opposite(value: bool | None) -> bool | None:
    return None if value is None else not value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def calculated(sign: str, a: Any, b: Any) -> Any:
    if not is_number(a) or not is_number(b) or (sign == "/" and not b):
        return None
    exact = isinstance(a, int) and isinstance(b, int)
    if sign == "/":
        return int(a / b) if exact else a / b
    return {"+": operator.add, "-": operator.sub, "*": operator.mul}[sign](a, b)


def compared(sign: str, a: Any, b: Any) -> bool | None:
    if a is None or b is None:
        return None
    if is_number(a) and is_number(b):
        return bool(COMPARISONS[sign](a, b))
    alike = any(isinstance(a, kind) and isinstance(b, kind) for kind in (str, bool))
    return alike and sign in {"=", "<>"} and bool(COMPARISONS[sign](a, b))


def fits(string: str, pattern: str, escape: str | None) -> bool:
    if not pattern:
        return not string
    if pattern[0] == escape:
        return string[:1] == pattern[1] and fits(string[1:], pattern[2:], escape)
    if pattern[0] == "%":
        return any(fits(string[at:], pattern[1:], escape) for at in range(len(string) + 1))
    return bool(string) and pattern[0] in {string[0], "_"} and fits(string[1:], pattern[1:], escape)


@pytest.mark.slow
@given(CONDITIONS, st.fixed_dictionaries({}, optional=dict.fromkeys("abc", VALUES)))
def test_every_selector_is_what_a_naive_evaluator_makes_of_it(node: Node, values: dict[str, Any]) -> None:
    text = written(node)
    octets = message(values, priority=Ubyte(6))
    assert str(Selector.parse(text)) == text
    assert truth(text, octets) is as_condition(naive(node, values | {"JMSPriority": 6})), text


@pytest.mark.slow
def test_like_is_what_regular_expressions_find_in_longer_strings() -> None:
    seed = 20_261_123
    chance = random.Random(seed)
    found = 0
    for _ in range(1000):
        letters = chance.choice(["a", "ab", "abc"])
        string = "".join(chance.choices(letters, k=chance.randrange(60)))
        pattern = "".join(chance.choices([*letters, "_", "%"], k=chance.randrange(12)))
        expression = "".join({"_": ".", "%": ".*"}.get(character, character) for character in pattern)
        expected = re.fullmatch(expression, string) is not None
        matches = Selector.parse(f"s LIKE '{pattern}'").matches(message({"s": string}))
        assert matches is expected, (seed, string, pattern)
        found += expected
    assert found > 100


CHARACTERS = "aA5_$.'\"%!;() ,=<>+-*/\0\t\nıſé\u00a0\U0001f600\ud800"
WORDS = re.split(" ", "a 5 0x1F 1.5 'x' ( ) , = <> < >= + - * / NOT AND OR IN LIKE ESCAPE IS NULL BETWEEN")


@pytest.mark.slow
@given(st.one_of(st.lists(st.sampled_from(WORDS)).map(" ".join), st.text(CHARACTERS, max_size=30)))
def test_any_text_is_a_selector_or_refused_at_a_position_in_it(text: str) -> None:
    try:
        selector = Selector.parse(text)
    except SelectorError as error:
        position = error.position
    else:
        position = 0
        selector.matches(message({"a": "x"}))
    assert 0 <= position <= len(text)


# -- the filters of a source
def test_the_selector_of_a_source() -> None:
    for descriptor in (FILTER_NAME, FILTER_CODE):
        described = Described(descriptor, "color = 'red'")
        filters: Map = {
            Symbol("no-local"): Described(Symbol("apache.org:no-local-filter:list"), []),
            Symbol("jms-selector"): described,
            Symbol("unknown"): Described(Ulong(1), "x"),
            Symbol("null"): None,
            Symbol("bare"): "color = 'blue'",
            Symbol("odd"): Described([], "color = 'blue'"),
            Symbol("second"): Described(FILTER_NAME, "only one is honoured"),
        }
        selector, honoured = selector_of(filters)
        assert selector == Selector.parse("color = 'red'")
        assert honoured == {Symbol("jms-selector"): described}


def test_a_source_without_a_selector() -> None:
    """A blank one is honoured, and every message matches."""
    without: list[Map | None] = [
        None,
        {},
        {Symbol("x"): Described(Ulong(0x468C_0000_0003), [])},
        {FILTER_NAME: "color = 'red'"},
        {FILTER_NAME: Described("apache.org:selector-filter:string", "a")},
    ]
    for filters in without:
        assert selector_of(filters) == (None, {})
    for text in ("", " \n"):
        blank: Map = {FILTER_NAME: Described(FILTER_NAME, text)}
        assert selector_of(blank) == (None, blank)


@each("value", ["color =", 5, None, Symbol("a"), b"a", ["a"]])
def test_a_wrong_selector_of_a_source_is_refused(value: Value) -> None:
    with pytest.raises(SelectorError):
        selector_of({FILTER_NAME: Described(FILTER_NAME, value)})
