"""What a queue is a subscription of, and what the store keeps of that."""

from __future__ import annotations

import json
from dataclasses import dataclass

from dtx.broker.queues.selector import Selector


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a queue is a subscription of: the address of its topics. `durable` ones last until they are deleted. A
    `shared` one may have several consumers. `selector` says which messages it gets."""

    topic: str
    durable: bool = True
    shared: bool = True
    selector: Selector | None = None

    def encode(self) -> str:
        """The text that the store keeps with the queue, whose name has the topic."""
        selector = None if self.selector is None else self.selector.text
        return json.dumps({"durable": self.durable, "shared": self.shared, "selector": selector})

    @classmethod
    def decode(cls, topic: str, text: str) -> Subscription:
        """What `encode` made."""
        given = json.loads(text)
        selector = given["selector"]
        return cls(topic, given["durable"], given["shared"], None if selector is None else Selector.parse(selector))
