"""This test checks that the resource manager in docs/resource-managers.md passes the contract suite, run as the page
shows.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Final

import pytest

from tests.docs.guide import ROOT, blocks
from xa import Code

_PAGE: Final = "resource-managers.md"
_EXAMPLE, _TESTS = (block for block in blocks(ROOT / "docs" / _PAGE) if block.language == "python")
MOST_LINES: Final = 170


def _execute(number: int, namespace: dict[str, object]) -> None:
    block = (_EXAMPLE, _TESTS)[number]
    code = compile("\n" * (block.line - 1) + block.code, block.page, "exec", dont_inherit=True)
    exec(code, namespace)  # noqa: S102 — our own page


sys.modules["shelf"] = ModuleType("shelf")
_execute(0, vars(sys.modules["shelf"]))
_execute(1, globals())  # its test classes and its fixture are this module's: pytest finds them here

FAST: Final = ("TestCompletion", "TestRecovery")
for _name, _suite in [(name, found) for name, found in globals().items() if name.startswith("Test")]:
    if _name not in FAST:  # the classes are those of all suites: the marker is for a class of this module's
        globals()[_name] = pytest.mark.slow(type(_name, (_suite,), {"__module__": __name__}))


def test_the_example_is_short() -> None:
    assert _EXAMPLE.code.count("\n") <= MOST_LINES


def test_every_code_is_explained_once() -> None:
    section = (ROOT / "docs" / _PAGE).read_text(encoding="utf-8").partition("## The codes")[2]
    firsts = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert sorted(name for first in firsts for name in re.findall(r"`(\w+)`", first)) == sorted(
        code.name for code in Code
    )
