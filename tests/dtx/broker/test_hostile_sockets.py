"""These tests open unauthenticated connections to the broker's socket. The broker must drop them in bounded time and
memory, and go on serving others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from proton import Message
from proton.utils import BlockingConnection

from dtx.amqp.encoding import encode
from dtx.amqp.frames import AMQP_HEADER, HEARTBEAT
from dtx.amqp.messages import value_message
from dtx.amqp.sasl.layer import SASL_HEADER
from dtx.amqp.values import Described, Symbol, Uint, Ulong
from dtx.broker.settings import Limits
from dtx.store.contract import Step
from tests.dtx.broker.peer import frame
from tests.dtx.broker.sockets import LOGIN, LONG_S, OPENED, Line, on_a_broker, said, sasl, until
from tests.dtx.broker.strangers import ATTACH, BEGIN, CLOSE, DISPOSITION, END, FLOW, OPEN, TRANSFER
from xabridge.testing.broker import BrokerProcess

if TYPE_CHECKING:
    from pathlib import Path

    from dtx.broker.broker import Broker

SEED: Final = int(os.environ.get("XABRIDGE_SEED", "4"))
LIMITS: Final = Limits(connections=8, output_octets=200_000)


def deaf_consumer(broker: Broker) -> socket.socket:
    """A connection with credit for 10,000 messages of the queue large, which reads nothing."""
    deaf = socket.socket()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.connect(("127.0.0.1", broker.addresses[0].port))
    source = [Described(Ulong(0x28), ["large"]), Described(Ulong(0x29), [])]
    deaf.sendall(
        OPENED
        + frame(BEGIN, [None, Uint(0), Uint(2**30), Uint(5000)])
        + frame(ATTACH, ["out", Uint(0), True, None, None, *source])
        + frame(FLOW, [Uint(0), Uint(2**30), Uint(0), Uint(5000), Uint(0), Uint(0), Uint(10_000)])
    )
    return deaf


async def serves(broker: Broker) -> None:
    """The broker takes a message from somebody who keeps to the protocol, and accepts it."""
    line = await Line.to(broker)
    await line.attach("others")
    line.say(frame(TRANSFER, [Uint(0), Uint(0), b"t", Uint(0)], value_message(encode("x"))))
    await line.until(said(DISPOSITION))
    line.say(frame(CLOSE, []))
    await line.end()


FLOODS: Final = {
    "flows with echo": frame(
        FLOW, [Uint(0), Uint(5000), Uint(0), Uint(5000), Uint(0), Uint(0), Uint(0), None, False, True]
    )
    * 2000,
    "sessions": b"".join(
        frame(BEGIN, [None, Uint(0), Uint(1), Uint(1)], channel=5) + frame(END, [], channel=5) for _ in range(1000)
    ),
    "heartbeats": HEARTBEAT * 8000,
}


RUBBISH: Final = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100750100007103030000"),
    "no sasl, and then rubbish": AMQP_HEADER + frame(OPEN, ["x"]) + b"GET / HTTP",
    "an unknown mechanism": SASL_HEADER + sasl(0x41, Symbol("GSSAPI"), b"x" * 300),
    "an outcome": SASL_HEADER + sasl(0x44, None),
    "two logins": LOGIN + LOGIN,
    "rubbish behind the login": LOGIN + b"\x00" * 100,
    "a frame of 4 GiB behind the header": LOGIN + AMQP_HEADER + b"\xff\xff\xff\xff\x02\x00\x00\x00",
    "rubbish behind the open": OPENED + b"\xff" * 100,
}


@on_a_broker(limits=LIMITS)
async def test_octets_that_are_not_amqp(broker: Broker) -> None:
    for octets in RUBBISH.values():
        line = await Line.to(broker)
        line.say(octets)
        await line.end()
        await until(lambda: not broker.open_peers and not broker.container.connections)
    await serves(broker)


@on_a_broker(limits=LIMITS)
async def test_octets_at_random_and_peers_that_reset(broker: Broker) -> None:
    chance = random.Random(SEED)
    for number in range(60):
        line = await Line.to(broker)
        octets = OPENED + frame(BEGIN, [None, Uint(0), Uint(100), Uint(100)])
        line.say(octets[: chance.randrange(len(octets))] + chance.randbytes(chance.randrange(300)))
        await line.writer.drain()
        if number % 2:
            raw = line.writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()
    await serves(broker)


@on_a_broker(handshake_s=0.3)
async def test_a_peer_that_stops_halfway_is_let_go(broker: Broker) -> None:
    """And one that has opened its connection by then is not."""
    halves = (b"", b"AM", SASL_HEADER, LOGIN, LOGIN + AMQP_HEADER[:5], LOGIN + AMQP_HEADER)
    other = await Line.opened(broker)
    lines = [await Line.to(broker) for _ in halves]
    for line, octets in zip(lines, halves, strict=True):
        line.say(octets)
    for line in lines:
        await line.end()
    await other.begin()
    other.close()


@on_a_broker(limits=LIMITS)
async def test_more_connections_than_there_may_be_are_refused(broker: Broker) -> None:
    lines = [await Line.opened(broker) for _ in range(7)]
    await serves(broker)
    eighth = await Line.opened(broker)
    for _ in range(50):
        refused = await Line.to(broker)
        assert await refused.end() == b""
    eighth.close()
    await eighth.writer.wait_closed()
    for line in lines:
        await line.begin()
        line.close()


RELEASE: Final = threading.Event()


def slow(step: Step) -> None:
    """A store that writes nothing until it is let."""
    if step is Step.BEFORE_WRITE:
        assert RELEASE.wait(LONG_S)


@on_a_broker(hook=slow, limits=Limits(waiting_octets=100_000))
async def test_a_peer_is_not_read_while_much_waits_for_the_store(broker: Broker) -> None:
    """The store is slow, and 5 MB are on their way: some of it is taken, and the rest when the store goes on."""
    sender = await Line.to(broker)
    await sender.attach("large")
    sender.post(range(100))
    turns = 0
    async with asyncio.timeout(LONG_S):
        while turns < 20:  # of others, once it is not read any more: what could come has come
            other = await Line.opened(broker)
            other.close()
            await other.writer.wait_closed()
            turns += bool(broker.rounds._held)
    taken = broker.container.resource.store.waiting_octets
    RELEASE.set()
    async with asyncio.timeout(LONG_S):
        while broker.container.resource.queues["large"].depth < 100:
            await serves(broker)
    assert 100_000 < taken < 1_000_000
    sender.close()


@pytest.mark.slow
def test_a_broker_that_was_stopped_drops_nobody_whose_heart_beat_meanwhile(tmp_path: Path) -> None:
    """What the peers said is still unread when it goes on."""
    config = tmp_path / "broker.toml"
    config.write_text(
        f'[broker]\nlisten = ["127.0.0.1:0"]\nstore = "sqlite:///{tmp_path}/store.db"\nidle_timeout_s = 3\n'
    )
    broker = BrokerProcess(tmp_path, "--config", str(config))
    broker.start()
    peers = [socket.create_connection(("127.0.0.1", broker.port), LONG_S) for _ in range(24)]
    try:
        for peer in peers:
            peer.sendall(OPENED)

        def beat(seconds: float) -> None:
            until = time.monotonic() + seconds
            while time.monotonic() < until:  # one after the other
                for peer in peers:
                    with contextlib.suppress(OSError):
                        peer.sendall(HEARTBEAT)
                    time.sleep(1.4 / len(peers))

        beat(3.2)
        os.kill(broker.pid, signal.SIGSTOP)
        beat(5.0)
        os.kill(broker.pid, signal.SIGCONT)
        beat(1.5)
        told = [peer.recv(1 << 20, socket.MSG_DONTWAIT) for peer in peers]
    finally:
        for peer in peers:
            peer.close()
        broker.stop()
    assert not any(b"nothing was heard" in octets for octets in told)


@on_a_broker()
async def test_short_time_outs_get_their_heartbeats(broker: Broker) -> None:
    """From the first one on, five heartbeats take the time of two and a half time-outs of the peer, and 2 s for a
    machine that is busy. One in each second would take five seconds."""
    line = await Line.to(broker)
    line.say(LOGIN + AMQP_HEADER + frame(OPEN, ["stranger", None, None, None, Uint(250)]))
    await line.until(said(OPEN))
    line.heard, began = b"", time.monotonic()
    await line.until(HEARTBEAT * 5)
    assert time.monotonic() - began < 2.6
    line.close()


@pytest.mark.slow
@on_a_broker(limits=LIMITS, idle_timeout_s=1.0)
async def test_a_peer_that_reads_nothing_is_sent_no_more_and_dropped_although_its_heart_beats(broker: Broker) -> None:
    """It has credit for everything in a queue of 20 MB. What waits for it stays within its bound, and what it held
    comes back to the queue, for others."""
    sender = await Line.to(broker)
    await sender.attach("large")
    for number in range(400):
        sender.post([number])
        await sender.writer.drain()
    queue = broker.container.resource.queues["large"]
    await until(lambda: queue.depth == 400)
    deaf = deaf_consumer(broker)
    held, waits, dropped = 0, 0, False
    async with asyncio.timeout(LONG_S):
        while not dropped:
            try:
                deaf.sendall(HEARTBEAT)
                sender.say(HEARTBEAT)
            except OSError:
                dropped = True
            await asyncio.sleep(0.1)
            held = max(held, queue.held)
            transports = [peer._transport for peer in broker.open_peers]
            waits = max([waits, *(one.get_write_buffer_size() for one in transports if one is not None)])
        while queue.held:
            await serves(broker)
    assert 0 < held < 200, "messages wait for a peer that does not read"
    assert waits < 2_000_000
    assert queue.available == 400
    deaf.close()
    sender.close()


def took(sender: Any) -> float:
    """How long a message takes until it is accepted: the median, in seconds."""
    taken_s = []
    for number in range(30):
        began = time.monotonic()
        sender.send(Message(body=number))
        taken_s.append(time.monotonic() - began)
    return sorted(taken_s)[len(taken_s) // 2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_delays_nobody_and_the_broker_stops_when_it_is_told(tmp_path: Path, kind: str) -> None:
    """A peer sends small frames as fast as it can. The messages of another one are accepted within 100 ms beyond the
    time that they take otherwise, and SIGTERM ends the broker."""
    process = BrokerProcess(tmp_path)
    process.start()
    flood = FLOODS[kind]
    over = threading.Event()
    try:
        rude = socket.create_connection(("127.0.0.1", process.port))
        source = [Described(Ulong(0x28), ["flooded"]), Described(Ulong(0x29), [])]
        rude.sendall(
            OPENED
            + frame(BEGIN, [None, Uint(0), Uint(5000), Uint(5000)])
            + frame(ATTACH, ["out", Uint(0), True, None, None, *source])
        )

        def send() -> None:
            with contextlib.suppress(OSError):
                while not over.is_set():
                    rude.sendall(flood)

        def listen() -> None:
            with contextlib.suppress(OSError):
                while rude.recv(1 << 20):
                    pass

        connection = BlockingConnection(f"127.0.0.1:{process.port}", allowed_mechs="ANONYMOUS", timeout=LONG_S)
        sender = connection.create_sender("others")
        alone_s = took(sender)
        threads = [threading.Thread(target=one, daemon=True) for one in (send, listen)]
        for thread in threads:
            thread.start()
        assert took(sender) < 0.1 + 2 * alone_s
        assert process.stop() == 0
        over.set()
        rude.close()
    finally:
        over.set()
        process.kill()
