"""These tests check that each file and folder named in tests/README.md exists, and that each word explained there is a
class of the tests.
"""

from __future__ import annotations

import re

from tests.docs.guide import ROOT

TESTS = ROOT / "tests"
TEXT = (TESTS / "README.md").read_text(encoding="utf-8")


def test_the_files_exist() -> None:
    named = re.findall(r"`([\w/]+\.py|[\w/]+/)`", TEXT)
    assert len(named) > 30
    assert [name for name in named if not (TESTS / name).exists() and not (ROOT / name).exists()] == []


def test_the_words_are_classes() -> None:
    table = TEXT[TEXT.index("## Words") : TEXT.index("## Writing one")]
    words = [
        word
        for first in re.findall(r"^\| (`\w+`[^|]*) \|", table, re.MULTILINE)
        for word in re.findall(r"`(\w+)`", first)
    ]
    sources = "\n".join(
        file.read_text(encoding="utf-8") for folder in (TESTS, ROOT / "bench") for file in folder.rglob("*.py")
    )
    classes = set(re.findall(r"^class (\w+)", sources, re.MULTILINE))
    assert len(words) > 15
    assert [word for word in words if not any(name.endswith(word) for name in classes)] == []
