"""These tests tell what answers at a port, for each protocol that is easily taken for another one, in the words of the
clients that met it.
"""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from dtx.amqp.peers import protocol_of
from rm_amqp import AmqpResource
from rm_amqp.amqp010.resource import QpidResource
from rm_db import MariaResource
from rm_openwire.resource import OpenWireResource
from xa import XaError

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.mark.parametrize("name", BEGINNINGS)
def test_what_is_known(name: str) -> None:
    assert protocol_of(BEGINNINGS[name]).endswith(f", which is {name}")


def test_what_is_not() -> None:
    assert protocol_of(b"\x00\x01\x02\x03" * 10) == repr(b"\x00\x01\x02\x03" * 3)
    assert protocol_of(b"") == "b''"


@pytest.fixture
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    """A server that says one thing and hangs up."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer:
                peer.sendall(BEGINNINGS[request.param])
                peer.shutdown(socket.SHUT_WR)
                peer.recv(1000)

    thread = threading.Thread(target=serve)
    thread.start()
    port: int = server.getsockname()[1]
    yield port
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


@pytest.mark.parametrize("port", ["HTTP", "AMQP 0-9-1", "TLS", "SSH", "MariaDB or MySQL"], indirect=True)
def test_openwire_says_what_answers(port: int, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["port"]
    with pytest.raises(XaError, match=f"which is {name}: it does not speak OpenWire at this port"):
        OpenWireResource().open(f"openwire://127.0.0.1:{port}", 1)


@pytest.mark.parametrize("port", ["HTTP", "AMQP 0-9-1", "TLS", "OpenWire"], indirect=True)
def test_amqp_says_what_answers(port: int, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["port"]
    with pytest.raises(XaError, match=f"which is {name}: it does not speak AMQP 1.0 with SASL here"):
        AmqpResource().open(f"amqp://127.0.0.1:{port}", 1)


@pytest.mark.parametrize("port", ["HTTP", "TLS", "OpenWire"], indirect=True)
def test_amqp_0_10_says_what_answers(port: int, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["port"]
    with pytest.raises(XaError, match=f"sent no AMQP 0-10: it begins with .*, which is {name}"):
        QpidResource().open(f"amqp010://127.0.0.1:{port}/default", 1)


@pytest.mark.parametrize("port", ["HTTP", "SSH", "SMTP or FTP"], indirect=True)
def test_mariadb_says_that_something_else_answers(port: int) -> None:
    with pytest.raises(XaError, match="does not speak the protocol of MariaDB and MySQL"):
        MariaResource().open(f"mariadb://u@127.0.0.1:{port}/shop", 1)
