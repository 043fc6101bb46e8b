"""Tests that a port stays with the process that asked for it, also while its server is stopped."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from xabridge.testing.ports import free_port

SERVER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listening:
    print("up", flush=True)
    sys.stdin.read()
"""
TAKER = "import sys; from xabridge.testing.ports import free_port; print(*(free_port() for _ in range(80)))"


def test_a_server_listens_there_and_again_after_a_stop() -> None:
    port = free_port()
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", SERVER, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"up\n"
            socket.create_connection(("127.0.0.1", port), 5).close()
            server.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)


def test_nobody_else_is_given_the_port_while_its_server_is_stopped() -> None:
    mine = {free_port() for _ in range(50)}
    assert len(mine) == 50
    taken = subprocess.run([sys.executable, "-c", TAKER], capture_output=True, text=True, check=True).stdout.split()
    assert not mine & set(map(int, taken))
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", max(mine)))


def test_the_number_of_kept_ports_is_bounded() -> None:
    for _ in range(300):
        free_port()
    with socket.create_server(("127.0.0.1", free_port())):
        pass
