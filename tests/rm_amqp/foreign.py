"""This module has peers that are not our broker: proton's container as a broker with fewer features, and a peer that
sends nothing.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from proton import Condition, Data, Terminus, symbol
from proton.handlers import MessagingHandler
from proton.reactor import Container

from xabridge.testing.ports import free_port


class _Foreign(MessagingHandler):
    """A broker whose coordinator offers these capabilities; None: it has no coordinator."""

    stopping = False

    def __init__(self, port: int, offers: list[str] | None, *, ends_session: bool) -> None:
        super().__init__()
        self._ends_session = ends_session
        self.listening = threading.Event()
        self._port = port
        self._offers = offers
        self._acceptor: Any = None
        self._connections: list[Any] = []

    def on_start(self, event: Any) -> None:
        self._acceptor = event.container.listen(f"127.0.0.1:{self._port}")
        event.container.schedule(0.01, self)
        self.listening.set()

    def on_timer_task(self, event: Any) -> None:
        if not self.stopping:
            event.container.schedule(0.01, self)
            return
        self._acceptor.close()
        for connection in self._connections:
            connection.close()
        event.container.stop()

    def on_connection_opening(self, event: Any) -> None:
        event.connection.container = "foreign"
        self._connections.append(event.connection)

    def on_link_opening(self, event: Any) -> None:
        link = event.link
        if self._offers is None:
            link.target.type = Terminus.UNSPECIFIED
            link.condition = Condition("amqp:not-implemented", "no transactions here")
            return
        if self._ends_session:
            link.session.condition = Condition("amqp:not-implemented", "no transactions here")
            link.session.close()
            return

        link.target.type = link.remote_target.type
        link.target.capabilities.put_array(False, Data.SYMBOL)
        link.target.capabilities.enter()
        for name in self._offers:
            link.target.capabilities.put_symbol(symbol(name))
        link.target.capabilities.exit()
        link.open()

    def on_link_local_open(self, event: Any) -> None:
        if self._offers is None:
            event.link.close()


@contextmanager
def foreign_broker(offers: list[str] | None, *, ends_session: bool = False) -> Iterator[str]:
    """The address of a broker with such a coordinator, or one that ends the session of whoever asks for it."""
    handler = _Foreign(port := free_port(), offers, ends_session=ends_session)
    thread = threading.Thread(target=Container(handler).run)
    thread.start()
    assert handler.listening.wait(20)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        handler.stopping = True
        thread.join(20)


@contextmanager
def silent_peer() -> Iterator[str]:
    """The address of somebody who takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
