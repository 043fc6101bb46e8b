"""From an alarm to the command in two steps: each condition has its section in docs/recover.md, found by its name. It
begins with the first command.
"""

from __future__ import annotations

import re

from tests.docs.guide import ROOT, blocks
from xa.telemetry.conditions import CONDITIONS

PAGE = ROOT / "docs" / "recover.md"
TEXT = PAGE.read_text(encoding="utf-8")
PARTS = ("**Shows:** ", "**Do:** ", "**Over when** ")


def _sections() -> dict[str, str]:
    """The text of each section, by the anchor that GitHub and the site make of its heading."""
    found = re.split(r"^##+ (.*)$", TEXT, flags=re.MULTILINE)[1:]
    return {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-"): text
        for heading, text in zip(found[::2], found[1::2], strict=True)
    }


SECTIONS = _sections()


def test_each_condition_has_its_section_which_begins_with_its_command() -> None:
    for condition in CONDITIONS:
        assert condition.anchor == f"docs/recover.md#{condition.name}"
        section = SECTIONS[condition.name]
        assert section.startswith(f"\n\n```sh\n{condition.command}\n```\n"), condition.name


def test_each_section_says_what_is_shown_what_to_do_and_when_it_is_over() -> None:
    for name in (*(condition.name for condition in CONDITIONS), "a-damaged-store"):
        at = [SECTIONS[name].index(part) for part in PARTS]
        assert at == sorted(at), name


def test_the_page_begins_with_a_table_of_what_is_seen_that_leads_to_each_section() -> None:
    first = next(iter(SECTIONS.values()))
    for condition in CONDITIONS:
        assert f"| {condition.means} | [{condition.name}](#{condition.name}) |" in first, condition.name


def test_the_sections_stand_in_the_order_of_the_table() -> None:
    names = [condition.name for condition in CONDITIONS]
    assert [name for name in SECTIONS if name in names] == names


def test_every_command_of_the_sections_is_in_a_block_of_the_shell() -> None:
    """test_guides.py looks whether the commands exist."""
    commands = [block.code.strip() for block in blocks(PAGE) if block.language == "sh"]
    assert commands[: len(CONDITIONS)] == [condition.command for condition in CONDITIONS]
