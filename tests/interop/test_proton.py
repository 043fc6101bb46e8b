"""These tests run proton's own clients against the embedded broker: the Container with its transactions, the blocking
client with TLS, and with messages that it cuts off.

Proton's protocol engine is that of rm_amqp too: what any client does, these tests leave to those of rhea and Qpid JMS.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from proton import ConnectionException, Message, SSLDomain
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, Copy
from proton.utils import BlockingConnection, LinkDetached

from dtx.broker.access.credentials import set_password
from xabridge.testing.broker import BrokerProcess
from xabridge.testing.contract.client import case

CERTIFICATES: Final = Path(__file__).with_name("certificates")
pytestmark = pytest.mark.slow
RIGHT: Final[dict[str, Any]] = {"user": "alice", "password": "wonderland", "allowed_mechs": "PLAIN"}
MEGABYTE: Final = 1 << 20


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[BlockingConnection]:
    """A blocking connection."""
    connection = BlockingConnection(f"amqp://127.0.0.1:{broker.port}", timeout=20)
    yield connection
    connection.close()


def browsed(connection: BlockingConnection, address: str) -> list[Any]:
    """What stands in a queue and nobody holds."""
    receiver: Any = connection.create_receiver(address, credit=0, name=f"browser {uuid4()}", options=Copy())
    receiver.link.drain(1000)
    connection.wait(lambda: receiver.link.credit == 0)
    found = [message.body for message, _ in receiver.fetcher.incoming]
    receiver.close()
    return found


# --- transactions
class Client(MessagingHandler, TransactionHandler):
    """Runs one transaction after the other, once so many messages are there. Each takes some of them, sends some texts,
    and commits or not."""

    def __init__(self, port: int, address: str, *transactions: tuple[int, str, bool], wanted: int = 0) -> None:
        super().__init__(prefetch=10, auto_accept=False)
        self._url = f"127.0.0.1:{port}"
        self._address = address
        self._transactions = list(transactions)
        self._wanted = wanted
        self._sender: Any = None
        self._declared: Any = None
        self._received: list[Any] = []
        self.ended: list[str] = []

    def on_start(self, event: Any) -> None:
        """Opens both directions."""
        connection = event.container.connect(self._url, reconnect=False)
        self._sender = event.container.create_sender(connection, self._address)
        if self._wanted:
            event.container.create_receiver(connection, self._address)
        event.container.declare_transaction(connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        """The next one, when its messages are there."""
        self._declared = event.transaction
        self._go_on()

    def on_message(self, event: Any) -> None:
        """Kept until a transaction takes it."""
        self._received.append(event.delivery)
        self._go_on()

    def on_sendable(self, event: Any) -> None:
        """The transaction may have waited for it."""
        del event
        self._go_on()

    def _go_on(self) -> None:
        if self._declared is None or len(self._received) < self._wanted or self._sender.credit <= 0:
            return
        transaction, self._declared = self._declared, None
        takes, texts, commits = self._transactions.pop(0)
        for _ in range(takes):
            transaction.accept(self._received.pop(0))
        for text in texts.split():
            transaction.send(self._sender, Message(body=text))
        transaction.commit() if commits else transaction.abort()

    def on_transaction_committed(self, event: Any) -> None:
        """Declares the next one, or ends."""
        self._end(event, "committed")

    def on_transaction_aborted(self, event: Any) -> None:
        """Declares the next one, or ends."""
        self._end(event, "aborted")

    def on_transaction_commit_failed(self, event: Any) -> None:
        """Declares the next one, or ends."""
        self._end(event, "commit failed")

    def _end(self, event: Any, how: str) -> None:
        self.ended.append(how)
        if self._transactions:
            event.container.declare_transaction(event.connection, handler=self)
        else:
            event.connection.close()


def test_posts_become_available_with_their_commit(broker: BrokerProcess, connection: BlockingConnection) -> None:
    client = Client(broker.port, "proton.posted", (0, "a b", True), (0, "lost", False), (0, "c", True))
    Container(client).run()
    assert client.ended == ["committed", "aborted", "committed"]
    assert browsed(connection, "proton.posted") == ["a", "b", "c"]


def test_messages_are_retired_with_the_commit_only(broker: BrokerProcess, connection: BlockingConnection) -> None:
    sender = connection.create_sender("proton.retired")
    for text in ("first", "second"):
        sender.send(Message(body=text))
    for takes, commits, left in ((1, False, ["first", "second"]), (2, True, ["third"])):
        client = Client(broker.port, "proton.retired", (takes, "third", commits), wanted=2)
        Container(client).run()
        assert client.ended == ["committed" if commits else "aborted"]
        assert sorted(browsed(connection, "proton.retired")) == left


# --- users with passwords and certificates, over TLS
@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that listens with TLS and without, for `alice` (password) and `orders-svc` (certificate)."""
    folder = tmp_path_factory.mktemp("secured")
    set_password(folder / "users", "alice", "wonderland", iterations=4096)
    config = folder / "broker.toml"
    config.write_text(
        f'[broker]\nusers = "{folder}/users"\nlisten = ["127.0.0.1:0"]\nlisten_tls = ["127.0.0.1:0"]\n'
        f'certificate = "{CERTIFICATES}/broker.pem"\nkey = "{CERTIFICATES}/broker.key"\n'
        f'client_ca = "{CERTIFICATES}/ca.pem"\n'
        '[broker.permissions."*"]\nproduce = ["shared"]\ncreate = ["shared", "own.*"]\n'
        '[broker.permissions.alice]\nproduce = ["own.alice"]\nconsume = ["shared"]\n'
        '[broker.permissions.orders-svc]\nproduce = ["own.orders"]\n'
    )
    process = BrokerProcess(folder, "--config", str(config))
    process.start()

    try:
        yield process
        assert process.stop() == 0
    finally:
        process.kill()


def signed_in(secured: BrokerProcess, *, tls: bool = True, certificate: bool = False, **given: Any) -> Any:
    """A connection to `localhost`, as the broker's certificate has it; with a certificate of our own, or without."""
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(f"{CERTIFICATES}/ca.pem")
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    if certificate:
        domain.set_credentials(f"{CERTIFICATES}/client.pem", f"{CERTIFICATES}/client.key", None)
    url = f"amqps://localhost:{secured.ports[1]}" if tls else f"amqp://localhost:{secured.ports[0]}"
    return BlockingConnection(url, timeout=30, ssl_domain=domain if tls else None, **given)


def test_a_password_over_tls(secured: BrokerProcess) -> None:
    connection = signed_in(secured, **RIGHT)
    for address in ("shared", "own.alice"):
        connection.create_sender(address).send(Message(body=1))
    receiver = connection.create_receiver("shared")
    assert receiver.receive(30).body == 1
    receiver.accept()
    for forbidden in ("own.orders", "elsewhere"):
        with pytest.raises(LinkDetached, match="unauthorized-access"):
            connection.create_sender(forbidden)
    with pytest.raises(LinkDetached, match="unauthorized-access"):
        connection.create_receiver("own.alice")
    connection.close()


def test_a_certificate_over_tls(secured: BrokerProcess) -> None:
    connection = signed_in(secured, certificate=True, allowed_mechs="EXTERNAL")
    connection.create_sender("own.orders").send(Message(body=1))
    with pytest.raises(LinkDetached, match="unauthorized-access"):
        connection.create_sender("own.alice")
    connection.close()


def test_others_are_kept_out(secured: BrokerProcess) -> None:
    cases: tuple[dict[str, Any], ...] = (
        {**RIGHT, "password": "wrong"},
        {**RIGHT, "user": "mallory"},
        {"allowed_mechs": "ANONYMOUS"},
        {"allowed_mechs": "EXTERNAL"},  # without a certificate
        {**RIGHT, "tls": False},  # a password goes over no open wire
    )
    for given in cases:
        with case(given), pytest.raises(ConnectionException):
            signed_in(secured, **given)


# --- deliveries that are cut off
def test_a_message_that_its_sender_cuts_off(connection: Any) -> None:
    """With an abort, or with its link: nothing of it is in the queue, and the connection goes on."""
    for number, aborts in enumerate((True, False)):
        sender = connection.create_sender("proton.cut", name=f"cut {number}")
        sender.link.delivery("in parts")
        for _ in range(10):
            sender.link.stream(bytes(MEGABYTE))
            connection.wait(lambda: connection.conn.transport.pending() == 0)
        (sender.link.current.abort if aborts else sender.link.close)()
        connection.create_sender("proton.cut", name=f"after {number}").send(Message(body=number))
        assert browsed(connection, "proton.cut") == list(range(number + 1))
