"""These tests send messages through ActiveMQ Classic and ActiveMQ Artemis, and look at what comes out."""

from __future__ import annotations

from uuid import uuid4

import pytest

from rm_amqp import Message, NoMessage
from rm_openwire.messages import address_of, decoded_message, destination_of, encoded_message
from rm_openwire.wire import (
    Destination,
    DestinationInfo,
    MapMessage,
    ObjectMessage,
    Queue,
    RemoveInfo,
    StreamMessage,
    TemporaryQueue,
    TemporaryTopic,
    TextMessage,
    Topic,
)
from tests.rm_amqp.client import batches
from tests.rm_amqp.messaging_suite import *  # noqa: F403 — the suite
from tests.rm_openwire.client import RMID, Client, new_name
from tests.rm_openwire.java_brokers import JavaBroker
from tests.waiting import until
from xa import Code, ResourceError, XaMisuse


def test_ids_are_text() -> None:
    name = uuid4()
    wire = encoded_message(Message("x", id=7, correlation_id=name), 0.0)
    got = decoded_message(wire, 0)
    assert (got.id, got.correlation_id) == ("7", str(name))


@pytest.mark.parametrize("wire", [ObjectMessage(content=b"\xac\xed"), StreamMessage(content=b"")])
def test_kinds_that_are_refused_by_name(wire: ObjectMessage | StreamMessage) -> None:
    with pytest.raises(ResourceError, match=type(wire).__name__):
        decoded_message(wire, 0)


@pytest.mark.parametrize(
    "wire",
    [
        TextMessage(content=b"\0\0\0\7x"),
        TextMessage(content=b"\0\0\0\1\xff"),
        MapMessage(content=b"\0\0\0\1"),
        TextMessage(properties=b"\x7f\xff\xff\xff"),
        TextMessage(content=b"no zlib", compressed=True),
    ],
)
def test_what_can_not_be_read(wire: TextMessage | MapMessage) -> None:
    with pytest.raises(ResourceError, match="can't be read"):
        decoded_message(wire, 0)


def test_prefetch(client: Client, queue: str) -> None:
    client.put(queue, [*map(str, range(30))])
    other = Client(client.url.partition("?")[0], "prefetch=10")
    with other.work() as session:
        assert [session.receive(queue, 5).body for _ in range(15)] == [str(n) for n in range(15)]
    with other.work() as session:
        assert session.receive(queue, 5).body == "15"
        with pytest.raises(NoMessage):
            session.receive(new_name(), 0)
    other.rm.close("", RMID)  # in order, so that the broker has what was sent ahead back
    left = [str(n) for n in range(16, 30)]  # Artemis answers before each of them is back in the queue
    until(lambda: client.look(queue) == left, lambda: client.look(queue))


def test_selectors(client: Client, queue: str) -> None:
    with client.work() as session:
        for number in range(6):
            session.send(queue, Message(str(number), properties={"number": number}))
    with client.work() as session:
        assert session.receive(queue, 5, selector="number > 3").body == "4"
        assert [message.body for message in session.browse(queue, selector="number < 2")] == ["0", "1"]
        with pytest.raises(XaMisuse, match="can't be received"):
            session.receive(queue, 1, selector="this is ( none")
    assert client.look(queue) == ["0", "1", "2", "3", "5"]


def test_what_is_put_away(client: Client, queue: str) -> None:
    dead = new_name("dead")
    other = Client(client.url.partition("?")[0], f"dead_letter_queue={dead}")
    other.put(queue, ["rejected", "taken", "letter", "undeliverable"])
    with other.work() as session:
        rejected, _, letter, undeliverable = batches(session, queue, 4)
        session.reject(rejected)
        session.dead_letter(letter, f"{dead}-letters", {"reason": "bad", "last-ms": 5})
        session.modify(undeliverable, undeliverable=True)
        with pytest.raises(XaMisuse, match="settled already"):
            session.release(rejected)

    assert other.look(queue) == []
    assert sorted(other.look(dead)) == ["rejected", "undeliverable"]
    with other.work() as session:
        got = session.receive(f"{dead}-letters", 5)
        assert got.properties == {"x-opt-dead-reason": "bad", "x-opt-dead-last-ms": 5}
    other.rm.drop()


def test_a_message_that_can_not_be_read_is_put_away(client: Client) -> None:
    queue, dead = new_name(), new_name("dead")
    other = Client(client.url.partition("?")[0], f"dead_letter_queue={dead}")
    xid, session = other.begin()
    work = session._work
    assert work is not None
    session.send(queue, Message("first"))
    connection = work._connection
    assert connection is not None
    with connection.lock:
        wire = StreamMessage(persistent=True, content=b"", destination=Queue(queue))
        work._send(connection, queue, wire)

    other.end(xid)
    other.rm.prepare(xid, RMID)
    other.rm.commit(xid, RMID)
    with other.work() as session:
        assert [message.body for message in session.receive_batch(queue, 5, 5)] == ["first"]
    says = rf"StreamMessage .* Catch this and commit, and it goes to {dead}"
    with other.work() as session, pytest.raises(ResourceError, match=says):
        session.receive(queue, 5)
    with other.work() as session, pytest.raises(NoMessage):
        session.receive(queue, 0)
    with other.work() as session, pytest.raises(ResourceError, match="StreamMessage"):
        session.receive(dead, 5)
    other.rm.drop()


def test_a_topic_is_sent_to_and_not_received_from(client: Client) -> None:
    with client.work() as session:
        session.send(f"topic://{new_name('topic')}", Message("x"))
        with pytest.raises(XaMisuse, match="topic"):
            session.receive("topic://news", 1)


@pytest.mark.parametrize("kind", [Queue, Topic, TemporaryQueue, TemporaryTopic])
def test_every_kind_of_destination_has_an_address_of_its_own(kind: type[Destination]) -> None:
    assert destination_of(str(address_of(kind("ID:a:1")))) == kind("ID:a:1")


def test_a_reply_to_a_temporary_queue(client: Client, broker: JavaBroker) -> None:
    queue, other = new_name(), Client(client.url.partition("?")[0])
    asked, asking = other.begin()
    assert asking._work is not None
    connection = asking._work._connection
    assert connection is not None
    answers = TemporaryQueue(f"{connection.name}:1")
    with connection.lock:
        connection.ask(DestinationInfo(connection_id=connection.connection_id, destination=answers))
    with client.work() as session:
        session.send(queue, Message("request", reply_to=address_of(answers)))
    with client.work() as session:
        request = session.receive(queue, 5)
        assert request.reply_to is not None
        session.send(request.reply_to, Message("reply"))

    assert asking.receive(request.reply_to, 5).body == "reply"
    other.end(asked)
    other.rm.rollback(asked, RMID)
    with connection.lock:
        connection.ask(RemoveInfo(object_id=connection.connection_id))

    with client.work() as session:
        if broker.kind == "ActiveMQ Classic":  # Artemis makes a queue of it
            with pytest.raises(XaMisuse, match="temp-queue") as refused:
                session.send(request.reply_to, Message("late"))
            assert refused.value.code is Code.XAER_INVAL
        session.send(queue, Message("went on"))
    assert client.look(queue) == ["went on"]
    other.rm.drop()
