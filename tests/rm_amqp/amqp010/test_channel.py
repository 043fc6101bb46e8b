"""These tests cover a channel over a socket, at peers that are no brokers of this kind."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from rm_amqp.amqp010.frames import PROTOCOL
from rm_amqp.amqp010.resource import QpidResource
from xa import Code, XaError

if TYPE_CHECKING:
    from collections.abc import Iterator

RMID = 3


@contextmanager
def says(octets: bytes | None) -> Iterator[int]:
    """A server that says this to everybody, and then waits; None: it closes at once. Where it listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                kept.append(connection)
                if octets is None:
                    connection.close()
                elif octets:
                    connection.sendall(octets)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in kept:
                connection.close()


@pytest.mark.parametrize(
    ("octets", "code", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", Code.XAER_RMFAIL, "no AMQP 0-10"),
        (b"AMQP\x00\x01\x00\x00", Code.XAER_RMERR, r"offers AMQP 1\.0\.0, not 0-10"),
        (PROTOCOL + b"\x0f\x00\x00\x03" + bytes(20), Code.XAER_RMFAIL, "no AMQP 0-10"),
        (PROTOCOL + b"\xff" * 4000, Code.XAER_RMFAIL, "no AMQP 0-10"),
        (b"", Code.XAER_RMFAIL, "did not answer in time"),
        (None, Code.XAER_RMFAIL, "was lost"),
    ],
)
def test_a_peer_that_is_no_such_broker(octets: bytes | None, code: Code, told: str) -> None:
    with says(octets) as port:
        rm = QpidResource()
        with pytest.raises(XaError, match=told) as raised:
            rm.open(f"amqp010://127.0.0.1:{port}/?connect_timeout=0.5", RMID)
        assert raised.value.code is code
        (check,) = rm.diagnose(f"amqp010://127.0.0.1:{port}/?connect_timeout=0.5").checks
        assert check.mend
        rm.driver.drop()


def test_a_server_without_tls() -> None:
    with says(PROTOCOL) as port:
        rm = QpidResource()
        with pytest.raises(XaError, match="can't be trusted, or speaks no TLS") as raised:
            rm.open(f"amqp010s://127.0.0.1:{port}/", RMID)
        assert raised.value.code is Code.XAER_RMERR
        rm.driver.drop()
