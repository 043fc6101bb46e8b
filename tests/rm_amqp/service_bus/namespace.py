"""This is a namespace of Azure Service Bus as a model: entities, locks, rules and transactions, without AMQP.

It keeps the rules that the service's documentation states (docs/service-bus.md has them with their sources), and where
the documentation leaves something open, it does what is worst for a client:

 - a lock runs out although a transaction has completed its message; whoever has the message then and commits first
   wins, and the other transaction is rolled back
 - a lock stays when its connection is gone, until it runs out, unless `drops_locks`
 - a rolled back transaction gives no lock back
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

LOCK_S: Final = 30.0
TRANSACTION_S: Final = 120.0
MAX_MESSAGES: Final = 100
"""In one transaction."""
MAX_OCTETS: Final = 256 * 1024
MAX_DELIVERIES: Final = 10
NOT_ALLOWED: Final = "amqp:not-allowed"
NOT_FOUND: Final = "amqp:not-found"
UNKNOWN_ID: Final = "amqp:transaction:unknown-id"
ROLLBACK: Final = "amqp:transaction:rollback"
LOCK_LOST: Final = "com.microsoft:message-lock-lost"
LOCK_TOLD: Final = "The lock supplied is invalid. Either the lock expired, or the message has already been removed."
NOT_LOCKED: Final = "The transaction was rolled back: a message that it completes is not locked by it any more."
ONE_ENTITY: Final = "Local transactions cannot span multiple top-level entities such as queue or topic."


class Refused(Exception):
    """The service refuses, with this condition."""

    def __init__(self, condition: str, told: str) -> None:
        super().__init__(f"{condition}: {told}")
        self.condition = condition
        self.told = told


@dataclass(slots=True, eq=False)
class Stored:
    """A message in an entity."""

    number: int
    octets: bytes
    deliveries: int = 0
    lock: int = 0
    locked_until_s: float = 0.0


@dataclass(slots=True, eq=False)
class Entity:
    """A queue or a subscription: what can be received from. `top` is its top-level entity."""

    path: str
    top: str
    rules: list[str | None] = field(default_factory=list)
    """Of a subscription: the `to` of each correlation filter; None for the rule that matches everything."""
    messages: list[Stored] = field(default_factory=list)
    dead: list[Stored] = field(default_factory=list)
    deferred: list[Stored] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction that was declared and not discharged."""

    top: str = ""
    """Its top-level entity, once it has one."""
    began_s: float | None = None
    """When its first operation was."""
    sent: list[tuple[str, bytes, str]] = field(default_factory=list)
    """Where to, the octets, and their `to`."""
    completed: list[tuple[Entity, Stored, int, str]] = field(default_factory=list)


class Namespace:
    """A namespace. `clock` is its time."""

    def __init__(self, clock: Callable[[], float], *, lock_s: float = LOCK_S, tier: str = "standard") -> None:
        self.clock = clock
        self.lock_s = lock_s
        self.tier = tier
        self.drops_locks = False
        self.partitioned: set[str] = set()
        """Topics with partitions, where transactions need a partition key."""
        self.topics: set[str] = set()
        self.entities: dict[str, Entity] = {}
        self.transactions: dict[bytes, Transaction] = {}
        self.ended: list[str] = []
        """Why transactions were rolled back that a client wanted to commit."""
        self._number = 0
        self._lock = 0

    # -- entities
    def topic(self, name: str) -> None:
        """Makes a topic."""
        self.topics.add(name)

    def queue(self, name: str) -> Entity:
        """Makes a queue."""
        return self.entities.setdefault(name, Entity(name, name))

    def subscription(self, topic: str, name: str, *rules: str | None) -> Entity:
        """Makes a subscription; by itself it has one rule, for its own name."""
        path = f"{topic}/Subscriptions/{name}"
        entity = self.entities[path] = Entity(path, topic, list(rules or (name,)))
        return entity

    def entity(self, path: str) -> Entity:
        """A queue or a subscription."""
        if path not in self.entities:
            raise Refused(NOT_FOUND, f"The messaging entity '{path}' could not be found.")
        return self.entities[path]

    def check_target(self, name: str) -> None:
        """A top-level entity that can be sent to."""
        if name not in self.topics and (name not in self.entities or self.entities[name].top != name):
            raise Refused(NOT_FOUND, f"The messaging entity '{name}' could not be found.")

    # -- messages
    def publish(self, name: str, octets: bytes, to: str) -> None:
        """A message is in an entity; a topic gives it to the subscriptions that want it, and otherwise drops it."""
        wanted = [self.entities[name]] if name in self.entities else []
        if name in self.topics:
            subscriptions = [entity for entity in self.entities.values() if entity.top == name]
            wanted = [entity for entity in subscriptions if to in entity.rules or None in entity.rules]
        for entity in wanted:
            self._number += 1
            entity.messages.append(Stored(self._number, octets))

    def receive(self, entity: Entity) -> Stored | None:
        """Locks the next message that is not locked."""
        now = self.clock()
        for stored in tuple(entity.messages):
            if stored.lock and stored.locked_until_s <= now:
                self._unlock(entity, stored)
        for stored in entity.messages:
            if not stored.lock:
                self._lock += 1
                stored.lock, stored.locked_until_s = self._lock, now + self.lock_s
                return stored
        return None

    def _unlock(self, entity: Entity, stored: Stored) -> None:
        stored.lock = 0
        stored.deliveries += 1
        if stored.deliveries >= MAX_DELIVERIES:
            entity.messages.remove(stored)
            entity.dead.append(stored)

    def settle(self, entity: Entity, stored: Stored, lock: int, outcome: str) -> None:
        """Carries out an outcome outside of any transaction."""
        self._check_lock(entity, stored, lock)
        self._apply(entity, stored, outcome)

    def _check_lock(self, entity: Entity, stored: Stored, lock: int) -> None:
        if stored not in entity.messages or stored.lock != lock or stored.locked_until_s <= self.clock():
            raise Refused(LOCK_LOST, LOCK_TOLD)

    def _apply(self, entity: Entity, stored: Stored, outcome: str) -> None:
        if outcome == "released":
            self._unlock(entity, stored)
            return
        entity.messages.remove(stored)
        if outcome == "rejected":
            entity.dead.append(stored)
        elif outcome == "deferred":
            entity.deferred.append(stored)

    def lost_lock(self, entity: Entity, stored: Stored, lock: int) -> None:
        """The connection that has this lock is gone."""
        if self.drops_locks and stored in entity.messages and stored.lock == lock:
            self._unlock(entity, stored)

    # -- transactions
    def declare(self, txn_id: bytes) -> None:
        if self.tier == "basic":
            raise Refused(NOT_ALLOWED, "The basic tier of Service Bus does not support transactions.")
        self.transactions[txn_id] = Transaction()

    def _operation(self, txn_id: bytes, top: str) -> Transaction:
        transaction = self._live(txn_id)
        if transaction.top not in {"", top}:
            raise Refused(NOT_ALLOWED, ONE_ENTITY)
        transaction.top = top
        if transaction.began_s is None:
            transaction.began_s = self.clock()
        return transaction

    def _live(self, txn_id: bytes) -> Transaction:
        transaction = self.transactions.get(txn_id)
        began_s = transaction.began_s if transaction is not None else None
        if began_s is not None and self.clock() > began_s + TRANSACTION_S:
            del self.transactions[txn_id]
            self.ended.append("timed out")
            transaction = None
        if transaction is None:
            raise Refused(UNKNOWN_ID, "The transaction hasn't been declared yet, or has already been discharged.")
        return transaction

    def send(self, txn_id: bytes, via: str, destination: str, octets: bytes, to: str) -> None:
        """A message is sent in a transaction, by way of `via`."""
        transaction = self._operation(txn_id, via)
        if via in self.partitioned:
            raise Refused(NOT_ALLOWED, "A message that is sent in a transaction needs a partition key.")
        if len(transaction.sent) >= MAX_MESSAGES:
            raise Refused(NOT_ALLOWED, "Can't send more than 100 messages in a single transaction.")
        transaction.sent.append((destination, octets, to))

    def complete(self, txn_id: bytes, entity: Entity, stored: Stored, lock: int, outcome: str) -> None:
        """The outcome of a message is told in a transaction."""
        transaction = self._operation(txn_id, entity.top)
        self._check_lock(entity, stored, lock)
        transaction.completed.append((entity, stored, lock, outcome))

    def discharge(self, txn_id: bytes, *, fail: bool) -> None:
        """Commits or rolls back."""
        transaction = self._live(txn_id)
        del self.transactions[txn_id]
        if fail:
            return
        for entity, stored, lock, _ in transaction.completed:
            if stored not in entity.messages or stored.lock != lock:
                self.ended.append("lock lost")
                raise Refused(ROLLBACK, NOT_LOCKED)
        for entity, stored, _, outcome in transaction.completed:
            self._apply(entity, stored, outcome)
        for destination, octets, to in transaction.sent:
            self.publish(destination, octets, to)

    def lose(self, txn_id: bytes) -> None:
        """The control link of a transaction is gone."""
        self.transactions.pop(txn_id, None)
