"""These tests start servers as tests do: a port stays with the process that asked for it; servers leave each other's
files alone, and end with the process that started them, in every way that a run of tests is ended.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import output_of
from tests.waiting import until
from xabridge.testing import process_lifetime
from xabridge.testing.mariadb import MariaDB
from xabridge.testing.ports import free_port

PATIENCE_S = 60.0
HEARS = """
import signal  # who has started the tests may have made them deaf, and what they start
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
"""
STARTS = """
import os, subprocess, sys, time
sys.path.append(sys.argv[2])  # the folder: its package takes long to load
from process_lifetime import marked_environment

DEAF = "trap '' TERM; while :; do sleep 600; done"
ORPHAN = f'sh -c "{DEAF}" >&2 & echo $!'
for program in (f"echo $$; exec >&2; {DEAF}", ORPHAN):
    started = subprocess.Popen(["sh", "-c", program], env=marked_environment(), stdout=subprocess.PIPE, text=True)
    print(started.stdout.readline().strip(), end=" ")
print(flush=True)
"""
REALLY_STARTS = """
import sys, time
from pathlib import Path
from xabridge.testing.broker import BrokerProcess
broker = BrokerProcess(Path(sys.argv[1]))
broker.start()
print(broker.pid, flush=True)
"""
CHILDREN = "/proc/{0}/task/{0}/children"
SLEEPS = "time.sleep(600)"
WAYS = {
    "it ends": "",
    "it raises": "raise RuntimeError",
    "SIGKILL": SLEEPS,
    "SIGTERM": SLEEPS,
    "SIGINT": SLEEPS,
    "SIGHUP": SLEEPS,
    "SIGTERM for all": SLEEPS,
    "os._exit": "os._exit(0)",
    "a fork goes on": "os.fork() or time.sleep(2)",
}
SERVER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listening:
    print("up", flush=True)
    sys.stdin.read()
"""
TAKER = "import sys; from xabridge.testing.ports import free_port; print(*(free_port() for _ in range(80)))"


def ended(way: str, starts: str, folder: Path) -> list[int]:
    """The servers that a process has started, which has been ended in that way."""
    words = [sys.executable, "-c", HEARS + starts + WAYS[way], str(folder), str(Path(process_lifetime.__file__).parent)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        servers = [int(pid) for pid in process.stdout.readline().split()]
        if way.startswith("SIG"):
            assert all(map(runs, servers)), "they go on while their process does"
            if way.endswith("all"):  # its watch is a child of its own
                for child in Path(CHILDREN.format(process.pid)).read_text().split():
                    os.kill(int(child), signal.SIGTERM)
            process.send_signal(signal.Signals[way.split(maxsplit=1)[0]])
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
    return servers


def runs(pid: int) -> bool:
    """Whether it is there, and not only its exit code."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_servers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    servers = {way: ended(way, STARTS, tmp_path) for way in WAYS}
    assert [len(each) for each in servers.values()] == [2] * len(WAYS)
    servers["a broker"] = ended("SIGKILL", REALLY_STARTS, tmp_path)

    def left() -> list[str]:
        return [way for way, each in servers.items() if any(map(runs, each))]

    until(lambda: not left(), left)


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
    """The number of ports that are kept is bounded."""
    for _ in range(260):
        free_port()
    mine = {free_port() for _ in range(50)}
    assert len(mine) == 50
    assert not mine & set(map(int, output_of(TAKER).split()))
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", max(mine)))
    with socket.create_server(("127.0.0.1", free_port())):
        pass


@pytest.mark.slow
def test_temporary_tables_outlast_the_start_of_another_server(mariadb: MariaDB) -> None:
    """A server that starts removes the temporary tables that it finds in its folder for them. With one folder for all,
    another server's installation, which works with such tables, ended with "Unknown table"."""
    other = MariaDB()
    mariadb.admin("CREATE OR REPLACE DATABASE kept")
    try:
        with mariadb.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE kept.kept (id INT) ENGINE = Aria")
            other.start()
            cursor.execute("DROP TEMPORARY TABLE kept.kept")
            cursor.execute("SHOW WARNINGS")
            assert not cursor.fetchall()
    finally:
        other.remove()
