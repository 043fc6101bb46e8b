"""These fixtures start the brokers that speak OpenWire, one of each for all tests, with their data in memory: what
tests kill is a process, whose writes the system keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.memory_disk import new_folder
from tests.rm_openwire.client import Client, new_name
from tests.rm_openwire.java_brokers import BROKERS, JavaBroker
from tests.simulation.seeds import EVERY_POINT

NEEDS_BROKERS = ("broker", "brokers", "harness")
BROKERS_PART = {"TestCompletion", "TestFailures", "TestHoldings", "TestRecovery"}
"""The parts of the contract suite that depend on what the broker does with a branch. In the others the client answers
by itself: they run over Classic, and over Artemis with XABRIDGE_POINTS=all only."""


@pytest.hookimpl(tryfirst=True)  # before those that are not asked for are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a broker is slow, and runs in one process with the others."""
    for item in items:
        if "rm_openwire" in item.path.parts and set(NEEDS_BROKERS) & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("openwire"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "broker" in metafunc.fixturenames:
        both = metafunc.cls is None or metafunc.cls.__name__ in BROKERS_PART or EVERY_POINT
        metafunc.parametrize("broker", list(BROKERS) if both else ["classic"], indirect=True)


@pytest.fixture(scope="session")
def brokers() -> Iterator[Callable[[str], JavaBroker]]:
    """Starts the session's broker of a kind, unless it runs."""
    made: dict[str, JavaBroker] = {}

    def started(kind: str) -> JavaBroker:
        if kind not in made:
            made[kind] = BROKERS[kind](new_folder(kind))
        made[kind].start()
        return made[kind]

    yield started
    for broker in made.values():
        broker.kill()


@pytest.fixture
def broker(request: pytest.FixtureRequest, brokers: Callable[[str], JavaBroker]) -> JavaBroker:
    """A broker of each kind, which runs; the same for the whole session."""
    return brokers(request.param)


@pytest.fixture
def client(broker: JavaBroker) -> Iterator[Client]:
    """A client of either broker."""
    client = Client(broker.url)
    yield client
    client.rm.drop()


@pytest.fixture
def queue() -> str:
    """A queue of the test's own."""
    return new_name()
