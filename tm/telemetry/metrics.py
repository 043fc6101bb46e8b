"""The metrics of managers and consumers, as a table: what `docs/metrics.md` shows and `tm.telemetry.recorder` makes.

Every one of them has the attribute xabridge.node besides its own.
"""

from __future__ import annotations

from typing import Final

from xa.telemetry.metric import QUEUE, Metric, table

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
SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
POOL: Final = "db.client.connection.pool.name"
POOL_STATE: Final = "db.client.connection.state"

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
    "Recovery passes; clean when nothing of this node was left in doubt, no heuristic outcome waits to be forgotten, "
    "and every resource manager was reached.",
)
PASS_DURATION: Final = Metric("xabridge.recovery.duration", "histogram", "s", (), "How long a recovery pass took.")
FINDINGS: Final = Metric(
    "xabridge.recovery.findings",
    "counter",
    "{branch}",
    (RESOURCE, ACTION),
    "Branches that recovery passes met, by what was done: committed, rolled_back, heuristic, forgotten, pending, "
    "stranded (of this node, decided elsewhere), left_alone (of another node), gone (finished since the scan), "
    "not_there (decided to commit, and not known any more: committed before, or completed by hand). A "
    "branch that stays is counted again by every pass.",
)

ACTIVE: Final = Metric(
    "xabridge.transactions.active",
    "gauge",
    "{transaction}",
    (),
    "Transactions that are under way, those of consumers that wait for a message included.",
)
IN_DOUBT_AGE: Final = Metric(
    "xabridge.transactions.in_doubt.age",
    "gauge",
    "s",
    (),
    "For how long this process has known of the transaction that is in doubt for the longest; 0: none is.",
)
LOG_SIZE: Final = Metric(
    "xabridge.log.size", "gauge", "By", (), "Octets of the log's files. None for a log in a database."
)
LOG_DECISIONS: Final = Metric(
    "xabridge.log.decisions", "gauge", "{decision}", (), "Decisions in the log that are not carried out everywhere yet."
)
UNREACHABLE: Final = Metric(
    "xabridge.recovery.unreachable",
    "gauge",
    "{resource}",
    (),
    "Resources that the latest recovery pass could not reach.",
)

CONSUMED: Final = Metric(
    "messaging.client.consumed.messages",
    "counter",
    "{message}",
    (QUEUE, SYSTEM, OPERATION, OUTCOME),
    "Messages that a consumer had in hand, by what became of them: handled, failed (rolled back: they come again), "
    "dead_lettered, unknown, heuristic, or returned when it was stopped.",
)
CONSUMER_DURATION: Final = Metric(
    "messaging.process.duration",
    "histogram",
    "s",
    (QUEUE, SYSTEM, OPERATION, OUTCOME),
    "How long the handlers of one transaction took, with its commit or rollback.",
)
CONSUMER_WORKERS: Final = Metric(
    "xabridge.consumer.workers", "gauge", "{worker}", (QUEUE,), "Workers of a consumer that are alive."
)
CONSUMER_BUSY: Final = Metric(
    "xabridge.consumer.busy", "gauge", "{worker}", (QUEUE,), "Workers of a consumer that have messages in hand."
)
CONSUMER_TROUBLED: Final = Metric(
    "xabridge.consumer.troubled",
    "gauge",
    "{worker}",
    (QUEUE,),
    "Workers of a consumer that can't receive, or whose handler takes longer than its transaction may.",
)

CONNECTIONS: Final = Metric(
    "xabridge.pool.connections",
    "gauge",
    "{connection}",
    (POOL, POOL_STATE),
    "Connections of a database's pool, which has the name of its resource, that are idle or used.",
)
CONNECTIONS_MAX: Final = Metric(
    "db.client.connection.max", "gauge", "{connection}", (POOL,), "Connections that transactions may use at a time."
)
CONNECTIONS_PENDING: Final = Metric(
    "db.client.connection.pending_requests", "gauge", "{request}", (POOL,), "Callers that wait for a connection."
)

METRICS: Final = (
    BEGUN,
    COMPLETED,
    DURATION,
    ACTIVE,
    IN_DOUBT,
    IN_DOUBT_AGE,
    PHASE_DURATION,
    FORCE_DURATION,
    LOG_SIZE,
    LOG_DECISIONS,
    VERB_DURATION,
    VERB_FAILURES,
    PASSES,
    PASS_DURATION,
    FINDINGS,
    UNREACHABLE,
    CONSUMED,
    CONSUMER_DURATION,
    CONSUMER_WORKERS,
    CONSUMER_BUSY,
    CONSUMER_TROUBLED,
    CONNECTIONS,
    CONNECTIONS_MAX,
    CONNECTIONS_PENDING,
)


def metrics_table() -> str:
    """The table in Markdown."""
    return table(METRICS, always=(NODE,))
