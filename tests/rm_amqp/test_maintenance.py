"""These tests cover connections that are idle for a while, and those that break silently."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from dtx.broker.settings import Settings
from rm_amqp import AmqpResource, Environment, Message, NoMessage
from rm_amqp.connection.connector import connect as connect_line
from tests.rm_amqp.client import RMID, Client, new_xid
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.rm_amqp.network import Network
from tests.simulation.seeds import EVERY_POINT
from xa import TMONEPHASE, TMSUCCESS, Code, ResourceUnavailable, ThreadOfControl, entered
from xabridge.testing.contract.client import ScriptedRegistrar

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Relay:
    """A way to the broker that can be frozen: it stays open, and nothing comes through any more."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self.frozen = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._port))
            self._sockets += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while octets := source.recv(65536):
                if not self.frozen.is_set():
                    target.sendall(octets)
            target.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """At the end."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one in self._sockets:
            one.close()


@pytest.fixture
def relay(broker: EmbeddedBroker) -> Iterator[Relay]:
    """A relay to the broker."""
    relay = Relay(broker.port)
    yield relay
    relay.close()


@pytest.mark.slow
def test_heartbeats_do_not_depend_on_the_application(tmp_path: Path) -> None:
    """It computes, and says nothing for several times as long as the broker has patience."""
    broker = EmbeddedBroker(tmp_path, settings=Settings(idle_timeout_s=1))
    client = Client(broker.address)
    try:
        with client.work(two_phase=True) as session:
            session.send("q", Message("x"))
            connections = broker.inside(lambda one: set(one.peers))
            until = time.monotonic() + 4
            while time.monotonic() < until:
                sum(range(10_000))
            assert broker.inside(lambda one: set(one.peers)) == connections
        assert client.look("q") == ["x"]
    finally:
        client.rm.drop()
        broker.stop()


@pytest.mark.slow
def test_a_broker_that_falls_silent_is_given_up(relay: Relay, broker: EmbeddedBroker, queue: str) -> None:
    """After the idle timeout, long before the call's."""
    client = Client(relay.address, "timeout=60&idle_timeout=2")
    xid = client.start()
    client.session.send(queue, Message("x"))
    relay.frozen.set()
    began = time.monotonic()
    with pytest.raises(ResourceUnavailable, match=r"was lost: .*; the branch was not prepared and is rolled back"):
        client.session.receive(queue, 50)
    assert time.monotonic() - began < 40
    relay.frozen.clear()
    assert client.rm.open(client.url, RMID) is Code.XA_OK
    assert client.look(queue) == []
    client.rollback(xid, end=False)
    client.rm.drop()
    assert broker.left() == []


@pytest.mark.parametrize("verb", ["prepare", "commit", "rollback"])
def test_no_call_hangs_longer_than_its_timeout(
    relay: Relay, broker: EmbeddedBroker, client: Client, queue: str, verb: str
) -> None:
    """What came of it is unknown, and the next call has a channel that works."""
    slow = Client(relay.address, "timeout=0.5")
    xid = slow.start()
    slow.session.send(queue, Message("x"))
    slow.end(xid)
    if verb != "prepare":
        assert slow.rm.prepare(xid, RMID) is Code.XA_OK
    relay.frozen.set()
    with pytest.raises(ResourceUnavailable, match="its outcome is unknown here, and recovery finishes it"):
        getattr(slow.rm, verb)(xid, RMID)
    relay.frozen.clear()
    assert slow.rm.open(slow.url, RMID) is Code.XA_OK
    slow.rollback(xid, end=False)
    slow.rm.drop()
    assert client.look(queue) == []
    assert broker.left() == []


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
    for end in network.ends:
        end.peer.up.released_s = network.now + 1000
    began = network.now
    assert rm.close("", RMID) is Code.XA_OK
    assert network.now - began < 2.5
    assert not [end for end in network.ends if end.fileno() >= 0]


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
        for _ in range(60 if EVERY_POINT else 15):
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
