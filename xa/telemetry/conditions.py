"""The conditions: everything that a person on call has to know of, once, as data.

The broker and the console look for them by their names; the alerts (`containers/alerts.yml`) and the tables of the
guides are made from here (`python -m bench.conditions`). So an alert, a line of the console and a section of
`docs/recover.md` that have one name mean one thing, and advise the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

GUIDE: Final = "docs/recover.md"
"""Where each condition has its section, with its name as the anchor."""

OLD_S: Final = 300.0
"""What is in doubt for longer needs a person, because recovery has tried several times by then."""
SKEW_S: Final = 5.0
"""Ages and leases are wrong by the difference of the clocks."""
BEHIND_S: Final = 60.0
"""A relay sends within a second what it can send."""


class Level(StrEnum):
    """How urgent a condition is."""

    PAGE = "page"
    """Someone has to look now, at night too."""
    TICKET = "ticket"
    """Someone has to look today."""


class Question(StrEnum):
    """What a condition answers with no, on the console's first page."""

    FLOW = "Does work flow?"
    STUCK = "Is anything stuck?"
    FAILING = "Is anything failing?"


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A rule of Prometheus: the alert is on while `expression` has had a value for so long. Braces in `summary` are
    Prometheus's own."""

    expression: str
    lasts: str
    summary: str


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is wrong. `command` is the first thing to do, and works as it stands; `then` is what comes next.
    `measured` says who looks, and from when on it is so. `rule` is None where no metric can tell."""

    name: str
    level: Level
    question: Question
    means: str
    command: str
    then: str
    measured: str
    rule: AlertRule | None = None

    @property
    def anchor(self) -> str:
        """Its section in the guide."""
        return f"{GUIDE}#{self.name}"

    @property
    def alert(self) -> str:
        """The name of its alert."""
        return "Xabridge" + "".join(part.capitalize() for part in self.name.split("-"))


GAUGE: Final = "xabridge.broker.condition"
CONDITION: Final = "xabridge.condition"
"""The attribute that has a condition's name."""


def _at_broker(name: str, lasts: str, summary: str) -> AlertRule:
    """The rule of a condition that the broker looks for itself, so that the thresholds are its settings."""
    return AlertRule(f'xabridge_broker_condition{{xabridge_condition="{name}"}} > 0', lasts, summary)


def _of_queues(name: str, lasts: str, summary: str) -> AlertRule:
    """The same of one that queues have; the summary names the worst of them."""
    worst = f'xabridge_broker_condition_worst{{xabridge_condition=\\"{name}\\",instance=%q}}'
    named = (
        f'{{{{ range query (printf "topk(3, {worst})" $labels.instance) }}}}'
        " {{ .Labels.messaging_destination_name }}{{ end }}"
    )
    counted = f"queues of {{{{ $labels.instance }}}} that {summary}: {{{{ $value }}}}"
    return _at_broker(name, lasts, f"{counted}, the worst:{named}")


_CONSUMED: Final = "messaging_client_consumed_messages_total"
_OF_CONSUMER: Final = "sum by (xabridge_node, messaging_destination_name)"


def _since_first(series: str) -> str:
    """How much a counter has grown within an hour. Its first point counts as growth: a counter that begins with the
    first event has no point before it."""
    return f"(increase({series}[1h]) > 0 or ({series} > 0 unless {series} offset 1h))"


def _slowest(share: float, buckets: str, above_s: float) -> str:
    """What all but a share are faster than takes longer than `above_s`."""
    return f"histogram_quantile({share}, sum by (le, instance) (rate({buckets}[5m]))) > {above_s}"


OLD_MESSAGES: Final = Condition(
    "old-messages",
    Level.TICKET,
    Question.STUCK,
    "a message waits for longer than its queue lets messages wait",
    "xabridge broker queues",
    "add consumers, find out why they are slow, or which branch holds the message",
    "the broker, over all queues but those of dead letters: the oldest message is there for `old_messages_s` (900)",
    _of_queues("old-messages", "1m", "have messages that wait for too long"),
)
NO_CONSUMERS: Final = Condition(
    "no-consumers",
    Level.TICKET,
    Question.STUCK,
    "a queue has messages that could be received, and no consumer",
    "xabridge broker queues",
    "start the consumer, or find out who sends there",
    "the broker, over all queues but those of dead letters: so for `no_consumers_s` (600), and none has left it",
    _of_queues("no-consumers", "1m", "have messages and no consumers"),
)
QUEUE_PAUSED: Final = Condition(
    "queue-paused",
    Level.TICKET,
    Question.FLOW,
    "an operator has paused a queue: it takes messages and gives none",
    "xabridge broker audit",
    "ask who paused it, then `xabridge broker resume QUEUE`",
    "the broker, over all queues: it is paused",
    _of_queues("queue-paused", "15m", "are paused"),
)
GROWING_BACKLOG: Final = Condition(
    "growing-backlog",
    Level.TICKET,
    Question.FLOW,
    "more comes into a queue than goes out, for a long time",
    "xabridge broker queues",
    "add consumers, or slow the senders down: a full queue refuses them",
    "the broker, over all queues but those of dead letters: in each third of `growing_backlog_s` (900) the fewest "
    "messages were more than in the third before it",
    _of_queues("growing-backlog", "1m", "get more messages than they give"),
)
DEAD_LETTERS: Final = Condition(
    "dead-letters",
    Level.TICKET,
    Question.FAILING,
    "messages became dead letters",
    "xabridge broker dead",
    "repair the cause, then `xabridge broker retry QUEUE`",
    "the broker, over all queues: letters came within `dead_letters_s` (900); consumers of other brokers count those "
    "that they send there",
    AlertRule(
        'xabridge_broker_condition{xabridge_condition="dead-letters"} > 0 or sum by (instance) '
        + _since_first(f'{_CONSUMED}{{xabridge_outcome="dead_lettered"}}')
        + " > 0",
        "0m",
        "messages of {{ $labels.instance }} became dead letters",
    ),
)
MESSAGES_UNREADABLE: Final = Condition(
    "messages-unreadable",
    Level.PAGE,
    Question.FAILING,
    "messages can't be read from the broker's store: they stay there, and no one gets them",
    "xabridge broker queues",
    "find out what is damaged: `xabridge check --store NAME=URL`; then restore the store from a copy",
    "the broker, over all queues: a message could not be read since the start",
    _of_queues("messages-unreadable", "0m", "have messages that can't be read from the store"),
)
BRANCH_IN_DOUBT: Final = Condition(
    "branch-in-doubt",
    Level.PAGE,
    Question.STUCK,
    "a broker holds a prepared branch, with its messages, for longer than recovery takes",
    "xabridge broker branches",
    "start the node that it belongs to: its recovery completes it",
    "the broker, over all branches: prepared for `in_doubt_s` (900)",
    _at_broker("branch-in-doubt", "1m", "branches in doubt for too long at {{ $labels.instance }}: {{ $value }}"),
)
TRANSACTION_IN_DOUBT: Final = Condition(
    "transaction-in-doubt",
    Level.PAGE,
    Question.STUCK,
    "a transaction is in doubt for longer than recovery takes",
    "xabridge recover list --older-than 5m",
    "bring the resource back that is `not reached`, or start the node whose decision is `unknown`",
    "each node, of its own transactions, `doctor`, and the console of all: in doubt for five minutes",
    AlertRule(
        f"xabridge_transactions_in_doubt_age_seconds > {OLD_S:g}",
        "1m",
        "a transaction of {{ $labels.xabridge_node }} is in doubt for {{ $value | humanizeDuration }}",
    ),
)
HEURISTIC_OUTCOME: Final = Condition(
    "heuristic-outcome",
    Level.PAGE,
    Question.FAILING,
    "a resource was completed otherwise than the rest of its transaction",
    "xabridge recover list",
    "compare the data, repair it by hand, then `xabridge recover forget XID`",
    "each node: a transaction ended so within the last hour; `doctor` and the console: as long as it is not forgotten",
    AlertRule(
        _since_first(
            'xabridge_transactions_completed_total{xabridge_outcome=~"heur_committed|heur_rolled_back|mixed|hazard"}'
        ),
        "0m",
        "a transaction of {{ $labels.xabridge_node }} ended {{ $labels.xabridge_outcome }}",
    ),
)
AWAY: Final = Condition(
    "away",
    Level.PAGE,
    Question.FLOW,
    "a broker or a node does not answer",
    "xabridge health",
    "start it again; its log says why it ended",
    "Prometheus: no answer for a minute; the console: it has asked, and got none",
    AlertRule('up{job=~"xabridge-.*"} == 0', "1m", "{{ $labels.job }} {{ $labels.instance }} does not answer"),
)
LEASE_LOST: Final = Condition(
    "lease-lost",
    Level.PAGE,
    Question.FLOW,
    "the broker can't renew its lease on a store in PostgreSQL: no peer gets an answer, because another may have it",
    "xabridge health",
    "look at the database: can the broker reach it, is it slow? The broker goes on by itself, or the one that stands "
    "by takes over",
    "the broker: its lease has run out",
    _at_broker("lease-lost", "0m", "the lease of {{ $labels.instance }} on its store has run out"),
)
STORE_FULL: Final = Condition(
    "store-full",
    Level.PAGE,
    Question.FLOW,
    "the broker's disk is full: the reserve is released, producers are refused, consumers go on",
    "xabridge broker queues",
    "make room on the disk, or start the consumers of the queue that fills it; the broker notices by itself",
    "the broker: its store refuses what takes space, or has done so within the last minute",
    _at_broker("store-full", "1m", "the store of {{ $labels.instance }} refuses what takes space"),
)
RESOURCE_UNREACHABLE: Final = Condition(
    "resource-unreachable",
    Level.PAGE,
    Question.STUCK,
    "recovery can't reach a resource: its transactions stay in doubt",
    "xabridge doctor",
    "start the resource, or correct its address or its user",
    "each node: its latest recovery pass did not reach it, for two minutes",
    AlertRule(
        "xabridge_recovery_unreachable > 0",
        "2m",
        "resources of {{ $labels.xabridge_node }} that can't be reached: {{ $value }}",
    ),
)
CONSUMER_TROUBLED: Final = Condition(
    "consumer-troubled",
    Level.PAGE,
    Question.STUCK,
    "workers of a consumer can't receive, or a handler takes longer than its transaction may",
    "xabridge health",
    "do what it says of the consumer; start a process that hangs again",
    "each node: so for five minutes",
    AlertRule(
        "xabridge_consumer_troubled > 0",
        "5m",
        "workers of {{ $labels.messaging_destination_name }} that can't receive, or hang: {{ $value }}",
    ),
)
CONSUMER_FAILING: Final = Condition(
    "consumer-failing",
    Level.TICKET,
    Question.FAILING,
    "more than a fifth of the messages that a consumer gets is rolled back",
    "xabridge broker dead",
    "the log of the process has each error, with its place in the handler",
    "each node: so for ten minutes; the console: within the last minute",
    AlertRule(
        f'{_OF_CONSUMER} (rate({_CONSUMED}{{xabridge_outcome="failed"}}[10m]))'
        f" / {_OF_CONSUMER} (rate({_CONSUMED}[10m])) > 0.2",
        "10m",
        "{{ $value | humanizePercentage }} of what {{ $labels.xabridge_node }} consumes from "
        "{{ $labels.messaging_destination_name }} fails",
    ),
)
OUTBOX_BEHIND: Final = Condition(
    "outbox-behind",
    Level.TICKET,
    Question.FLOW,
    "messages wait in an outbox, and its relay does not send them",
    "xabridge outbox status",
    "start the relay; its log says what keeps it from sending",
    "the relay: the oldest message waits for more than a minute, for five minutes; `doctor`",
    AlertRule(
        f"xabridge_outbox_oldest_seconds > {BEHIND_S:g}", "5m", "an outbox waits for {{ $value | humanizeDuration }}"
    ),
)
OUTBOX_SET_ASIDE: Final = Condition(
    "outbox-set-aside",
    Level.TICKET,
    Question.FAILING,
    "the broker has refused messages of an outbox for so long that the relay tries them no more",
    "xabridge outbox status",
    "repair the cause, then `xabridge outbox retry`",
    "the relay: within the last hour; `doctor`",
    AlertRule(_since_first("xabridge_outbox_set_aside_total"), "0m", "messages of an outbox are set aside"),
)
PIPELINE_BEHIND: Final = Condition(
    "pipeline-behind",
    Level.TICKET,
    Question.FLOW,
    "messages wait for a pipeline, and it does not take them",
    "xabridge pipeline status",
    "start its driver, or give it more tasks",
    "the pipeline's driver: the oldest message is older than 15 minutes; the console: no batch has ended for long",
    AlertRule(
        "xabridge_pipeline_lag_age_seconds > 900",
        "5m",
        "the oldest message of {{ $labels.xabridge_pipeline_name }} is {{ $value | humanizeDuration }} old",
    ),
)
PIPELINE_FAILING: Final = Condition(
    "pipeline-failing",
    Level.TICKET,
    Question.FAILING,
    "batches of a pipeline fail, or attempts have left branches behind",
    "xabridge pipeline status",
    "the log of its driver has the error; the next batch that is committed rolls back what attempts have left",
    "the pipeline's driver: a query ended with an error within the last hour; the console: batches that fail, orphans",
    AlertRule(
        _since_first("xabridge_pipeline_failures_total"),
        "0m",
        "queries of {{ $labels.xabridge_pipeline_name }} ended with an error",
    ),
)
CLOCK_OFF: Final = Condition(
    "clock-off",
    Level.TICKET,
    Question.FAILING,
    "clocks differ by more than five seconds: ages and leases are wrong by that much",
    "xabridge doctor",
    "set the clocks by NTP",
    "`doctor`, of each resource manager, and the console, of each broker: compared with the clock of its own machine",
)
CERTIFICATE_ENDS: Final = Condition(
    "certificate-ends",
    Level.TICKET,
    Question.FAILING,
    "the broker's certificate ends soon, or has ended: clients will refuse it",
    "xabridge health",
    "put the new certificate in place of the old one",
    "the broker: it ends within `certificate_days` (14)",
    _at_broker("certificate-ends", "1m", "the certificate of {{ $labels.instance }} ends soon"),
)
MIXED_VERSIONS: Final = Condition(
    "mixed-versions",
    Level.TICKET,
    Question.FAILING,
    "brokers and nodes run different versions of xabridge",
    "xabridge --version",
    "finish the upgrade; until then nothing may use what only the newer version knows",
    "the console: compared are the brokers, the nodes and itself",
)
STORE_SLOW: Final = Condition(
    "store-slow",
    Level.TICKET,
    Question.FLOW,
    "a force of the broker's store takes half a second in the slowest hundredth",
    "xabridge health",
    "the disk is shared with others, or fails",
    "the broker: so for five minutes",
    AlertRule(
        _slowest(0.99, "xabridge_broker_store_group_duration_seconds_bucket", 0.5),
        "5m",
        "a force of {{ $labels.instance }} takes {{ $value | humanizeDuration }} in the slowest hundredth",
    ),
)
LOOP_SLOW: Final = Condition(
    "loop-slow",
    Level.TICKET,
    Question.FLOW,
    "every tenth time, peers of the broker wait 0.2 s for their turn",
    "xabridge broker connections",
    "its processor is busy: fewer peers, fewer small messages, or one more broker",
    "the broker: so for five minutes",
    AlertRule(
        _slowest(0.9, "xabridge_broker_loop_delay_seconds_bucket", 0.2),
        "5m",
        "peers of {{ $labels.instance }} wait {{ $value | humanizeDuration }} for their turn",
    ),
)
POOL_EXHAUSTED: Final = Condition(
    "pool-exhausted",
    Level.TICKET,
    Question.FLOW,
    "callers wait for a connection to the database",
    "xabridge recover list",
    "raise `xa_pool_size`, or look for transactions that hang",
    "each node: so for two minutes",
    AlertRule(
        "db_client_connection_pending_requests > 0",
        "2m",
        "callers that wait for a connection of {{ $labels.db_client_connection_pool_name }}: {{ $value }}",
    ),
)

CONDITIONS: Final = (
    AWAY,
    LEASE_LOST,
    STORE_FULL,
    MESSAGES_UNREADABLE,
    TRANSACTION_IN_DOUBT,
    BRANCH_IN_DOUBT,
    HEURISTIC_OUTCOME,
    RESOURCE_UNREACHABLE,
    CONSUMER_TROUBLED,
    CONSUMER_FAILING,
    DEAD_LETTERS,
    OLD_MESSAGES,
    NO_CONSUMERS,
    QUEUE_PAUSED,
    GROWING_BACKLOG,
    OUTBOX_BEHIND,
    OUTBOX_SET_ASIDE,
    PIPELINE_BEHIND,
    PIPELINE_FAILING,
    CLOCK_OFF,
    CERTIFICATE_ENDS,
    MIXED_VERSIONS,
    STORE_SLOW,
    LOOP_SLOW,
    POOL_EXHAUSTED,
)
"""All of them, the most urgent first."""
BY_NAME: Final = {condition.name: condition for condition in CONDITIONS}
