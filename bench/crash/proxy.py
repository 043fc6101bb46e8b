"""`Proxy` is a TCP relay in front of a broker or a database, whose connections can be cut."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

HOST: Final = "127.0.0.1"
READ: Final = 65_536


class Proxies:
    """An event loop in a thread of its own, and the proxies that it runs."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._all: list[Proxy] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for proxy in self._all:
            proxy.close()
        asyncio.run_coroutine_threadsafe(self._rest(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @staticmethod
    async def _rest() -> None:
        """What the closing of connections still has to do."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def add(self, port: int) -> Proxy:
        """A proxy in front of a port of this machine."""
        proxy = Proxy(self._loop, port)
        self._all.append(proxy)
        return proxy


class Proxy:
    """Relays to `target`; `port` is its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: int) -> None:
        self._loop = loop
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        self._deaf = False
        self._server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, HOST, 0), loop).result()
        self.port = int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Every connection ends at this moment, both ways."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result()

    def lose_reply(self) -> None:
        """Drops what the other side says next: its connection ends instead of it."""
        self._deaf = True

    def close(self) -> None:
        """Ends."""
        self._loop.call_soon_threadsafe(self._server.close)
        self.cut()

    async def _cut(self) -> None:
        for writer in tuple(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(HOST, self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._relay(reader, back))
                both.create_task(self._relay(there, writer, reply=True))
        finally:
            self._open -= {writer, back}

    async def _relay(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, reply: bool = False) -> None:
        with suppress(OSError):
            while octets := await source.read(READ):
                if reply and self._deaf:
                    self._deaf = False
                    await self._cut()
                    return
                target.write(octets)
                await target.drain()
        target.transport.abort()
