"""This module opens a broker on sockets, in the process of the test, and connections of octets to it.

@on_a_broker(limits=Limits(connections=8))
async def test_something(broker: Broker) -> None:
    line = await Line.opened(broker)
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Concatenate, Final

from dtx.amqp.encoding import encode
from dtx.amqp.frames import AMQP_HEADER
from dtx.amqp.messages import value_message
from dtx.amqp.sasl.layer import SASL_HEADER
from dtx.amqp.values import Described, Symbol, Uint, Ulong, Value
from dtx.broker.access.credentials import set_password
from dtx.broker.broker import Broker
from dtx.broker.config import Address, BrokerConfig
from dtx.broker.settings import Settings
from dtx.store.contract import Step
from tests.dtx.broker.peer import frame
from tests.dtx.broker.strangers import ATTACH, BEGIN, FLOW, OPEN, TRANSFER

LONG_S: Final = 30.0
CERTIFICATES: Final = Path(__file__).parents[2] / "interop" / "certificates"


def sasl(code: int, *fields: Value) -> bytes:
    """A SASL frame."""
    body = encode(Described(Ulong(code), list(fields)))
    return struct.pack(">IBBH", 8 + len(body), 2, 1, 0) + body


LOGIN: Final = SASL_HEADER + sasl(0x41, Symbol("ANONYMOUS"))
OPENED: Final = LOGIN + AMQP_HEADER + frame(OPEN, ["stranger"])


def said(code: int) -> bytes:
    """How a performative or a SASL frame of ours begins."""
    return bytes((0, 0x53, code))


@asynccontextmanager
async def serving(
    folder: Path,
    hook: Callable[[Step], None] = lambda _: None,
    *,
    tls: bool = False,
    users: tuple[str, ...] = (),
    config: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Broker]:
    """A broker on a free port, with these users, whose password is "right"; `settings` are its settings."""
    for user in users:
        set_password(folder / "users", user, "right", iterations=4096)
    listen = (Address("127.0.0.1", 0),)
    described = BrokerConfig(
        listen=() if tls else listen,
        listen_tls=listen if tls else (),
        certificate=CERTIFICATES / "broker.pem" if tls else None,
        key=CERTIFICATES / "broker.key" if tls else None,
        users=folder / "users" if users else None,
        plain_without_tls=bool(users),
        store=f"sqlite:///{folder}/store.db",
        settings=Settings(**{"handshake_s": LONG_S, **settings}),
        **(config or {}),
    )
    broker = Broker(described, hook)
    await broker.start()

    try:
        yield broker
    finally:
        await broker.close()


def on_a_broker(
    **how: Any,
) -> Callable[[Callable[Concatenate[Broker, ...], Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Runs a test with a broker, which `serving` makes of `how`."""

    def decorate(test: Callable[Concatenate[Broker, ...], Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(tmp_path: Path, **fixtures: Any) -> None:
            async def main() -> None:
                async with serving(tmp_path, **how) as broker:
                    await test(broker, **fixtures)

            asyncio.run(main())

        signature = inspect.signature(test)
        left = [one for name, one in signature.parameters.items() if name != "broker"]
        folder = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = signature.replace(parameters=[folder, *left])  # type: ignore[attr-defined]
        return run

    return decorate


async def until(condition: Callable[[], object]) -> None:
    """Nobody says when it is so; it is looked at."""
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Line:
    """A connection of octets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.heard = b""

    @classmethod
    async def to(cls, broker: Broker, context: ssl.SSLContext | None = None) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", broker.addresses[0].port, ssl=context))

    @classmethod
    async def opened(cls, broker: Broker) -> Line:
        """One whose peer has opened its connection."""
        line = await cls.to(broker)
        line.say(OPENED)
        await line.until(said(OPEN))
        return line

    def say(self, octets: bytes) -> None:
        self.writer.write(octets)

    async def until(self, octets: bytes) -> None:
        """Hears until `octets` were said."""
        async with asyncio.timeout(LONG_S):
            while octets not in self.heard:
                some = await self.reader.read(65_536)
                assert some, f"closed, after {self.heard!r}"
                self.heard += some

    async def begin(self) -> None:
        """Begins a session, and hears of it: the connection is alive."""
        self.say(frame(BEGIN, [None, Uint(0), Uint(100), Uint(100)]))
        await self.until(said(BEGIN))

    async def attach(self, address: str) -> None:
        """Opens a connection with a session, and a link to a queue; until it has credit."""
        self.say(OPENED + frame(BEGIN, [None, Uint(0), Uint(5000), Uint(5000)]))
        termini = [Described(Ulong(0x28), []), Described(Ulong(0x29), [address])]
        self.say(frame(ATTACH, [f"to {address}", Uint(0), False, None, None, *termini, None, None, Uint(0)]))
        await self.until(said(FLOW))

    def post(self, numbers: Iterable[int]) -> None:
        """Sends messages of 50 kB over this link, settled."""
        payload = value_message(encode(b"x" * 50_000))
        for number in numbers:
            self.say(frame(TRANSFER, [Uint(0), Uint(number), b"t", Uint(0), True], payload))

    def close(self) -> None:
        self.writer.close()

    async def end(self) -> bytes:
        """Hears until the broker closes; what it said."""
        async with asyncio.timeout(LONG_S):
            try:
                while some := await self.reader.read(65_536):
                    self.heard += some
            except ConnectionResetError:
                pass
        self.close()
        return self.heard
