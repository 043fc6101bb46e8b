"""The broker's metrics, as a table: what `docs/metrics.md` shows and what `dtx.broker.telemetry.instruments` makes.

The points of a queue have its name, those of queues beyond `metrics_queues` that of OTHER, for all of them together.
"""

from __future__ import annotations

from typing import Final

from xa.telemetry.conditions import CONDITION, GAUGE
from xa.telemetry.metric import QUEUE, Metric

STATE: Final = "xabridge.state"

DEPTH: Final = Metric(
    "xabridge.broker.queue.depth", "gauge", "{message}", (QUEUE,), "Messages in the queue, held ones included."
)
OCTETS: Final = Metric("xabridge.broker.queue.size", "gauge", "By", (QUEUE,), "Octets of the messages in the queue.")
HELD: Final = Metric(
    "xabridge.broker.queue.held",
    "gauge",
    "{message}",
    (QUEUE,),
    "Messages in the queue that deliveries or transactions hold, those of branches in doubt among them.",
)
DELAYED: Final = Metric(
    "xabridge.broker.queue.delayed",
    "gauge",
    "{message}",
    (QUEUE,),
    "Messages in the queue whose time of delivery has not come.",
)
OLDEST: Final = Metric(
    "xabridge.broker.queue.oldest.age",
    "gauge",
    "s",
    (QUEUE,),
    "For how long the oldest message has been in the queue; none where there is none. Delayed messages count once "
    "their time has come.",
)
CONSUMERS: Final = Metric(
    "xabridge.broker.queue.consumers", "gauge", "{link}", (QUEUE,), "Links that consume from the queue."
)
CAME: Final = Metric(
    "xabridge.broker.queue.in", "counter", "{message}", (QUEUE,), "Messages that came into the queue since the start."
)
WENT: Final = Metric(
    "xabridge.broker.queue.out", "counter", "{message}", (QUEUE,), "Messages that left the queue since the start."
)
DEAD_LETTERED: Final = Metric(
    "xabridge.broker.queue.dead_lettered",
    "counter",
    "{message}",
    (QUEUE,),
    "Messages that the broker moved from this queue to its dead letters. A consumer's own dead letters are in "
    "messaging.client.consumed.messages.",
)
DEAD_LETTERS: Final = Metric(
    "xabridge.broker.queue.dead_letters",
    "gauge",
    "{message}",
    (QUEUE,),
    "Dead letters in the queue: all messages of a queue that the settings make one of dead letters.",
)
UNREADABLE: Final = Metric(
    "xabridge.broker.queue.unreadable",
    "gauge",
    "{message}",
    (QUEUE,),
    "Messages in the queue that could not be read from the store since the start, and are given to no one.",
)
CONDITIONS: Final = Metric(
    GAUGE,
    "gauge",
    "{object}",
    (CONDITION,),
    "Of all queues and branches, those that a condition holds for; of a condition of the broker itself, 1 or 0.",
)
WORST: Final = Metric(
    f"{GAUGE}.worst",
    "gauge",
    "{object}",
    (CONDITION, QUEUE),
    "The five queues for which a condition holds the worst: seconds where messages are old, else messages.",
)
QUEUES: Final = Metric("xabridge.broker.queues", "gauge", "{queue}", (), "Queues, those that live in memory included.")
CONNECTIONS: Final = Metric("xabridge.broker.connections", "gauge", "{connection}", (), "Open connections.")
SESSIONS: Final = Metric("xabridge.broker.sessions", "gauge", "{session}", (), "Open sessions.")
BRANCHES: Final = Metric(
    "xabridge.broker.branches",
    "gauge",
    "{branch}",
    (STATE,),
    "Branches by their state: active, idle, rollback_only, prepared (in doubt), heuristic (completed on its own).",
)
IN_DOUBT: Final = Metric(
    "xabridge.broker.in_doubt.age", "gauge", "s", (), "For how long the oldest branch has been in doubt; 0: none is."
)
GROUP_DURATION: Final = Metric(
    "xabridge.broker.store.group.duration",
    "histogram",
    "s",
    (),
    "How long it took to write a group of changes and to force it to the disk. One group is one force.",
)
GROUP_SIZE: Final = Metric(
    "xabridge.broker.store.group.size", "histogram", "{batch}", (), "Batches that a force made durable together."
)
WAITING: Final = Metric(
    "xabridge.broker.store.waiting", "gauge", "By", (), "Octets of changes that wait for the store."
)
STORE_SIZE: Final = Metric(
    "xabridge.broker.store.size", "gauge", "By", (), "Octets of the store's files. None for a store in PostgreSQL."
)
STORE_FULL: Final = Metric(
    "xabridge.broker.store.full",
    "gauge",
    "1",
    (),
    "1 while the store refuses what takes space, and for up to a minute after; else 0.",
)
LOOP_DELAY: Final = Metric(
    "xabridge.broker.loop.delay",
    "histogram",
    "s",
    (),
    "How late a timer of the event loop was. As long as that, a peer waits for its turn.",
)

LONG_TURNS: Final = Metric(
    "xabridge.broker.turns.long",
    "counter",
    "{turn}",
    (),
    "Turns of a peer that took longer than 5 ms. The others waited for it.",
)
REFUSED: Final = Metric(
    "xabridge.broker.messages.refused",
    "counter",
    "{message}",
    (),
    "Messages that were sent settled, outside of a transaction, and refused; their senders can't know. The log has "
    "the reasons.",
)

METRICS: Final = (
    DEPTH,
    OCTETS,
    HELD,
    DELAYED,
    OLDEST,
    CONSUMERS,
    CAME,
    WENT,
    DEAD_LETTERED,
    DEAD_LETTERS,
    UNREADABLE,
    CONDITIONS,
    WORST,
    QUEUES,
    CONNECTIONS,
    SESSIONS,
    BRANCHES,
    IN_DOUBT,
    GROUP_DURATION,
    GROUP_SIZE,
    WAITING,
    STORE_SIZE,
    STORE_FULL,
    LOOP_DELAY,
    LONG_TURNS,
    REFUSED,
)
