"""docs/amqp-endpoint.md: every test that a table names exists, and those of the endpoint quote the sentence."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.cases import each

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "amqp-endpoint.md"
ROW = re.compile(r"^\| (.+) \| (.+) \| (`tests/.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
QUOTING = ROOT / "tests" / "dtx" / "amqp" / "test_transport_chapter.py"


def rows() -> list[tuple[str, str]]:
    """Sentence and tests of each row of the tables."""
    return [(sentence, tests) for sentence, _, tests in ROW.findall(PAGE.read_text(encoding="utf-8"))]


def docstrings(path: Path) -> dict[str, str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name: " ".join((ast.get_docstring(node) or "").split())
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


def test_there_are_rows_for_both_chapters() -> None:
    sections = re.findall(r"^### .* \((\d)\.", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(sections) == {"2", "3"}
    assert len(rows()) > 60


@each(("sentence", "tests"), rows())
def test_every_row_names_tests_that_exist_and_quote_it(sentence: str, tests: str) -> None:
    named = NAMED.findall(tests)
    assert named
    quoted = None
    for path, name in named:
        found = docstrings(ROOT / path)
        assert name in found, f"{path} has no {name}"
        if ROOT / path == QUOTING:
            quoted = quoted or sentence in found[name] or " ".join(sentence.split()[:12]) in found[name]
    assert quoted in {None, True}, f"none of the tests quotes: {sentence}"


def test_every_test_of_the_chapter_stands_in_a_table() -> None:
    named = {name for _, tests in rows() for path, name in NAMED.findall(tests) if ROOT / path == QUOTING}
    quoting = {name for name in docstrings(QUOTING) if name.startswith("test_")}
    assert named <= quoting
    unnamed = [name for name in quoting - named if not re.match(r"\d\.", docstrings(QUOTING)[name])]
    assert unnamed == [], "these quote sentences that have no row"
