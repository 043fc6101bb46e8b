"""This module is a server that a test makes up: it listens, and does to each connection what the test says. A
`ForwardingServer` stands before a true one."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

PATIENCE_S: Final = 30


class FalseServer:
    """Listens at `port`, and gives each connection to `talk` with itself, in a thread of its own. The connection ends
    with that. `heard` is all that its clients have said to `hear`; `closed` is set when the server is closed."""

    def __init__(self, talk: Callable[[Any, socket.socket], None], port: int = 0) -> None:
        self._talk = talk
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.heard = b""
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The end."""
        self.closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.break_all()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def break_all(self) -> None:
        """Breaks the connections that there are."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def keep(self, one: socket.socket) -> None:
        """It is broken with the others; at once, where the server is closed already."""
        with self._lock:
            self._sockets.append(one)
        if self.closed.is_set():
            self.break_all()

    def is_kept(self, one: socket.socket) -> bool:
        """Whether it was not broken."""
        with self._lock:
            return one in self._sockets

    def hear(self, client: socket.socket, count: int) -> bytes:
        """So many octets."""
        octets = b""
        while len(octets) < count:
            more = client.recv(count - len(octets))
            if not more:
                raise ConnectionError
            octets += more
        self.heard += octets
        return octets

    def hear_packet(self, client: socket.socket) -> tuple[int, bytes]:
        """A packet of MySQL's: its number and content."""
        head = self.hear(client, 4)
        return head[3], self.hear(client, int.from_bytes(head[:3], "little"))

    def _accept(self) -> None:
        while not self.closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or each message waits for the last one's ACK
            self.keep(client)
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, struct.error):
            self._talk(self, client)


@dataclass(eq=False)
class Line:
    """A client's connection and the one to the true server."""

    client: socket.socket
    server: socket.socket
    asked: bytes = b""
    """What the client said last."""
    is_lost: bool = False


class ForwardingServer(FalseServer):
    """Passes on, at the port that was free or at this one, what is said between its clients and the server at `target`:
    `ask` what clients say, in the thread of the connection, `answer` what the server says, in a thread of its own."""

    def __init__(self, target: tuple[str, int], port: int = 0) -> None:
        self._target = target
        super().__init__(type(self)._pass_on, port)

    def ask(self, line: Line) -> None:
        """Until the client says nothing more."""
        raise NotImplementedError

    def answer(self, line: Line) -> None:
        """Until the server says nothing more."""
        raise NotImplementedError

    def _pass_on(self, client: socket.socket) -> None:
        with socket.create_connection(self._target) as server:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.keep(server)
            line = Line(client, server)
            answers = threading.Thread(target=self._answer, args=(line,), daemon=True)
            answers.start()
            with suppress(OSError):
                self.ask(line)
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            answers.join(PATIENCE_S)

    def _answer(self, line: Line) -> None:
        with suppress(OSError):
            self.answer(line)
        with suppress(OSError):
            line.client.shutdown(socket.SHUT_RDWR)


def mysql_packet(number: int, content: bytes) -> bytes:
    """A packet of MySQL's."""
    return len(content).to_bytes(3, "little") + bytes([number]) + content


def postgres_message(kind: bytes, body: bytes = b"") -> bytes:
    """A message of PostgreSQL's."""
    return kind + (len(body) + 4).to_bytes(4) + body
