"""These tests run `xabridge broker` and `python -m dtx` as processes, and check their messages, their exit and the
state that they leave.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import ConnectionException, Message, SSLDomain
from proton.utils import BlockingConnection

from dtx.amqp.sasl import ClientPolicy, SaslClient
from dtx.amqp.sasl.layer import SaslError
from dtx.broker.command import main
from dtx.store.contract import Batch
from dtx.store.sql import SqlStore
from xa import Xid
from xabridge.testing.broker import BrokerProcess

pytestmark = pytest.mark.slow
CERTIFICATES = Path(__file__).parents[2] / "interop" / "certificates"
WAIT_S = 60


def ran(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """`python -m dtx`, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "dtx", *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )


def connected(broker: BrokerProcess, **how: Any) -> BlockingConnection:
    scheme = "amqps" if "ssl_domain" in how else "amqp"
    return BlockingConnection(f"{scheme}://localhost:{broker.port}", timeout=WAIT_S, **how)


def authenticated(broker: BrokerProcess, user: str, password: str) -> str:
    """The mechanism by which a client of ours showed who it is; SaslError where it could not."""
    client = SaslClient(ClientPolicy(user, password), encrypted=False, hostname="localhost", nonce=os.urandom)
    with socket.create_connection((broker.host, broker.port), WAIT_S) as connection:
        while not client.done and not client.failed:
            if client.computation is not None:
                client.computed(client.computation())
            octets = client.output()
            if octets:
                connection.sendall(octets)
            elif client.computation is None:
                octets = connection.recv(4096)
                assert octets, "the broker closed the connection without a word"
                client.feed(octets)
    if client.failed:
        raise SaslError(str(client.failure))
    return client.mechanism


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts a broker with these flags."""
    processes: list[BrokerProcess] = []

    def start(*flags: str) -> BrokerProcess:
        processes.append(BrokerProcess(tmp_path, *flags))
        processes[-1].start()
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


@pytest.fixture
def broker(started: Callable[..., BrokerProcess]) -> BrokerProcess:
    return started()


def test_messages_are_there_after_a_stop_and_after_a_kill(broker: BrokerProcess, tmp_path: Path) -> None:
    """Peers are told of the stop. A second broker is told who has the store."""
    for body, end in (("first", broker.stop), ("second", broker.kill)):
        connection = connected(broker)
        connection.create_sender("q").send(Message(body=body))
        receiver = connected(broker).create_receiver("nothing")
        assert end() in {0, None}
        if end == broker.stop:
            with pytest.raises(ConnectionException, match="the broker shuts down"):
                receiver.receive(WAIT_S)
        broker.start()
    receiver = connected(broker).create_receiver("q")
    assert [receiver.receive(WAIT_S).body for _ in range(2)] == ["first", "second"]

    done = ran("--store", f"sqlite:///{tmp_path}/store.db", "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert done.stderr.startswith("xabridge broker: the store is in use by process ")


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    """SIGTERM is how the others are stopped."""
    with subprocess.Popen(
        ["xabridge", "broker", "--listen", "127.0.0.1:0", "--store", f"sqlite:///{tmp_path}/s"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        executable=str(Path(sys.executable).with_name("xabridge")),
    ) as process:
        assert process.stdout is not None
        assert "listening on 127.0.0.1:" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (0, "")
    assert errors.splitlines() == [
        "xabridge broker: no users are configured: everybody on this machine may do everything (127.0.0.1)"
    ]


def test_an_address_that_is_taken_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--store", f"sqlite:///{tmp_path}/s", "--listen", f"127.0.0.1:{port}"]) == 1
    told = capsys.readouterr().err
    assert f"127.0.0.1', {port}" in told
    assert told.count("\n") == 1


WRONG = [
    (("--listen", "0.0.0.0:0"), "everybody could do everything. Configure users and permissions"),
    (("--listen", "nowhere"), "--listen: expected host:port, or a list of them, not ['nowhere']"),
    (("--listen-tls", "127.0.0.1:0"), "TLS needs a certificate and its key"),
    (("--users", "/nonexistent/users", "--listen", "127.0.0.1:0"), "/nonexistent/users"),
    (("--set-password", "alice"), "--set-password needs the file of users"),
]


def test_a_wrong_configuration_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of them by a process, the others by what the process calls."""
    store = ("--store", f"sqlite:///{tmp_path}/s")
    done = ran(*store, *WRONG[0][0])
    told = [(done.returncode, done.stderr)]
    told += [(main([*store, *flags]), capsys.readouterr().err) for flags, _ in WRONG[1:]]
    for (code, said), (_, says) in zip(told, WRONG, strict=True):
        assert code == 2
        assert says in said
        assert said.count("\n") == 1
    assert not (tmp_path / "s").exists(), "and nothing was touched"


def test_passwords_are_set_and_asked_for(
    tmp_path: Path, started: Callable[..., BrokerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go over an open wire only where that is allowed."""
    users = tmp_path / "users"
    for name, password in (("alice", "wonderland"), ("bob", "builder")):
        monkeypatch.setattr("sys.stdin", io.StringIO(password + "\n"))
        assert main(["--users", str(users), "--set-password", name]) == 0
    assert ran("--users", str(users), "--set-password", "alice", given="looking-glass\n").returncode == 0
    assert "looking-glass" not in users.read_text()
    flags = ("--listen", "127.0.0.1:0", "--users", str(users))
    process = started(*flags)
    assert authenticated(process, "alice", "looking-glass") == "SCRAM-SHA-256"
    for user, password in (("alice", "wonderland"), ("carol", "looking-glass"), ("", "")):
        with pytest.raises(SaslError):
            authenticated(process, user, password)

    right = {"user": "alice", "password": "looking-glass", "allowed_mechs": "PLAIN", "allow_insecure_mechs": True}
    with pytest.raises(ConnectionException):
        connected(process, **right)
    assert "no permissions are configured: every authenticated client may do everything" in process.errors()
    assert process.stop() == 0
    connected(started(*flags, "--plain-without-tls"), **right).create_sender("q").send(Message(body=1))


def test_certificates_alone_are_users_too(started: Callable[..., BrokerProcess]) -> None:
    files = {"certificate": "broker.pem", "key": "broker.key", "client-ca": "ca.pem"}
    flags = [part for name, file in files.items() for part in (f"--{name}", str(CERTIFICATES / file))]
    process = started("--listen-tls", "127.0.0.1:0", *flags)
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(f"{CERTIFICATES}/ca.pem")
    with pytest.raises(ConnectionException):
        connected(process, ssl_domain=domain)
    domain.set_credentials(f"{CERTIFICATES}/client.pem", f"{CERTIFICATES}/client.key", None)
    connected(process, ssl_domain=domain, allowed_mechs="EXTERNAL").create_sender("q").send(Message(body=1))


def filled(where: str, messages: int, branches: int) -> None:
    """A store with messages in a queue, and with branches that retire one each, and post one each."""
    completions: list[Callable[[], None]] = []
    store = SqlStore(where, completions.append)
    store.open()
    number = store.first_number
    failures: list[object] = []
    batch = Batch()
    batch.create_queue(number, "q")
    for message in range(number + 1, number + 1 + messages):
        body = Message(body=message - number - 1)
        batch.enqueue(message, number, message, bytes(body.encode()))

    first, at = number + 1, number + 1 + messages
    for branch in range(branches):
        batch.enqueue(at, number, 0, bytes(100))
        xid = Xid(1, b"restart-%d" % branch, b"")
        batch.prepare(at + 1, xid, "", 1, enqueues=[at], dequeues=[(first + branch, b"\x00\x53\x24\x45")])
        at += 2
    store.submit(batch, failures.append)
    store.close()
    for completion in completions:
        completion()
    assert failures == [None]


def test_a_start_with_many_messages_takes_little(tmp_path: Path, started: Callable[..., BrokerProcess]) -> None:
    """The processor's time is measured, as the machine has other things to do; what a start takes on a machine of
    its own stands in docs/performance.md."""
    filled(f"sqlite:///{tmp_path}/store.db", 30_000, 3_000)
    process = started()
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    assert sum(map(int, fields[11:13])) / 100 < 5
    receiver = connected(process).create_receiver("q")
    assert receiver.receive(WAIT_S).body == 3_000, "the first one that no branch holds"
