"""Node: the resource with everything that connections share, still without sockets.

A shell opens the node, makes a `BrokerConnection` for each peer that has said who it is, feeds it octets,
and after every call sends what the connections in `take_touched` have to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtx.broker.branches import Registry
from dtx.broker.completion import Completion
from dtx.broker.contexts import NoTransaction
from dtx.broker.coordination import DtxCoordination
from dtx.broker.fences import Fences
from dtx.broker.resource import Resource

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.broker.connection import BrokerConnection
    from dtx.broker.permissions import Permissions
    from dtx.broker.resource import Clock
    from dtx.broker.settings import Settings
    from dtx.store.contract import MessageStore, StoreError


class Node:
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
        self.resource = Resource(store, clock, settings, stopped)
        self.registry = Registry(self.resource)
        self.completion = Completion(self.resource, self.registry)
        self.fences = Fences(self.resource, self.registry)
        self.coordination = DtxCoordination(self.registry, self.completion, self.fences, permissions)
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
