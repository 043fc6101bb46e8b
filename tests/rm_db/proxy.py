"""This module is a TCP proxy in front of a database: a network that loses what a test wants it to lose."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

from tests.false_server import ForwardingServer, Line

PATIENCE_S = 60
_CHUNK = 65536


class Proxy(ForwardingServer):
    """Forwards to the server of `url`; clients use `self.url`, at a port that was free, or at this one.

    With `replies_held` replies are kept back, requests go through; with `requests_held` requests are kept back.
    `held` is set when something is. `cut` breaks every connection, for both sides; `cut_replies_after` does so when so
    many more octets of replies have arrived.
    """

    def __init__(self, url: str, port: int = 0) -> None:
        self.replies_flow = threading.Event()
        self.requests_flow = threading.Event()
        self.held = threading.Event()
        self._request: bytes | None = None
        self._replaced: tuple[bytes, bytes] | None = None
        self._left: int | None = None
        self.flow()

        parts = urlsplit(url)
        super().__init__((parts.hostname or "127.0.0.1", parts.port or 5432), port)
        user = "".join(parts.netloc.rpartition("@")[:2])
        self.url = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self.port}"))

    def flow(self) -> None:
        """Everything is forwarded."""
        self.held.clear()
        self._request = None
        self.replies_flow.set()
        self.requests_flow.set()

    def hold_replies(self) -> None:
        """From now on the server's words don't arrive."""
        self.replies_flow.clear()

    def hold_replies_to(self, request: bytes) -> None:
        """From the next request on that holds these octets the server's words don't arrive."""
        self._request = request

    def replace_request(self, request: bytes, other: bytes) -> None:
        """Whoever sends these octets next has sent the others."""
        self._replaced = request, other

    def hold_requests(self) -> None:
        """From now on the client's words don't arrive."""
        self.requests_flow.clear()

    def cut_replies_after(self, octets: int) -> None:
        """The server's words arrive up to these octets, and then no more."""
        self._left = octets

    def cut(self) -> None:
        """Breaks every connection; what is held is lost. New ones are forwarded again."""
        self.break_all()

    def break_all(self) -> None:
        super().break_all()
        self.flow()

    @contextmanager
    def cut_when_held(self) -> Iterator[None]:
        """Cuts when something is held, which has to happen inside the block."""

        def cut() -> None:
            if self.held.wait(PATIENCE_S):
                self.cut()

        cutter = threading.Thread(target=cut)
        cutter.start()
        yield
        cutter.join()

    def ask(self, line: Line) -> None:
        while octets := self._received(line.client, self.requests_flow):
            if self._request is not None and self._request in octets:
                self.hold_replies()
            if self._replaced is not None and self._replaced[0] in octets:
                octets, self._replaced = octets.replace(*self._replaced), None
            line.server.sendall(octets)

    def answer(self, line: Line) -> None:
        while octets := self._received(line.server, self.replies_flow):
            if self._left is not None:
                octets, over = octets[: self._left], len(octets) >= self._left
                self._left -= len(octets)
                if over:
                    self._left = None
                    line.client.sendall(octets)
                    self.cut()
                    return
            line.client.sendall(octets)

    def _received(self, source: socket.socket, flows: threading.Event) -> bytes:
        """What comes next, when it may be passed on; nothing where the connection is lost."""
        octets = source.recv(_CHUNK)
        if octets and not flows.is_set():
            self.held.set()
            flows.wait()
        return octets if self.is_kept(source) else b""
