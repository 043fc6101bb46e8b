"""These tests send over AMQP 1.0 to our broker, and, where it is installed, to ActiveMQ Artemis."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from dtx.broker.settings import Limits, QueueSettings, Settings
from tests.rm_amqp.embedded import EmbeddedBroker
from tm import ResourceConfig
from xabridge import Message, TransactionManager
from xabridge.outbox import BrokerAway, Outbox, OutboxStore, OutgoingMessage, Relay, RelaySettings
from xabridge.outbox.amqp10 import Amqp10Publisher
from xabridge.outbox.relay import publisher_for


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Of the outbox: the kind of its database is not what is tested here."""
    return f"sqlite:///{tmp_path}/shop.db"


def bodies(broker: str, queue: str) -> list[Any]:
    """What is in a queue."""
    one = {"b": ResourceConfig(f"amqp://{broker}", "decider")}
    with TransactionManager("node-1", resources=one, background=False) as tm, tm.begin() as tx:
        return [message.body for message in tx["b"].browse(queue)]


def test_everything_arrives_in_the_order_of_its_key(broker: EmbeddedBroker, store: OutboxStore) -> None:
    outbox = Outbox()
    with store.engine.begin() as connection:
        outbox.put_all(connection, "orders", [Message({"n": n, "octets": b"\x00"}) for n in range(50)], key="k")
        outbox.put_all(connection, "others", [Message(n) for n in range(120)])
    relay = Relay(store, f"amqp://{broker.address}")
    assert relay.run_once().sent == 170
    relay.close()
    assert bodies(broker.address, "orders") == [{"n": n, "octets": b"\x00"} for n in range(50)]
    assert sorted(bodies(broker.address, "others")) == list(range(120))


def test_a_broker_that_restarts(broker: EmbeddedBroker, store: OutboxStore) -> None:
    relay = Relay(store, f"amqp://{broker.address}")
    for n in range(2):
        with store.engine.begin() as connection:
            Outbox().put(connection, "orders", Message(n), key="k")
        broker.stop()
        with pytest.raises(BrokerAway):
            relay.run_once()
        broker.start()
        relay.run_once()
    relay.close()
    assert bodies(broker.address, "orders") == [0, 1]


def test_a_broker_that_is_not_there() -> None:
    with pytest.raises(BrokerAway, match="refused"):
        Amqp10Publisher("amqp://127.0.0.1:1/?connect_timeout=1").open()


def test_more_addresses_than_links(broker: EmbeddedBroker) -> None:
    publisher = Amqp10Publisher(f"amqp://{broker.address}")
    publisher.open()
    outgoing = [OutgoingMessage(n, f"q-{n}", Message(n)) for n in range(150)]
    assert publisher.send(outgoing, time.monotonic() + 30).confirmed == set(range(150))
    publisher.close()


def test_a_message_that_is_too_long_is_refused_for_good_and_the_rest_arrives(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, settings=Settings(limits=Limits(message_octets=10_000)))
    publisher = Amqp10Publisher(f"amqp://{broker.address}")
    publisher.open()
    outgoing = [OutgoingMessage(n, "orders", Message(bytes(20_000) if n == 1 else n)) for n in range(4)]
    sent = publisher.send(outgoing, time.monotonic() + 30)
    assert sent.confirmed == {0, 2, 3}
    assert sent.refused[1].final
    publisher.close()
    broker.stop()


def test_a_full_queue_refuses_or_waits(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, settings=Settings(queue_defaults=QueueSettings(max_depth=2)))
    publisher = Amqp10Publisher(f"amqp://{broker.address}")
    publisher.open()
    sent = publisher.send([OutgoingMessage(n, "orders", Message(n)) for n in range(5)], time.monotonic() + 1)
    assert len(sent.confirmed) == 2
    assert sent.away is not None or len(sent.refused) == 3
    publisher.close()
    assert len(bodies(broker.address, "orders")) == 2
    broker.stop()


def test_schemes_and_settings(store: OutboxStore) -> None:
    assert Relay(store, "amqp://127.0.0.1", RelaySettings(batch=7)).settings.batch == 7
    assert isinstance(publisher_for("amqp://127.0.0.1"), Amqp10Publisher)
    with pytest.raises(ValueError, match="no scheme of a relay's broker"):
        publisher_for("kafka://127.0.0.1")
