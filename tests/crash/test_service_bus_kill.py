"""These tests move messages from a simulated Azure Service Bus, which decides, to a broker that is prepared, which is a
process of its own. At every step in turn they kill the client with SIGKILL, kill the broker, or cut every connection of
the service, as it does when it moves a namespace. A lock outlives its connection.

After recovery every message must be at one of the two, once, the outcomes that the application got must be true, and
every decision must have ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from rm_amqp import Message
from rm_amqp.decider.tokens import Token
from tests.crash.test_amqp_kill import COUNT, DECIDER_STEPS, Field, check_moved, some_of
from tests.rm_amqp.service_bus.namespace import Namespace
from tests.rm_amqp.service_bus.server import TOPIC, ServiceBusServer

LOCK_S = 2.0
SLOTS = 2
CUTS = 4
CUT_EVERY_S = 0.7


class Service:
    """The source: a namespace."""

    def __init__(self) -> None:
        self.server = ServiceBusServer(lock_s=LOCK_S)
        self.server.namespace.drops_locks = False
        self.server.tokens("xabridge.tokens", SLOTS)
        self.server.subscriptions("x")
        self.address = self.server.open_string(f"&timeout=10&connect_timeout=2&slots={SLOTS}")

    def come_back(self) -> None:
        """Nobody kills it."""

    def remove(self) -> None:
        """At the end."""
        self.server.stop()

    def put(self, bodies: Sequence[str]) -> None:
        """Messages to move."""

        def publish(namespace: Namespace) -> None:
            for body in bodies:
                namespace.publish(TOPIC, Message(body).encode(), "x")

        self.server.inside(publish)

    def bodies(self, name: str) -> list[str]:
        """What is in a subscription."""

        def look(namespace: Namespace) -> list[str]:
            entity = namespace.entity(f"{TOPIC}/Subscriptions/{name}")
            assert not entity.dead, name
            return [str(Message.from_octets(stored.octets).body) for stored in entity.messages]

        return self.server.inside(look)


class ServiceBusField(Field):
    """A namespace, a broker, and what the movers were told."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "tests.crash.decider_child", Service())

    def put(self, bodies: Sequence[str]) -> None:
        self.source.put(bodies)

    def check(self) -> None:
        left = self.source.bodies("x")
        with self.target.client() as target:
            moved = target.look("y")
        check_moved(self.messages, left, moved, self.told)
        assert self.source.server.inside(lambda namespace: namespace.transactions) == {}
        for slot in range(SLOTS):
            (body,) = self.source.bodies(f"xabridge.tokens.{slot}")
            assert Token.decode(body).decided == ()


@pytest.fixture
def field(tmp_path: Path) -> Iterator[ServiceBusField]:
    with closing(ServiceBusField(tmp_path)) as field:
        yield field


@pytest.mark.slow
def test_the_client_is_killed(field: ServiceBusField) -> None:
    for step in some_of(DECIDER_STEPS, 2):
        field.feed(step)
        assert field.run(f"{step} {COUNT}", "self") == -9, step
        field.recover(step)
    field.check()


@pytest.mark.slow
def test_the_service_cuts_every_connection_now_and_then(field: ServiceBusField) -> None:
    field.feed("cut")
    over = threading.Event()

    def cut() -> None:
        for _ in range(CUTS):
            if over.wait(CUT_EVERY_S):
                return
            field.source.server.cut()

    cutting = threading.Thread(target=cut)
    cutting.start()
    try:
        assert field.run("- 0") == 0
    finally:
        over.set()
        cutting.join()
    field.recover("cut")
    field.check()
