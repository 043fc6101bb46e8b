"""The operator's settings: bounds on everything that a peer can make grow, and how queues treat messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MEGABYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one peer, or all of them together, may take. Beyond it they are refused; no one else
    notices."""

    connections: int = 1000
    connections_per_user: int = 1000
    operator_connections: int = 10
    """Of these, kept for identities that may look by management."""
    strangers: int = 200
    """Peers that have not opened their connection yet, beside those."""
    sessions: int = 1024
    links: int = 256
    transactions: int = 256
    """Per connection: sessions, links in each session, txn-ids that are not discharged."""
    frame_octets: int = 65_536
    message_octets: int = 64 * MEGABYTE
    partial_octets: int = 128 * MEGABYTE
    """Of messages that one connection has begun to send, and not finished."""
    credit: int = 500
    """Messages that a sender may have on their way to one link."""
    unsettled: int = 5_000
    """Deliveries that one link may hold: a consumer's, or those of a sender that is to settle first."""
    dynamic_nodes: int = 1000
    dynamic_octets: int = 64 * MEGABYTE
    """Per connection: dynamic nodes, and octets of the messages in all of them."""
    queues: int = 10_000
    branches: int = 100_000
    branches_per_user: int = 20_000
    """Prepared and unprepared ones. Rollback-only branches that no session works for make room when a limit is
    reached."""
    fences: int = 100_000
    fences_per_user: int = 50_000
    transaction_messages: int = 100_000
    transaction_octets: int = 256 * MEGABYTE
    """The most that one transaction may post before it is prepared or committed; and retire, counted in messages."""
    unstored_octets: int = 1024 * MEGABYTE
    """What all transactions that are not prepared post, and all messages that have come in part, over all
    connections."""
    waiting_octets: int = 64 * MEGABYTE
    """Octets that wait for the store before the resource reads no more from its peers."""
    output_octets: int = MEGABYTE
    """Octets that wait for one peer before it is sent no more messages."""
    waiting_commands: int = 64
    """Commands that wait for one branch."""


class WhenFull(StrEnum):
    """What happens to a message that is too much for a queue."""

    REFUSE = "refuse"
    """It is refused."""
    DEAD_LETTER = "dead-letter"
    """It is taken, and the oldest messages that are not held go to the dead letters."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """How a queue treats its messages. `dead_letter` is the name of the queue that takes what was rejected,
    or was delivered `max_deliveries` times in vain, or has expired, with * for the name of the queue itself; empty:
    what was rejected or has expired is dropped, nothing else is."""

    max_depth: int = 1_000_000
    max_octets: int = 0
    """The octets of its messages, 0 for any number."""
    when_full: WhenFull = WhenFull.REFUSE
    max_deliveries: int = 10
    dead_letter: str = "*.dead"
    ttl_ms: int = 0
    ordered_groups: bool = True
    """Whether the messages of one group-id go to one consumer at a time."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The resource's settings. Times in seconds; 0 is never where a time may be left out."""

    container: str = "xabridge"
    limits: Limits = field(default_factory=Limits)
    queues: dict[str, QueueSettings] = field(default_factory=dict)
    """Queues that are made at the start, and have settings of their own."""
    queue_defaults: QueueSettings = field(default_factory=QueueSettings)
    create_on_demand: bool = True
    idle_timeout_s: float = 60.0
    handshake_s: float = 15.0
    """How long a peer may take to say who it is and to open the connection."""
    wrong_password_s: float = 0.25
    """How long a peer with a wrong password waits for the answer; twice as long for each further one from the same
    address, up to 5 s."""
    branch_timeout_s: int = 600
    """A branch that is not prepared by then becomes rollback-only, unless set-timeout says otherwise."""
    local_timeout_s: int = 600
    rollback_only_s: int = 60
    """How long a rollback-only branch is remembered for the one who is to hear why. Forgotten, it is unknown, which
    means rolled back as well."""
    fence_s: int = 7 * 24 * 3600
    """How long a fence stands."""
    lease_s: float = 10.0
    """How long the broker has a store in PostgreSQL for itself without renewing it; at least 1."""
    metrics_queues: int = 200
    """Queues whose metrics have their names; all others are counted as one."""
