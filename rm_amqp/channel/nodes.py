"""The nodes of a broker, as a channel uses them: which links reach an address.

At most brokers an address is the name of a queue, and `Queues` attaches to it as it is. Azure Service Bus has rules of
its own (`rm_amqp.decider.service_bus`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rm_amqp.connection.links import Receiver, Sender

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_amqp.connection.endpoint import Endpoint, Steps
    from rm_amqp.connection.links import ArrivedMessage


class QueuePeek(Protocol):
    """A reading of an address that takes nothing from it, at a broker whose links can't do that."""

    def page(self, count: int, deadline: float) -> Steps[list[ArrivedMessage]]:
        """The next messages, fewer than `count` at the end."""
        ...

    def close(self) -> None:
        """It is not needed any more."""
        ...


class Nodes(Protocol):
    """How a channel reaches the nodes of a broker."""

    @property
    def confirms(self) -> bool:
        """Whether the broker answers every outcome of a received message, and a transaction has to wait for that."""
        ...

    @property
    def capabilities(self) -> Sequence[str]:
        """The capabilities that a node must have."""
        ...

    def check_outcome(self, outcome: bytes) -> None:
        """RefusedError for an outcome, encoded, that means something else at this broker."""
        ...

    def check(self, endpoint: Endpoint, address: str, deadline: float) -> Steps[None]:
        """RefusedError where a message for this address could get lost, or reach somebody else. It comes before the
        first `sender` of an address."""
        ...

    def sender(self, endpoint: Endpoint, address: str) -> Sender:
        """A link to an address. RefusedError: there can't be one."""
        ...

    def receiver(self, endpoint: Endpoint, address: str, name: str) -> Receiver:
        """A link from an address. RefusedError: there can't be one."""
        ...

    def peek(self, endpoint: Endpoint, address: str, deadline: float) -> Steps[QueuePeek | None]:
        """A reading of an address; None where a link that browses does it."""
        ...


class Queues:
    """Every address is the name of a queue. `capabilities` are those that the nodes must have."""

    confirms = False

    def __init__(self, capabilities: Sequence[str] = ()) -> None:
        self.capabilities: Sequence[str] = capabilities

    def check_outcome(self, outcome: bytes) -> None:
        """Every outcome means what AMQP says."""

    async def check(self, endpoint: Endpoint, address: str, deadline: float) -> None:
        del endpoint, address, deadline

    def sender(self, endpoint: Endpoint, address: str) -> Sender:
        return Sender(endpoint, address, self.capabilities)

    def receiver(self, endpoint: Endpoint, address: str, name: str) -> Receiver:
        return Receiver(endpoint, address, name=name, capabilities=self.capabilities)

    async def peek(self, endpoint: Endpoint, address: str, deadline: float) -> QueuePeek | None:
        del endpoint, address, deadline
        return None
