"""These tests run proton's own clients against the embedded broker: the blocking one, with links that are refused, cut
off, attached again and filtered, and the Container with its transactions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest
from proton import ConnectionException, Delivery, Described, Link, Message, SSLDomain, symbol
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, Copy, Filter, LinkOption, Selector
from proton.utils import BlockingConnection, LinkDetached, SyncRequestResponse

from dtx.broker.access.credentials import set_password
from xabridge.testing.broker import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CERTIFICATES: Final = Path(__file__).with_name("certificates")
RIGHT: Final = {"user": "alice", "password": "wonderland", "allowed_mechs": "PLAIN"}


def opened(broker: BrokerProcess) -> BlockingConnection:
    """One more connection."""
    return BlockingConnection(f"amqp://127.0.0.1:{broker.port}", timeout=20)


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[BlockingConnection]:
    """A blocking connection."""
    connection = opened(broker)
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
    for number in range(100):
        assert sender.send(Message(body=number)).remote_state == Delivery.ACCEPTED
    receiver = connection.create_receiver("proton.order", credit=50)
    for number in range(100):
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


def test_an_address_of_the_brokers_own_is_refused(connection: BlockingConnection) -> None:
    with pytest.raises(LinkDetached, match="not-found"):
        connection.create_receiver("$nothing")


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
        "[broker.limits]\nmessage_octets = 32768\n"
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


def signed_in(port: int, domain: SSLDomain | None, **given: Any) -> BlockingConnection:
    """A connection to `localhost`, as the certificate has it."""
    scheme = "amqps" if domain is not None else "amqp"
    return BlockingConnection(f"{scheme}://localhost:{port}", timeout=30, ssl_domain=domain, **given)


def test_a_password_over_tls(secured: BrokerProcess, domain: SSLDomain) -> None:
    connection = signed_in(secured.ports[1], domain, **RIGHT)
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


def test_a_message_that_is_too_large_is_refused(secured: BrokerProcess, domain: SSLDomain) -> None:
    """In one frame: proton's client, when it is told of the refusal in the middle of a longer message, writes the rest
    of it to a handle that no link has (4294967294), for which every peer has to close the connection."""
    connection = signed_in(secured.ports[1], domain, **RIGHT)
    sender = connection.create_sender("shared")
    with pytest.raises(LinkDetached, match="message-size-exceeded"):
        sender.send(Message(body=b"x" * 33_000))
    assert browsed(connection, "shared") == []
    connection.close()


def test_a_certificate_over_tls(secured: BrokerProcess, domain: SSLDomain) -> None:
    domain.set_credentials(f"{CERTIFICATES}/client.pem", f"{CERTIFICATES}/client.key", None)
    connection = signed_in(secured.ports[1], domain, allowed_mechs="EXTERNAL")
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
        signed_in(secured.ports[1], domain, **given)


def test_a_password_goes_over_no_open_wire(secured: BrokerProcess) -> None:
    with pytest.raises(ConnectionException):
        signed_in(secured.ports[0], None, **RIGHT)


MEGABYTE: Final = 1 << 20
NO_TOPICS: Final = "not-implemented|not-found|not-allowed|invalid-field"


class Options(LinkOption):
    """Sets at a link what proton has no option for."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        self._change = change

    def apply(self, link: Any) -> None:
        """Called before the link is attached."""
        self._change(link)


def bodies(connection: BlockingConnection, address: str, *options: LinkOption) -> list[Any]:
    """Takes what is in a queue now."""
    receiver: Any = connection.create_receiver(address, credit=0, name=f"takes {uuid4()}", options=[*options])
    receiver.link.drain(1000)
    connection.wait(lambda: receiver.link.credit == 0)
    found = []
    while receiver.fetcher.has_message:
        found.append(receiver.fetcher.pop().body)
        receiver.accept()
    receiver.close()
    return found


def useful(connection: BlockingConnection, address: str) -> bool:
    """Whether a message goes through on this connection."""
    connection.create_sender(address, name=f"after {address} {uuid4()}").send(Message(body="still useful"))
    return bodies(connection, address) == ["still useful"]


def written(connection: Any) -> None:
    """Waits until everything is on its way."""
    connection.wait(lambda: connection.conn.transport.pending() == 0)


# --- addresses
def dynamic(link: Any) -> None:
    """Asks for an address."""
    link.target.dynamic = True


def test_a_dynamic_target(broker: BrokerProcess, connection: BlockingConnection) -> None:
    sender: Any = connection.create_sender(None, options=Options(dynamic))
    address = sender.link.remote_target.address
    assert address
    assert sender.send(Message(body="to a dynamic target")).remote_state == Delivery.ACCEPTED
    other = opened(broker)
    receiver = other.create_receiver(address, credit=1)
    assert receiver.receive(10).body == "to a dynamic target"
    receiver.accept()
    sender.close()
    with pytest.raises(LinkDetached, match="not-found"):
        other.create_sender(address)
    other.close()


def test_a_dynamic_source_is_answered_from_another_connection(
    broker: BrokerProcess, connection: BlockingConnection
) -> None:
    other = opened(broker)
    requests = other.create_receiver("proton.requests", credit=1)
    client = SyncRequestResponse(connection, "proton.requests")
    request = Message(body="request")
    request.reply_to, request.correlation_id = client.reply_to, "1"
    client.sender.send(request)
    received: Any = requests.receive(10)
    requests.accept()
    reply = Message(body="reply")
    reply.correlation_id = received.correlation_id
    other.create_sender(received.reply_to).send(reply)
    connection.wait(lambda: client.response is not None)
    response: Any = client.response
    assert response.body == "reply"
    other.close()


def test_a_sender_without_an_address(connection: Any) -> None:
    sender = connection.create_sender(None)
    offered = [str(capability) for capability in connection.conn.remote_offered_capabilities or ()]
    assert "ANONYMOUS-RELAY" in offered
    for address in ("proton.to.one", "proton.to.two"):
        assert sender.send(Message(address=address, body=address)).remote_state == Delivery.ACCEPTED
    assert bodies(connection, "proton.to.one") == ["proton.to.one"]
    assert bodies(connection, "proton.to.two") == ["proton.to.two"]


def test_topics_are_refused(connection: BlockingConnection) -> None:
    def topical(link: Any) -> None:
        for terminus in (link.source, link.target):
            terminus.capabilities.put_symbol("topic")

    accepted = []
    cases: list[tuple[str, list[LinkOption]]] = [("topic://proton.topic", []), ("proton.topic", [Options(topical)])]
    for address, options in cases:
        for attach in (connection.create_sender, connection.create_receiver):
            try:
                attach(address, options=options, name=f"{attach.__name__} {address}")
            except LinkDetached as error:
                assert error.condition.removeprefix("amqp:") in NO_TOPICS.split("|")  # noqa: PT017 — of some attempts
            else:
                accepted.append((attach.__name__, address))
    assert accepted == []
    assert useful(connection, "proton.after.topics")


# --- filters
def test_a_selector(connection: BlockingConnection) -> None:
    sender = connection.create_sender("proton.selected")
    for number in range(30):
        sender.send(Message(body=number, properties={"number": number, "kind": "odd" if number % 2 else "even"}))
    assert bodies(connection, "proton.selected", Selector("kind = 'odd' AND number > 20")) == [21, 23, 25, 27, 29]
    assert bodies(connection, "proton.selected", Selector("number IN ('1', '2', '3')")) == [], "a number is no string"
    assert bodies(connection, "proton.selected") == [*range(21), 22, 24, 26, 28]


def test_a_selector_that_is_wrong(connection: BlockingConnection) -> None:
    with pytest.raises(LinkDetached, match="invalid-field"):
        connection.create_receiver("proton.selected.wrongly", options=Selector("number IN ("))
    assert useful(connection, "proton.selected.wrongly")


def test_a_filter_that_is_not_in_force_is_not_in_the_answer(connection: BlockingConnection) -> None:
    unknown = Filter({symbol("example:nothing"): Described(symbol("example:nothing:string"), "nothing")})
    receiver: Any = connection.create_receiver("proton.filtered", options=unknown)
    answered = receiver.link.remote_source.filter
    answered.rewind()
    assert not (answered.next() and answered.get_object()), "what is echoed is promised"


# --- deliveries that are cut off
def abort_delivery(link: Any) -> None:
    """Takes back what was sent of the delivery."""
    link.current.abort()


def close(link: Any) -> None:
    """Closes the link in the middle of the delivery."""
    link.close()


def test_a_message_that_its_sender_cuts_off(connection: BlockingConnection) -> None:
    for cut in (abort_delivery, close):
        sender: Any = connection.create_sender("proton.cut", name=f"cut {uuid4()}")
        sender.link.delivery("in parts")
        for _ in range(10):
            sender.link.stream(bytes(MEGABYTE))
            written(connection)
        cut(sender.link)
        assert useful(connection, "proton.cut"), "and nothing of the message is in the queue"


def test_a_message_of_70_mb_is_cut_off_by_the_broker(connection: BlockingConnection) -> None:
    sender: Any = connection.create_sender("proton.excessive")
    assert sender.link.remote_max_message_size == 64 * MEGABYTE
    sender.link.delivery("in parts")
    with pytest.raises(LinkDetached, match="message-size-exceeded"):
        for _ in range(70):
            sender.link.stream(bytes(MEGABYTE))
            written(connection)
        connection.wait(lambda: False, timeout=10)
    assert useful(connection, "proton.excessive")


# --- links and sessions, opened and closed
def test_a_link_is_detached_and_attached_again(connection: BlockingConnection) -> None:
    sender = connection.create_sender("proton.again")
    for number in range(3):
        sender.send(Message(body=number))
    receiver: Any = connection.create_receiver("proton.again", credit=2, name="again")
    assert [receiver.receive(10).body for _ in range(2)] == [0, 1]
    receiver.accept()
    receiver.link.detach()
    assert useful(connection, "proton.detached"), "the answer to the detach has come, too"
    again = connection.create_receiver("proton.again", credit=3, name="again")
    assert [again.receive(10).body for _ in range(2)] == [1, 2]


def test_the_receiver_settles_second(connection: BlockingConnection) -> None:
    def second(link: Any) -> None:
        link.rcv_settle_mode = Link.RCV_SECOND

    connection.create_sender("proton.second").send(Message(body=1))
    receiver: Any = connection.create_receiver("proton.second", credit=1, options=Options(second))
    assert receiver.link.remote_rcv_settle_mode == Link.RCV_SECOND
    assert receiver.receive(10).body == 1
    delivery = receiver.fetcher.unsettled[0]
    delivery.update(Delivery.ACCEPTED)
    connection.wait(lambda: delivery.settled)
    delivery.settle()
    receiver.close()
    assert bodies(connection, "proton.second") == []
