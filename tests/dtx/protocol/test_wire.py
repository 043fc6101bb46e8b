"""These tests check docs/wire.md: every example in it is what the code encodes, and its types and statuses are those of
the code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtx.protocol.commands import CONTROL, COORDINATION, START, XID_TYPE
from dtx.protocol.conditions import TABLE
from dtx.protocol.extension import DOMAIN
from dtx.protocol.replies import DETAILS, HOLDING, RECOVERED, RESULT, TIMEOUT, decode_reply
from tests.cases import each
from tests.dtx.protocol.wire_examples import (
    COMMAND_EXAMPLES,
    CONTROL_EXAMPLES,
    REPLY_EXAMPLES,
    octets,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.composites import Composite

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
