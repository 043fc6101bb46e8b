"""These tests check that each decision record has its date, its status and the alternatives, and that the index and the
site list it.
"""

from __future__ import annotations

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest

from tests.docs.guide import ROOT

FOLDER = ROOT / "docs" / "decisions"
DECISIONS = sorted(FOLDER.glob("0*.md"))
HEAD = re.compile(r"# (?P<number>\d+)\. (?P<title>[^\n]+)\n\nDate: (?P<date>\S+) · Status: (?P<status>[^\n]+)\n")


def test_numbers_follow_each_other() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem[:4])
def test_a_decision_has_date_status_alternatives_and_its_line_in_the_index(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    head = HEAD.match(text)
    assert head is not None, f"{path.name} has no line with date and status"
    assert int(head["number"]) == int(path.name[:4])
    assert date.fromisoformat(head["date"]) <= date.today()  # noqa: DTZ011 — a day, as people write it
    assert head["status"].split(";")[0] in {"proposed", "accepted", "replaced"}
    assert re.search(r"^## Alternatives", text, re.MULTILINE), path.name

    line = f"| {head['number']} | [{head['title']}]({path.name}) | {head['date']} | {head['status']} |"
    assert line in (FOLDER / "index.md").read_text(encoding="utf-8").splitlines()


def test_the_site_has_every_page() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    listed = sorted(re.findall(r"'([\w/-]+\.md)'", str(project["nav"])))
    docs = ROOT / "docs"
    assert listed == sorted(str(page.relative_to(docs)) for page in docs.rglob("*.md"))
