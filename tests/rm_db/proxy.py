"""This module is a TCP proxy in front of a database: a network that loses what a test wants it to lose."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit

PATIENCE_S = 60
_CHUNK = 65536


class Proxy:
    """Forwards to the server of `url`; clients use `self.url`, at a port that was free, or at this one.

    With `replies_held` replies are kept back, requests go through; with `requests_held` requests are kept back.
    `held` is set when something is. `cut` breaks every connection, for both sides; `cut_replies_after` does so when so
    many more octets of replies have arrived.
    """

    def __init__(self, url: str, port: int = 0) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5432)
        self._listener = socket.create_server(("127.0.0.1", port))
        user = "".join(parts.netloc.rpartition("@")[:2])
        self.port: int = self._listener.getsockname()[1]
        self.url = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self.port}"))
        self.replies_flow = threading.Event()
        self.requests_flow = threading.Event()

        self.held = threading.Event()
        self._request: bytes | None = None
        self._replaced: tuple[bytes, bytes] | None = None
        self.flow()
        self._lock = threading.Lock()
        self._left: int | None = None
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
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

    def close(self) -> None:
        """The end."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _run(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return

            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            pair = (client, server)
            for end in pair:  # or each small request would wait for the acknowledgement of the one before
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._pairs.append(pair)
            self._run(self._forward, client, server, self.requests_flow, pair)
            self._run(self._forward, server, client, self.replies_flow, pair)

    def _forward(
        self,
        source: socket.socket,
        target: socket.socket,
        flows: threading.Event,
        pair: tuple[socket.socket, socket.socket],
    ) -> None:
        try:
            while octets := source.recv(_CHUNK):
                if not flows.is_set():
                    self.held.set()
                    flows.wait()
                with self._lock:
                    lost = pair not in self._pairs
                if lost:
                    break

                if flows is self.replies_flow and self._left is not None:
                    octets, over = octets[: self._left], len(octets) >= self._left
                    self._left -= len(octets)
                    if over:
                        self._left = None
                        target.sendall(octets)
                        self.cut()
                        break
                if flows is self.requests_flow and self._request is not None and self._request in octets:
                    self.hold_replies()
                if flows is self.requests_flow and self._replaced is not None and self._replaced[0] in octets:
                    octets, self._replaced = octets.replace(*self._replaced), None
                target.sendall(octets)
        except OSError:
            pass
        finally:
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            source.close()
