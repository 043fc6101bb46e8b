"""These tests cover connections that are idle for a while, and those that break silently."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dtx.broker.settings import Settings
from rm_amqp import AmqpResource, Environment, Message, NoMessage
from rm_amqp.connection.connector import connect as connect_line
from tests.rm_amqp.client import RMID, Client, NetworkClient, new_xid
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.rm_amqp.network import Network
from tests.rm_db.proxy import Proxy
from tests.simulation.seeds import EVERY_POINT
from xa import TMONEPHASE, TMSUCCESS, Code, ResourceUnavailable, ThreadOfControl, entered
from xabridge.testing.contract.client import ScriptedRegistrar


@pytest.mark.slow
def test_heartbeats_do_not_depend_on_the_application(tmp_path: Path) -> None:
    """It computes, and says nothing for several times as long as the broker has patience."""
    broker = EmbeddedBroker(tmp_path, settings=Settings(idle_timeout_s=1))
    client = Client(broker.address)
    try:
        with client.work(two_phase=True) as session:
            session.send("q", Message("x"))
            connections = broker.inside(lambda one: set(one.peers))
            until = time.monotonic() + 2.5
            while time.monotonic() < until:
                sum(range(10_000))
            assert broker.inside(lambda one: set(one.peers)) == connections
        assert client.look("q") == ["x"]
    finally:
        client.rm.drop()
        broker.stop()


@pytest.mark.slow
def test_a_broker_that_falls_silent_is_given_up(broker: EmbeddedBroker, queue: str) -> None:
    """After the idle timeout, long before the call's."""
    with Proxy(f"amqp://{broker.address}") as proxy:
        client = Client(proxy.url.removeprefix("amqp://"), "timeout=60&idle_timeout=2")
        xid = client.start()
        client.session.send(queue, Message("x"))
        proxy.hold_requests()
        proxy.hold_replies()
        began = time.monotonic()

        with pytest.raises(ResourceUnavailable, match=r"was lost: .*; the branch was not prepared and is rolled back"):
            client.session.receive(queue, 50)
        assert time.monotonic() - began < 40
        proxy.cut()
        assert client.rm.open(client.url, RMID) is Code.XA_OK
        assert client.look(queue) == []
        client.rollback(xid, end=False)
        client.rm.drop()
        assert broker.left() == []


def test_a_thread_that_waits_hears_that_the_broker_is_given_up() -> None:
    network = Network()
    client = NetworkClient(network, "&idle_timeout=5")
    client.start()
    session = client.session
    session.send("q", Message("x"))
    with pytest.raises(NoMessage):
        session.receive("q-in", 0)
    network.hold()
    began = network.now
    with pytest.raises(ResourceUnavailable, match="was lost"):
        session.receive("q-in", 18)
    assert 4 < network.now - began < 10


@pytest.mark.parametrize("verb", ["prepare", "commit", "rollback"])
def test_no_call_hangs_longer_than_its_timeout(verb: str) -> None:
    """What came of it is unknown, and the next call has a channel that works."""
    network = Network()
    client, onlooker = NetworkClient(network), NetworkClient(network)
    xid = client.start()
    client.session.send("q", Message("x"))
    client.end(xid)
    if verb != "prepare":
        assert client.rm.prepare(xid, RMID) is Code.XA_OK
    network.hold()
    began = network.now

    with pytest.raises(ResourceUnavailable, match="its outcome is unknown here, and recovery finishes it"):
        getattr(client.rm, verb)(xid, RMID)
    assert network.now - began < 21
    network.let_go()
    for one in (client, onlooker):
        assert one.rm.open(one.url, RMID) is Code.XA_OK
    client.rollback(xid, end=False)
    assert onlooker.look("q") == []
    assert not list(network.container.registry)


def test_close_does_not_wait_for_each_connection_of_a_silent_broker() -> None:
    """Over a network in memory, on a clock of its own: nothing crosses any more."""
    network = Network()
    rm = network.resource()
    rm.open("amqp://here/?timeout=20&prefetch=5", RMID)
    controls = [ThreadOfControl() for _ in range(10)]
    for control in controls:
        with entered(control):
            rm.start(xid := new_xid(), RMID)
            with pytest.raises(NoMessage):
                rm.session(RMID).receive("q", 0)
            rm.end(xid, RMID, TMSUCCESS)
            rm.start(new_xid(), RMID)

    network.hold()
    began = network.now
    assert rm.close("", RMID) is Code.XA_OK
    assert network.now - began < 2.5
    assert not [end for end in network.ends if end.fileno() >= 0]


@pytest.mark.slow
def test_maintenance_may_come_at_any_moment(broker: EmbeddedBroker) -> None:
    """Also while a channel is being made: nothing touches a connection's engine without its lock."""
    lines: list[Any] = []
    over = threading.Event()

    def connect(*arguments: Any) -> Any:
        lines.append(connect_line(*arguments))
        return lines[-1]

    def look() -> None:
        while not over.is_set():
            for connection in tuple(lines):
                connection.maintain()

    watching = threading.Thread(target=look)
    watching.start()
    try:
        for _ in range(60 if EVERY_POINT else 8):
            rm = AmqpResource(ScriptedRegistrar(), environment=Environment(connect=connect))
            assert rm.open(f"amqp://{broker.address}/?timeout=5", RMID) is Code.XA_OK
            rm.start(xid := new_xid(), RMID)
            rm.session(RMID).send("kept", Message("x"))
            rm.end(xid, RMID, TMSUCCESS)
            assert rm.commit(xid, RMID, TMONEPHASE) is Code.XA_OK
            rm.close("", RMID)
            lines.clear()
    finally:
        over.set()
        watching.join()
