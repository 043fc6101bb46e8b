"""False servers that get a password in the clear and put it into their errors: as it is, quoted and in a URL."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import quote

from dtx.amqp.decoding import decode
from dtx.amqp.encoding import encode
from dtx.amqp.values import Described, Symbol, Ubyte, Ulong
from tests.false_server import FalseServer, mysql_packet, postgres_message

TIMEOUT_S: Final = 5


class RepeatingServer(FalseServer):
    """`received` has the passwords."""

    def __init__(self, talk: Callable[[RepeatingServer, socket.socket], None]) -> None:
        self.received: list[str] = []
        super().__init__(partial(_until_it_is_read, talk))

    def error_with(self, password: str) -> str:
        """The text of an error that repeats the password."""
        self.received.append(password)
        return f"no user with the password {password} ({password!r}), at x://shop:{quote(password, safe='')}@here"


def _until_it_is_read(
    talk: Callable[[RepeatingServer, socket.socket], None], server: RepeatingServer, client: socket.socket
) -> None:
    client.settimeout(TIMEOUT_S)
    talk(server, client)
    client.shutdown(socket.SHUT_WR)
    while client.recv(4096):  # else what it has not read breaks the connection before its error is read
        pass


def _rest(server: FalseServer, client: socket.socket, less: int = 4) -> bytes:
    """What follows a length of four octets, which counts `less` octets more than follow."""
    return server.hear(client, struct.unpack(">I", server.hear(client, 4))[0] - less)


def postgres(*, logged_in: bool) -> Callable[[RepeatingServer, socket.socket], None]:
    """It refuses the login or, `logged_in`, each statement."""

    def failed(severity: str, code: str, why: str) -> bytes:
        fields = {"S": severity, "V": severity, "C": code, "M": why, "D": why, "H": why}
        return postgres_message(b"E", b"".join(f"{key}{value}\0".encode() for key, value in fields.items()) + b"\0")

    def talk(server: RepeatingServer, client: socket.socket) -> None:
        while _rest(server, client)[:4] in {struct.pack(">I", 80877103), struct.pack(">I", 80877104)}:
            client.sendall(b"N")
        client.sendall(postgres_message(b"R", struct.pack(">I", 3)))
        server.hear(client, 1)
        why = server.error_with(_rest(server, client)[:-1].decode())
        if not logged_in:
            client.sendall(failed("FATAL", "28P01", why))
            return
        ready = postgres_message(b"Z", b"I")
        settings = {"server_version": "16.0", "client_encoding": "UTF8", "standard_conforming_strings": "on"}
        told = b"".join(postgres_message(b"S", f"{key}\0{value}\0".encode()) for key, value in settings.items())
        client.sendall(postgres_message(b"R", bytes(4)) + told + postgres_message(b"K", bytes(8)) + ready)

        while (kind := server.hear(client, 1)) != b"X":
            _rest(server, client)
            if kind in b"QS":
                client.sendall(failed("ERROR", "42601", why) + ready)

    return talk


def mariadb(*, logged_in: bool) -> Callable[[RepeatingServer, socket.socket], None]:
    """It refuses the login or, `logged_in`, each statement."""
    capabilities = 0x81BFF7FF | 0x88200

    def talk(server: RepeatingServer, client: socket.socket) -> None:
        begin = b"\x0a5.5.5-11.4.2-MariaDB\0" + struct.pack("<I", 7) + b"abcdefgh\0"
        flags = struct.pack("<HBHHB", capabilities & 0xF7FF, 33, 2, capabilities >> 16, 21)
        client.sendall(mysql_packet(0, begin + flags + bytes(10) + b"ijklmnopqrst\0mysql_native_password\0"))
        number, _ = server.hear_packet(client)
        client.sendall(mysql_packet(number + 1, b"\xfemysql_clear_password\0"))
        number, password = server.hear_packet(client)
        why = server.error_with(password.rstrip(b"\0").decode()).encode()
        if not logged_in:
            client.sendall(mysql_packet(number + 1, b"\xff" + struct.pack("<H", 1045) + b"#28000" + why))
            return
        client.sendall(mysql_packet(number + 1, b"\0\0\0\2\0\0\0"))
        while server.hear_packet(client)[1][:1] != b"\x01":
            client.sendall(mysql_packet(1, b"\xff" + struct.pack("<H", 1064) + b"#42000" + why))

    return talk


def amqp(server: RepeatingServer, client: socket.socket) -> None:
    """AMQP 1.0: it takes the login, and closes the connection."""

    def frame(kind: int, code: int, *items: object) -> bytes:
        body = encode(Described(Ulong(code), list(items)))  # type: ignore[arg-type]
        return struct.pack(">IBBH", 8 + len(body), 2, kind, 0) + body

    server.hear(client, 8)
    client.sendall(b"AMQP\x03\x01\0\0" + frame(1, 0x40, [Symbol("PLAIN")]))
    init = decode(_rest(server, client)[4:])
    assert isinstance(init, Described)
    fields = init.value
    assert isinstance(fields, list)
    assert isinstance(fields[1], bytes)
    why = server.error_with(fields[1].rpartition(b"\0")[2].decode())
    client.sendall(frame(1, 0x44, Ubyte(0)))
    server.hear(client, 8)
    client.sendall(b"AMQP\0\1\0\0")
    _rest(server, client)
    told = Described(Ulong(0x1D), [Symbol("amqp:unauthorized-access"), why, {Symbol("password"): why}])
    client.sendall(frame(0, 0x10, "false") + frame(0, 0x18, told))


def rabbitmq(server: RepeatingServer, client: socket.socket) -> None:
    """AMQP 0-9-1: it refuses the login."""

    def method(number: int, content: bytes) -> bytes:
        body = struct.pack(">HH", 10, number) + content
        return struct.pack(">BHI", 1, 0, len(body)) + body + b"\xce"

    def long(text: bytes) -> bytes:
        return struct.pack(">I", len(text)) + text

    server.hear(client, 8)
    client.sendall(method(10, b"\0\x09" + long(b"") + long(b"PLAIN") + long(b"en_US")))
    server.hear(client, 3)
    said = re.search(rb"\0shop\0(.*?)\x05en_US", _rest(server, client, -1), re.DOTALL)
    why = server.error_with(said[1].decode() if said else "").encode()[:250]
    client.sendall(method(50, struct.pack(">HB", 403, len(why)) + why + bytes(4)))


TALKS: Final[dict[str, Callable[[RepeatingServer, socket.socket], None]]] = {
    "postgresql": postgres(logged_in=False),
    "postgresql, logged in": postgres(logged_in=True),
    "mariadb": mariadb(logged_in=False),
    "mariadb, logged in": mariadb(logged_in=True),
    "amqp": amqp,
    "amqp091": rabbitmq,
}
"""The scheme that reaches it, with what is said behind a comma."""
