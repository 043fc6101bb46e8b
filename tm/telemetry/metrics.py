"""The metrics, as a table: what `docs/metrics.md` shows and what `tm.telemetry.recorder` makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["counter", "histogram", "gauge"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. Every one of them has the attribute xabridge.node besides its `attributes`."""

    name: str
    kind: Kind
    unit: str
    attributes: tuple[str, ...]
    description: str


NODE: Final = "xabridge.node"
OUTCOME: Final = "xabridge.outcome"
PHASE: Final = "xabridge.phase"
RECORD: Final = "xabridge.record"
RESOURCE: Final = "xabridge.resource"
VERB: Final = "xabridge.verb"
CODE: Final = "xabridge.code"
ACTION: Final = "xabridge.action"
CLEAN: Final = "xabridge.clean"
FAILED: Final = "xabridge.failed"
QUEUE: Final = "xabridge.queue"

BEGUN: Final = Metric("xabridge.transactions.begun", "counter", "{transaction}", (), "Transactions that were begun.")
COMPLETED: Final = Metric(
    "xabridge.transactions.completed",
    "counter",
    "{transaction}",
    (OUTCOME,),
    "Transactions that came to their outcome: committed, rolled_back, a heuristic one (heur_committed, "
    "heur_rolled_back, mixed, hazard), or unknown.",
)
DURATION: Final = Metric(
    "xabridge.transaction.duration",
    "histogram",
    "s",
    (OUTCOME,),
    "How long transactions took, from begin to outcome; a consumer's from the message on that it waited for.",
)
IN_DOUBT: Final = Metric(
    "xabridge.transactions.in_doubt",
    "gauge",
    "{transaction}",
    (),
    "Transactions of this node that are completed here and have branches left which recovery has to tell.",
)
PHASE_DURATION: Final = Metric(
    "xabridge.phase.duration",
    "histogram",
    "s",
    (PHASE,),
    "How long a phase took over all branches of a transaction: prepare, commit, rollback.",
)
FORCE_DURATION: Final = Metric(
    "xabridge.log.force.duration",
    "histogram",
    "s",
    (RECORD, FAILED),
    "How long a record (decision, heuristic) took to become durable in the log, or to fail to.",
)
VERB_DURATION: Final = Metric(
    "xabridge.resource.verb.duration",
    "histogram",
    "s",
    (RESOURCE, VERB),
    "How long a resource manager took for a verb; with TMASYNC from the request until its result was collected.",
)
VERB_FAILURES: Final = Metric(
    "xabridge.resource.verb.failures",
    "counter",
    "{call}",
    (RESOURCE, VERB, CODE),
    "Calls that a resource manager did not answer as asked, by the XA code that it answered (RAISED: an exception "
    "that the contract does not name).",
)
PASSES: Final = Metric(
    "xabridge.recovery.passes",
    "counter",
    "{pass}",
    (CLEAN,),
    "Recovery passes; clean when nothing was left in doubt and every resource manager was reached.",
)
PASS_DURATION: Final = Metric("xabridge.recovery.duration", "histogram", "s", (), "How long a recovery pass took.")
FINDINGS: Final = Metric(
    "xabridge.recovery.findings",
    "counter",
    "{branch}",
    (RESOURCE, ACTION),
    "Branches that recovery passes met, by what was done: committed, rolled_back, heuristic, forgotten, pending, "
    "left_alone, gone (finished since the scan). A branch that stays is counted again by every pass.",
)

CONSUMED: Final = Metric(
    "xabridge.consumer.messages",
    "counter",
    "{message}",
    (QUEUE, OUTCOME),
    "Messages that a consumer had in hand, by what became of them: handled, failed (rolled back: they come again), "
    "dead_lettered, unknown, heuristic, or returned when it was stopped.",
)
CONSUMER_DURATION: Final = Metric(
    "xabridge.consumer.duration",
    "histogram",
    "s",
    (QUEUE, OUTCOME),
    "How long the handlers of one transaction took, with its commit or rollback.",
)

METRICS: Final = (
    BEGUN,
    COMPLETED,
    DURATION,
    IN_DOUBT,
    PHASE_DURATION,
    FORCE_DURATION,
    VERB_DURATION,
    VERB_FAILURES,
    PASSES,
    PASS_DURATION,
    FINDINGS,
    CONSUMED,
    CONSUMER_DURATION,
)

BUCKETS_S: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Bounds of the histograms' buckets; those of OpenTelemetry's default are made for milliseconds."""


def metrics_table() -> str:
    """The table in Markdown."""
    lines = ["| metric | kind | unit | attributes | what it says |", "|---|---|---|---|---|"]
    for metric in METRICS:
        attributes = ", ".join(f"`{name}`" for name in (NODE, *metric.attributes))
        lines.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {attributes} | {metric.description} |")
    return "\n".join(lines) + "\n"
