"""This module runs the contract suite over AmqpResource against the embedded broker, with static and dynamic
registration, and with a topic in place of the queue that branches write to.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import pytest

from rm_amqp import AmqpResource, Message
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.simulation.seeds import EVERY_POINT
from xa import TMREGISTER, TMUSEASYNC, Registrar, ResourceManager, Xid
from xabridge.testing.contract.client import ScriptedRegistrar
from xabridge.testing.contract.harness import Capabilities
from xabridge.testing.contract.resource_manager import *  # noqa: F403 — the suite

VARIANTS = {"static": TMUSEASYNC, "dynamic": TMREGISTER | TMUSEASYNC}
TOPIC = "topic"
BEGINNINGS = {"TestRegistration", "TestAssociation", "TestThreads", "TestFailures", "TestCapacity"}
"""The parts of the suite where it matters how a branch begins. The others begin all alike, and run with dynamic
registration with XABRIDGE_POINTS=all only."""


class AmqpHarness:
    """One broker for the module; each test has queues of its own."""

    wrong_open_string = "amqp://127.0.0.1:5672/?colour=red"
    capabilities = Capabilities()

    def __init__(self, broker: EmbeddedBroker, flags: int, name: str) -> None:
        self.broker = broker
        self.flags = flags
        self.queue = f"keys-{name}"
        self.nothing = f"nothing-{name}"
        self.open_string = f"amqp://{broker.address}/?timeout=20"
        self.clients: list[AmqpResource] = []
        self._onlooker = AmqpResource(ScriptedRegistrar(), TMREGISTER | TMUSEASYNC)
        self._onlookers = self.open_string
        self._onlooker.open(self._onlookers, 1)

    def new(self, registrar: Registrar) -> AmqpResource:
        client = AmqpResource(registrar, self.flags)
        self.clients.append(client)
        return client

    def write(self, rm: ResourceManager, rmid: int, key: str) -> None:
        rm.session(rmid).send(self.queue, Message(key))

    def read(self, rm: ResourceManager, rmid: int) -> None:
        list(rm.session(rmid).browse(self.nothing))

    def committed(self) -> AbstractSet[str]:
        self._onlooker.open(self._onlookers, 1)
        return {str(message.body) for message in self._onlooker.session(1).browse(self.queue)}

    def crash(self, rm: ResourceManager) -> None:
        assert isinstance(rm, AmqpResource)
        self.broker.cut(rm.container)

    def disconnect(self, rm: ResourceManager) -> None:
        assert isinstance(rm, AmqpResource)
        self.broker.cut(rm.container)

    def complete_heuristically(self, xid: Xid, *, commit: bool) -> None:
        self.broker.complete(xid, commit=commit)

    def expire(self, xid: Xid) -> None:
        self.broker.expire(xid)

    def go_down(self) -> None:
        self.broker.stop()

    def come_back(self) -> None:
        self.broker.start()

    def narrow(self) -> None:
        self.open_string = f"amqp://{self.broker.address}/?timeout=5&channels=1"

    def leaks(self) -> list[str]:
        left = self.broker.left()
        return left + [f"{client.outstanding} handles" for client in self.clients if client.outstanding]

    def close(self) -> None:
        self._onlooker.close("", 1)
        for client in self.clients:
            client.drop()


class TopicHarness(AmqpHarness):
    """Branches write to a topic, which has two subscriptions: both get what is committed, once."""

    def __init__(self, broker: EmbeddedBroker, flags: int, name: str) -> None:
        super().__init__(broker, flags, name)
        self.queue = f"topic:{self.queue}"
        self._sources = [f"{self.queue}::{one}" for one in ("one", "two")]
        self.committed()

    def committed(self) -> AbstractSet[str]:
        self._onlooker.open(self._onlookers, 1)
        session = self._onlooker.session(1)
        found, other = ([str(message.body) for message in session.browse(source)] for source in self._sources)
        assert found == other
        assert len(set(found)) == len(found)
        return set(found)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker."""
    broker = EmbeddedBroker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "harness" not in metafunc.fixturenames:
        return
    part = metafunc.cls.__name__ if metafunc.cls is not None else ""
    variants = ["dynamic"] if part == "TestRegistration" else [*VARIANTS]
    if part not in BEGINNINGS and not EVERY_POINT:
        variants = ["static", TOPIC]
    once_more = pytest.mark.slow if part in {"TestThreads", "TestCapacity"} else ()
    marked = [pytest.param(each, marks=once_more if each == "dynamic" else ()) for each in variants]
    metafunc.parametrize("harness", marked, indirect=True)


@pytest.fixture
def harness(request: pytest.FixtureRequest, broker: EmbeddedBroker) -> Iterator[AmqpHarness]:
    """The variants."""
    kind, variant = (TopicHarness, "static") if request.param == TOPIC else (AmqpHarness, request.param)
    harness = kind(broker, VARIANTS[variant], str(abs(hash(request.node.name))))
    yield harness
    harness.close()
