"""Server: the console behind a socket, in this thread or beside something else in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import threading
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tm import ConfigurationError
from xa.tls import FollowedContext, load_certificate
from xabridge.console.app import application
from xabridge.console.console import Console
from xabridge.console.settings import console_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from dtx.broker.broker import Broker
    from tm.config import Configuration
    from xabridge.console.settings import ConsoleSettings


LOG: Final = logging.getLogger("xabridge.console")
STOP_S: Final = 10.0
REQUEST_S: Final = 10.0
"""A connection over which no request has come for so long is closed, at the latest after twice as long."""


class Server:
    """A console that listens, at a socket that is bound already if one is given. `address` is where to find it."""

    def __init__(
        self, settings: ConsoleSettings, configuration: Configuration | None, bound: socket.socket | None = None
    ) -> None:
        try:  # before uvicorn loads it, and has OpenSSL ask for a pass phrase
            self._tls = _followed_tls(settings) if settings.certificate else None
        except OSError as error:
            raise ConfigurationError(f"certificate or key can't be used: {error}") from error

        self.console = Console(settings, configuration)
        self._socket = bound if bound is not None else listen_at(settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server = _SignalFreeServer(
            uvicorn.Config(
                application(self.console),
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=500,
                timeout_graceful_shutdown=3,
                ssl_certfile=settings.certificate or None,
                ssl_keyfile=settings.key or None,
                ws="none",
                http=_IdleTimeoutProtocol,
            )
        )
        host, port = self._socket.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{'https' if settings.certificate else 'http'}://{shown}:{port}/"

    def run(self) -> None:
        """Serves until it is stopped; in the main thread SIGINT and SIGTERM stop it."""
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self._end)
        self._server.follow(self._tls)
        await self._server.serve([self._socket])

    def _end(self) -> None:
        self.console.stop()
        self._server.should_exit = True

    def stop(self) -> None:
        """Ends it, from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)


def _followed_tls(settings: ConsoleSettings) -> FollowedContext:
    """The console's certificate, as its files have it when a browser connects."""

    def made() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_certificate(context, settings.certificate, settings.key or None)
        return context

    def failed(error: OSError) -> None:
        LOG.error("certificate or key have changed and can't be used, the former ones go on: %s", error)

    return FollowedContext(made, (settings.certificate, settings.key), failed)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose servers give up a TLS handshake as soon as a request that does not come."""

    async def create_server(self, *args: Any, **settings: Any) -> asyncio.Server:
        if settings.get("ssl") is not None:
            settings["ssl_handshake_timeout"] = REQUEST_S
        return await super().create_server(*args, **settings)


class _IdleTimeoutProtocol(H11Protocol):
    """A connection that is closed if its peer asks for nothing, since everybody may connect, and only so many can."""

    _looking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A peer is there."""
        super().connection_made(transport)
        self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notes that the connection is gone."""
        if self._looking is not None:
            self._looking.cancel()
        super().connection_lost(exc)

    def _look_later(self) -> None:
        self._looking = self.loop.call_later(REQUEST_S, self._look, self.cycle)

    def _look(self, then: RequestResponseCycle | None) -> None:
        if self.cycle is then and (then is None or then.response_complete):
            self.transport.close()
        else:
            self._look_later()


class _SignalFreeServer(uvicorn.Server):
    """A server that leaves the signals to us."""

    def follow(self, tls: FollowedContext | None) -> None:
        """Has each handshake show the certificate as its file has it then."""
        self.config.load()
        context = self.config.ssl
        if tls is not None and context is not None:
            context.sni_callback = lambda handshake, _name, _context: setattr(handshake, "context", tls.current)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen_at(settings: ConsoleSettings) -> socket.socket:
    """The socket; OSError if the address is taken."""
    host, port = settings.address
    made = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=100)
    made.setblocking(False)
    return made


@contextmanager
def serving(
    settings: ConsoleSettings, configuration: Configuration | None = None, bound: socket.socket | None = None
) -> Iterator[Server]:
    """A console that serves in a thread of its own, beside something else."""
    server = Server(settings, configuration, bound)
    thread = threading.Thread(target=server.run, name="xabridge-console", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(STOP_S)


class EmbeddedConsole:
    """The console beside a broker that runs in the same process, `xabridge broker --console PORT`.

    It holds the port from the beginning, and serves once the broker listens. OSError: the port is taken.
    ConfigurationError: there can be no console.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._stack = ExitStack()
        self._bound = listen_at(console_settings(None, {}, listen=f"127.0.0.1:{port}"))
        self._stack.enter_context(closing(self._bound))
        self.server: Server | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def listening(self, broker: Broker) -> str:
        """Serves; where."""
        url = f"amqp://{broker.addresses[0]}"
        settings = console_settings(None, {}, listen=f"127.0.0.1:{self._port}", brokers={"broker": url})
        self.server = self._stack.enter_context(serving(settings, bound=self._bound))
        return self.server.address
