"""These tests run proton's own clients against the embedded broker: the blocking one, and the Container with its
transactions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from proton import ConnectionException, Delivery, Message, SSLDomain
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, Copy
from proton.utils import BlockingConnection, LinkDetached, SyncRequestResponse

from dtx.broker.access.credentials import set_password
from xabridge.testing.broker import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CERTIFICATES: Final = Path(__file__).with_name("certificates")
RIGHT: Final = {"user": "alice", "password": "wonderland", "allowed_mechs": "PLAIN"}


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[BlockingConnection]:
    """A blocking connection."""
    connection = BlockingConnection(f"amqp://127.0.0.1:{broker.port}", timeout=30)
    yield connection
    connection.close()


def browsed(connection: BlockingConnection, address: str) -> list[Any]:
    """What stands in a queue and nobody holds."""
    receiver: Any = connection.create_receiver(address, credit=0, name=f"browser of {address}", options=Copy())
    receiver.link.drain(1000)
    connection.wait(lambda: receiver.link.credit == 0)
    found = [message.body for message, _ in receiver.fetcher.incoming]
    receiver.close()
    return found


def test_messages_go_through_a_queue_in_their_order(connection: BlockingConnection) -> None:
    sender = connection.create_sender("proton.order")
    for number in range(200):
        assert sender.send(Message(body=number)).remote_state == Delivery.ACCEPTED
    receiver = connection.create_receiver("proton.order", credit=50)
    for number in range(200):
        assert receiver.receive(30).body == number
        receiver.accept()
    assert browsed(connection, "proton.order") == []


def test_a_large_message_arrives_as_it_was(connection: BlockingConnection) -> None:
    body = bytes(range(256)) * 8192
    connection.create_sender("proton.large").send(Message(id="large", body=body))
    receiver = connection.create_receiver("proton.large", credit=1)
    message: Any = receiver.receive(30)
    assert message.id == "large"
    assert bytes(message.body) == body
    receiver.accept()


def test_outcomes(connection: BlockingConnection) -> None:
    sender = connection.create_sender("proton.outcomes")
    receiver = connection.create_receiver("proton.outcomes", credit=1)
    sender.send(Message(body="once more"))
    counts = []
    for outcome in (receiver.release, receiver.release, receiver.accept):
        counts.append(receiver.receive(30).delivery_count)
        outcome()
        receiver.link.flow(1)
    assert counts == [0, 0, 0], "proton's release is a modified that says nothing of a failure"
    sender.send(Message(body="unwanted"))
    receiver.receive(30)
    receiver.reject()
    dead = connection.create_receiver("proton.outcomes.dead", credit=1)
    assert dead.receive(30).body == "unwanted"
    dead.accept()


def test_an_address_of_the_brokers_own_is_refused(connection: BlockingConnection) -> None:
    with pytest.raises(LinkDetached, match="not-found"):
        connection.create_receiver("$nothing")


def test_management_answers_a_request(connection: BlockingConnection) -> None:
    connection.create_sender("proton.managed").send(Message(body=1))
    client = SyncRequestResponse(connection, "$management")
    response: Any = client.call(Message(properties={"operation": "queues"}))
    depths = {queue["name"]: queue["depth"] for queue in response.body}
    assert depths["proton.managed"] == 1


class Client(MessagingHandler, TransactionHandler):
    """Runs one transaction after the other: `steps` get the handler when a transaction was declared, and end by
    committing or aborting it."""

    def __init__(self, port: int, address: str, steps: list[Callable[[Client], None]], wanted: int = 0) -> None:
        super().__init__(prefetch=10, auto_accept=False)
        self._url = f"127.0.0.1:{port}"
        self._address = address
        self._steps = steps
        self._wanted = wanted
        self.sender: Any = None
        self.transaction: Any = None
        self.received: list[Any] = []
        self.ended: list[str] = []
        self._declared = False

    def on_start(self, event: Any) -> None:
        """Opens both directions."""
        connection = event.container.connect(self._url, reconnect=False)
        self.sender = event.container.create_sender(connection, self._address)
        if self._wanted:
            event.container.create_receiver(connection, self._address)
        event.container.declare_transaction(connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        """The next step, when its messages are there."""
        self.transaction = event.transaction
        self._declared = True
        self._go_on()

    def on_message(self, event: Any) -> None:
        """Kept until the step comes."""
        self.received.append((event.message, event.delivery))
        self._go_on()

    def on_sendable(self, event: Any) -> None:
        """The step may have waited for it."""
        del event
        self._go_on()

    def _go_on(self) -> None:
        if self._declared and len(self.received) >= self._wanted and self.sender.credit > 0 and self._steps:
            self._declared = False
            self._steps.pop(0)(self)

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
        if self._steps:
            event.container.declare_transaction(event.connection, handler=self)
        else:
            event.connection.close()


def send(*texts: str) -> Callable[[Client], None]:
    """Sends under the transaction."""

    def step(client: Client) -> None:
        for text in texts:
            client.transaction.send(client.sender, Message(body=text))

    return step


def then(*actions: Callable[[Client], None]) -> Callable[[Client], None]:
    """One action after the other."""

    def step(client: Client) -> None:
        for action in actions:
            action(client)

    return step


def commit(client: Client) -> None:
    """Commits."""
    client.transaction.commit()


def abort(client: Client) -> None:
    """Rolls back."""
    client.transaction.abort()


def take(client: Client) -> None:
    """Accepts the first message under the transaction."""
    client.transaction.accept(client.received.pop(0)[1])


def test_posts_become_available_with_their_commit(broker: BrokerProcess, connection: BlockingConnection) -> None:
    steps = [then(send("a", "b"), commit), then(send("lost"), abort), then(send("c"), commit)]
    client = Client(broker.port, "proton.posted", steps)
    Container(client).run()
    assert client.ended == ["committed", "aborted", "committed"]
    assert browsed(connection, "proton.posted") == ["a", "b", "c"]


def test_messages_are_retired_with_the_commit_only(broker: BrokerProcess, connection: BlockingConnection) -> None:
    sender = connection.create_sender("proton.retired")
    for text in ("first", "second"):
        sender.send(Message(body=text))
    client = Client(broker.port, "proton.retired", [then(take, send("third"), abort)], wanted=2)
    Container(client).run()
    assert client.ended == ["aborted"]
    assert sorted(browsed(connection, "proton.retired")) == ["first", "second"]
    client = Client(broker.port, "proton.retired", [then(take, take, send("third"), commit)], wanted=2)
    Container(client).run()
    assert client.ended == ["committed"]
    assert browsed(connection, "proton.retired") == ["third"]


def test_a_message_that_is_too_large_is_refused(tmp_path: Path) -> None:
    """In one frame: proton's client, when it is told of the refusal in the middle of a longer message, writes the rest
    of it to a handle that no link has (4294967294), for which every peer has to close the connection."""
    config = tmp_path / "broker.toml"
    config.write_text('[broker]\nlisten = ["127.0.0.1:0"]\n[broker.limits]\nmessage_octets = 32768\n')
    process = BrokerProcess(tmp_path, "--config", str(config))
    process.start()
    try:
        connection = BlockingConnection(f"amqp://127.0.0.1:{process.port}", timeout=30)
        sender = connection.create_sender("proton.limited")
        with pytest.raises(LinkDetached, match="message-size-exceeded"):
            sender.send(Message(body=b"x" * 33_000))
        assert browsed(connection, "proton.limited") == []
        connection.close()
        assert process.stop() == 0
    finally:
        process.kill()


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


@pytest.fixture
def domain() -> SSLDomain:
    """A client's TLS."""
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(f"{CERTIFICATES}/ca.pem")
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    return domain


def opened(port: int, domain: SSLDomain | None, **given: Any) -> BlockingConnection:
    """A connection to `localhost`, as the certificate has it."""
    scheme = "amqps" if domain is not None else "amqp"
    return BlockingConnection(f"{scheme}://localhost:{port}", timeout=30, ssl_domain=domain, **given)


def test_a_password_over_tls(secured: BrokerProcess, domain: SSLDomain) -> None:
    connection = opened(secured.ports[1], domain, **RIGHT)
    for address in ("shared", "own.alice"):
        connection.create_sender(address).send(Message(body=1))
    assert connection.create_receiver("shared").receive(30).body == 1
    for forbidden in ("own.orders", "elsewhere"):
        with pytest.raises(LinkDetached, match="unauthorized-access"):
            connection.create_sender(forbidden)
    with pytest.raises(LinkDetached, match="unauthorized-access"):
        connection.create_receiver("own.alice")
    connection.close()


def test_a_certificate_over_tls(secured: BrokerProcess, domain: SSLDomain) -> None:
    domain.set_credentials(f"{CERTIFICATES}/client.pem", f"{CERTIFICATES}/client.key", None)
    connection = opened(secured.ports[1], domain, allowed_mechs="EXTERNAL")
    connection.create_sender("own.orders").send(Message(body=1))
    with pytest.raises(LinkDetached, match="unauthorized-access"):
        connection.create_sender("own.alice")
    connection.close()


@pytest.mark.parametrize(
    "given",
    [
        {**RIGHT, "password": "wrong"},
        {**RIGHT, "user": "mallory"},
        {"allowed_mechs": "ANONYMOUS"},
        {"allowed_mechs": "EXTERNAL"},
    ],
)
def test_others_are_kept_out(secured: BrokerProcess, domain: SSLDomain, given: dict[str, str]) -> None:
    with pytest.raises(ConnectionException):
        opened(secured.ports[1], domain, **given)


def test_a_password_goes_over_no_open_wire(secured: BrokerProcess) -> None:
    with pytest.raises(ConnectionException):
        opened(secured.ports[0], None, **RIGHT)
