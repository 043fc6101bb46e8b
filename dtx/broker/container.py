"""Container: an AMQP container without its sockets, with everything that its connections share.

A shell opens the container, makes a `BrokerConnection` for each peer that has said who it is, feeds it octets,
and after every call sends what the connections in `take_touched` have to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtx.broker.transactional_resource import TransactionalResource
from dtx.broker.transactions.branches import Registry
from dtx.broker.transactions.contexts import NoTransaction
from dtx.broker.transactions.coordination import DtxCoordination
from dtx.broker.transactions.fences import Fences
from dtx.broker.transactions.two_phase_commit import TwoPhaseCommit

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.broker.access.permissions import Permissions
    from dtx.broker.endpoint.connection import BrokerConnection
    from dtx.broker.settings import Settings
    from dtx.broker.transactional_resource import Clock
    from dtx.store.contract import MessageStore, StoreError


class Container:
    """What the connections of one broker share."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        settings: Settings,
        permissions: Permissions,
        stopped: Callable[[StoreError], None],
    ) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.permissions = permissions
        self.resource = TransactionalResource(store, clock, settings, stopped)
        self.registry = Registry(self.resource)
        self.two_phase = TwoPhaseCommit(self.resource, self.registry)
        self.fences = Fences(self.resource, self.registry)
        self.coordination = DtxCoordination(self.registry, self.two_phase, self.fences, permissions)
        self.outside = NoTransaction(self.resource)
        self.connections: dict[int, BrokerConnection] = {}
        self._touched: dict[BrokerConnection, None] = {}

    def open(self) -> None:
        """Opens the store and restores everything that it holds."""
        restored = self.resource.open()
        self.registry.restore(restored)
        self.fences.restore(restored)
        self.resource.make_configured()
        self.resource.settle()

    def touch(self, connection: BrokerConnection) -> None:
        """`connection` has something to say."""
        self._touched[connection] = None

    def take_touched(self) -> list[BrokerConnection]:
        """Which connections have something to say; each is told once."""
        touched = list(self._touched)
        self._touched.clear()
        return touched

    @property
    def overloaded(self) -> bool:
        """Whether so much waits for the store that peers should not be read for a while."""
        return self.resource.store.waiting_octets > self.limits.waiting_octets
