"""The console beside a broker that runs in the same process: `xabridge broker --console PORT`."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from xabridge.console.command import set_up_logging
from xabridge.console.server import listen_at, serving
from xabridge.console.settings import console_settings

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from dtx.broker.broker import Broker
    from xabridge.console.server import Server


class ConsoleBeside:
    """Holds the port from the beginning, and serves once the broker listens. OSError: the port is taken.
    ConfigurationError: there can be no console."""

    def __init__(self, port: int, *, verbose: bool) -> None:
        self._port = port
        self._stack = ExitStack()
        self._bound = listen_at(console_settings(None, {}, listen=f"127.0.0.1:{port}"))
        self._stack.enter_context(closing(self._bound))
        self._verbose = verbose
        self.server: Server | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def listening(self, broker: Broker) -> str:
        """Serves; where."""
        set_up_logging(verbose=self._verbose)
        url = f"amqp://{broker.addresses[0]}"
        settings = console_settings(None, {}, listen=f"127.0.0.1:{self._port}", brokers={"broker": url})
        self.server = self._stack.enter_context(serving(settings, bound=self._bound))
        return self.server.address
