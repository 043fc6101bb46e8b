"""The dashboard and the alerts ask for metrics that exist, by labels that these have. The guide has each alert."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dtx.broker.telemetry.metrics import METRICS as BROKER
from tm.telemetry.metrics import METRICS as MANAGER
from tm.telemetry.metrics import NODE
from xa.telemetry.metric import Metric, prometheus_label

ROOT = Path(__file__).parents[1]
CONTAINERS = ROOT / "containers"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((CONTAINERS / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
BOARD: dict[str, Any] = json.loads((CONTAINERS / "grafana" / "xabridge.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
FROM_PROMETHEUS: Final = frozenset({"up"})
TARGET: Final = frozenset({"job", "instance"})
"""The labels that Prometheus gives to whatever it scrapes."""
LEFT_OUT: Final = re.compile(r"\b(?:by|on) ?\([^)]*\)|\[[^]]*\]")
"""Labels of groups, and ranges: no names of series."""
NAME: Final = re.compile(r"\b([a-z]\w*)\b(?:\{([^}]*)\})?(?! *\()")
GROUPED: Final = re.compile(r"\b(?:by|on) ?\(([^)]*)\)")
WORDS: Final = frozenset({"and", "or", "sum", "max"})


def labels_by_series() -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = dict.fromkeys(FROM_PROMETHEUS, TARGET)
    for table, always in ((BROKER, ()), (MANAGER, (NODE,))):
        for metric in table:
            for series in metric.series:
                found[series] = labels(metric, always) | ({"le"} if series.endswith("_bucket") else set())
    return found


def labels(metric: Metric, always: tuple[str, ...]) -> frozenset[str]:
    return metric.labels | TARGET | frozenset(map(prometheus_label, always))


KNOWN: Final = labels_by_series()


def asked(expression: str) -> list[tuple[str, set[str]]]:
    """The series that an expression names, with the labels that it asks them for."""
    found = []
    for name, selector in NAME.findall(LEFT_OUT.sub("", expression)):
        if name not in WORDS:
            found.append((name, set(re.findall(r"(\w+) *(?:=|!)", selector))))
    return found


EXPRESSIONS = [pytest.param(rule["expr"], id=rule["alert"]) for rule in RULES] + [
    pytest.param(target["expr"], id=panel["title"]) for panel in PANELS for target in panel["targets"]
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_is_asked_for_exists(expression: str) -> None:
    series = asked(expression)
    assert series
    for name, selected in series:
        assert name in KNOWN, name
        assert selected <= KNOWN[name], name
    grouped = {label.strip() for group in GROUPED.findall(expression) for label in group.split(",")}
    for name, _ in series:
        if name not in FROM_PROMETHEUS:
            assert grouped <= KNOWN[name], f"{name} has no {grouped - KNOWN[name]}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_is_about_by_labels_that_there_are(rule: dict[str, Any]) -> None:
    series = [name for name, _ in asked(rule["expr"])]
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert all(shown <= KNOWN[name] for name in series), shown
    assert rule["labels"]["severity"] in {"page", "ticket"}


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_shows_labels_that_there_are(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert all(shown <= KNOWN[name] for name, _ in asked(target["expr"])), shown


def test_panels_stand_beside_each_other() -> None:
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_the_guide_says_of_each_alert_what_to_do() -> None:
    guide = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(Xabridge\w+)` \|", guide, re.MULTILINE)
    assert told == [rule["alert"] for rule in RULES]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (the package prometheus)")
@pytest.mark.skipif("XABRIDGE_IMAGE" not in os.environ, reason="part of the long form: XABRIDGE_IMAGE")
def test_prometheus_takes_the_rules_and_its_configuration() -> None:
    for what, file in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        done = subprocess.run(
            ["promtool", "check", what, CONTAINERS / file], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
