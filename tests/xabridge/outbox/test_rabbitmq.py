"""These tests send to a real RabbitMQ over AMQP 0-9-1, and read with a client that is not ours."""

from __future__ import annotations

import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import amqp
import pytest

from dtx.amqp.values import Symbol, Timestamp
from tests.cases import each
from tests.lying_server import Lie, LyingServer, Protocol
from tests.rabbitmq import RabbitMQ
from tests.test_lying_servers import all_at_once
from tests.waiting import until
from xabridge import Message
from xabridge.outbox import BrokerAway, Outbox, OutboxStore, OutgoingMessage, Relay, RelaySettings
from xabridge.outbox.rabbitmq import RabbitPublisher, RabbitSettings, Unsendable, place, properties

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("outbox"), pytest.mark.timeout(600)]


def queue(channel: Any, name: str | None = None, **arguments: Any) -> str:
    """A durable queue with nothing in it."""
    name = name or f"q-{uuid.uuid4()}"
    channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
    return name


def drained(channel: Any, name: str) -> list[Any]:
    """Every message of a queue."""
    found = []
    while (message := channel.basic_get(name, no_ack=True)) is not None:
        found.append(message)
    return found


@pytest.fixture
def publisher(rabbitmq: RabbitMQ) -> Iterator[RabbitPublisher]:
    publisher = RabbitPublisher(rabbitmq.url)
    publisher.open()
    yield publisher
    publisher.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Of the outbox: the kind of its database is not what is tested here."""
    return f"sqlite:///{tmp_path}/shop.db"


def send(publisher: RabbitPublisher, *messages: tuple[str, Message]) -> Any:
    """Sends these, with numbers from 0."""
    outgoing = [OutgoingMessage(number, to, message) for number, (to, message) in enumerate(messages)]
    return publisher.send(outgoing, time.monotonic() + 30)


def test_a_message_as_rabbitmq_has_it(publisher: RabbitPublisher, channel: Any) -> None:
    name = queue(channel)
    message = Message(
        {"number": 7}, id="m-1", subject="created", correlation_id=4, reply_to="answers", priority=7, ttl=60.0,
        creation_time=1_700_000_000.0, content_encoding="identity",
        properties={"a": 1, "b": "text", "c": None, "d": True, "e": 1.5, "f": [1, "x"], "g": {"h": b"o"}},
    )  # fmt: skip
    assert send(publisher, (name, message)).confirmed == {0}
    (got,) = drained(channel, name)
    assert got.body == b'{"number": 7}'

    assert got.properties == {
        "message_id": "m-1",
        "type": "created",
        "correlation_id": "4",
        "reply_to": "answers",
        "priority": 7,
        "expiration": "60000",
        "timestamp": 1_700_000_000,
        "content_type": "application/json",
        "content_encoding": "identity",
        "delivery_mode": 2,
        "application_headers": {"a": 1, "b": "text", "c": None, "d": True, "e": 1.5, "f": [1, "x"], "g": {"h": "o"}},
    }


BODIES: list[tuple[Message, bytes, str | None]] = [
    (Message(None), b"", None),
    (Message(b"\x00\xff"), b"\x00\xff", None),
    (Message("Grüße"), "Grüße".encode(), "text/plain; charset=utf-8"),
    (Message([1, "ü", None]), '[1, "ü", null]'.encode(), "application/json"),
    (Message(True), b"true", "application/json"),
    (Message("<a/>", content_type="text/xml"), b"<a/>", "text/xml"),
]


@each(("message", "octets", "kind"), BODIES)
def test_bodies(message: Message, octets: bytes, kind: str | None) -> None:
    made = properties(message)
    assert made.body == octets
    assert made.properties.get("content_type") == kind


@each(
    "message",
    [
        Message({"octets": b"x"}),
        Message(float("nan")),
        Message(1, id="x" * 256),
        Message(1, reply_to="ü" * 200),
        Message(1, properties={"n": 1 << 63}),
        Message(1, properties={"x" * 256: 1}),
        Message(1, properties={"s": {1, 2}}),
        Message(1, properties={"t": Timestamp(1 << 62)}),
        Message(1, properties={"t": [Timestamp(-(10**15))]}),
        Message(1, properties={"f": float("nan")}),
        Message(1, properties={"f": float("-inf")}),
        Message(1, creation_time=-5.0),
    ],
)
def test_what_amqp_0_9_1_does_not_have(message: Message) -> None:
    with pytest.raises(Unsendable):
        properties(message)


def test_values_of_amqp_1_0_as_headers() -> None:
    found = properties(
        Message(1, properties={"t": Timestamp(1_700_000_000_123), "s": Symbol("x"), "u": uuid.UUID(int=1)})
    )
    headers = found.properties["application_headers"]
    assert headers == {"t": datetime.fromtimestamp(1_700_000_000, UTC), "s": "x", "u": str(uuid.UUID(int=1))}


@each(
    ("destination", "exchange", "key"),
    [
        ("orders", "", "orders"),
        ("/queues/orders", "", "orders"),
        ("/queues/a%2Fb%20c", "", "a/b c"),
        ("/exchanges/amq.topic/eu.orders", "amq.topic", "eu.orders"),
        ("/exchanges/amq.fanout", "amq.fanout", ""),
        ("/exchanges/x/", "x", ""),
    ],
)
def test_destinations(destination: str, exchange: str, key: str) -> None:
    assert (place(destination).exchange, place(destination).routing_key) == (exchange, key)


@each("wrong", ["/", "/queues/", "/queues/a/b", "/exchanges//k", "/exchanges/a/b/c", "/topics/x", "q" * 256])
def test_destinations_that_are_none(wrong: str) -> None:
    with pytest.raises(Unsendable):
        place(wrong)


def test_what_no_queue_takes_is_refused_and_the_rest_arrives(publisher: RabbitPublisher, channel: Any) -> None:
    name = queue(channel)
    channel.queue_bind(name, "amq.topic", "eu.#")
    topic = "/exchanges/amq.topic/eu.orders"
    sent = send(publisher, (name, Message(1)), ("no-such-queue", Message(2)), (topic, Message(3)))
    assert sent.confirmed == {0, 2}
    assert "no queue takes it" in sent.refused[1].why
    assert [message.body for message in drained(channel, name)] == [b"1", b"3"]


def test_a_missing_exchange_harms_nothing_else(publisher: RabbitPublisher, channel: Any) -> None:
    name = queue(channel)
    sent = send(
        publisher, *((name, Message(n)) for n in range(20)), ("/exchanges/none/x", Message("bad")), (name, Message(20))
    )
    assert sent.confirmed == set(range(20)) | {21}
    assert sent.refused.keys() == {20}
    assert "no exchange 'none'" in sent.refused[20].why
    assert {int(message.body) for message in drained(channel, name)} == set(range(21))
    assert send(publisher, (name, Message("after"))).confirmed == {0}


def test_a_full_queue_refuses(publisher: RabbitPublisher, channel: Any) -> None:
    limits: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    name = queue(channel, **limits)
    first = send(publisher, (name, Message(1)))
    assert first.confirmed == {0}
    second = send(publisher, (name, Message(2)))
    assert "basic.nack" in second.refused[0].why


def test_a_user_without_the_right_is_refused_and_the_relay_goes_on(
    store: OutboxStore, rabbitmq: RabbitMQ, channel: Any
) -> None:
    name = queue(channel)
    with store.engine.begin() as connection:
        Outbox().put(connection, "/exchanges/amq.rabbitmq.log/x", Message("no right"))
        Outbox().put(connection, name, Message("fine"))
    relay = Relay(store, rabbitmq.url, RelaySettings(max_attempts=1))
    done = relay.run_once()
    relay.close()
    assert done.sent == 1
    assert len(drained(channel, name)) == 1


def test_confirmations_of_a_server_that_lies(rabbitmq: RabbitMQ) -> None:
    """Other lies, and other drivers: `test_lying_servers.py`."""
    host, _, port = rabbitmq.address.partition(":")

    def case(lie: Lie, protocol: Protocol = Protocol.AMQP_091) -> Callable[[], None]:
        def run() -> None:
            with LyingServer(protocol, (host, int(port))) as server:
                publisher = RabbitPublisher(f"amqp091://guest:guest@127.0.0.1:{server.port}", connect_s=2)
                publisher.open()
                server.lie(lie)
                sent = publisher.send(
                    [OutgoingMessage(1, "/exchanges/amq.fanout/k", Message("x"))], time.monotonic() + 0.5
                )
                assert (sent.confirmed, sent.refused) == (set(), {})
                assert sent.away
                publisher.close()

        return run

    returned = ("returned", case(Lie.ENDLESS, Protocol.AMQP_091_RETURNED))
    all_at_once([returned, *((lie.value, case(lie)) for lie in Lie)])


@pytest.mark.parametrize("immediate", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_server_that_is_killed_while_the_relay_works(
    rabbitmq_server: RabbitMQ, store: OutboxStore, *, immediate: bool
) -> None:
    """Everything arrives, in the order of its key."""
    rabbitmq_server.start()
    with amqp.Connection(rabbitmq_server.address, "guest", "guest") as connection:
        name = queue(connection.channel())
    outbox, stop = Outbox(), threading.Event()
    written = 0
    relay = Relay(store, rabbitmq_server.url, RelaySettings(timeout_s=10, poll_s=0.01, batch=20))
    relay.start()

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            with store.engine.begin() as connection:
                outbox.put(connection, name, Message(written), key="k")
            written += 1
            time.sleep(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    until(lambda: written - store.figures().waiting > 20)
    rabbitmq_server.stop(immediate=immediate)
    before = written
    until(lambda: written > before + 20)
    stop.set()  # what waits is sent one after the other
    writer.join()
    rabbitmq_server.start()
    until(lambda: not store.figures().waiting)
    relay.stop()
    with amqp.Connection(rabbitmq_server.address, "guest", "guest") as connection:
        got = [int(message.body) for message in drained(connection.channel(), name)]
    assert list(dict.fromkeys(got)) == list(range(written))


def test_a_server_that_is_not_there(rabbitmq: RabbitMQ) -> None:
    with pytest.raises(BrokerAway, match=r"RabbitMQ at 127\.0\.0\.1:1:"):
        RabbitPublisher("amqp091://127.0.0.1:1/").open()
    with pytest.raises(BrokerAway) as refused:
        RabbitPublisher(f"amqp091://guest:wr%40ng@{rabbitmq.address}/").open()
    assert "wr@ng" not in str(refused.value)
    with pytest.raises(BrokerAway, match="nowhere"):
        RabbitPublisher(f"amqp091://guest:guest@{rabbitmq.address}/nowhere").open()


def test_an_idle_connection_is_kept(rabbitmq: RabbitMQ, channel: Any) -> None:
    publisher = RabbitPublisher(f"{rabbitmq.url}?heartbeat=1")
    publisher.open()
    name = queue(channel)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        publisher.keep_alive()
        time.sleep(0.2)
    connection = publisher._connection
    assert send(publisher, (name, Message(1))).confirmed == {0}
    assert publisher._connection is connection
    publisher.close()


def test_open_strings() -> None:
    full = RabbitSettings.parse("amqp091://u%40x:p%2Fw@rabbit:5673/a%2Fb?heartbeat=5", {})
    told = (full.host, full.user, full.password, full.virtual_host, full.heartbeat_s)
    assert told == ("rabbit:5673", "u@x", "p/w", "a/b", 5)
    plain = RabbitSettings.parse("amqp091://rabbit", {})
    assert (plain.host, plain.user, plain.password, plain.virtual_host) == ("rabbit:5672", "guest", "guest", "/")
    secret = RabbitSettings.parse("amqp091://u@rabbit/?password_env=SECRET", {"SECRET": "s3"})
    assert secret.password == "s3"  # noqa: S105 — of the test
    assert "s3" not in repr(secret)
    assert RabbitSettings.parse("amqp091s://rabbit", {}).host == "rabbit:5671"
    for wrong in ("h?x=1", "h:port/", "h?password_env=NONE", "h?heartbeat=x"):
        with pytest.raises(ValueError, match=r"\S"):
            RabbitSettings.parse(f"amqp091://{wrong}", {})
    with pytest.raises(ValueError, match=r"\S"):
        RabbitSettings.parse("amqp091s://h?ca=/none", {})


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2"])
def test_tls_checks_who_answers(host: str) -> None:
    """With the broker's certificate for localhost: nothing is said to the same broker under another name."""
    folder = Path(__file__).parents[2] / "interop" / "certificates"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "broker.pem", folder / "broker.key")
    listener = socket.create_server(("0.0.0.0", 0))  # noqa: S104 — 127.0.0.2, too
    said: list[bytes] = []

    def serve() -> None:
        client, _ = listener.accept()
        with client, suppress(OSError), context.wrap_socket(client, server_side=True) as encrypted:
            said.append(encrypted.recv(8))

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(BrokerAway):
        RabbitPublisher(f"amqp091s://{host}:{listener.getsockname()[1]}?ca={folder / 'ca.pem'}", connect_s=5).open()
    thread.join()
    listener.close()
    assert [octets for octets in said if octets] == ([b"AMQP\x00\x00\x09\x01"] if host == "localhost" else [])
