"""This is the network in memory of `tests.rm_amqp.network`, with a simulated Service Bus at its end. Its crash is that
of a gateway: every connection is gone, and what was committed is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.rm_amqp.network import Network
from tests.rm_amqp.service_bus.namespace import Namespace
from tests.rm_amqp.service_bus.peer import ServiceBusConnection

if TYPE_CHECKING:
    from dtx.amqp.sasl.mechanisms import Identity
    from tests.rm_amqp.network import Served

TOPIC: Final = "shop"


def tokens(namespace: Namespace, name: str, slots: int) -> None:
    """Makes the subscriptions for tokens, as an operator does."""
    for each in (name, *(f"{name}.{slot}" for slot in range(slots + 1))):
        namespace.subscription(TOPIC, each)


def shop_network() -> ServiceBusNetwork:
    """A network to the topic shop, with the subscriptions x and y, and with subscriptions for tokens of one slot."""
    network = ServiceBusNetwork()
    for name in ("xabridge.tokens", "onlookers"):
        tokens(network.namespace, name, 1)
    for name in ("x", "y"):
        network.namespace.subscription(TOPIC, name)
    return network


class ServiceBusNetwork(Network):
    """A network with one namespace. Every client may use it."""

    def __init__(self) -> None:
        self.namespace = Namespace(self.monotonic)
        self.namespace.topic(TOPIC)
        super().__init__()

    def start_broker(self) -> None:
        """The gateway is there again; the namespace was there all the time."""

    def serve(self, identity: Identity) -> Served:
        return ServiceBusConnection(self.namespace, identity.name or "by the network")

    def broker_turn(self) -> None:
        """It does everything when it is asked to."""

    def broker_tick(self) -> float:
        return 1.0

    def _crash(self) -> None:
        for end in self.ends:
            if end.peer.connection is not None:
                end.peer.connection.lost()
        super()._crash()
