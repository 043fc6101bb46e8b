"""These tests use a broker of another project as the one that decides: ActiveMQ Artemis, which has local transactions
only.

They run the contract suite for deciders, and a manager that moves messages into a database while the test kills the
broker. When Artemis starts again, it does not keep the order of messages that were committed at the same moment. So
there are also tests of processes that found token queues at the same moment and must agree, and of nodes and siblings
that share a token queue.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from rm_amqp import AmqpResource, Message
from tests.crash.test_amqp_kill import Site as OtherBroker
from tests.crash.together import POINTS, Together
from tests.interop.deciding_suite import *  # noqa: F403 — the suite
from tests.interop.deciding_suite import Site
from tests.rm_amqp.decider.deciding import DISCHARGE, DecidingBrokerHarness, ForeignHarness
from tests.rm_amqp.decider.test_leases import in_doubt
from tests.rm_openwire.java_brokers import PLACES, Artemis
from tests.simulation.seeds import EVERY_POINT
from tests.waiting import until
from tm import TransactionManager
from tm.consumer.failures import Failures
from tm.resources import ResourceConfig
from xa import ResourceError, XaError
from xabridge.outbox import BrokerAway, Outbox, OutboxStore, Relay, RelaySettings
from xabridge.testing.contract.client import ScriptedRegistrar
from xabridge.testing.contract.deciding import RECORD, Decider

pytestmark = [pytest.mark.slow]
RMID = 7


@pytest.fixture(scope="module")
def artemis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Artemis]:
    """One broker, where its jars are on the machine already."""
    if (named := PLACES["artemis"][0]) not in os.environ:
        pytest.skip(f"{named} names no folder with Artemis' jars; `make artemis` fetches them, and says what to set")
    broker = Artemis(tmp_path_factory.mktemp("artemis"), protocols="AMQP", deletes_queues=True)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def harness(request: pytest.FixtureRequest, artemis: Artemis) -> Iterator[ForeignHarness]:
    """Queues of its own for each test."""
    harness = ForeignHarness(artemis, f"{os.getpid()}-{abs(hash(request.node.name))}", slots=2)
    yield harness
    harness.close()


def test_it_has_no_two_phases_and_the_error_says_what_to_do(artemis: Artemis) -> None:
    rm = AmqpResource(ScriptedRegistrar())
    with pytest.raises(ResourceError) as told:
        rm.open(f"amqp://{artemis.address}/", RMID)
    assert 'mode = "decider"' in str(told.value)


# --- several founders -------------------------------------------------------------------------------------------------
TRIES = 12 if EVERY_POINT else 3
FOUNDERS = 4
PATIENCE_S = 120


@dataclass(frozen=True)
class At:
    """Where the broker is."""

    address: str


def found_together(address: str, names: list[str], barrier: Barrier, heard: Queue[tuple[str, str]]) -> None:
    """Opens a place after the other; the first discharge that leaves, which founds it, waits for those of the other
    founders. A process of its own: threads would not send at the same moment."""
    for name in names:
        harness = DecidingBrokerHarness(At(address), name, slots=2)
        client = harness.new()
        harness.weather[client].pause(DISCHARGE, lambda: barrier.wait(PATIENCE_S))
        try:
            client.open(harness.open_string, RMID)
            heard.put((name, client.decider_id.hex()))
        except XaError as error:
            heard.put((name, str(error)))
        barrier.wait(PATIENCE_S)
        harness.close()


@pytest.mark.timeout(0)
def test_a_place_that_was_founded_at_one_moment_outlives_the_broker(artemis: Artemis) -> None:
    names = [f"founded-{os.getpid()}-{number}" for number in range(TRIES)]
    forked = multiprocessing.get_context("spawn")
    barrier, heard = forked.Barrier(FOUNDERS), forked.Queue()
    arguments = (artemis.address, names, barrier, heard)
    processes = [forked.Process(target=found_together, args=arguments) for _ in range(FOUNDERS)]
    for process in processes:
        process.start()
    before: dict[str, set[str]] = {name: set() for name in names}
    for _ in range(TRIES * FOUNDERS):
        name, said = heard.get(timeout=PATIENCE_S)
        before[name].add(said)

    for process in processes:
        process.join()
    artemis.kill()
    artemis.start()
    for name in names:
        harness = ForeignHarness(artemis, name, slots=2)
        assert len(harness.bodies(harness.tokens)) > 1, "they did not found it at the same moment"
        client = Decider(harness)
        assert {client.rm.decider_id.hex()} == before[name]
        for _ in range(4):
            client.decide(xid := client.ended("key"))
            assert client.settle(xid) == RECORD
        harness.close()


@pytest.mark.long
def test_hundreds_of_decisions_in_doubt_outlive_the_broker(artemis: Artemis) -> None:
    """Their token is what Artemis calls a large message, and keeps in a file."""
    harness = ForeignHarness(artemis, f"many-{os.getpid()}", slots=1)
    client = Decider(harness)
    decided = in_doubt(client, 200)
    artemis.kill()
    artemis.start()
    client.reopen()
    assert client.decided() == decided
    last = list(decided)[-1]
    assert client.rm.settle(last, RMID) == decided[last]
    client.rm.end_decisions(list(decided), RMID)
    assert client.decided() == {}
    harness.close()


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("dies", [0, 1], ids=["of a node by itself", "with a sibling"])
@pytest.mark.usefixtures("artemis")
def test_nodes_and_siblings_share_a_token_queue_while_it_is_killed(tmp_path: Path, dies: int) -> None:
    """A broker of its own: the queues have the same names in each case."""
    folder = tmp_path / "artemis"
    folder.mkdir()
    source, target = Artemis(folder, protocols="AMQP", deletes_queues=True), OtherBroker(tmp_path / "out")
    source.start()

    def restart() -> None:
        source.kill()
        source.start()

    try:
        together = Together(source, target, restart)
        for point in POINTS:
            together.run(dies, point)
        together.finish()
        together.check()
    finally:
        source.kill()
        target.remove()


def test_a_message_that_is_put_off_waits_by_the_clock_of_the_broker(harness: ForeignHarness) -> None:
    """The consumer's clock is behind by an hour."""
    queue = f"{harness.queue}-put-off"
    tries: list[float] = []
    told: list[dict[object, object]] = []
    with Site(harness).manager as manager:

        @manager.consumer(queue, idle_s=0.05, retry_waits="broker", retry_first_s=0.5, retry_jitter=0)
        def handle(message: Message, _: object) -> None:
            tries.append(time.monotonic())
            told.append(dict(message.annotations or {}))
            if len(tries) == 1:
                raise LookupError("first")

        handle.job.failures = Failures(lambda: time.time() - 3600)
        with manager.begin() as tx:
            tx["broker"].send(queue, Message("a", durable=True))
        with handle:
            until(lambda: handle.counts.handled == 1)
    assert len(tries) == 2, told
    assert tries[1] - tries[0] > 0.4
    assert told[1]["x-opt-retry-count"] == 1
    assert "x-opt-delivery-delay" not in told[1]


@pytest.mark.long
def test_an_outbox_is_emptied_in_the_order_of_its_keys(artemis: Artemis, tmp_path: Path) -> None:
    """The broker is killed meanwhile."""
    store = OutboxStore.at(f"sqlite:///{tmp_path}/shop.db")
    store.open()
    relay = Relay(store, f"amqp://{artemis.address}", RelaySettings(timeout_s=20))
    for start in (0, 100):
        with store.engine.begin() as connection:
            Outbox().put_all(connection, "orders", [Message(n) for n in range(start, start + 100)], key="k")
        relay.run_once()
        if start == 0:
            artemis.kill()
            with pytest.raises(BrokerAway):
                relay.run_once()
            artemis.start()

    relay.close()
    store.close()
    broker = ResourceConfig(f"amqp://{artemis.address}", "decider")
    got: list[int] = []
    with TransactionManager("node-1", resources={"b": broker}, background=False) as tm, tm.begin() as tx:
        deadline = time.monotonic() + 30
        while len(dict.fromkeys(got)) < 200 and time.monotonic() < deadline:
            got += [message.body for message in tx["b"].receive_batch("orders", 100, timeout_s=1)]
    assert list(dict.fromkeys(got)) == list(range(200))
