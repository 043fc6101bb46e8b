"""The tables of settings and of metrics in the guides name each of them, with the default that holds, and no other."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import pytest

from dtx.broker.access.permissions import Rule
from dtx.broker.config import BrokerConfig
from dtx.broker.settings import MEGABYTE, Limits, QueueSettings, Settings
from dtx.broker.telemetry.metrics import METRICS as BROKER
from rm_db.address import _DEFAULTS
from rm_db.decider.decision_table import END_BATCH
from tests.docs.guide import ROOT
from tm import Configuration, ConfigurationError, ConsumerSettings, configuration_from
from tm.telemetry.metrics import METRICS as MANAGER
from tm.telemetry.metrics import metrics_table
from xa.pool import RESERVE
from xa.telemetry.metric import table
from xabridge.console.settings import ConsoleSettings
from xabridge.outbox import RelaySettings
from xabridge.outbox.metrics import METRICS as OUTBOX
from xabridge.pipeline.spark.progress_metrics import METRICS as PIPELINES

if TYPE_CHECKING:
    from pathlib import Path

QUEUES: Final = "`[broker.queue_defaults]` and `[broker.queues.NAME]`"
SHOWN: Final = re.compile(r"[\d,.]+(?: MiB)?|true|false")
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


@pytest.mark.parametrize(
    ("page", "head", "known"),
    [
        ("consumers.md", "parameter", names(ConsumerSettings) - {"queue"}),
        ("outbox.md", "setting", names(RelaySettings)),
        ("console.md", "`[console]`", names(ConsoleSettings) - {"pipelines"}),
        (
            "broker.md",
            "`[broker]`",
            (names(BrokerConfig) | names(Settings))
            - {"settings", "permissions", "limits", "queues", "queue_defaults", "origins"},
        ),
        ("broker.md", QUEUES, names(QueueSettings)),
        ("broker.md", "`[broker.permissions.NAME]`", names(Rule)),
        ("broker.md", "`[broker.limits]`", names(Limits)),
    ],
)
def test_every_setting_is_named_once(page: str, head: str, known: set[str]) -> None:
    assert sorted(name for row, _ in rows(page, head) for name in row) == sorted(known)


def test_every_key_of_the_configuration_is_named_once(tmp_path: Path) -> None:
    file = tmp_path / "xabridge.toml"
    file.write_text("no_such_key = 1\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="known are") as refused:
        configuration_from(file)
    known = re.search(r"known are ([\w, ]+)", str(refused.value))
    assert known is not None
    assert sorted(name for row, _ in rows("operations.md", "key") for name in row) == known[1].split(", ")


@pytest.mark.parametrize(
    ("page", "head", "made"),
    [
        ("operations.md", "key", Configuration),
        ("outbox.md", "setting", RelaySettings),
        ("console.md", "`[console]`", ConsoleSettings),
        ("consumers.md", "parameter", ConsumerSettings),
        ("broker.md", "`[broker]`", Settings),
        ("broker.md", QUEUES, QueueSettings),
        ("broker.md", "`[broker.limits]`", Limits),
    ],
)
def test_the_defaults_hold(page: str, head: str, made: type[Any]) -> None:
    held = {field.name: field.default for field in fields(made)}
    shown = {
        name: default
        for row, cell in rows(page, head)
        for name, default in zip(row, re.split(r", ", cell), strict=False)
        if name in held and SHOWN.fullmatch(default)
    }
    assert len(shown) > 2
    assert {name: value(default) for name, default in shown.items()} == {name: held[name] for name in shown}


def value(text: str) -> float | bool:
    """What a cell shows, in octets where it has a unit."""
    if text in ("true", "false"):
        return text == "true"
    number, _, unit = text.partition(" ")
    return float(number.replace(",", "")) * (MEGABYTE if unit else 1)


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
