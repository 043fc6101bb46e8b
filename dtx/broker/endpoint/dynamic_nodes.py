"""DynamicNodes: the queues that one connection has made for the time of its links, mostly for replies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtx.amqp.conditions import Condition
from dtx.broker.queues.counters import Memory
from dtx.protocol.addresses import DYNAMIC
from dtx.protocol.conditions import refused
from xa import Code

if TYPE_CHECKING:
    from dtx.broker.container import Container
    from dtx.broker.queues.queue import Queue


class DynamicNodes:
    """Those of one connection. `queues` has them by their names."""

    __slots__ = ("_container", "_memory", "queues")

    def __init__(self, container: Container) -> None:
        self._container = container
        self._memory = Memory(container.limits.dynamic_octets)
        self.queues: dict[str, Queue] = {}

    def make(self, *, shared: bool = False) -> Queue:
        """A new node. Its name can't be guessed: a peer that knows it may send there, and also receive if the node is
        `shared`."""
        name = f"{DYNAMIC}{self._container.nonce(16).hex()}"
        if len(self.queues) >= self._container.limits.dynamic_nodes:
            message = f"a connection may have {self._container.limits.dynamic_nodes} dynamic nodes"
            raise refused(Code.XAER_RMERR, message, condition=Condition.RESOURCE_LIMIT)
        queue = self._container.resource.make_dynamic(name, self._memory)
        self.queues[name] = queue
        if shared:
            self._container.shared_nodes.add(name)
        return queue

    def drop(self, queue: Queue) -> None:
        """The node goes."""
        if self.queues.pop(queue.name, None) is not None:
            self._container.shared_nodes.discard(queue.name)
            self._container.resource.drop_dynamic(queue)
