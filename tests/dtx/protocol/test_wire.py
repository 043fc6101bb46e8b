"""Every field of every command and reply, and that wrong octets raise WireError and nothing else. Then docs/wire.md:
every example in it is what the code encodes, and its types and statuses are those of the code."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dtx.amqp.composites import Catalog, Composite, WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import decode
from dtx.amqp.encoding import encode
from dtx.amqp.values import Described, Map, Symbol, Ubyte, Uint, Ulong, Ushort, Value
from dtx.protocol.commands import (
    CONTROL,
    COORDINATION,
    DOMAIN,
    START,
    XID_TYPE,
    Commit,
    Complete,
    Declare,
    Discharge,
    End,
    Fence,
    Forget,
    GetTimeout,
    Prepare,
    Recover,
    RecoveredState,
    Rollback,
    SetTimeout,
    Start,
)
from dtx.protocol.conditions import CODE_OF, CODE_OF_CONDITION, CONDITION_OF, STATUS_OF, TABLE, Refusal
from dtx.protocol.replies import (
    DETAILS,
    HOLDING,
    RECOVERED,
    RESULT,
    TIMEOUT,
    Details,
    Holding,
    Recovered,
    Result,
    Timeout,
    decode_reply,
    encode_reply,
)
from tests.cases import each
from tests.dtx.amqp.described import items_of
from tests.dtx.protocol.wire_examples import (
    COMMAND_EXAMPLES,
    CONTROL_EXAMPLES,
    REPLY_EXAMPLES,
    octets,
)
from xa import NULL_XID, Code, Xid
from xa.printable import printable

LONGEST = Xid(2**31 - 1, bytes(range(64)), b"\xff" * 64)
SHORTEST = Xid(0, b"\0", b"")
LAST = 2**32 - 1
TEXT = "\n\x1b[2J ü\ud7ff\U0001f642'"
XIDS = (NULL_XID, SHORTEST, LONGEST)
HOLDINGS = (Holding("", 0, LAST), Holding(TEXT, LAST, 0))
PAIRS = tuple(product((False, True), repeat=2))


@each(
    "command",
    [
        *(Declare(Start(xid, txn_id=txn_id, timeout_s=timeout_s)) for xid in (SHORTEST, LONGEST)
          for txn_id, timeout_s in ((None, 0), (b"", None), (bytes(32), LAST))),
        *(Discharge(txn_id, fail=fail) for txn_id in (b"", bytes(32)) for fail in (False, True)),
        *(End(b"t", *flags) for flags in product((False, True), repeat=4)),
    ],
)  # fmt: skip
def test_what_is_said_of_demarcation_survives_the_wire(command: Any) -> None:
    assert CONTROL.decode(CONTROL.encode(command)) == command


@each(
    "command",
    [
        *(kind(xid, flag) for kind in (Prepare, Commit) for xid in XIDS for flag in (False, True)),
        *(kind(xid) for kind in (Rollback, GetTimeout) for xid in XIDS),
        *(Complete(xid, commit=commit) for xid in (SHORTEST, LONGEST) for commit in (False, True)),
        *(Recover(xid, count, b"p" * count, tuple(RecoveredState), details=True) for xid in XIDS for count in (1, 64)),
        *(SetTimeout(timeout_s, xid) for timeout_s in (0, LAST) for xid in XIDS),
        *(Fence(LAST, bytes(64), flag) for flag in (False, True)),
        Forget(LONGEST),
    ],
)
def test_commands_survive_the_wire(command: Any) -> None:
    assert COORDINATION.decode(COORDINATION.encode(command)) == command


@each(
    "reply",
    [
        *map(Result, Code),
        Timeout(0),
        Timeout(LAST),
        *(Recovered((SHORTEST, LONGEST), more, tuple(
            Details(LONGEST, found, 2**62, TEXT, HOLDINGS, outcome)
            for found in RecoveredState for outcome in (None, *Code)
        ) * detailed) for more, detailed in PAIRS),
        *(Refusal(str(condition), TEXT, code, LONGEST) for condition in Condition for code in Code),
    ],
)  # fmt: skip
def test_replies_survive_the_wire(reply: Any) -> None:
    expected = reply
    if isinstance(reply, Refusal):  # what can't be printed is read escaped
        expected = replace(reply, description=printable(reply.description))
    assert decode_reply(encode_reply(reply)) == expected


EXAMPLES = [(CONTROL, one) for one in CONTROL_EXAMPLES.values()] + [
    (COORDINATION, one) for one in COMMAND_EXAMPLES.values()
]
WRONG = [Ubyte(1), Ulong(1), Symbol("x"), "x", [], {}, 1.5, Described(Symbol("x"), [])]


def condition_of(catalog: Catalog[Any], octets: bytes) -> Condition | None:
    """What refuses these octets, None when they are taken."""
    try:
        catalog.decode(octets)
    except WireError as error:
        return error.condition
    return None


def fields() -> list[tuple[Catalog[Any], Any, int]]:
    """Every field of every kind of command."""
    seen: dict[type, tuple[Catalog[Any], Any]] = {}
    for catalog, one in EXAMPLES:
        seen.setdefault(type(one), (catalog, one))
    return [
        (catalog, one, index)
        for catalog, one in seen.values()
        for index in range(len(catalog.by_type[type(one)].fields))
    ]


@each(("catalog", "command", "index"), fields())
def test_a_field_of_a_wrong_type_or_a_mandatory_one_that_is_missing_is_refused(
    catalog: Catalog[Any], command: Any, index: int
) -> None:
    found: Composite[Any] = catalog.by_type[type(command)]
    field = found.fields[index]
    items: list[Any] = [*items_of(decode(found.encode(command))), *[None] * len(found.fields)][: len(found.fields)]
    taken = 0
    for wrong in WRONG:
        items[index] = wrong
        condition = condition_of(catalog, encode(Described(found.sent, items)))
        taken += condition is None
        assert condition in {
            None,
            Condition.INVALID_FIELD,
            Condition.DECODE_ERROR,
            Condition.NOT_IMPLEMENTED,
        }

    assert taken <= 1, "at most one of the wrong types is the right one"
    items[index] = None
    octets = encode(Described(found.sent, items))
    if field.mandatory:
        with pytest.raises(WireError, match=f"needs {field.name}"):
            catalog.decode(octets)
    else:
        assert getattr(catalog.decode(octets), found.attributes[index]) == field.absent


@each(("catalog", "command"), EXAMPLES)
def test_both_forms_of_a_descriptor_are_taken(catalog: Catalog[Any], command: Any) -> None:
    found: Composite[Any] = catalog.by_type[type(command)]
    items = items_of(decode(found.encode(command)))
    for descriptor in (found.symbol, found.code):
        assert catalog.decode(encode(Described(descriptor, items))) == command
    with pytest.raises(WireError, match=r"has \d+ fields"):
        catalog.decode(encode(Described(found.symbol, [None] * (len(found.fields) + 1))))


def named(name: str, *items: Any) -> Described:
    return Described(Symbol(f"xabridge:{name}:list"), list(items))


NO_DESCRIPTORS: list[Value] = [Symbol("xabridge:nonsense:list"), Ulong(0x99), "xabridge:prepare:list", []]
NO_XIDS: list[list[Value]] = [
    [Uint(1), b""],
    [Uint(1), b"x" * 65],
    [Uint(1), b"g", b"x" * 65],
    [Uint(2**31), b"g"],
    [Uint(2**32 - 1), b"g"],
    [Uint(1)],
]
NO_TXN_IDS: list[list[Value]] = [[b"x" * 33], [b"", None, None, None, None, None], ["t"], [None]]
NULL = named("xid", Uint(2**32 - 1), b"", b"")


@each(
    ("catalog", "octets", "condition", "says"),
    [
        (COORDINATION, b"", Condition.DECODE_ERROR, ""),
        (COORDINATION, b"\xff", Condition.DECODE_ERROR, ""),
        (COORDINATION, encode(None), Condition.DECODE_ERROR, ""),
        *(
            (COORDINATION, encode(Described(descriptor, [])), Condition.NOT_IMPLEMENTED, "")
            for descriptor in NO_DESCRIPTORS
        ),
        (COORDINATION, encode(Described(Symbol("xabridge:prepare:list"), {})), Condition.INVALID_FIELD, ""),
        *(
            (COORDINATION, encode(named("rollback", named("xid", *parts))), Condition.INVALID_FIELD, "")
            for parts in NO_XIDS
        ),
        *((CONTROL, encode(named("end", *items)), None, "") for items in NO_TXN_IDS),
        (
            CONTROL,
            encode(Described(Ulong(0x31), [named("start", named("xid", Uint(1), b"g"), True, True)])),
            None,
            "exclude",
        ),
        *(
            (COORDINATION, encode(named("recover", None, Uint(count))), None, "between 1 and 1000")
            for count in (0, 1001)
        ),
        (COORDINATION, encode(named("forget", NULL)), None, "names no branch"),
    ],
)
def test_what_is_no_command_is_refused(
    catalog: Catalog[Any], octets: bytes, condition: Condition | None, says: str
) -> None:
    with pytest.raises(WireError) as caught:
        catalog.decode(octets)
    assert says in str(caught.value)
    assert condition in {None, caught.value.condition}


def test_the_null_xid_is_null_or_minus_one() -> None:
    for items in ([], [None], [NULL]):
        assert COORDINATION.decode(encode(named("rollback", *items))) == Rollback(NULL_XID)


def test_every_code_has_a_status_of_its_own() -> None:
    assert STATUS_OF.keys() == set(Code)
    assert {CODE_OF[status]: status for status in CODE_OF} == STATUS_OF
    told = {Code.XA_OK: 0, Code.XA_RBROLLBACK: 1, Code.XA_RBTIMEOUT: 2, Code.XA_HEURHAZ: 3}
    told |= {Code.XA_HEURCOM: 4, Code.XA_HEURRB: 5, Code.XA_HEURMIX: 6, Code.XA_RDONLY: 7}
    assert {code: STATUS_OF[code] for code in told} == told, "those of AMQP 0-10 dtx"


def test_what_is_refused_has_a_condition_and_what_is_answered_has_none() -> None:
    for code, condition in CONDITION_OF.items():
        answered = code in {Code.XA_OK, Code.XA_RDONLY, Code.XA_NOMIGRATE} or code.name.startswith("XA_HEUR")
        assert (condition is None) == answered, code


def test_a_status_that_is_none_is_refused() -> None:
    octets = encode(Described(Symbol("xabridge:xa-result:list"), [Ushort(99)]))
    with pytest.raises(WireError, match="is not an xa-status"):
        decode_reply(octets)


@each("condition", list(Condition))
def test_errors_of_others_are_understood(condition: Condition) -> None:
    """A broker that knows nothing of xa-status, or tells nonsense in it."""
    told: list[Map | None] = [
        None,
        {},
        {"xa-status": "x", "xid": Uint(5)},
        {"xa-status": Uint(12345), "xid": "nonsense"},
    ]
    for info in told:
        refusal = Refusal.read(condition, None, info)
        assert refusal.code is CODE_OF_CONDITION.get(condition, Code.XAER_RMERR)
        assert refusal.xid is None


# -- docs/wire.md
PAGE = (Path(__file__).parents[3] / "docs" / "wire.md").read_text(encoding="utf-8")
BLOCK = re.compile(r'^```wire title="([^"\n]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
HEX = re.compile(r"\s*((?:[0-9a-f]{2} ?)+)(?:\s{2}|$)")
SHOWN = dict(BLOCK.findall(PAGE))


def shown_octets(body: str) -> bytes:
    """The octets of a block: what stands in front of two spaces in each line."""
    found = b""
    for line in body.splitlines():
        match = HEX.match(line)
        assert match is not None, line
        found += bytes.fromhex(match[1])
    return found


def test_every_example_is_on_the_page_once() -> None:
    assert len(BLOCK.findall(PAGE)) == len(SHOWN)
    assert SHOWN.keys() == octets().keys()


@each("name", sorted(octets()))
def test_the_page_shows_what_is_encoded(name: str) -> None:
    assert shown_octets(SHOWN[name]) == octets()[name]


@each(
    ("examples", "decode"),
    [
        (CONTROL_EXAMPLES, CONTROL.decode),
        (COMMAND_EXAMPLES, COORDINATION.decode),
        (REPLY_EXAMPLES, decode_reply),
    ],
)
def test_the_examples_are_decoded(examples: dict[str, Any], decode: Callable[[bytes], Any]) -> None:
    assert {name: decode(shown_octets(SHOWN[name])) for name in examples} == examples


def ours() -> dict[str, Composite[object]]:
    """Every composite of our domain, by name."""
    found: list[Composite[object]] = [*CONTROL.by_type.values(), *COORDINATION.by_type.values()]
    found += [XID_TYPE, START, RESULT, RECOVERED, HOLDING, DETAILS, TIMEOUT]
    return {one.name: one for one in found if int(one.code) >> 32 == DOMAIN}


def test_the_table_of_composites_is_complete() -> None:
    rows = re.findall(r"^\| (0x[0-9a-f]{2}) \| `([a-z-]+)` \| (.*) \|$", PAGE, re.MULTILINE)
    told = {
        name: (int(number, 16), [field.split()[0] for field in fields.split(", ")]) for number, name, fields in rows
    }
    for name, one in ours().items():
        number, words = told.pop(name)
        assert number == int(one.code) & 0xFFFF_FFFF
        for field in one.fields:
            assert field.name in words, f"{name} has {field.name}"
    assert not told


def test_the_table_of_statuses_is_the_table() -> None:
    rows = re.findall(r"^\| `(XA\w+)` \| (\w+) \| (.*) \|$", PAGE, re.MULTILINE)
    told = {name: (int(status, 0), condition.strip("`")) for name, status, condition in rows}
    for row in TABLE:
        condition = str(row.condition) if row.condition is not None else "told as a result"
        assert told.pop(row.code.name) == (row.status, condition)
    assert not told
