"""Message selectors of JMS: conditions by which a consumer takes some of a queue's messages and leaves the others.

`Selector.parse("color = 'red' AND weight > 10")` gives a selector or raises SelectorError; `selector.matches(octets)`
says whether it holds for a message. The language is that of Jakarta Messaging (JMS 2.0), section 3.8.1.1:

  selector   = or                                            or     = and {OR and}
  and        = not {AND not}                                 not    = NOT not | predicate
  predicate  = sum [comparison sum | [NOT] BETWEEN sum AND sum]
             | identifier (IS [NOT] NULL | [NOT] LIKE string [ESCAPE string] | [NOT] IN "(" string {"," string} ")")
  comparison = "=" | "<>" | "<" | "<=" | ">" | ">="
  sum        = product {("+" | "-") product}                 product = unary {("*" | "/") unary}
  unary      = ("+" | "-") unary | literal | identifier | "(" or ")"

A condition is TRUE, FALSE or UNKNOWN (here: True, False, None), and only TRUE is a match. NULL is the value of an
identifier that the message has no value for. These rules decide between the readings that JMS leaves open:

  - A comparison or arithmetic with NULL is UNKNOWN, and so is arithmetic with something that is no number, a
    division by zero, an exact result that has more than 64 bits, and a value as a condition that is no boolean.
  - A comparison of two types is FALSE, with <> too; exact and approximate numbers are one type, and are compared as
    doubles where they are mixed. Exact division drops the fraction, as in Java.
  - NOT BETWEEN is "less than or greater than", so it is FALSE for a string. NOT IN and NOT LIKE are the opposites of
    IN and LIKE, so they are TRUE for a number.
  - Literals are those of Java: 10, 10L, 0x1F, 017, 1.5, .5, 7., 7E3, 1.5F, 2D. Hexadecimal and octal ones are positive.

Identifiers are the keys of the application properties, with AMQP's types as the filter's registration maps them (a
symbol or char is a string, a decimal a double; binary and UUID can't be compared), and these headers, with their values
from the AMQP JMS Mapping. JMS lets a selector name no other header. The names `amqp.…` of the filter's registration are
no identifiers of JMS, and are refused; Qpid JMS sends the names of JMS.

  JMSDeliveryMode   'PERSISTENT' or 'NON_PERSISTENT', by durable    JMSXGroupID        group-id
  JMSPriority       priority, at most 9; 4 without one              JMSXGroupSeq       group-sequence, as an int of Java
  JMSMessageID      message-id as a string, see `_id_as_string`     JMSXUserID         user-id, read as UTF-8
  JMSCorrelationID  correlation-id, likewise                        JMSXDeliveryCount  delivery-count + 1
  JMSTimestamp      creation-time; 0 without one                    JMSType            subject

The text is compiled once, into closures. Matching reads a section when an identifier needs it, and an identifier's
value once. What matching may cost is bounded, because a peer writes the selector and another one the message: the
selector has MAX_OPERANDS, the message MAX_PROPERTIES, and work on long strings is counted up to MAX_WORK. A message
that would need more does not match.

LIKE finds the parts of a pattern between two % one after another, each at its first occurrence behind the part before
it: if any choice of occurrences matches, then this one does, so LIKE never goes back. What is searched for is a part's
longest run of characters without _, in time linear in the string; where it occurs, the whole part is tried, so a part
with _ costs at most part times string.
"""

from __future__ import annotations

import operator
import re
import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from unicodedata import category
from uuid import UUID

from dtx.amqp import values
from dtx.amqp.composites import WireError
from dtx.amqp.decoding import DecodeError, decode_from, fields, list_head, map_head, skip
from dtx.amqp.messages import APPLICATION_PROPERTIES, FOOTER, PROPERTIES, Header, read_header, read_section
from dtx.amqp.values import Described, Symbol, Timestamp, Uint, Ulong

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.values import Map

MAX_LENGTH: Final = 8192
"""Characters of a selector."""
MAX_DEPTH: Final = 32
"""Parentheses, NOTs and signs inside each other."""
MAX_DIGITS: Final = 32
"""Of an exact number; 64 bits have fewer in any notation."""
MAX_OPERANDS: Final = 1024
"""Identifiers and literals of a selector, and parts of its patterns; the strings behind IN don't count."""
MAX_SECTION: Final = 64 << 10
"""Octets of a section that is read."""
MAX_PROPERTIES: Final = 256
"""Application properties of a message that are read."""
MAX_WORK: Final = 1 << 16
"""Of matching one message, in characters that a search passes; the weights below are in the same unit."""
SEARCH_WORK: Final = 16
"""Of beginning to search for a part of a pattern."""
TRIAL_WORK: Final = 128
"""Of trying a part with _ at one position, beside two for each character of the part."""
LONG_STRING: Final = 256
"""Characters from which on comparing two strings is counted as work, by COMPARED_AT_ONCE characters."""
COMPARED_AT_ONCE: Final = 32

FILTER_NAME: Final = Symbol("apache.org:selector-filter:string")
FILTER_CODE: Final = Ulong(0x0000_468C_0000_0004)

Value: TypeAlias = str | bool | int | float | bytes | None
"""The value of an expression, always of exactly one of these types; bytes stand for what can't be compared."""
Evaluate: TypeAlias = "Callable[[_Message], Value]"


class SelectorError(ValueError):
    """The text is no selector: `reason` says why, and `position` at which character, counted from 0."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at {position}: {reason}")
        self.position = position
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Selector:
    """A selector that was parsed; selectors of the same text are equal."""

    text: str
    _condition: Evaluate = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> Selector:
        """The selector that `text` is; SelectorError where it is none."""
        return cls(text, _Parser(text).selector())

    def matches(self, octets: bytes, *, delivery_count: int | None = None) -> bool:
        """Whether the selector is TRUE for the message. A message does not match when a section that is needed can't
        be decoded, or exceeds MAX_SECTION or MAX_PROPERTIES, or when it takes more than MAX_WORK. `delivery_count` is
        how often the message was delivered in vain; by default its header says so."""
        try:
            return self._condition(_Message(octets, delivery_count)) is True
        except (DecodeError, WireError, _SelectorTooCostly):
            return False

    def __str__(self) -> str:
        return self.text


def selector_of(filters: Map | None) -> tuple[Selector | None, Map]:
    """The selector among the filters of a source, and the filters that are honoured, to be echoed: the selector's
    own entry. A blank selector selects every message, as JMS has it, and is None. SelectorError where the selector
    is none. Any other filter, and any further selector, is left out of what is echoed."""
    for name, described in (filters or {}).items():
        if not isinstance(described, Described) or not _is_selector(described.descriptor):
            continue
        text = described.value
        if type(text) is not str:
            raise SelectorError(0, f"a selector is a string, not {type(text).__name__}")
        return Selector.parse(text) if text.strip(_SPACE) else None, {name: described}
    return None, {}


def _is_selector(descriptor: object) -> bool:
    if type(descriptor) is Symbol:
        return descriptor == FILTER_NAME
    return type(descriptor) is Ulong and descriptor == FILTER_CODE


# -- messages
class _SelectorTooCostly(Exception):
    """Matching the message takes more than MAX_WORK."""


class _Message:
    """A message, whose sections are read when they are asked for. `work` is how much may still be done for it."""

    __slots__ = (
        *("_application", "_code", "_delivery_count", "_fields", "_header", "_octets", "_start", "_starts"),
        *("values", "work"),
    )

    def __init__(self, octets: bytes, delivery_count: int | None) -> None:
        self.work = MAX_WORK
        self.values: dict[str, Value] = {}
        """Of the identifiers that were asked for, by name."""
        self._octets = octets
        self._delivery_count = delivery_count
        self._code = 0
        self._start = 0
        """The last section that was found, and where its value begins."""
        self._starts: dict[int, int] = {}
        self._header: Header | None = None
        self._fields: list[int] | None = None
        self._application: dict[str, int] | None = None
        """Where each of the properties, and each application property's value begins."""

    def spend(self, work: int) -> None:
        self.work -= work
        if self.work < 0:
            raise _SelectorTooCostly

    def header(self) -> Header:
        if self._header is None:
            self._header = read_header(self._octets)
        return self._header

    def delivery_count(self) -> int:
        return self.header().delivery_count if self._delivery_count is None else self._delivery_count

    def field(self, index: int, *types: type) -> Any:
        """A field of the properties; None where it is not set."""
        if self._fields is None:
            self._fields = self._find_fields()
        if index >= len(self._fields) - 1:
            return None
        start = self._fields[index]
        value = decode_from(self._octets, start)[0] if self._is_simple(start) else _COMPOUND
        if value is not None and type(value) not in types:
            raise DecodeError(f"field {index} of the properties has a wrong type")
        return value

    def application_property(self, name: str) -> Any:
        if self._application is None:
            self._application = self._find_application_properties()
        start = self._application.get(name)
        if start is None:
            return None
        return decode_from(self._octets, start)[0] if self._is_simple(start) else _COMPOUND

    def _find_fields(self) -> list[int]:
        section = self._section(PROPERTIES)
        if section is None:
            return []
        start, end = section
        if list_head(self._octets, start, end)[2] > _FIELDS:
            raise DecodeError(f"the properties have more than {_FIELDS} fields")
        return fields(self._octets, start, end)

    def _find_application_properties(self) -> dict[str, int]:
        section = self._section(APPLICATION_PROPERTIES)
        if section is None:
            return {}
        octets = self._octets
        at, end, count = map_head(octets, *section)
        if count > 2 * MAX_PROPERTIES:
            raise DecodeError(f"there are more than {MAX_PROPERTIES} application properties")

        found: dict[str, int] = {}
        for _ in range(count // 2):
            if octets[at : at + 1] not in _NAMES_OF_PROPERTIES:
                raise DecodeError(f"the name of an application property is no string at {at}")
            name, at = decode_from(octets, at, end)
            if name in found:
                raise DecodeError("there is an application property twice")
            found[name] = at  # type: ignore[index] # a string
            at = skip(octets, at, end)
        if at != end:
            raise DecodeError(f"a map ends at {at}, its size says {end}")
        return found

    def _is_simple(self, at: int) -> bool:
        """Whether the value at `at` contains no others, which would take time, and can't be compared."""
        return 0x45 < self._octets[at] < 0xC0 or 0x40 <= self._octets[at] < 0x45

    def _section(self, code: int) -> tuple[int, int] | None:
        """Where the value of a section in front of the body begins, and where it has to end at the latest."""
        octets = self._octets
        while self._code < code:
            at = skip(octets, self._start) if self._code else 0
            if at and at == len(octets):
                self._code = FOOTER
                break
            found, start = read_section(octets, at)
            if found <= self._code:
                raise DecodeError(f"section {found:#x} stands where it must not")
            self._code = found
            self._start = self._starts[found] = start
        if code not in self._starts:
            return None
        start = self._starts[code]
        return start, min(start + MAX_SECTION, len(octets))


_COMPOUND: Final = object()
"""Stands for a value that contains others."""
_FIELDS: Final = 13
"""Of the properties, message-id to reply-to-group-id."""
_NAMES_OF_PROPERTIES: Final = frozenset({b"\xa1", b"\xb1", b"\xa3", b"\xb3"})
"""Constructors of strings and symbols."""
_FORMATS: Final = {4: (32, 8, 101), 8: (64, 10, 398), 16: (128, 14, 6176)}
"""Of decimals, by their octets: bits, bits of the exponent, and its bias."""


def _decimal_as_double(decimal: values.Decimal) -> float:
    """A decimal of IEEE 754 in binary integer encoding, which is AMQP's: sign, exponent, coefficient. Where the two
    bits behind the sign are 11, they stand for a coefficient that begins with 100, unless two more ones follow:
    infinity (11110…) and no number (11111…)."""
    bits, exponent_bits, bias = _FORMATS[len(decimal.octets)]
    number = int.from_bytes(decimal.octets, "big")
    sign = "-" if number >> (bits - 1) else ""
    coefficient_bits = bits - 1 - exponent_bits
    if number >> (bits - 3) & 3 != 3:
        implied = 0
    elif number >> (bits - 5) & 3 != 3:
        coefficient_bits -= 2
        implied = 4 << coefficient_bits
    else:
        return float("nan" if number >> (bits - 6) & 1 else sign + "inf")

    exponent = (number >> coefficient_bits & ((1 << exponent_bits) - 1)) - bias
    coefficient = implied | number & ((1 << coefficient_bits) - 1)
    if coefficient >= 10 ** (bits // 32 * 9 - 2):  # more digits than the format has: such a decimal is 0
        coefficient = 0
    return float(f"{sign}{coefficient}e{exponent}")


_EXACT: Final = (*values.INTEGERS, Timestamp)
_CONVERSIONS: Final[dict[type, Callable[[Any], Value]]] = {
    type(None): lambda _: None,
    bool: bool,
    **dict.fromkeys(_EXACT, int),
    **dict.fromkeys((float, values.Float), float),
    **dict.fromkeys((str, Symbol, values.Char), str),
    values.Decimal: _decimal_as_double,
}


def _application_property(name: str) -> Evaluate:
    def evaluate(message: _Message) -> Value:
        value = message.application_property(name)
        convert = _CONVERSIONS.get(type(value))
        return convert(value) if convert is not None else b""

    return evaluate


def _once(name: str, evaluate: Evaluate) -> Evaluate:
    """An identifier's value, which is computed once for each message."""

    def remembered(message: _Message) -> Value:
        if name not in message.values:
            message.values[name] = evaluate(message)
        return message.values[name]

    return remembered


_TYPED_ID: Final = tuple(f"ID:AMQP_{kind}:" for kind in ("STRING", "NO_PREFIX", "UUID", "ULONG", "BINARY"))


def _id_as_string(value: str | UUID | Ulong | bytes | None, without_prefix: str) -> str | None:
    """A message-id or correlation-id as JMS shows it. A string is itself; `without_prefix` is put in front of one that
    does not begin with "ID:", and ID:AMQP_STRING: in front of one that looks like an ID of another type."""
    if value is None:
        return None
    if isinstance(value, str):
        if not value.startswith("ID:"):
            return without_prefix + value
        return "ID:AMQP_STRING:" + value if value.startswith(_TYPED_ID) else value
    if isinstance(value, UUID):
        return f"ID:AMQP_UUID:{value}"
    if isinstance(value, Ulong):
        return f"ID:AMQP_ULONG:{value}"
    return "ID:AMQP_BINARY:" + value.hex().upper()


def _message_id(message: _Message) -> Value:
    return _id_as_string(message.field(0, str, UUID, Ulong, bytes), "ID:AMQP_NO_PREFIX:")


def _correlation_id(message: _Message) -> Value:
    return _id_as_string(message.field(5, str, UUID, Ulong, bytes), "")


def _user_id(message: _Message) -> Value:
    octets: bytes | None = message.field(1, bytes)
    try:
        return octets.decode() if octets else None
    except UnicodeDecodeError:
        return b""


def _group_sequence(message: _Message) -> Value:
    sequence: Uint | None = message.field(11, Uint)
    if sequence is None:
        return None
    return sequence - (1 << 32) if sequence >> 31 else int(sequence)


_HEADERS: Final[dict[str, Evaluate]] = {
    "JMSDeliveryMode": lambda message: "PERSISTENT" if message.header().durable else "NON_PERSISTENT",
    "JMSPriority": lambda message: min(message.header().priority, 9),
    "JMSMessageID": _message_id,
    "JMSTimestamp": lambda message: int(message.field(9, Timestamp) or 0),
    "JMSCorrelationID": _correlation_id,
    "JMSType": lambda message: message.field(3, str),
    "JMSXUserID": _user_id,
    "JMSXGroupID": lambda message: message.field(10, str),
    "JMSXGroupSeq": _group_sequence,
    "JMSXDeliveryCount": lambda message: message.delivery_count() + 1,
}


# -- operators
_NUMBERS: Final = frozenset({int, float})
_EQUATABLE: Final = frozenset({str, bool, int, float})
_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1


def _comparison(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    compare = _COMPARISONS[sign]
    comparable = _EQUATABLE if sign in {"=", "<>"} else _NUMBERS

    def evaluate(message: _Message) -> Value:
        a = left(message)
        if a is None:
            return None
        b = right(message)
        if b is None:
            return None
        if type(a) is type(b):
            if type(a) is str and len(a) >= LONG_STRING:
                message.spend(len(a) // COMPARED_AT_ONCE)
            return type(a) in comparable and compare(a, b)
        return type(a) in _NUMBERS and type(b) in _NUMBERS and compare(float(a), float(b))

    return evaluate


def _operation(calculate: Callable[[Any, Any], Any]) -> Callable[[Value, Value], Value]:
    def operate(a: Value, b: Value) -> Value:
        if a is None or b is None or type(a) not in _NUMBERS or type(b) not in _NUMBERS:
            return None
        try:
            result: int | float = calculate(a, b) if type(a) is type(b) else calculate(float(a), float(b))
        except ZeroDivisionError:
            return None
        return result if type(result) is float or _LEAST <= result <= _MOST else None

    return operate


def _quotient(a: Any, b: Any) -> int | float:
    """Of two numbers of one type. `float` would be wrong for the parameters: compiled code makes floats of integers."""
    if type(a) is float:
        return a / b  # type: ignore[no-any-return] # mypy does not narrow Any here
    quotient: int = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_OPERATIONS: Final = {
    "+": _operation(operator.add),
    "-": _operation(operator.sub),
    "*": _operation(operator.mul),
    "/": _operation(_quotient),
}


def _chain(first: Evaluate, rest: list[tuple[str, Evaluate]]) -> Evaluate:
    """Operators of one precedence, from left to right."""
    steps = tuple((_OPERATIONS[sign], operand) for sign, operand in rest)

    def evaluate(message: _Message) -> Value:
        value = first(message)
        for operate, operand in steps:
            if value is None:
                return None
            value = operate(value, operand(message))
        return value

    return evaluate


def _signed(sign: str, operand: Evaluate) -> Evaluate:
    operate = _OPERATIONS["*"]
    factor = 1 if sign == "+" else -1
    return lambda message: operate(operand(message), factor)


def _all(conditions: list[Evaluate]) -> Evaluate:
    def evaluate(message: _Message) -> Value:
        result: bool | None = True
        for condition in conditions:
            value = condition(message)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return evaluate


def _any(conditions: list[Evaluate]) -> Evaluate:
    def evaluate(message: _Message) -> Value:
        result: bool | None = False
        for condition in conditions:
            value = condition(message)
            if value is True:
                return True
            if value is None:
                result = None
        return result

    return evaluate


def _not(condition: Evaluate) -> Evaluate:
    def evaluate(message: _Message) -> Value:
        value = condition(message)
        return None if value is None else value is False

    return evaluate


def _truth(operand: Evaluate) -> Evaluate:
    """An identifier as a condition."""

    def evaluate(message: _Message) -> Value:
        value = operand(message)
        return value if type(value) is bool else None

    return evaluate


def _of_string(operand: Evaluate, test: Callable[[_Message, str], bool]) -> Evaluate:
    def evaluate(message: _Message) -> Value:
        value = operand(message)
        return None if value is None else isinstance(value, str) and test(message, value)

    return evaluate


def _one_of(strings: frozenset[str]) -> Callable[[_Message, str], bool]:
    return lambda _, value: value in strings


# -- LIKE
class _Part:
    """What stands between two % of a pattern."""

    __slots__ = ("_run", "_run_at", "_run_width", "_whole", "width")

    def __init__(self, characters: list[str | None]) -> None:
        """The characters; None for _, which stands for any."""
        self.width = len(characters)
        self._run_at, self._run_width = _longest_run(characters)

        expressions = ["." if character is None else re.escape(character) for character in characters]
        self._whole = re.compile("".join(expressions), re.DOTALL)
        run = expressions[self._run_at : self._run_at + self._run_width]
        self._run = re.compile("".join(run))
        """Searching for an expression without . is the algorithm of Knuth, Morris and Pratt; str.find is quadratic."""

    def stands_at(self, message: _Message, string: str, at: int) -> bool:
        """Whether the part stands at `at` of a string that is long enough for it."""
        message.spend(SEARCH_WORK + self.width)
        return self._whole.match(string, at) is not None

    def find(self, message: _Message, string: str, at: int, end: int) -> int:
        """Where the first occurrence behind `at` ends that ends at `end` at the latest; -1 when there is none."""
        message.spend(SEARCH_WORK + self.width)
        last = end - self.width
        while at <= last:
            furthest = min(last, at + message.work)
            run_from = at + self._run_at
            found = self._run.search(string, run_from, furthest + self._run_at + self._run_width)
            if found is None:
                message.spend(last - at)
                return -1

            message.spend(found.start() - run_from)
            at += found.start() - run_from
            if self._run_width == self.width:
                return at + self.width
            message.spend(TRIAL_WORK + 2 * self.width)
            if self._whole.match(string, at):
                return at + self.width
            at += 1
        return -1


def _longest_run(characters: list[str | None]) -> tuple[int, int]:
    """Where the longest run of characters without _ begins, and how many they are."""
    best = start = length = 0
    for at, character in enumerate(characters):
        if character is None:
            start = at + 1
        elif at + 1 - start > length:
            best, length = start, at + 1 - start
    return best, length


def _parts(pattern: str, escape: str | None) -> list[_Part] | None:
    """The parts of a pattern; None for one that ends with the escape character."""
    parts: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                return None
            parts[-1].append(escaped)
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append(None if character == "_" else character)
    return [_Part(part) for part in parts]


def _is_like(parts: list[_Part]) -> Callable[[_Message, str], bool]:
    """The test whether a string is LIKE a pattern of these parts."""
    first, last = parts[0], parts[-1]
    between = [part for part in parts[1:-1] if part.width]

    def is_like(message: _Message, string: str) -> bool:
        if len(parts) == 1:
            return len(string) == first.width and first.stands_at(message, string, 0)

        at, end = first.width, len(string) - last.width
        if at > end or not first.stands_at(message, string, 0) or not last.stands_at(message, string, end):
            return False
        for part in between:
            at = part.find(message, string, at, end)
            if at < 0:
                return False
        return True

    return is_like


# -- the text
_SPACE: Final = " \t\n\r\f"
_SEPARATORS: Final = frozenset(_SPACE + "'<>=+-*/(),")
_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\n\r\f]+)
    | (?P<string>'(?:[^']++|'')*+')
    | (?P<approximate>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?|[0-9]+(?:[eE][+-]?[0-9]+[fFdD]?|[fFdD]))
    | (?P<exact>(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)[lL]?)
    | (?P<sign><>|<=|>=|[=<>+\-*/(),])
    | (?P<word>[^ \t\n\r\f'<>=+\-*/(),.0-9][^ \t\n\r\f'<>=+\-*/(),.]*+)""",
    re.VERBOSE,
)
_KEYWORDS: Final = frozenset({"NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE", "NULL", "TRUE", "FALSE"})
_IDENTIFIER_START: Final = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Sc", "Pc"})
"""General categories of Unicode, as Java's Character.isJavaIdentifierStart has them."""
_IDENTIFIER_PART: Final = _IDENTIFIER_START | {"Nd", "Mn", "Mc", "Cf"}


class _Token(NamedTuple):
    """`kind` is string, approximate, exact, identifier, end, or what a sign or keyword is itself."""

    kind: str
    text: str
    position: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else self.text if len(self.text) <= 40 else self.text[:40] + "…"


def _tokens(text: str) -> list[_Token]:
    tokens = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            if text[at] == "'":
                raise SelectorError(at, "a string does not end")
            raise _misplaced(text, at)

        start, at = at, match.end()
        kind, token = match.lastgroup or "", match.group()
        if kind == "word":
            kind = _word(text, start, at)
        elif kind == "sign":
            kind = token
        elif kind in {"exact", "approximate"} and at < len(text) and text[at] not in _SEPARATORS:
            raise SelectorError(start, f"{token + text[at]} begins no number")
        if kind != "space":
            tokens.append(_Token(kind, token, start))
    tokens.append(_Token("end", "", len(text)))
    return tokens


def _word(text: str, start: int, end: int) -> str:
    """The keyword, or identifier."""
    word = text[start:end]
    if word.isascii() and word.upper() in _KEYWORDS:
        return word.upper()
    for at in range(start, end):
        if category(text[at]) not in (_IDENTIFIER_PART if at > start else _IDENTIFIER_START):
            raise _misplaced(text, at)
    return "identifier"


def _misplaced(text: str, at: int) -> SelectorError:
    return SelectorError(at, f"{text[at]!r} belongs to no identifier or operator")


class _Kind(Enum):
    """The facts about an expression before there is a message."""

    CONDITION = "a condition"
    NUMBER = "a number"
    STRING = "a string"
    IDENTIFIER = "an identifier"


class _Expression(NamedTuple):
    kind: _Kind
    evaluate: Evaluate
    position: int


class _Parser:
    """Reads one selector by recursive descent; the methods are the rules of the grammar."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise SelectorError(MAX_LENGTH, f"a selector has at most {MAX_LENGTH} characters, not {len(text)}")
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0
        self._operands = 0

    def selector(self) -> Evaluate:
        condition = self._condition(self._or())
        if self._kind() != "end":
            raise self._unexpected("AND, OR or the end")
        return condition

    # -- tokens
    def _kind(self, ahead: int = 0) -> str:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)].kind

    def _take(self, *kinds: str) -> _Token | None:
        """The next token, if it is of one of these kinds."""
        token = self._tokens[self._next]
        if token.kind not in kinds:
            return None
        self._next += 1
        return token

    def _expect(self, kind: str, name: str) -> _Token:
        token = self._take(kind)
        if token is None:
            raise self._unexpected(name)
        return token

    def _unexpected(self, wanted: str) -> SelectorError:
        token = self._tokens[self._next]
        return SelectorError(token.position, f"{wanted} is expected, not {token}")

    def _count(self, operands: int, position: int) -> None:
        self._operands += operands
        if self._operands > MAX_OPERANDS:
            reason = f"a selector has at most {MAX_OPERANDS} identifiers, literals and parts of patterns"
            raise SelectorError(position, reason)

    def _nested(self, position: int, rule: Callable[[], _Expression]) -> _Expression:
        if self._depth == MAX_DEPTH:
            raise SelectorError(position, f"expressions are nested deeper than {MAX_DEPTH}")
        self._depth += 1
        expression = rule()
        self._depth -= 1
        return expression

    # -- conditions
    def _condition(self, expression: _Expression) -> Evaluate:
        if expression.kind is _Kind.IDENTIFIER:
            return _truth(expression.evaluate)
        if expression.kind is not _Kind.CONDITION:
            raise SelectorError(expression.position, f"a condition is expected, not {expression.kind.value}")
        return expression.evaluate

    def _or(self) -> _Expression:
        return self._joined("OR", self._and, _any)

    def _and(self) -> _Expression:
        return self._joined("AND", self._not, _all)

    def _joined(
        self, keyword: str, rule: Callable[[], _Expression], join: Callable[[list[Evaluate]], Evaluate]
    ) -> _Expression:
        first = rule()
        if self._kind() != keyword:
            return first
        conditions = [self._condition(first)]
        while self._take(keyword):
            conditions.append(self._condition(rule()))
        return _Expression(_Kind.CONDITION, join(conditions), first.position)

    def _not(self) -> _Expression:
        token = self._take("NOT")
        if token is None:
            return self._predicate()
        condition = self._condition(self._nested(token.position, self._not))
        return _Expression(_Kind.CONDITION, _not(condition), token.position)

    def _predicate(self) -> _Expression:
        left = self._sum()
        token = self._take(*_COMPARISONS)
        if token is not None:
            right = self._sum()
            if token.kind not in {"=", "<>"}:
                self._number(left)
                self._number(right)
            return _Expression(_Kind.CONDITION, _comparison(token.kind, left.evaluate, right.evaluate), left.position)

        negated = self._kind() == "NOT"
        rule = {"BETWEEN": self._between, "LIKE": self._like, "IN": self._in}.get(self._kind(1 if negated else 0))
        if rule is not None:
            self._next += 2 if negated else 1
            return _Expression(_Kind.CONDITION, rule(left, negated), left.position)
        if self._take("IS"):
            return _Expression(_Kind.CONDITION, self._is(left), left.position)
        return left

    def _between(self, left: _Expression, negated: bool) -> Evaluate:
        value = self._number(left)
        low = self._number(self._sum())
        self._expect("AND", "AND")
        high = self._number(self._sum())
        if negated:
            return _any([_comparison("<", value, low), _comparison(">", value, high)])
        return _all([_comparison(">=", value, low), _comparison("<=", value, high)])

    def _like(self, left: _Expression, negated: bool) -> Evaluate:
        operand = self._identifier(left, "LIKE")
        pattern = self._expect("string", "a pattern")
        escape = None
        if self._take("ESCAPE"):
            token = self._expect("string", "an escape character")
            escape = _string(token)
            if len(escape) != 1:
                raise SelectorError(token.position, f"an escape is one character, not {token}")
        text = _string(pattern)
        self._count(text.count("%") + 1, pattern.position)
        parts = _parts(text, escape)
        if parts is None:
            raise SelectorError(pattern.position, "nothing follows the escape character at the pattern's end")
        condition = _of_string(operand, _is_like(parts))
        return _not(condition) if negated else condition

    def _in(self, left: _Expression, negated: bool) -> Evaluate:
        operand = self._identifier(left, "IN")
        self._expect("(", "(")
        strings = {_string(self._expect("string", "a string"))}
        while self._take(","):
            strings.add(_string(self._expect("string", "a string")))
        self._expect(")", ", or )")
        condition = _of_string(operand, _one_of(frozenset(strings)))
        return _not(condition) if negated else condition

    def _is(self, left: _Expression) -> Evaluate:
        operand = self._identifier(left, "IS")
        negated = self._take("NOT") is not None
        self._expect("NULL", "NULL" if negated else "NULL or NOT NULL")
        return lambda message: (operand(message) is None) is not negated

    def _identifier(self, expression: _Expression, keyword: str) -> Evaluate:
        if expression.kind is not _Kind.IDENTIFIER:
            reason = f"an identifier is expected in front of {keyword}, not {expression.kind.value}"
            raise SelectorError(expression.position, reason)
        return expression.evaluate

    # -- numbers
    def _number(self, expression: _Expression) -> Evaluate:
        if expression.kind not in {_Kind.NUMBER, _Kind.IDENTIFIER}:
            raise SelectorError(expression.position, f"a number is expected, not {expression.kind.value}")
        return expression.evaluate

    def _sum(self) -> _Expression:
        return self._calculated(("+", "-"), self._product)

    def _product(self) -> _Expression:
        return self._calculated(("*", "/"), self._unary)

    def _calculated(self, signs: tuple[str, str], rule: Callable[[], _Expression]) -> _Expression:
        first = rule()
        rest = []
        while token := self._take(*signs):
            rest.append((token.kind, self._number(rule())))
        if not rest:
            return first
        return _Expression(_Kind.NUMBER, _chain(self._number(first), rest), first.position)

    def _unary(self) -> _Expression:
        token = self._take("+", "-")
        if token is None:
            return self._primary()
        operand = self._number(self._nested(token.position, self._unary))
        return _Expression(_Kind.NUMBER, _signed(token.kind, operand), token.position)

    def _primary(self) -> _Expression:
        token = self._take("(", "identifier", "string", "exact", "approximate", "TRUE", "FALSE")
        if token is None:
            raise self._unexpected("a value")

        self._count(token.kind != "(", token.position)
        if token.kind == "(":
            inner = self._nested(token.position, self._or)
            self._expect(")", ")")
            return inner
        if token.kind == "identifier":
            return _Expression(_Kind.IDENTIFIER, _named(token), token.position)
        if token.kind in {"TRUE", "FALSE"}:
            return _Expression(_Kind.CONDITION, _constant(token.kind == "TRUE"), token.position)
        if token.kind == "string":
            return _Expression(_Kind.STRING, _constant(_string(token)), token.position)
        number = _exact(token) if token.kind == "exact" else _approximate(token)
        return _Expression(_Kind.NUMBER, _constant(number), token.position)


def _constant(value: Value) -> Evaluate:
    return lambda _: value


def _named(token: _Token) -> Evaluate:
    name = token.text
    if name in _HEADERS:
        return _once(name, _HEADERS[name])
    if name.startswith("JMS") and not name.startswith(("JMSX", "JMS_")):
        headers = ", ".join(known for known in _HEADERS if not known.startswith("JMSX"))
        raise SelectorError(token.position, f"{token} is no header that selectors know; they know {headers}")
    return _once(name, _application_property(name))


def _string(token: _Token) -> str:
    return token.text[1:-1].replace("''", "'")


def _exact(token: _Token) -> int:
    digits = token.text.rstrip("lL")
    base = 16 if digits[:2] in {"0x", "0X"} else 8 if digits[0] == "0" else 10
    if len(digits) <= MAX_DIGITS and (number := int(digits, base)) <= _MOST:
        return number
    raise SelectorError(token.position, f"{token} has more than 64 bits")


def _approximate(token: _Token) -> float:
    number = float(token.text.rstrip("fFdD"))
    if token.text[-1] in "fF":
        try:
            number = struct.unpack(">f", struct.pack(">f", number))[0]
        except OverflowError:
            number = float("inf")
    if number == float("inf"):
        raise SelectorError(token.position, f"{token} is too large")
    return number
