"""mypy knows what is decoded: it refuses the table of a composite that does not fit its dataclass, an attribute that is
used as what it is not, and a value that is none of AMQP."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from dtx.amqp.composites import FIELDS, STRING, standard

if TYPE_CHECKING:
    from pathlib import Path

RIGHT = """
from dataclasses import dataclass

from dtx.amqp.composites import BOOLEAN, FIELDS, STRING, UINT, Catalog, standard
from dtx.amqp.decoding import decode
from dtx.amqp.encoding import encode
from dtx.amqp.values import Symbol, Uint


@dataclass
class Detached:
    name: str
    handle: int | None
    closed: bool = False


TABLE = FIELDS.mandatory("name", STRING).optional("handle", UINT).default("closed", BOOLEAN, absent=False)
DETACHED = standard(Detached, "detached", 1, TABLE)
name: str = Catalog(DETACHED).decode(b"").name
octets = encode([Uint(5), {Symbol("a"): True}])
found = decode(octets)
first = found[0] if isinstance(found, list) else None
"""
MISTAKES = {
    "a_field_of_another_type": ('"name", STRING', '"name", UINT'),
    "a_field_that_may_be_null": ('mandatory("name"', 'optional("name"'),
    "fields_in_another_order": (
        '.optional("handle", UINT).default("closed", BOOLEAN, absent=False)',
        '.default("closed", BOOLEAN, absent=False).optional("handle", UINT)',
    ),
    "a_field_too_many": ("absent=False)", 'absent=False).optional("error", STRING)'),
    "a_wrong_default": ("absent=False", 'absent="no"'),
    "a_wrong_use_of_an_attribute": ("name: str = Cat", "name: int = Cat"),
    "a_value_that_is_none_of_amqp": ("Uint(5)", "(True, False)"),
    "a_value_used_unseen": (" if isinstance(found, list) else None", ""),
}


@pytest.mark.slow
def test_mypy_refuses_what_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT, encoding="utf-8")
    for name, (good, bad) in MISTAKES.items():
        assert good in RIGHT
        (tmp_path / f"{name}.py").write_text(RIGHT.replace(good, bad), encoding="utf-8")
    files = ["right.py", *(f"{name}.py" for name in MISTAKES)]
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path}/cache"]
    found = subprocess.run(
        [*command, "--python-executable", sys.executable, *files],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    refused = set(re.findall(r"^(\w+)\.py:\d+: error", found.stdout, re.MULTILINE))
    assert refused == set(MISTAKES), found.stdout + found.stderr


@dataclass
class Detached:
    name: str
    closed: bool = False


def test_a_table_has_a_field_for_each_attribute() -> None:
    """mypy does not ask for the attributes that have a default."""
    with pytest.raises(ValueError, match="shorter"):
        standard(Detached, "detached", 1, FIELDS.mandatory("name", STRING))
