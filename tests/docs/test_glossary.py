"""These tests check that docs/glossary.md has each word once, in order, explained in one sentence with a source, and
that the code uses each word.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from tests.docs.guide import ROOT, pages

GLOSSARY = ROOT / "docs" / "glossary.md"
TEXT = GLOSSARY.read_text(encoding="utf-8")
ENTRIES = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| word |", "| --- "))
]
SOURCES = set(re.findall(r"\*\*(\w+)\*\* is", TEXT))
PACKAGES = ("xa", "dtx", "rm_amqp", "rm_openwire", "rm_db", "rm_delta", "tm", "xabridge")


def test_each_word_stands_once_and_in_order() -> None:
    words = [word.lower() for word, _, _ in ENTRIES]
    assert [word for word, times in Counter(words).items() if times > 1] == []
    assert [pair for pair in pairwise(words) if pair[0] >= pair[1]] == []


def test_a_meaning_is_one_sentence_with_a_source() -> None:
    for word, meaning, source in ENTRIES:
        assert re.fullmatch(r"[A-Z`].*\.", meaning), word
        assert ". " not in meaning, word
        assert source.split(",", maxsplit=1)[0] in SOURCES, word


def test_each_word_is_in_use() -> None:
    files = [page for page in pages() if page != GLOSSARY]
    for package in PACKAGES:
        files += (ROOT / package).rglob("*.py")
    texts = _spaced("\n".join(file.read_text(encoding="utf-8") for file in files))
    assert [word for word, _, _ in ENTRIES if _spaced(word) not in texts] == []


def _spaced(text: str) -> str:
    return re.sub(r"[\s_-]+", " ", text).lower()
