"""These tests tell what answers at a port, for each protocol that is easily taken for another one, in the words of the
clients that met it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from dtx.amqp.protocol_detection import protocol_of
from rm_amqp import AmqpResource
from rm_amqp.amqp010.resource import QpidResource
from rm_db import MariaResource
from rm_openwire.resource import OpenWireResource
from tests.cases import each
from xa import XaError

BEGINNINGS = {
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "AMQP 1.0": b"AMQP\x00\x01\x00\x00",
    "AMQP 1.0 with SASL": b"AMQP\x03\x01\x00\x00",
    "AMQP 0-9-1": b"AMQP\x00\x00\x09\x01",
    "AMQP 0-10": b"AMQP\x01\x01\x00\x0a",
    "TLS": b"\x15\x03\x01\x00\x02\x02F",
    "OpenWire": b"\x00\x00\x01K\x01ActiveMQ\x00\x00\x00\x0c",
    "SSH": b"SSH-2.0-OpenSSH_9.2\r\n",
    "Redis": b"-ERR unknown command\r\n",
    "SMTP or FTP": b"220 mail ESMTP\r\n",
    "MariaDB or MySQL": b"I\x00\x00\x00\x0a5.5.5-10.11.6-MariaDB\x00" + b"a" * 60,
    "PostgreSQL": b"E\x00\x00\x00\x8cSFATAL\x00",
    "STOMP": b"ERROR\ncontent-type:text/plain\n\n",
}


@each("name", BEGINNINGS)
def test_what_is_known_and_what_is_not(name: str) -> None:
    assert protocol_of(BEGINNINGS[name]).endswith(f", which is {name}")
    assert protocol_of(b"\x00\x01\x02\x03" * 10) == repr(b"\x00\x01\x02\x03" * 3)
    assert protocol_of(b"") == "b''"


@contextmanager
def serving(beginning: bytes) -> Iterator[int]:
    """The port of a server that says one thing and hangs up."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):  # in the end
            while True:
                with server.accept()[0] as peer:
                    peer.sendall(beginning)
                    peer.shutdown(socket.SHUT_WR)
                    peer.recv(1000)

    thread = threading.Thread(target=serve)
    thread.start()
    port: int = server.getsockname()[1]
    yield port
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


CLIENTS = {
    "OpenWire": (OpenWireResource, "openwire://127.0.0.1:{}", "which is {}: it does not speak OpenWire at this port"),
    "AMQP 1.0": (AmqpResource, "amqp://127.0.0.1:{}", "which is {}: it does not speak AMQP 1.0 with SASL here"),
    "AMQP 0-10": (QpidResource, "amqp010://127.0.0.1:{}/default", "sent no AMQP 0-10: it begins with .*, which is {}"),
    "MariaDB": (
        MariaResource, "mariadb://u@127.0.0.1:{}/shop", "does not speak the protocol of MariaDB and MySQL",
    ),
}  # fmt: skip
MET = {
    "OpenWire": ["HTTP", "AMQP 0-9-1", "TLS", "SSH", "MariaDB or MySQL"],
    "AMQP 1.0": ["HTTP", "AMQP 0-9-1", "TLS", "OpenWire"],
    "AMQP 0-10": ["HTTP", "TLS", "OpenWire"],
    "MariaDB": ["HTTP", "SSH", "SMTP or FTP"],
}


@each(("client", "name"), [(client, name) for client, names in MET.items() for name in names])
def test_a_client_says_what_answers(client: str, name: str) -> None:
    resource, url, says = CLIENTS[client]
    with serving(BEGINNINGS[name]) as port, pytest.raises(XaError, match=says.format(name)):
        resource().open(url.format(port), 1)
