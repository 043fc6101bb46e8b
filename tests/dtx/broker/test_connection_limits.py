"""These tests cover many unauthenticated connections at once, wrong passwords, and what such peers can write into the
log.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from dtx.amqp.frames import AMQP_HEADER
from dtx.amqp.sasl.layer import SASL_HEADER
from dtx.amqp.sasl.mechanisms import Identity
from dtx.amqp.values import Symbol, Uint
from dtx.broker.access.connection_limits import ConnectionLimits
from dtx.broker.access.credentials import set_password
from dtx.broker.access.permissions import Permissions
from dtx.broker.access.rate_limited_log import MOST, RateLimitedLog
from dtx.broker.broker import Broker
from dtx.broker.config import Address, BrokerConfig
from dtx.broker.settings import Limits, Settings
from tests.dtx.broker.peer import frame
from tests.dtx.broker.strangers import OPEN
from tests.dtx.broker.test_hostile_sockets import LONG_S, Line, sasl
from xa.printable import printable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

CERTIFICATES: Final = Path(__file__).parents[2] / "interop" / "certificates"
OPENED_BYTES: Final = bytes((0, 0x53, OPEN))
CLOSED_BYTES: Final = bytes((0, 0x53, 0x18))
TABLE: Final = Permissions.from_section({"operator": {"manage": True}, "worker": {"produce": ["*"]}})


def login(user: str, password: str) -> bytes:
    initial = f"\0{user}\0{password}".encode()
    return SASL_HEADER + sasl(0x41, Symbol("PLAIN"), initial)


def opened(user: str) -> bytes:
    return AMQP_HEADER + frame(OPEN, [user])


@asynccontextmanager
async def serving(folder: Path, limits: Limits, *, tls: bool = False, **settings: Any) -> AsyncIterator[Broker]:
    users = folder / "users"
    for user in ("operator", "worker", "other"):
        set_password(users, user, "right", iterations=4096)
    listen = (Address("127.0.0.1", 0),)
    broker = Broker(
        BrokerConfig(
            listen=() if tls else listen,
            listen_tls=listen if tls else (),
            certificate=CERTIFICATES / "broker.pem" if tls else None,
            key=CERTIFICATES / "broker.key" if tls else None,
            users=users,
            plain_without_tls=True,
            store=f"sqlite:///{folder}/store.db",
            permissions=TABLE,
            settings=Settings(limits=limits, wrong_password_s=0.0, **settings),
        )
    )
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


async def comes_in(broker: Broker, user: str, context: ssl.SSLContext | None = None) -> Line:
    """Logs in and opens the connection; what the broker says of it is in `heard`."""
    line = Line(*await asyncio.open_connection("127.0.0.1", broker.addresses[0].port, ssl=context))
    line.say(login(user, "right"))
    await line.until(bytes((0, 0x53, 0x44)))
    line.say(opened(user))
    await line.until(OPENED_BYTES)
    return line


async def begins(line: Line) -> None:
    line.say(frame(0x11, [None, Uint(0), Uint(100), Uint(100)]))
    await line.until(bytes((0, 0x53, 0x11)))


async def until(condition: Callable[[], bool]) -> None:
    """Nobody says when it is so; it is looked at."""
    async with asyncio.timeout(LONG_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@pytest.mark.parametrize("tls", [False, True], ids=["in the clear", "tls"])
def test_many_that_say_nothing_keep_nobody_out(tmp_path: Path, *, tls: bool) -> None:
    async def test() -> None:
        limits = Limits(connections=5, strangers=20)
        async with serving(tmp_path, limits, tls=tls, handshake_s=LONG_S) as broker:
            silent = []
            for _ in range(100):
                silent.append(await Line.to(broker))
                silent[-1].say(b"\x16\x03\x01" if tls else b"AM")
            async with asyncio.timeout(LONG_S):
                line = await comes_in(broker, "worker", trusting() if tls else None)
            assert len(broker.open_peers) <= 20 + 5
            assert broker.connection_limits.strangers <= 20
            line.writer.close()
            for one in silent:
                one.writer.close()

    asyncio.run(test())


def test_a_tls_handshake_that_is_not_finished_ends(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, Limits(), tls=True, handshake_s=0.2) as broker:
            line = await Line.to(broker)
            line.say(b"\x16\x03\x01\x02\x00\x01\x00")
            await line.end()
            rubbish = await Line.to(broker)
            rubbish.say(b"GET / HTTP/1.1\r\n\r\n")
            await rubbish.end()
            await until(lambda: not broker.open_peers)
            assert broker.connection_limits.strangers == 0
            (await comes_in(broker, "worker", trusting())).writer.close()

    asyncio.run(test())


def test_an_operator_comes_in_where_everybody_elses_room_is_taken(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, Limits(connections=4, operator_connections=1)) as broker:
            lines = [await comes_in(broker, "worker") for _ in range(3)]
            refused = await comes_in(broker, "worker")
            await refused.until(CLOSED_BYTES)
            assert b"there are 3 connections" in refused.heard
            operator = await comes_in(broker, "operator")
            await begins(operator)
            for line in (*lines, operator, refused):
                line.writer.close()

    asyncio.run(test())


def test_one_user_does_not_take_every_connection(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path, Limits(connections_per_user=2)) as broker:
            lines = [await comes_in(broker, "worker") for _ in range(2)]
            refused = await comes_in(broker, "worker")
            await refused.until(CLOSED_BYTES)
            assert b"worker has 2 connections" in refused.heard
            lines.append(await comes_in(broker, "other"))
            lines[0].writer.close()
            await until(lambda: broker.connection_limits._of_user["worker"] == 1)
            again = await comes_in(broker, "worker")
            await begins(again)
            for line in (*lines, refused, again):
                line.writer.close()

    asyncio.run(test())


FORGED: Final = "X\n2026-01-01 00:00:00 CRITICAL the store stopped\x1b[31m\u202e"


def test_a_stranger_forges_no_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither by the mechanism, nor by a name, nor by anything else that is said before one is known."""

    async def test() -> None:
        async with serving(tmp_path, Limits()) as broker:
            for octets in (
                SASL_HEADER + sasl(0x41, Symbol("X\nCRITICAL forged\x1b[31m"), b""),
                SASL_HEADER + sasl(0x41, Symbol("PLAIN"), f"\0{FORGED}\0x".encode()),
                SASL_HEADER + sasl(0x41, Symbol("PLAIN"), f"{FORGED}\0worker\0right".encode()),
                SASL_HEADER + sasl(0x41, Symbol("SCRAM-SHA-256"), f"n,,n={FORGED},r=abc".encode()),
                SASL_HEADER + sasl(0x41, Symbol("ANONYMOUS"), FORGED.encode()),
                FORGED.encode(),
            ):
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


def test_the_answer_to_a_wrong_password_comes_late(tmp_path: Path) -> None:
    async def test() -> float:
        async with serving(tmp_path, Limits()) as broker:
            broker.connection_limits._first_delay_s = 0.3
            line = await Line.to(broker)
            line.say(login("worker", "wrong"))
            began = time.monotonic()
            heard = await line.end()
            assert bytes((0, 0x53, 0x44)) in heard
            return time.monotonic() - began

    assert asyncio.run(test()) >= 0.3


def test_who_was_refused_is_read_no_more_and_who_waits_for_a_computation_is(tmp_path: Path) -> None:
    """The latter may leave, and then nothing is computed for it."""

    async def test() -> None:
        async with serving(tmp_path, Limits()) as broker:
            broker.connection_limits._first_delay_s = LONG_S
            asked: list[object] = []
            broker.computations._compute = lambda work, _done: asked.append(work)  # it takes for ever
            lines = [await Line.to(broker) for _ in range(3)]
            for line in lines[:2]:
                line.say(login("worker", "wrong"))
            await until(lambda: len(asked) + len(broker.computations) == 2)
            for line in lines[:2]:
                line.writer.close()
            await until(lambda: len(broker.open_peers) == 1 and not len(broker.computations))
            lines[2].say(SASL_HEADER + sasl(0x41, Symbol("UNKNOWN"), b""))
            [refused] = broker.open_peers
            await until(lambda: not refused.reading)
            lines[2].say(b"x" * 100_000)
            assert not refused.reading
            lines[2].writer.close()

    asyncio.run(test())


def test_the_address_with_most_strangers_loses_one() -> None:
    limits = ConnectionLimits(Limits(strangers=3), TABLE, lambda: 0.0, 0.25)
    many = [Peer(), Peer()]
    one = Peer()
    one.host = "10.0.0.2"
    for peer in (one, *many):
        assert limits.comes(peer) is None
    assert limits.comes(Peer()) is many[0]
    assert limits.refusal(one, Identity("worker")) is None
