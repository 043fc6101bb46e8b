"""What the running site shows of a condition: the alarm that Prometheus would send, with its text, and where else a
person sees it.

There is no Prometheus on a game day. `sights_of` reads the pages `/metrics` as Prometheus does, and looks for the
values that the rules of the conditions ask for. It does not wait for the time that a rule's `for` says.
"""

from __future__ import annotations

import http.client
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from xa.telemetry.conditions import AWAY, CONDITIONS, Condition
from xabridge.text import age

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ASK_S: Final = 5.0
OK: Final = 200
WORST: Final = "xabridge_broker_condition_worst"
_RULE: Final = re.compile(r"(\w+)(?:\{([^}]*)\})? > [0-9]+")
"""A rule that asks for a value above a number, at its beginning."""
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_SAMPLE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)$")
_WORST: Final = re.compile(r"\{\{ range .*?\{\{ end \}\}")
"""Where a rule's summary names the worst queues."""
MOST_NAMED: Final = 3
_TEMPLATE: Final = re.compile(r"\{\{ \$(value|labels\.(\w+))( \| \w+)? \}\}")


class NoMetrics(Exception):
    """A process does not show metrics, because the extra `metrics` is not installed."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A condition that the site is in, and the text of its alarm."""

    condition: Condition
    text: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A line of a page /metrics."""

    series: str
    labels: Mapping[str, str]
    value: float


def samples(page: str) -> Iterator[Sample]:
    """The lines of a page."""
    for line in page.splitlines():
        found = _SAMPLE.match(line)
        if found:
            labels = {name: _ESCAPED.sub(r"\1", value) for name, value in _LABEL.findall(found[2] or "")}
            yield Sample(found[1], labels, float(found[3]))


def sights_of(processes: Mapping[str, str]) -> list[Sight]:
    """The conditions that processes are in, by their names and addresses (host:port), the most urgent first; NoMetrics
    where one does not show any."""
    found = []
    for name, address in processes.items():
        page = _metrics(address)
        labels = {"job": f"xabridge-{name}", "instance": address}
        if page is None:
            found.append(Sight(AWAY, text_of(AWAY, Sample("up", labels, 0), ())))
            continue
        points = list(samples(page))
        for condition in CONDITIONS:
            for sample in points:
                if _asks_for(condition, sample):
                    firing = Sample(sample.series, {**sample.labels, **labels}, sample.value)
                    found.append(Sight(condition, text_of(condition, firing, _worst(condition, points))))
    return sorted(found, key=lambda sight: CONDITIONS.index(sight.condition))


def _asks_for(condition: Condition, sample: Sample) -> bool:
    """Whether the rule of a condition asks for this sample, and its value is above 0: the threshold in the rule is one
    for real sites, which a game day does not wait for."""
    found = _RULE.match(condition.rule.expression) if condition.rule is not None else None
    if found is None or found[1] != sample.series or not sample.value > 0:
        return False
    return all(sample.labels.get(name) == value for name, value in _LABEL.findall(found[2] or ""))


def _worst(condition: Condition, points: Sequence[Sample]) -> list[str]:
    """The queues for which a condition holds the worst."""
    found = [
        point for point in points if point.series == WORST and point.labels.get("xabridge_condition") == condition.name
    ]
    found.sort(key=lambda point: -point.value)
    return [point.labels.get("messaging_destination_name", "") for point in found[:MOST_NAMED]]


def text_of(condition: Condition, sample: Sample, worst: Sequence[str]) -> str:
    """The text of the alarm for a sample, as Prometheus makes it of the rule's summary; `worst` are queues to name."""

    def shown(found: re.Match[str]) -> str:
        if found[1] != "value":
            return sample.labels.get(found[2], "")
        return age(sample.value) if found[3] else f"{sample.value:g}"

    if condition.rule is None:
        return condition.means
    named = _WORST.sub("".join(f" {queue}" for queue in worst), condition.rule.summary)
    return _TEMPLATE.sub(shown, named)


def _metrics(address: str) -> str | None:
    connection = http.client.HTTPConnection(address, timeout=ASK_S)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        page = answer.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if answer.status != OK:
        raise NoMetrics
    return page
