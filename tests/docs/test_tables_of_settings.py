"""The tables of settings and of metrics in the guides name each of them, with the default that holds, and no other."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields
from typing import Any, Final

import pytest

from bench.settings import TABLES, Table
from dtx.broker.telemetry.metrics import METRICS as BROKER
from rm_db.address import _DEFAULTS
from rm_db.decider.decision_table import END_BATCH
from tests.docs.guide import ROOT
from tm import ConsumerSettings
from tm.telemetry.metrics import METRICS as MANAGER
from tm.telemetry.metrics import metrics_table
from xa.pool import RESERVE
from xa.telemetry.metric import table
from xabridge.outbox.metrics import METRICS as OUTBOX
from xabridge.pipeline.spark.progress_metrics import METRICS as PIPELINES

SHOWN: Final = re.compile(r"[\d,.]+|true|false")
"""A default that can be compared; others are words."""


def rows(page: str, head: str) -> list[tuple[list[str], str]]:
    """The names and the default of each row of the table whose first heading is `head`."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| {head} |")) + 2
    found = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        found.append((re.findall(r"`(\w+)`", cells[0]), cells[-1]))
    return found


def names(made: type[Any]) -> set[str]:
    return {field.name for field in fields(made)}


@pytest.mark.parametrize("table_", TABLES, ids=lambda one: f"{one.page} {one.head}")
def test_the_tables_are_those_of_the_declarations(table_: Table) -> None:
    """`make docs` writes them."""
    text = (ROOT / "docs" / table_.page).read_text(encoding="utf-8")
    assert table_.into(text) == text


def test_every_setting_of_a_consumer_is_named_once_with_its_default() -> None:
    found = rows("consumers.md", "parameter")
    assert sorted(name for row, _ in found for name in row) == sorted(names(ConsumerSettings) - {"queue"})

    held = {field.name: field.default for field in fields(ConsumerSettings)}
    shown = {
        name: default
        for row, cell in found
        for name, default in zip(row, re.split(r", ", cell), strict=False)
        if name in held and SHOWN.fullmatch(default)
    }
    assert len(shown) > 2
    assert {name: value(default) for name, default in shown.items()} == {name: held[name] for name in shown}


def value(text: str) -> float | bool:
    """The default that a cell shows."""
    if text in ("true", "false"):
        return text == "true"
    return float(text.replace(",", ""))


@pytest.mark.parametrize(
    ("page", "of_the_code"),
    [
        ("metrics.md", metrics_table()),
        ("metrics.md", table(BROKER)),
        ("metrics.md", table(PIPELINES)),
        ("outbox.md", table(OUTBOX)),
    ],
    ids=["manager", "broker", "pipelines", "outbox"],
)
def test_the_metrics_are_those_that_are_made(page: str, of_the_code: str) -> None:
    assert of_the_code in (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_a_name_is_one_metric() -> None:
    every = (*BROKER, *MANAGER, *OUTBOX, *PIPELINES)
    assert Counter(series for metric in every for series in metric.series).most_common(1)[0][1] == 1
    assert all(metric.name.startswith(("xabridge.", "messaging.", "db.client.connection.")) for metric in every)


def test_the_parameters_and_numbers_of_database_resources_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "database-resources.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(xa_\w+)` \| `?(\w+)`? \|", page, re.MULTILINE))
    assert told == _DEFAULTS
    assert f"have {RESERVE} connections more" in page
    assert f"batches of {END_BATCH}" in page
