"""Writes the state machines as a document, generated from their tables: `python -m bench.diagrams
docs/state-machines.md`.

For each machine the document has a diagram (Mermaid), every entry with its source, and every refusal. To add a machine,
add a line to MACHINES. A test checks that the document is what this module writes.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from xa.machine import Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from enum import Enum

    from xa.machine import Machine

MACHINES: Final = (
    ("xa.state_tables", "RESOURCE", "XA specification, table 6-1"),
    ("xa.state_tables", "ASSOCIATION", "XA specification, table 6-2"),
    ("xa.state_tables", "REGISTRATION", "XA specification, table 6-3"),
    ("xa.state_tables", "BRANCH", "XA specification, table 6-4"),
    ("xa.state_tables", "ASYNC", "XA specification, table 6-5"),
    ("tm.two_phase.states", "GLOBAL", "design: what the branches of one transaction come to together"),
    ("tm.resources.states", "RESOURCE", "design: a resource manager under its name in the configuration"),
    ("tm.tx.states", "TX", "TX specification, table 7-1"),
    ("tm.consumer.states", "CONSUMER", "design: a handler with its workers"),
    ("dtx.amqp.states", "CONNECTION", "AMQP 1.0, transport: one end of a connection"),
    ("dtx.amqp.states", "SESSION", "AMQP 1.0, transport: one end of a session"),
    ("dtx.amqp.states", "LINK", "AMQP 1.0, transport: one end of a link"),
    ("dtx.amqp.states", "DELIVERY", "AMQP 1.0, transport: a message on a link, at either end"),
    ("dtx.broker.transactions.state_tables", "CHANNEL", "the slides' dtx grammar, for one transactional channel"),
    ("dtx.broker.transactions.state_tables", "LOCAL", "AMQP 1.0, transactions: a local transaction"),
    ("dtx.broker.endpoint.states", "SERVICE", "design: whether the broker serves a peer"),
    ("dtx.broker.endpoint.states", "ATTACHMENT", "design: what ends a link of the broker"),
    ("dtx.broker.endpoint.states", "CUSTODY", "design: a message at a consumer of the broker"),
    ("rm_openwire.states", "BEGINNING", "design: a branch at ActiveMQ or Artemis"),
    ("tm.log.sql.states", "GTRID", "design: a transaction in the decision log that is a table"),
    ("tm.log.incarnations", "INCARNATION", "design: what a decision log knows of each opening"),
    ("xabridge.pipeline.core.epoch_states", "EPOCH", "design: what one micro-batch of a pipeline reads"),
)
"""Module, name of the machine in it, and whose table it is."""

_INTRODUCTION: Final = """\
# State machines

`make docs` writes this page from the tables in the code, and a test fails if the two differ. Change the table, not this
page.

A diagram shows what leads from one state to another. The table under it has every entry, also those that don't
change the state, and the source of each entry. "6-2" is a table of the X/Open XA specification (C193, chapter 6),
"text" is the description of a routine in its chapter 5, "7-1" is the table of the X/Open TX specification (C504), a
number of three parts such as "2.4.6" is a section of the AMQP 1.0 specification, and "design" is our own design. What
has no entry is refused with the code in the second table, and leaves the state as it was.
"""


def document() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *(_section(*entry) for entry in MACHINES)])


def _section(module: str, name: str, origin: str) -> str:
    machine: Machine[Any, Any] = getattr(import_module(module), name)
    about = inspect.cleandoc(machine.states.__doc__ or "").replace("\n", " ")

    return "\n".join(
        [
            f"## {machine.name[0].upper()}{machine.name[1:]}",
            "",
            f"`{module}.{name}` · {origin}",
            "",
            about,
            "",
            "```mermaid",
            *_diagram(machine),
            "```",
            "",
            *_entries(machine),
            "",
            *_refusals(machine),
            "",
        ]
    )


def _diagram(machine: Machine[Any, Any]) -> list[str]:
    answering = _answering(machine)
    arrows: dict[tuple[Enum, Enum], dict[str, list[str]]] = {}
    for state, verb, result, target, _ in machine.transitions():
        if state is not target:
            results = arrows.setdefault((state, target), {}).setdefault(verb.value, [])
            results += [result.value] if verb in answering else []
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{_plain(state.value)}" as {state.name}' for state in machine.states]
    lines.append(f"    [*] --> {machine.initial.name}")
    for (state, target), verbs in arrows.items():
        label = "<br/>".join(f"{verb} → {', '.join(results)}" if results else verb for verb, results in verbs.items())
        lines.append(f"    {state.name} --> {target.name}: {_plain(label)}")
    return lines


def _answering(machine: Machine[Any, Any]) -> set[Enum]:
    """The verbs that have different results; what only happens has none."""
    return {verb for _, verb, result, _, _ in machine.transitions() if result is not Result.OK}


def _plain(text: str) -> str:
    """A text that Mermaid takes as it is."""
    if any(character in text for character in ':;"'):
        raise ValueError(f"{text!r} can't stand in a diagram")
    return text


def _entries(machine: Machine[Any, Any]) -> list[str]:
    answering = _answering(machine)
    return _table(
        ("in", "what happens", "with the result", "leads to", "source"),
        (
            (
                _names(row.states),
                row.verb.value,
                row.result.value if row.verb in answering else "–",
                row.target.name,
                row.source,
            )
            for row in machine.rows
        ),
    )


def _refusals(machine: Machine[Any, Any]) -> list[str]:
    refused: dict[tuple[Enum, str], list[Enum]] = {}
    for (state, verb), code in machine.refusals.items():
        refused.setdefault((verb, code.name), []).append(state)
    return _table(
        ("in", "what is asked", "is refused with"),
        (
            (_names(sorted(states, key=lambda state: state.name)), verb.value, code)
            for (verb, code), states in refused.items()
        ),
    )


def _names(states: Iterable[Enum]) -> str:
    return ", ".join(state.name for state in states)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page to the file that is named."""
    parser = argparse.ArgumentParser(description="Write the state machines as a document.")
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args(arguments).file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(document())
    return 0


if __name__ == "__main__":
    sys.exit(main())
