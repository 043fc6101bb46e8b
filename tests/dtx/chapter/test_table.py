"""These tests check docs/amqp-transactions.md: its table must have every MUST and SHOULD of the transactions chapter,
and every test that the table names must exist and quote the sentence.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.cases import each

ROOT = Path(__file__).parents[3]
CHAPTER = Path(__file__).parent / "transactions.xml"
PAGE = ROOT / "docs" / "amqp-transactions.md"
BLOCKS = "p|doc|dd|dt|dl|li|ul|section|type|field|descriptor|choice"
WORDS = re.compile(r"\b(MUST|SHOULD|must|should)\b")
ROW = re.compile(r"^\| (\d+) \| (.+) \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def sentences() -> list[str]:
    """The sentences of the chapter with one of the words, in their order."""
    text = CHAPTER.read_text(encoding="utf-8")
    text = text[text.index("<section") :]
    text = re.sub(r"<picture.*?</picture>", " ", text, flags=re.DOTALL)
    text = re.sub(rf"</?({BLOCKS})\b[^>]*>", "\n\n", text)
    text = re.sub(r'<xref\s[^>]*?choice="([^"]*)"[^>]*/>', r"\1", text)
    text = re.sub(r'<xref\s[^>]*?name="([^"]*)"[^>]*/>', r"\1", text)
    text = re.sub(r"<[^>]+>", "", text)
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    found = (one for paragraph in paragraphs for one in re.split(r"(?<=[.:])\s+(?=[A-Z])", paragraph))
    return [one for one in found if WORDS.search(one)]


def rows() -> list[tuple[str, str]]:
    """Sentence and tests of each row of the table."""
    return [(sentence, tests) for _, sentence, tests in ROW.findall(PAGE.read_text(encoding="utf-8"))]


def test_the_chapter_is_whole() -> None:
    told = sentences()
    assert len([one for one in told if re.search(r"\b(MUST|SHOULD)\b", one)]) == 29
    assert told[0].startswith("To begin transactional work")


def test_the_table_has_every_sentence_in_its_order() -> None:
    assert [sentence for sentence, _ in rows()] == sentences()


@cache
def docstrings(path: str) -> dict[str, str]:
    """Of the functions of a module, each in one line."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {
        node.name: " ".join((ast.get_docstring(node) or "").split())
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


@each(("sentence", "tests"), rows())
def test_every_row_names_tests_that_exist_and_quote_it(sentence: str, tests: str) -> None:
    named = NAMED.findall(tests)
    assert named, f"no test for: {sentence}"
    quoted = False
    for path, name in named:
        assert name in docstrings(path), f"{path} has no {name}"
        quoted |= " ".join(sentence.split()[:6]) in docstrings(path)[name]
    assert quoted, f"none of the tests quotes: {sentence}"
