"""This module is a server that lies: a proxy before a true one, or nothing at all, that says from a moment on what a
test wants.

    SILENT     nothing
    DRIP       the beginning of a long answer, an octet at a time, faster than any time-out for one read
    GARBAGE    octets that are no protocol
    ENDLESS    an answer that never ends, as fast as it is read

A `RewritingServer` passes on what a true server says, but for single messages that a test replaces: they are of the
right protocol, and of the wrong contents, or out of turn.
"""

from __future__ import annotations

import itertools
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from typing import BinaryIO, Final

from tests.false_server import PATIENCE_S, FalseServer, ForwardingServer, Line

DRIP_S: Final = 0.1
MOST: Final = 1 << 30
"""Octets after which it is silent."""
_CHUNK: Final = 1 << 16


class Lie(Enum):
    """What it says instead of the truth."""

    SILENT = "silent"
    DRIP = "drip"
    GARBAGE = "garbage"
    ENDLESS = "endless"


class Protocol(Enum):
    """What an answer that never ends looks like."""

    AMQP_10 = "AMQP 1.0"
    AMQP_010 = "AMQP 0-10"
    AMQP_091 = "AMQP 0-9-1"
    AMQP_091_RETURNED = "AMQP 0-9-1, a message that comes back"
    HTTP = "HTTP"
    MARIADB = "MariaDB"
    OPENWIRE = "OpenWire"
    POSTGRES = "PostgreSQL"


class LyingServer(FalseServer):
    """`target` is the true server's host and port, without which it says nothing true. Requests reach the true server
    always; instead of its replies there are lies from `lie` on, until `be_honest`."""

    def __init__(self, protocol: Protocol, target: tuple[str, int] | None = None) -> None:
        super().__init__(LyingServer._pass_on)
        self._protocol = protocol
        self._target = target
        self._lie: Lie | None = None
        self._planned: Lie | None = None
        self._when = b""

    def lie(self, lie: Lie) -> None:
        """From now on."""
        self._lie = lie

    def lie_when(self, asked: bytes, lie: Lie) -> None:
        """From the next request on that has these octets in it."""
        self._planned, self._when = lie, asked

    def be_honest(self) -> None:
        """From now on, to new connections; those that were lied to are broken."""
        self._lie = self._planned = None
        self.break_all()

    def _pass_on(self, client: socket.socket) -> None:
        server = None if self._target is None else socket.create_connection(self._target)
        if server is not None:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.keep(server)
        answers = threading.Thread(target=self._answer, args=(client, server), daemon=True)
        answers.start()

        with suppress(OSError):
            while octets := client.recv(_CHUNK):
                if self._planned is not None and self._when in octets:
                    self._lie = self._planned
                if server is not None:
                    server.sendall(octets)
        if server is not None:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
        answers.join(PATIENCE_S)
        if server is not None:
            server.close()

    def _answer(self, client: socket.socket, server: socket.socket | None) -> None:
        with suppress(OSError):
            while server is not None and (octets := server.recv(_CHUNK)):
                if self._lie is not None:
                    break
                client.sendall(octets)
            else:
                if server is not None:
                    client.shutdown(socket.SHUT_RDWR)
                    return
            self._tell(client)

    def _tell(self, client: socket.socket) -> None:
        lie = self._lie or Lie.SILENT
        if lie is Lie.GARBAGE:
            client.sendall(random.Random(7).randbytes(4096))
        elif lie is Lie.DRIP:
            for octet in itertools.chain.from_iterable(_endless(self._protocol)):
                if self.closed.wait(DRIP_S):
                    return
                client.sendall(bytes([octet]))
        elif lie is Lie.ENDLESS:
            sent = 0
            for octets in _endless(self._protocol):
                client.sendall(octets)
                sent += len(octets)
                if sent > MOST or self.closed.is_set():
                    return


def _endless(protocol: Protocol) -> Iterator[bytes]:
    """The pieces of an answer that never ends."""
    yield from _BEGINNINGS[protocol]()


def _zeros(*beginning: bytes) -> Callable[[], Iterator[bytes]]:
    def pieces() -> Iterator[bytes]:
        yield from beginning
        yield from itertools.repeat(bytes(_CHUNK))

    return pieces


def _returned_without_end() -> Iterator[bytes]:
    """AMQP 0-9-1: a message that no queue takes comes back, and its body has no end."""

    def frame(kind: int, payload: bytes) -> bytes:
        return bytes([kind]) + b"\x00\x01" + len(payload).to_bytes(4) + payload + b"\xce"

    yield frame(1, b"\x00\x3c\x00\x32" + b"\x01\x38" + b"\x02no" + b"\x01x" + b"\x01k")
    yield frame(2, b"\x00\x3c\x00\x00" + (1 << 40).to_bytes(8) + b"\x00\x00")
    yield from itertools.repeat(frame(3, bytes(100_000)))


def _rows_of_mariadb() -> Iterator[bytes]:
    """One column, and rows of a kilobyte without an end."""
    column = b"\x03def" + 4 * b"\x00" + b"\x01a" + b"\x00" + b"\x0c\x21\x00\x00\x04\x00\x00\xfd\x00\x00\x00\x00\x00"
    yield b"\x01\x00\x00\x01\x01"
    yield len(column).to_bytes(3, "little") + b"\x02" + column
    yield b"\x05\x00\x00\x03\xfe\x00\x00\x02\x00"
    row = b"\xfc\xe8\x03" + bytes(1000)
    head = len(row).to_bytes(3, "little")
    yield b"".join(head + bytes([number]) + row for number in range(4, 256))
    yield from itertools.repeat(b"".join(head + bytes([number]) + row for number in range(256)))


def _rows_of_postgres() -> Iterator[bytes]:
    """One column, and rows of a kilobyte without an end."""
    described = b"\x00\x01a\x00" + bytes(6) + (25).to_bytes(4) + b"\xff\xff" + b"\xff\xff\xff\xff" + b"\x00\x00"
    yield b"T" + (4 + len(described)).to_bytes(4) + described
    row = b"\x00\x01" + (1000).to_bytes(4) + 1000 * b"x"
    yield from itertools.repeat((b"D" + (4 + len(row)).to_bytes(4) + row) * 64)


def _frames_of_amqp_010() -> Iterator[bytes]:
    """A command in frames, of which none is the last."""
    yield b"AMQP\x01\x01\x00\x0a"
    content = bytes(65_535 - 12)
    tail = (65_535).to_bytes(2) + b"\x00\x00\x00\x00\x00\x00\x00\x00"
    yield b"\x0a\x00" + tail + content
    yield from itertools.repeat(b"\x08\x00" + tail + content)


_BEGINNINGS: Final[dict[Protocol, Callable[[], Iterator[bytes]]]] = {
    Protocol.AMQP_10: _zeros(b"AMQP\x03\x01\x00\x00", b"\x3f\xff\xff\xff\x02\x01\x00\x00"),
    Protocol.AMQP_010: _frames_of_amqp_010,
    Protocol.AMQP_091_RETURNED: _returned_without_end,
    Protocol.AMQP_091: _zeros(b"\x01\x00\x00\x3f\xff\xff\xff"),
    Protocol.HTTP: _zeros(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"),
    Protocol.MARIADB: _rows_of_mariadb,
    Protocol.OPENWIRE: _zeros(b"\x06\x3f\xff\xff"),
    Protocol.POSTGRES: _rows_of_postgres,
}


class RewritingServer(ForwardingServer):
    """A proxy before a true server, which gives `rewrite` each of the server's messages with the octets of the client's
    last request: it passes on what that makes of them. Requests that have `withheld` in them do not reach the server,
    from `armed` on, and nothing is rewritten before."""

    def __init__(
        self, protocol: Protocol, target: tuple[str, int], rewrite: Callable[[bytes, bytes], list[bytes]]
    ) -> None:
        self._protocol = protocol
        self._rewrite = rewrite
        self.armed = False
        self.withheld: bytes | None = None
        super().__init__(target)

    def be_honest(self) -> None:
        """From now on, to new connections; those that there are break."""
        self.armed = False
        self.break_all()

    def ask(self, line: Line) -> None:
        while octets := line.client.recv(_CHUNK):
            line.asked = octets
            if not (self.armed and self.withheld is not None and self.withheld in octets):
                line.server.sendall(octets)

    def answer(self, line: Line) -> None:
        with line.server.makefile("rb") as octets:
            while message := self._message(octets):
                for one in self._rewrite(line.asked, message) if self.armed else [message]:
                    line.client.sendall(one)

    def _message(self, octets: BinaryIO) -> bytes:
        if self._protocol is Protocol.MARIADB:
            head = octets.read(4)
            return head + octets.read(int.from_bytes(head[:3], "little"))
        head = octets.read(5)
        return head + octets.read(max(int.from_bytes(head[1:]) - 4, 0))
