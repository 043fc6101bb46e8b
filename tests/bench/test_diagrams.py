"""This test checks that docs/state-machines.md is what the tables of the state machines generate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.diagrams import MACHINES, document
from xa import state_tables
from xa.machine import Machine, Result

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "state-machines.md"


def sections() -> Iterator[tuple[Machine[Any, Any], str]]:
    """Each machine, with its part of the page."""
    texts = re.split(r"^## ", document(), flags=re.MULTILINE)[1:]
    assert len(texts) == len(MACHINES)
    for (module, name, _), text in zip(MACHINES, texts, strict=True):
        yield getattr(import_module(module), name), text


def test_the_page_has_not_drifted() -> None:
    assert PAGE.read_text() == document(), "the tables have changed: run `make docs`"


def test_every_machine_of_the_contract_is_on_it() -> None:
    shown = [machine for machine, _ in sections()]
    assert all(machine in shown for machine in state_tables.MACHINES)


def test_every_machine_that_is_defined_anywhere_is_on_it() -> None:
    """Whoever adds a table adds it to the page."""
    packages = ("xabridge", "xa", "dtx", "rm_amqp", "rm_db", "rm_openwire", "tm")
    found = {
        (str(path.relative_to(ROOT).with_suffix("")).replace("/", "."), name)
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        for name in re.findall(r"^(\w+)(?:: Final(?:\[.*\])?)? = Machine\(", path.read_text(), flags=re.MULTILINE)
    }
    assert found == {(module, name) for module, name, _ in MACHINES}


def test_every_entry_and_every_refusal_is_shown() -> None:
    for machine, text in sections():
        rows = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
        entries = {
            (state, verb, result, target, source)
            for states, verb, result, target, source in (row for row in rows if len(row) == 5)
            for state in states.split(", ")
        }
        answering = {verb for _, verb, result, _, _ in machine.transitions() if result is not Result.OK}
        expected = {
            (state.name, verb.value, result.value if verb in answering else "–", target.name, source)
            for state, verb, result, target, source in machine.transitions()
        }
        assert expected <= entries

        assert len(entries) == len(expected) + 2  # with the head of the table and its rule
        refusals = {(state, *row[1:]) for row in rows if len(row) == 3 for state in row[0].split(", ")}
        assert {(state.name, verb.value, code.name) for (state, verb), code in machine.refusals.items()} <= refusals


def test_every_arrow_is_drawn() -> None:
    for machine, text in sections():
        arrows = set(re.findall(r"^    (\w+) --> (\w+): ", text, flags=re.MULTILINE))
        assert arrows == {(s.name, t.name) for s, _, _, t, _ in machine.transitions() if s is not t}
        assert f"[*] --> {machine.initial.name}" in text
