"""What strangers can do at the broker's socket, order, and write into the log: unauthenticated connections, many at
once too, floods, wrong passwords. The broker drops them in bounded time and memory, and goes on serving others. Then
the queue of computations of passwords, over a clock that is moved."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

import pytest
from proton import Message
from proton.utils import BlockingConnection

from dtx.amqp.connection import MIN_IDLE_MS
from dtx.amqp.encoding import encode
from dtx.amqp.frames import AMQP_HEADER, HEARTBEAT
from dtx.amqp.messages import value_message
from dtx.amqp.sasl.layer import SASL_HEADER
from dtx.amqp.sasl.mechanisms import Identity
from dtx.amqp.sasl.scram import Verifier
from dtx.amqp.values import Described, Symbol, Uint, Ulong
from dtx.broker.access.connection_limits import ADDRESSES, ConnectionLimits, network_of
from dtx.broker.access.credentials import Credentials
from dtx.broker.access.password_checks import PasswordChecks
from dtx.broker.access.permissions import Permissions
from dtx.broker.access.rate_limited_log import MOST, RateLimitedLog
from dtx.broker.broker import Broker
from dtx.broker.settings import Limits
from dtx.store.contract import Step
from tests.dtx.broker.peer import frame
from tests.dtx.broker.sockets import LOGIN, LONG_S, OPENED, Line, on_a_broker, said, sasl, serving, until
from tests.dtx.broker.strangers import ATTACH, BEGIN, CLOSE, DISPOSITION, END, FLOW, OPEN, TRANSFER
from tests.event_loop import in_loop
from xa.configuration import Section
from xa.printable import printable
from xabridge.testing.broker import BrokerProcess

# -- octets
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
            turns += bool(broker.scheduler._held)

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
        f'[broker]\nlisten = ["127.0.0.1:0"]\nstore = "sqlite:///{tmp_path}/store.db"\nidle_timeout_s = 2\n'
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
                    time.sleep(0.9 / len(peers))

        beat(0.5)
        os.kill(broker.pid, signal.SIGSTOP)
        beat(2.3)  # longer than the time-out
        os.kill(broker.pid, signal.SIGCONT)
        beat(0.5)
        told = [peer.recv(1 << 20, socket.MSG_DONTWAIT) for peer in peers]
    finally:
        for peer in peers:
            peer.close()
        broker.stop()
    assert not any(b"nothing was received" in octets for octets in told)


@on_a_broker()
async def test_short_time_outs_get_their_heartbeats(broker: Broker) -> None:
    """From the first one on, five heartbeats take the time of two and a half time-outs of the peer, and 2 s for a
    machine that is busy. One in each second would take five seconds."""
    line = await Line.to(broker)
    line.say(LOGIN + AMQP_HEADER + frame(OPEN, ["stranger", None, None, None, Uint(MIN_IDLE_MS)]))
    await line.until(said(OPEN))
    line.heard, began = b"", time.monotonic()
    await line.until(HEARTBEAT * 5)
    assert time.monotonic() - began < 2.5 * MIN_IDLE_MS / 1000 + 2
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
            held = max(held, queue.counters.held)
            transports = [peer._transport for peer in broker.open_peers]
            waits = max([waits, *(one.get_write_buffer_size() for one in transports if one is not None)])
        while queue.counters.held:
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


class Flood:
    """A peer that sends the same small frames as fast as it can, and reads what it is told."""

    def __init__(self, port: int, octets: bytes) -> None:
        self._octets = octets
        self._socket = socket.create_connection(("127.0.0.1", port))
        source = [Described(Ulong(0x28), ["flooded"]), Described(Ulong(0x29), [])]
        self._socket.sendall(
            OPENED
            + frame(BEGIN, [None, Uint(0), Uint(5000), Uint(5000)])
            + frame(ATTACH, ["out", Uint(0), True, None, None, *source])
        )
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._send, self._listen)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._socket.sendall(self._octets)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while self._socket.recv(1 << 20):
                pass

    def ebb(self) -> None:
        """The end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._socket.close()


@pytest.mark.slow
def test_a_flood_delays_nobody_and_the_broker_stops_when_it_is_told(tmp_path: Path) -> None:
    """The messages of another peer are accepted within 100 ms beyond the time that they take otherwise, and SIGTERM
    ends the broker, also when all floods come at once."""
    process = BrokerProcess(tmp_path)
    process.start()
    floods: list[Flood] = []
    try:
        connection = BlockingConnection(f"127.0.0.1:{process.port}", allowed_mechs="ANONYMOUS", timeout=LONG_S)
        sender = connection.create_sender("others")
        alone_s = took(sender)
        for kind, octets in FLOODS.items():
            flood = Flood(process.port, octets)
            floods.append(flood)
            assert took(sender) < 0.1 + 2 * alone_s, kind
            flood.ebb()

        floods += [Flood(process.port, octets) for octets in FLOODS.values()]
        took(sender)  # the floods have begun
        assert process.stop() == 0
    finally:
        process.kill()
        for flood in floods:
            flood.ebb()


# -- connections
TABLE: Final = Permissions.from_section(Section({"operator": {"manage": True}, "worker": {"produce": ["*"]}}))


def login(user: str, password: str) -> bytes:
    initial = f"\0{user}\0{password}".encode()
    return SASL_HEADER + sasl(0x41, Symbol("PLAIN"), initial)


USERS: Final[dict[str, Any]] = {
    "users": ("operator", "worker", "other"),
    "config": {"permissions": TABLE},
    "wrong_password_s": 0.0,
}


async def comes_in(broker: Broker, user: str, context: ssl.SSLContext | None = None) -> Line:
    """Logs in and opens the connection; what the broker says of it is in `heard`."""
    line = await Line.to(broker, context)
    line.say(login(user, "right"))
    await line.until(said(0x44))
    line.say(AMQP_HEADER + frame(OPEN, [user]))
    await line.until(said(OPEN))
    return line


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("tls", [False, True], ids=["in the clear", "tls"])
@in_loop
async def test_many_that_say_nothing_keep_nobody_out(tmp_path: Path, *, tls: bool) -> None:
    async with serving(tmp_path, tls=tls, limits=Limits(connections=5, strangers=10), **USERS) as broker:
        silent = [await Line.to(broker) for _ in range(40)]
        for one in silent:
            one.say(b"\x16\x03\x01" if tls else b"AM")
        async with asyncio.timeout(LONG_S):
            line = await comes_in(broker, "worker", trusting() if tls else None)
        assert len(broker.open_peers) <= 10 + 5
        assert broker.connection_limits.strangers <= 10
        for one in (line, *silent):
            one.close()


@on_a_broker(tls=True, **USERS | {"handshake_s": 0.2})
async def test_a_tls_handshake_that_is_not_finished_ends(broker: Broker) -> None:
    for octets in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\r\n"):
        line = await Line.to(broker)
        line.say(octets)
        await line.end()
    await until(lambda: not broker.open_peers)
    assert broker.connection_limits.strangers == 0
    (await comes_in(broker, "worker", trusting())).close()


@on_a_broker(limits=Limits(connections=4, operator_connections=1), **USERS)
async def test_an_operator_comes_in_where_everybody_elses_room_is_taken(broker: Broker) -> None:
    lines = [await comes_in(broker, "worker") for _ in range(4)]
    await lines[3].until(said(CLOSE))
    assert b"there are 3 connections" in lines[3].heard
    lines.append(await comes_in(broker, "operator"))
    await lines[4].begin()
    for line in lines:
        line.close()


@on_a_broker(limits=Limits(connections_per_user=2), **USERS)
async def test_one_user_does_not_take_every_connection(broker: Broker) -> None:
    lines = [await comes_in(broker, "worker") for _ in range(3)]
    await lines[2].until(said(CLOSE))
    assert b"worker has 2 connections" in lines[2].heard
    lines.append(await comes_in(broker, "other"))
    lines[0].close()
    await until(lambda: broker.connection_limits._of_user["worker"] == 1)
    lines.append(await comes_in(broker, "worker"))
    await lines[4].begin()
    for line in lines[1:]:
        line.close()


FORGED: Final = "X\n2026-01-01 00:00:00 CRITICAL the store stopped\x1b[31m\u202e"


def test_a_stranger_forges_no_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither by the mechanism, nor by a name, nor by anything else that is said before one is known."""
    forged = [
        (Symbol("X\nCRITICAL forged\x1b[31m"), b""),
        (Symbol("PLAIN"), f"\0{FORGED}\0x".encode()),
        (Symbol("PLAIN"), f"{FORGED}\0worker\0right".encode()),
        (Symbol("SCRAM-SHA-256"), f"n,,n={FORGED},r=abc".encode()),
        (Symbol("ANONYMOUS"), FORGED.encode()),
    ]

    async def test() -> None:
        async with serving(tmp_path, **USERS) as broker:
            for octets in (*(SASL_HEADER + sasl(0x41, *one) for one in forged), FORGED.encode()):
                line = await Line.to(broker)
                line.say(octets)
                await line.end()

    with caplog.at_level(logging.DEBUG, logger="xabridge"):
        asyncio.run(test())
    told = [record.getMessage() for record in caplog.records if record.name.startswith("xabridge")]
    assert len(told) >= 6
    for message in told:
        assert message.isprintable(), message
        assert len(message) < 500


def test_what_is_not_printable_is_shown_as_an_escape() -> None:
    assert printable("orders") == "orders"
    assert printable("a\nb\x1b[0m\u202e\0é") == "a\\nb\\x1b[0m\\u202e\\x00é"
    assert printable("\ud800") == "\\ud800"
    assert printable("x" * 1000, 10) == "x" * 9 + "…"
    assert all(printable(chr(code)).isprintable() for code in range(0x3000))


def test_lines_of_a_kind_are_counted_when_they_are_many(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    lines = RateLimitedLog(lambda: now[0])
    for number in range(1000):
        lines.warn("%s: refused", number)
    lines.warn("%s: another kind", "x")
    assert len(caplog.records) == MOST + 2
    now[0] = 61.0
    caplog.clear()
    lines.warn("%s: refused", "again")
    assert [record.getMessage() for record in caplog.records] == [
        "… and 990 more lines of the same kind in 61 s",
        "again: refused",
    ]


class Peer:
    host = "10.0.0.1"


def test_a_wrong_password_costs_time_and_more_each_time() -> None:
    now = [0.0]
    limits = ConnectionLimits(Limits(), TABLE, lambda: now[0], 0.25)
    assert [limits.failed("10.0.0.1") for _ in range(6)] == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0]
    assert limits.failed("10.0.0.2") == 0.25
    now[0] = 61.0
    assert limits.failed("10.0.0.1") == 0.25


@on_a_broker(**USERS | {"wrong_password_s": 0.1})
async def test_the_answer_to_a_wrong_password_comes_late(broker: Broker) -> None:
    line = await Line.to(broker)
    began = time.monotonic()
    line.say(login("worker", "wrong"))
    assert said(0x44) in await line.end()
    assert time.monotonic() - began >= 0.1


@on_a_broker(**USERS | {"wrong_password_s": LONG_S})
async def test_who_was_refused_is_read_no_more_and_who_waits_for_a_computation_is(broker: Broker) -> None:
    """The latter may leave, and then nothing is computed for it."""
    asked: list[object] = []
    broker.computations._compute = lambda work, _done: asked.append(work)  # it takes for ever
    lines = [await Line.to(broker) for _ in range(3)]
    for line in lines[:2]:
        line.say(login("worker", "wrong"))
    await until(lambda: len(asked) + len(broker.computations) == 2)

    for line in lines[:2]:
        line.close()
    await until(lambda: len(broker.open_peers) == 1 and not len(broker.computations))
    lines[2].say(SASL_HEADER + sasl(0x41, Symbol("UNKNOWN"), b""))
    [refused] = broker.open_peers
    await until(lambda: not refused.reading)
    lines[2].say(b"x" * 100_000)
    assert not refused.reading
    lines[2].close()
    refused.abort()  # or the broker would wait for it before it ends


def test_the_address_with_most_strangers_loses_one() -> None:
    limits = ConnectionLimits(Limits(strangers=3), TABLE, lambda: 0.0, 0.25)
    many = [Peer(), Peer()]
    one = Peer()
    one.host = "10.0.0.2"
    for peer in (one, *many):
        assert limits.comes(peer) is None
    assert limits.comes(Peer()) is many[0]
    assert limits.refusal(one, Identity("worker")) is None


# -- computations
TOOK_S: Final = 0.01
STORM: Final = "10.0.0.1"
ELSEWHERE: Final = "10.0.0.2"


class World:
    """The thread, the clock, and the addresses that have failed."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.worked_s = 0.0
        self.verdicts: list[tuple[str, bool, float]] = []
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.limits = ConnectionLimits(Limits(), Permissions({}), lambda: self.now, 0.25)
        self.computations = PasswordChecks(lambda: self.now, self.limits.failures, self._compute, self._later)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._calls, (self.now + seconds, self._number, call))

    def _compute(self, work: Callable[[], object], done: Callable[[object], None]) -> None:
        self.worked_s += TOOK_S
        self._later(TOOK_S, lambda: done(work()))

    def attempt(self, host: str, *, right: bool) -> object:
        """A peer says a password."""

        def done(result: object) -> None:
            if not result:
                self.limits.failed(host)
            self.verdicts.append((host, bool(result), self.now))

        return self.computations.ask(host, lambda: right, done)

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._calls and self._calls[0][0] <= until:
            self.now, _, call = heappop(self._calls)
            call()
        self.now = until


def test_a_storm_gets_a_quarter_of_a_processor() -> None:
    world = World()
    for _ in range(1000):
        world.attempt(STORM, right=False)
    world.run(1.0)  # the first one is of an address that has not failed
    before = world.worked_s
    world.run(5.0)
    assert world.worked_s - before == pytest.approx(5.0 / 4, rel=0.05)


def test_of_ever_new_addresses_all_together_get_half_of_one() -> None:
    world = World()
    for number in range(2000):
        world.attempt(f"10.1.{number // 250}.{number % 250}", right=False)
    world.run(5.0)
    assert world.worked_s <= 5.0 / 2 + TOOK_S


def test_right_passwords_do_not_rest_and_do_not_wait_for_the_storm() -> None:
    """As those of a fleet that comes back after a restart."""
    world = World()
    for _ in range(100):
        world.attempt(ELSEWHERE, right=True)
    world.run(100 * TOOK_S + 0.001)
    assert len(world.verdicts) == 100
    for _ in range(200):
        world.attempt(STORM, right=False)
    world.run(1.0)
    world.verdicts.clear()
    asked_at = world.now
    world.attempt(ELSEWHERE, right=True)
    world.run(0.2)
    [at] = [at for host, _, at in world.verdicts if host == ELSEWHERE]
    assert at - asked_at <= 3 * TOOK_S + 1e-6  # one under way, the rest after it, and its own


def test_addresses_take_turns_and_all_of_them_are_served() -> None:
    world = World()
    for _ in range(100):
        for number in range(5):
            world.attempt(f"10.0.1.{number}", right=False)
    world.run(4.0)
    counts = Counter(host for host, _, _ in world.verdicts)
    assert len(counts) == 5
    assert max(counts.values()) - min(counts.values()) <= 1


def test_what_is_dropped_is_not_computed() -> None:
    """The peers of a storm leave: nothing is done for them any more. Who left while it was computed hears nothing, and
    the next one is served."""
    world = World()
    asked = [world.attempt(STORM, right=True) for _ in range(100)]
    world.attempt(ELSEWHERE, right=True)
    for one in asked:
        world.computations.drop(one)  # type: ignore[arg-type]
    assert len(world.computations) == 1
    world.run(10.0)
    assert [host for host, _, _ in world.verdicts] == [ELSEWHERE]
    assert world.worked_s == 2 * TOOK_S


def test_addresses_that_failed_are_remembered_in_a_bounded_number_and_for_a_minute() -> None:
    world = World()
    for number in range(10 * ADDRESSES):
        world.limits.failed(f"host {number}")
    assert sum(bool(world.limits.failures(f"host {number}")) for number in range(10 * ADDRESSES)) == ADDRESSES
    world.now += 61.0
    assert not world.limits.failures(f"host {10 * ADDRESSES - 1}")


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::ffff", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("/run/socket", "/run/socket"),
    ],
)
def test_where_a_peer_comes_from(host: str, network: str) -> None:
    assert network_of(host) == network


# -- what is known to be right
def verifier(password: str, salt: bytes = b"salt") -> Verifier:
    return Verifier.of(password, salt, 4096)


def test_a_password_that_was_right_is_remembered_until_it_changes() -> None:
    """One that was changed while it was computed is not."""
    known = verifier("right")
    credentials = Credentials({"user": known, "other": verifier("right")}, b"secret")
    assert not credentials.remembered("user", "right")
    credentials.remember("user", known, "right")
    known_now = {(user, said) for user in ("user", "other", "nobody") for said in ("right", "wrong")}
    assert [one for one in known_now if credentials.remembered(*one)] == [("user", "right")]
    for changed in (verifier("new"), known):
        credentials.set("user", changed)
        assert not credentials.remembered("user", "right")
    credentials.remember("user", known, "right")
    credentials.set("user", None)
    assert not credentials.remembered("user", "right")
    credentials.set("user", verifier("new"))
    credentials.remember("user", known, "right")
    assert not credentials.remembered("user", "right")


def test_the_password_is_nowhere_in_what_is_remembered() -> None:
    known = verifier("marked password")
    one, other = (Credentials({"user": known}, b"secret") for _ in range(2))
    for credentials in (one, other):
        credentials.remember("user", known, "marked password")
    assert one._right != other._right  # each process has a key of its own
    assert "marked" not in repr(one._right)
