"""The alerts of Prometheus and the table of conditions in the guide, from the list of conditions.

    python -m bench.conditions

writes them; `tests/test_monitoring.py` looks whether they are there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xa.telemetry.conditions import CONDITIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xa.telemetry.conditions import AlertRule, Condition

ROOT: Final = Path(__file__).parents[1]
ALERTS: Final = ROOT / "containers" / "alerts.yml"
GUIDE: Final = ROOT / "docs" / "operations.md"
HEAD: Final = "| condition | level | means | first | then | measured by |"
_ALERTS_HEAD: Final = """\
# Alerts for Prometheus, written by `python -m bench.conditions` from xa/telemetry/conditions.py. The thresholds of what
# a broker looks for itself (xabridge_broker_condition) are its settings.
groups:
  - name: xabridge
    rules:
"""


def alerts() -> str:
    """The rules."""
    return _ALERTS_HEAD + "\n\n".join(
        "\n".join(_rule(condition, condition.rule)) for condition in CONDITIONS if condition.rule is not None
    ) + "\n"  # fmt: skip


def _rule(condition: Condition, rule: AlertRule) -> Iterator[str]:
    yield f"      - alert: {condition.alert}"
    yield f"        expr: {json.dumps(rule.expression)}"
    if rule.lasts != "0m":
        yield f"        for: {rule.lasts}"
    yield f"        labels: {{severity: {condition.level}}}"
    yield "        annotations:"
    yield f"          summary: {json.dumps(rule.summary)}"
    advice = f"{condition.means}. First: {condition.command}. Then: {condition.then}"
    yield f"          description: {json.dumps(advice)}"
    yield f"          runbook: {condition.anchor}"


def table() -> str:
    """The table of the guide."""
    rows = (
        f"| [`{one.name}`](recover.md#{one.name}) | {one.level} | {one.means} | `{one.command}` | {one.then} "
        f"| {one.measured} |"
        for one in CONDITIONS
    )
    return "\n".join([HEAD, "|---|---|---|---|---|---|", *rows])


def main() -> int:
    """Writes both."""
    ALERTS.write_text(alerts(), encoding="utf-8")
    lines = GUIDE.read_text(encoding="utf-8").splitlines()
    first = lines.index(HEAD)
    after = next(number for number in range(first, len(lines)) if not lines[number].startswith("|"))
    GUIDE.write_text("\n".join([*lines[:first], table(), *lines[after:]]) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
