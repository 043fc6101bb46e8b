"""The operator's settings: bounds on everything that a peer can make grow, and how queues treat messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from xa.configuration import FLAG, TEXT, member, seconds, setting, whole

MEGABYTE: Final = 1 << 20
COUNT: Final = whole()
TIME: Final = seconds(0)


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one peer, or all of them together, may take. Beyond it they are refused; no one else
    notices."""

    connections: int = setting(1000, COUNT, "connections in all")
    connections_per_user: int = setting(1000, COUNT, "connections of one user")
    operator_connections: int = setting(
        10, COUNT, "connections, of all, that are kept for those who may look by management"
    )
    strangers: int = setting(200, COUNT, "peers that have not opened their connection yet, beside `connections`")
    sessions: int = setting(1024, COUNT, "sessions of one connection")
    links: int = setting(256, COUNT, "links in each session")
    transactions: int = setting(256, COUNT, "transactions of one connection that are open: txn-ids not discharged")
    frame_octets: int = setting(65_536, COUNT, "octets of a frame")
    message_octets: int = setting(64 * MEGABYTE, COUNT, "octets of a message")
    partial_octets: int = setting(
        128 * MEGABYTE, COUNT, "octets of messages that one connection has begun to send, and not finished"
    )
    credit: int = setting(500, COUNT, "messages that a sender may have on their way to one link")
    unsettled: int = setting(
        5_000,
        COUNT,
        "deliveries that one link may hold: a consumer's, or those of a sender that is to settle first",
    )
    dynamic_nodes: int = setting(1000, COUNT, "dynamic nodes of one connection; each holds up to 1,000 messages")
    dynamic_octets: int = setting(64 * MEGABYTE, COUNT, "octets of the messages in all dynamic nodes of one connection")
    queues: int = setting(10_000, COUNT, "queues")
    branches: int = setting(
        100_000,
        COUNT,
        "branches, prepared or not; rollback-only ones that no session works for make room when it is reached",
    )
    branches_per_user: int = setting(20_000, COUNT, "branches of one user")
    fences: int = setting(100_000, COUNT, "fences")
    fences_per_user: int = setting(50_000, COUNT, "fences of one user")
    transaction_messages: int = setting(
        100_000, COUNT, "messages that one transaction posts before it is prepared or committed; and that it retires"
    )
    transaction_octets: int = setting(256 * MEGABYTE, COUNT, "octets of the messages that one transaction posts")
    unstored_octets: int = setting(
        1024 * MEGABYTE,
        COUNT,
        "octets that all transactions which are not prepared post, and of all messages that came in part",
    )
    waiting_octets: int = setting(
        64 * MEGABYTE, COUNT, "octets that wait for the store before the broker reads no more from its peers"
    )
    output_octets: int = setting(MEGABYTE, COUNT, "octets that wait for one peer before it is sent no more messages")
    waiting_commands: int = setting(64, COUNT, "commands that wait for one branch")


class WhenFull(StrEnum):
    """What happens to a message that is too much for a queue."""

    REFUSE = "refuse"
    """It is refused."""
    DEAD_LETTER = "dead-letter"
    """It is taken, and the oldest messages that are not held go to the dead letters."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How a queue treats its messages."""

    max_depth: int = setting(1_000_000, COUNT, "the most messages in the queue; 0: none")
    max_octets: int = setting(0, COUNT, "the most octets of the messages in the queue; 0: any number")
    when_full: WhenFull = setting(
        WhenFull.REFUSE,
        member(WhenFull),
        'what happens to a message that is too much: `"refuse"` it, or take it and move the oldest ones to the dead '
        'letters (`"dead-letter"`)',
    )
    max_deliveries: int = setting(
        10, COUNT, "after so many deliveries without success a message goes to the dead letters; 0: never"
    )
    dead_letter: str = setting(
        "*.dead",
        TEXT,
        'the queue for dead letters, `*` is the queue\'s name; `""`: what is rejected or expires is dropped, nothing '
        "else is",
    )
    ttl_ms: int = setting(0, COUNT, "the time to live of messages that say none, in milliseconds; 0: no end")
    old_messages_s: float = setting(
        900.0,
        TIME,
        "a message that waits for so long is the [condition](operations.md#what-to-watch) `old-messages`; 0: never",
    )
    no_consumers_s: float = setting(
        600.0, TIME, "messages that wait for a consumer for so long, while there is none, are `no-consumers`; 0: never"
    )
    growing_backlog_s: float = setting(
        900.0, TIME, "a backlog that grows by 100 messages, and all of this time, is `growing-backlog`; 0: never"
    )
    ordered_groups: bool = setting(True, FLAG, "the messages of one group-id go to one consumer at a time")


class Unrouted(StrEnum):
    """What happens to a message for a topic that has no subscription."""

    DROP = "drop"
    """It is dropped, and counted."""
    REJECT = "reject"
    """It is refused."""


class WhenSubscriptionFull(StrEnum):
    """What happens to a message for a topic where one of its subscriptions has no room for it."""

    REFUSE = "refuse"
    """It is refused, and no subscription gets it."""
    DROP = "drop"
    """The others get it, and it is counted."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How a topic treats its messages."""

    unrouted: Unrouted = setting(
        Unrouted.DROP,
        member(Unrouted),
        'what happens to a message for which there is no subscription: `"drop"` and count it, or `"reject"` it',
    )
    when_subscription_full: WhenSubscriptionFull = setting(
        WhenSubscriptionFull.REFUSE,
        member(WhenSubscriptionFull),
        'what happens to a message for which a subscription has no room: `"refuse"` it, or `"drop"` it for that '
        "subscription and count it",
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The resource's settings. Times in seconds; 0 is never where a time may be left out."""

    container: str = setting("xabridge", TEXT, "the name that the broker gives itself in AMQP")
    limits: Limits = field(default_factory=Limits)
    queues: dict[str, QueueSettings] = field(default_factory=dict)
    """Queues that are made at the start, and have settings of their own."""
    queue_defaults: QueueSettings = field(default_factory=QueueSettings)
    topics: dict[str, TopicSettings] = field(default_factory=dict)
    """By patterns of their names: which addresses without the prefix `topic:` are topics too, and what holds for
    these."""
    create_on_demand: bool = setting(True, FLAG, "a queue is made when somebody first uses it")
    idle_timeout_s: float = setting(60.0, TIME, "a peer that says nothing for so long is given up")
    handshake_s: float = setting(15.0, TIME, "how long a peer may take to authenticate and to open its connection")
    wrong_password_s: float = setting(
        0.25,
        TIME,
        "how long the answer to a wrong password takes, the first time; twice as long for each further one from the "
        "same address, up to 5 s",
    )
    branch_timeout_s: int = setting(
        600, COUNT, "a branch that is not prepared by then is rollback-only, unless its client says otherwise"
    )
    local_timeout_s: int = setting(600, COUNT, "the same for a local transaction")
    rollback_only_s: int = setting(
        60, COUNT, "how long a rollback-only branch is remembered; later it is unknown, which means rolled back as well"
    )
    fence_s: int = setting(7 * 24 * 3600, COUNT, "how long a [fence](wire.md) stands")
    lease_s: float = setting(
        10.0, seconds(1), "how long a broker has a store in PostgreSQL without renewing it, in seconds; at least 1"
    )
    in_doubt_s: float = setting(
        900.0,
        TIME,
        "a branch that is in doubt for so long is the [condition](operations.md#what-to-watch) `branch-in-doubt`",
    )
    dead_letters_s: float = setting(900.0, TIME, "for how long dead letters are new: the condition `dead-letters`")
    certificate_days: float = setting(
        14.0, TIME, "so long before its end the broker's certificate is the condition `certificate-ends`"
    )
    metrics_queues: int = setting(
        200, COUNT, "queues whose metrics have their own names; all others are counted as one"
    )
