"""Container: an AMQP container without its sockets, with everything that its connections share.

A shell opens the container, makes a `BrokerConnection` for each peer that has said who it is, feeds it octets,
and after every call sends what the connections in `take_touched` have to say.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from dtx.amqp.conditions import Condition
from dtx.amqp.sasl.scram import ScramError
from dtx.broker.access.accounts import Accounts
from dtx.broker.access.audit import Audit
from dtx.broker.access.permissions import Permissions, PermissionsError
from dtx.broker.access.rate_limited_log import RateLimitedLog
from dtx.broker.conditions import ConditionWatch
from dtx.broker.fair_queue import FairQueue
from dtx.broker.queues.counters import INTERVAL_S, UnstoredMemory
from dtx.broker.transactional_resource import TransactionalResource
from dtx.broker.transactions.branch_commands import DtxCoordination
from dtx.broker.transactions.branches import Registry
from dtx.broker.transactions.contexts import NoTransaction
from dtx.broker.transactions.fences import Fences
from dtx.broker.transactions.two_phase_commit import TwoPhaseCommit
from dtx.protocol.addresses import DYNAMIC
from dtx.protocol.conditions import Refusal, refused
from dtx.store.contract import StoreDamaged, StoreError
from xa import Code
from xa.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dtx.amqp.link import Link as LinkEndpoint
    from dtx.amqp.performatives import Error
    from dtx.amqp.sasl.mechanisms import Identity
    from dtx.amqp.session import Session as SessionEndpoint
    from dtx.amqp.sole_connection import SoleConnection
    from dtx.broker.access.credentials import Credentials
    from dtx.broker.queues.counters import RateMeter
    from dtx.broker.queues.entry import ResumableWork
    from dtx.broker.queues.queue import Queue
    from dtx.broker.settings import Settings
    from dtx.broker.transactional_resource import Clock
    from dtx.broker.transactions.txn_ids import TxnIds
    from dtx.store.contract import MessageStore, Restored


CONTINUING_S: Final = 0.002
_UNREADABLE: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    PermissionsError,
    RecursionError,
    ScramError,
    TypeError,
    ValueError,
)
"""What comes of values that no broker wrote."""

LinkKey: TypeAlias = tuple[str, str, str, bool]
"""A user, its container, the name of a link, and whether we receive."""


class ServedLink(Protocol):
    """A link, as the container and management know it: what its members mean, `dtx.broker.endpoint.link.Link` says."""

    kind: str
    name: str
    endpoint: LinkEndpoint

    @property
    def peer(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def credit(self) -> int: ...
    @property
    def messages(self) -> int: ...
    @property
    def unsettled(self) -> int: ...

    def detach(self, refusal: Refusal) -> None: ...


class ServedSession(Protocol):
    """A session, as management knows it."""

    @property
    def links(self) -> Mapping[LinkEndpoint, ServedLink]: ...


class ServedConnection(Protocol):
    """A connection, as the container, the shell and management know it: what its members mean,
    `dtx.broker.endpoint.connection.BrokerConnection` says."""

    number: int
    identity: Identity
    peer: str
    peer_container: str
    product: str
    since_ms: int
    meter: RateMeter
    txns: TxnIds
    sole: SoleConnection | None

    @property
    def sessions(self) -> Mapping[SessionEndpoint, ServedSession]: ...
    @property
    def links(self) -> Mapping[LinkEndpoint, ServedLink]: ...
    @property
    def received_messages(self) -> int: ...
    @property
    def sent_messages(self) -> int: ...

    def go_on(self) -> bool: ...
    def tick(self, now_ms: int, held_ms: int) -> int: ...
    def close(self, refusal: Refusal | None) -> None: ...
    def close_for(self, error: Error) -> None: ...


class Container:
    """The state that the connections of one broker share."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        settings: Settings,
        permissions: Permissions,
        stopped: Callable[[StoreError], None],
        nonce: Callable[[int], bytes] = os.urandom,
        credentials: Credentials | None = None,
    ) -> None:
        self.settings = settings
        self.nonce = nonce
        self.limits = settings.limits
        permissions = Permissions(permissions.rules)  # which management changes
        self.permissions = permissions
        self.resource = TransactionalResource(store, clock, settings, stopped)
        self.registry = Registry(self.resource)
        self.two_phase = TwoPhaseCommit(self.resource, self.registry)
        self.fences = Fences(self.resource, self.registry)
        self.resource.topics.holds = self.registry.holds
        self.coordination = DtxCoordination(self.registry, self.two_phase, self.fences, permissions)
        self.outside = NoTransaction(self.resource)
        self.conditions = ConditionWatch(self.resource, self.registry)

        self.configuration: list[tuple[str, str, str]] = []
        """The settings, for people: name, value, and where that comes from."""
        self.audit = Audit(self.resource)
        self.accounts = Accounts(self.resource, permissions, credentials, self.audit, self._with_other_passwords)
        self.lines = RateLimitedLog(clock.monotonic)
        self.connections: dict[int, ServedConnection] = {}
        self.named: dict[tuple[str, str], dict[ServedConnection, None]] = {}
        """The open connections of each container, by its user and its container-id."""
        self._touched: dict[ServedConnection, None] = {}
        self._wanting: dict[ServedConnection, None] = {}
        self.long_turns = 0
        """Turns that kept the others waiting for longer than a turn should."""
        self.settled_and_refused = 0
        """Messages outside of transactions that were sent settled and not taken: no outcome tells their senders."""
        self._links: dict[LinkKey, ServedLink] = {}
        self.since_ms = self.resource.now_ms
        self._continuing: FairQueue[ResumableWork] = FairQueue()

    def open(self) -> None:
        """Opens the store and restores everything that it holds. StoreDamaged: it holds what no broker wrote, so that
        someone has changed it; nothing of it may be left out in silence."""
        try:
            with _rows_of_store():
                restored = self.resource.store.open()
            self.restore(restored)
        except BaseException:
            self.resource.store.close()  # otherwise it stays locked as long as this process lives
            raise

        try:
            self.resource.end_subscriptions()
        except StoreError:
            self.resource.store.close()
            raise
        self.resource.make_configured()
        self.accounts.look()
        self._note_rates()
        self.conditions.begin()
        self.resource.settle()

    def restore(self, restored: Restored) -> None:
        """Takes the contents of a store. StoreDamaged as in `open`."""
        with _rows_of_store():
            self.resource.restore(restored)
            self.registry.restore(restored)
            self.fences.restore(restored)
            self.audit.restore(restored)
            self.accounts.restore(restored)

    def _note_rates(self) -> None:
        """Now and then: how much has come and gone, for the rates that management tells."""
        now = self.resource.clock.monotonic()
        for queue in self.resource.queues.values():
            queue.counters.meter.note(now, queue.counters.came, queue.counters.went)
        for connection in self.connections.values():
            connection.meter.note(now, connection.received_messages, connection.sent_messages)
        self.resource.after(INTERVAL_S, self._note_rates)

    def connections_by_other_passwords(self) -> list[ServedConnection]:
        """The connections that have signed in with another password than the present one of their user."""
        return [one for one in self.connections.values() if self.has_other_password(one.identity)]

    def has_other_password(self, identity: Identity) -> bool:
        """Whether who signed in has shown another password than the user's present one."""
        credentials = self.accounts.credentials
        if credentials is None or identity.proven is None:
            return False
        return identity.proven != credentials.verifier(identity.name)

    def _with_other_passwords(self, user: str) -> int:
        return sum(one.identity.name == user for one in self.connections_by_other_passwords())

    # -- links
    def claim(self, key: LinkKey, link: ServedLink) -> None:
        """A user attached a link. The same link on another connection of the user's container is detached (2.6.1)."""
        before = self._links.get(key)
        self._links[key] = link
        if before is not None and before is not link:
            message = f"the link {link.name!r} was attached again, on the connection from {link.peer}"
            before.detach(Refusal(Condition.STOLEN, message, Code.XAER_PROTO))

    def disclaim(self, key: LinkKey, link: ServedLink) -> None:
        """A link is gone."""
        if self._links.get(key) is link:
            del self._links[key]

    # -- turns
    def continue_later(self, one: ResumableWork, user: str) -> None:
        """Has `one`, which is something of `user`, go on in another turn: it has done as much as one turn allows."""
        self._continuing.add(one, user)

    @property
    def continues(self) -> bool:
        """Whether `go_on` has something to do."""
        return bool(self._continuing)

    def go_on(self) -> bool:
        """Carries on with what earlier turns have left, users in turn, for as long as a turn takes; whether there was
        anything."""
        continuing, monotonic = self._continuing, self.resource.clock.monotonic
        waiting, began = len(continuing), monotonic()
        now = began
        for _ in range(waiting):
            user = continuing.next_payer
            continuing.take().go_on()
            before, now = now, monotonic()
            continuing.spent(user, now - before)
            if now - began > CONTINUING_S or not continuing:
                break
        if waiting:
            self.resource.settle()
        return waiting > 0

    def touch(self, connection: ServedConnection) -> None:
        """`connection` has something to say."""
        self._touched[connection] = None

    def take_touched(self) -> list[ServedConnection]:
        """Which connections have something to say; each is listed once."""
        touched = list(self._touched)
        self._touched.clear()
        return touched

    def wants_turn(self, connection: ServedConnection) -> None:
        """`connection` has more to send than one turn allows."""
        self._wanting[connection] = None

    def take_wanting(self) -> list[ServedConnection]:
        """Which connections have more to send in another turn; each is listed once."""
        if not self._wanting:
            return []
        wanting = list(self._wanting)
        self._wanting.clear()
        return wanting

    @property
    def overloaded(self) -> bool:
        """Whether so much waits for the store that peers should not be read for a while."""
        return self.resource.store.waiting_octets > self.limits.waiting_octets


@contextmanager
def _rows_of_store() -> Iterator[None]:
    """Around what reads the rows of a store."""
    try:
        yield
    except _UNREADABLE as error:
        why = printable(f"{type(error).__name__}: {error}", 200)
        raise StoreDamaged(f"a row of the store is damaged ({why}); restore the store from a copy") from None


class DynamicNodes:
    """The queues that one connection has made for the time of its links, mostly for replies, by their names."""

    __slots__ = ("_container", "_memory", "queues")

    def __init__(self, container: Container) -> None:
        self._container = container
        self._memory = UnstoredMemory(container.limits.dynamic_octets)
        self.queues: dict[str, Queue] = {}

    def make(self) -> Queue:
        """A new node. Its name can't be guessed: a peer that knows it may send there."""
        name = f"{DYNAMIC}{self._container.nonce(16).hex()}"
        if len(self.queues) >= self._container.limits.dynamic_nodes:
            message = f"a connection may have {self._container.limits.dynamic_nodes} dynamic nodes"
            raise refused(Code.XAER_RMERR, message, condition=Condition.RESOURCE_LIMIT)
        queue = self._container.resource.make_dynamic(name, self._memory)
        self.queues[name] = queue
        return queue

    def drop(self, queue: Queue) -> None:
        """The node goes."""
        if self.queues.pop(queue.name, None) is not None:
            self._container.resource.drop_dynamic(queue)
