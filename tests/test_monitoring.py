"""The dashboard and the alerts ask for metrics that exist, by labels that these have. The guide has each alert."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from bench import conditions
from dtx.broker.conditions import MEASURED
from dtx.broker.telemetry.figures import BrokerFigures, FigureReader
from dtx.broker.telemetry.instruments import _observations as observations
from dtx.broker.telemetry.metrics import METRICS as BROKER
from tests.dtx.broker.peer import World
from tm.telemetry.metrics import METRICS as MANAGER
from tm.telemetry.metrics import NODE
from xa.telemetry.conditions import Condition
from xa.telemetry.metric import Metric, prometheus_label
from xabridge.outbox.metrics import METRICS as OUTBOX
from xabridge.pipeline.spark.progress_metrics import METRICS as PIPELINES

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
WORDS: Final = frozenset({"and", "or", "unless", "offset", "sum", "max"})


def labels_by_series() -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = dict.fromkeys(FROM_PROMETHEUS, TARGET)
    for table, always in ((BROKER, ()), (MANAGER, (NODE,)), (OUTBOX, ()), (PIPELINES, ())):
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


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_reads_right_for_one_and_for_many(rule: dict[str, Any]) -> None:
    assert not re.search(r"\{\{ \$value \}\} \w", rule["annotations"]["summary"]), "the number is followed by a noun"


def test_alerts_and_the_table_of_the_guide_are_those_of_the_conditions() -> None:
    """`python -m bench.conditions` writes them."""
    assert conditions.ALERTS.read_text(encoding="utf-8") == conditions.alerts()
    assert conditions.table() in conditions.GUIDE.read_text(encoding="utf-8")


PROMTOOL: Final = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (the package prometheus)"
)


def promtool(*words: str | Path, **how: Any) -> None:
    """Runs it; what it refuses, it says."""
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error" not in done.stderr, done.stderr


@PROMTOOL
def test_prometheus_takes_the_rules_and_its_configuration() -> None:
    promtool("check", "rules", CONTAINERS / "alerts.yml")
    promtool("check", "config", CONTAINERS / "prometheus.yml")


@PROMTOOL
def test_prometheus_has_nothing_against_the_names_of_metrics() -> None:
    promtool("check", "metrics", input="".join(map(page_of, (*BROKER, *MANAGER, *OUTBOX, *PIPELINES))))


def page_of(metric: Metric) -> str:
    """One point of it, as a page shows it."""
    name = metric.prometheus_name
    head = f"# HELP {name} {metric.description}\n# TYPE {name} {metric.kind}\n"
    points = (f'{name}_bucket{{le="+Inf"}}', f"{name}_sum", f"{name}_count")
    return head + "".join(f"{point} 1\n" for point in (points if metric.kind == "histogram" else (name,)))


def series(figures: BrokerFigures) -> Iterator[tuple[str, float]]:
    """What a broker shows of itself to Prometheus."""
    for metric in BROKER:
        if metric.kind != "histogram":
            for point in observations(metric, figures):
                labels = {prometheus_label(name): value for name, value in (point.attributes or {}).items()}
                yield f"{metric.prometheus_name}{selector(instance='broker:9464', **labels)}", float(point.value)


def selector(**labels: object) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def try_rules(folder: Path, points: Iterable[tuple[str, str]], at: str, firing: Mapping[str, list[Any]]) -> None:
    """At that time just these alerts of all are on; of each, labels, and its summary."""
    expected = []
    for rule in RULES:
        alerts = [
            {"exp_labels": {**rule["labels"], **labels}, "exp_annotations": {**rule["annotations"], "summary": summary}}
            for labels, summary in firing.get(rule["alert"], ())
        ]
        expected.append({"eval_time": at, "alertname": rule["alert"], "exp_alerts": alerts})

    test = {
        "rule_files": [str(CONTAINERS / "alerts.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in points],
                "alert_rule_test": expected,
            }
        ],
    }
    path = folder / "test.yml"
    path.write_text(yaml.safe_dump(test), encoding="utf-8")
    promtool("test", "rules", path)


@PROMTOOL
@pytest.mark.slow
def test_alerts_of_a_broker_with_a_thousand_queues(tmp_path: Path) -> None:
    """What is wrong is in queues that have no metrics of their own; some of these have consumers and dead letters."""
    world = World()
    resource, peer = world.container.resource, world.connect()
    for number in range(1000):
        resource.create(f"q{number:03}")
    resource.settle()
    world.pump()
    for number in range(990, 1000):
        world.close(peer.fill(f"q{number}", *("x" * (number - 980))))
    peer.receiver("q990")
    peer.fill("q991.dead", "a dead letter")
    resource.queues["q992"].paused = "somebody"
    until = world.clock.seconds + 700
    while world.clock.seconds < until:
        world.clock.seconds += 1
        resource.tick()
        world.pump()

    figures = asyncio.run(FigureReader(world.container, 200).take())
    points = [(name, f"{value}x30") for name, value in series(figures)]
    about = {"instance": "broker:9464"}
    firing: dict[str, list[Any]] = {
        "XabridgeNoConsumers": [
            (
                {**about, "xabridge_condition": "no-consumers"},
                "queues of broker:9464 that have messages and no consumers: 8, the worst: q999 q998 q997",
            )
        ],
        "XabridgeQueuePaused": [
            (
                {**about, "xabridge_condition": "queue-paused"},
                "queues of broker:9464 that are paused: 1, the worst: q992",
            )
        ],
        "XabridgeDeadLetters": [
            ({**about, "xabridge_condition": "dead-letters"}, "messages of broker:9464 became dead letters")
        ],
    }
    try_rules(tmp_path, points, "20m", firing)


@pytest.mark.slow
@PROMTOOL
@pytest.mark.parametrize("condition", MEASURED, ids=lambda condition: condition.name)
def test_a_condition_of_a_broker_that_is_fine_is_no_alert_and_one_that_holds_is(
    tmp_path: Path, condition: Condition
) -> None:
    (rule,) = (rule for rule in RULES if rule["alert"] == condition.alert)
    about = {"instance": "broker:9464", "xabridge_condition": condition.name}
    point = f"xabridge_broker_condition{selector(**about)}"
    shown = re.sub(r"{{ range.*", "", rule["annotations"]["summary"])
    summary = shown.replace("{{ $value }}", "1").replace("{{ $labels.instance }}", "broker:9464")
    try_rules(tmp_path, [(point, "0x30")], "25m", {})
    try_rules(tmp_path, [(point, "0x3 1x30")], "25m", {condition.alert: [(about, summary)]})


@PROMTOOL
@pytest.mark.parametrize("values", ["_x60 1x20", "0x60 1x20", "4x60 5x20"], ids=["first point", "first", "one more"])
def test_the_first_event_of_a_counter_is_an_alert(tmp_path: Path, values: str) -> None:
    """A counter begins with its first event, so that there is no point before it."""
    node = {"instance": "worker:9464", "xabridge_node": "n"}
    ended = f"xabridge_transactions_completed_total{selector(**node, xabridge_outcome='mixed')}"
    consumed = f"messaging_client_consumed_messages_total{selector(**node, xabridge_outcome='dead_lettered')}"
    points = [(ended, values), (consumed, values)]
    firing: dict[str, list[Any]] = {
        "XabridgeHeuristicOutcome": [({**node, "xabridge_outcome": "mixed"}, "a transaction of n ended mixed")],
        "XabridgeDeadLetters": [({"instance": "worker:9464"}, "messages of worker:9464 became dead letters")],
    }
    try_rules(tmp_path, points, "70m", firing)


@pytest.mark.slow
@PROMTOOL
def test_events_of_yesterday_are_no_alerts(tmp_path: Path) -> None:
    node = {"instance": "worker:9464", "xabridge_node": "n"}
    ended = f"xabridge_transactions_completed_total{selector(**node, xabridge_outcome='mixed')}"
    consumed = f"messaging_client_consumed_messages_total{selector(**node, xabridge_outcome='dead_lettered')}"
    try_rules(tmp_path, [(ended, "5x200"), (consumed, "5x200")], "150m", {})
