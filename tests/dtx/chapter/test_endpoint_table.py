"""These tests check docs/amqp-endpoint.md: its tables must have every sentence of the transport and messaging chapters
that says MUST, in their order, and every test that a table names must exist and quote the sentence.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.cases import each
from tests.dtx.chapter.test_table import NAMED, ROOT, docstrings

PAGE = ROOT / "docs" / "amqp-endpoint.md"
CHAPTERS = {"transport": 106, "messaging": 49}
"""How many sentences each chapter has."""
HEADING = re.compile(r"^### (.+) \(([\d.]+)\)$", re.MULTILINE)
ROW = re.compile(r"^\| (.+) \| (.+) \| (`tests/.+) \|$", re.MULTILINE)
QUOTING = ("tests/dtx/amqp/test_transport_chapter.py", "tests/dtx/broker/test_messaging_chapter.py")
OTHERS = "### What binds others"
IN_SHORT = re.compile(r"\d\.")
"""How a row begins that says in short what stands in a section."""


def chapter(name: str) -> dict[str, list[str]]:
    """The sentences of a chapter, by the numbers and names of their sections."""
    found: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if re.match(r"# \d", line):
            found[line[2:]] = []
        elif line and not line.startswith("#"):
            next(reversed(found.values())).append(line)
    return found


def sections() -> dict[str, list[tuple[str, str]]]:
    """Sentence and tests of each row of the tables, by the numbers and names of the sections."""
    parts = HEADING.split(PAGE.read_text(encoding="utf-8").partition(OTHERS)[0])[1:]
    return {
        f"{number} {name}": [(sentence, tests) for sentence, _, tests in ROW.findall(text)]
        for name, number, text in zip(*[iter(parts)] * 3, strict=True)
    }


def rows() -> list[tuple[str, str]]:
    return [row for found in sections().values() for row in found]


@each("name", CHAPTERS)
def test_the_chapters_are_whole(name: str) -> None:
    told = [sentence for found in chapter(name).values() for sentence in found]
    assert len(told) == CHAPTERS[name]
    assert [one for one in told if not re.search(r"\b(MUST|SHALL|REQUIRED)\b", one)] == []


def test_the_tables_have_every_sentence_in_its_order() -> None:
    others = " ".join(PAGE.read_text(encoding="utf-8").partition(OTHERS)[2].split())
    binding = {
        title: [sentence for sentence in found if f'"{sentence}"' not in others]
        for name in CHAPTERS
        for title, found in chapter(name).items()
    }
    told = {
        title: [sentence for sentence, _ in found if not IN_SHORT.match(sentence)]
        for title, found in sections().items()
    }
    assert told == {title: found for title, found in binding.items() if found}


@each(("sentence", "tests"), rows())
def test_every_row_names_tests_that_exist_and_quote_it(sentence: str, tests: str) -> None:
    named = NAMED.findall(tests)
    assert named
    beginning = " ".join(sentence.split()[:12])
    quoted = []
    for path, name in named:
        found = docstrings(path)
        assert name in found, f"{path} has no {name}"
        if path in QUOTING or not IN_SHORT.match(sentence):
            quoted.append(sentence in found[name] or beginning in found[name])
    assert not quoted or any(quoted), f"none of the tests quotes: {sentence}"


@each("path", QUOTING)
def test_every_test_of_the_chapters_stands_in_a_table(path: str) -> None:
    named = {name for _, tests in rows() for one, name in NAMED.findall(tests) if one == path}
    quoting = {name for name in docstrings(path) if name.startswith("test_")}
    assert named <= quoting
    unnamed = [name for name in quoting - named if not IN_SHORT.match(docstrings(path)[name])]
    assert unnamed == [], "these quote sentences that have no row"
