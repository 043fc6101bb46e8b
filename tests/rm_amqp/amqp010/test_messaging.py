"""These tests cover what an application does with messages over Qpid Broker-J, and how they are mapped."""

from __future__ import annotations

import asyncio
import gzip
import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from dtx.amqp.values import Described, Timestamp, Uint
from rm_amqp import Message, NoMessage
from rm_amqp.amqp010.session import Content
from rm_amqp.amqp010.structs import DeliveryProperties, MessageProperties, MessageTransfer, QueueDelete
from tests.rm_amqp.client import RMID
from xa import TMSUCCESS, BranchRolledBack, Code, ResourceError, XaError, XaMisuse

if TYPE_CHECKING:
    from tests.broker_j import BrokerJ
    from tests.rm_amqp.amqp010.client import QpidClient

BODIES = [
    None,
    "text",
    "",
    b"octets",
    {"number": 1, "nested": {"list": [1, "two", 3.0, None, True, b"b", UUID(int=7)]}},
    [1, -1, 2**63, {"a": Uint(3)}, Timestamp(5)],
    {},
    [],
]


@pytest.mark.parametrize("body", BODIES, ids=repr)
def test_every_kind_of_body_arrives_as_it_was_sent(client: QpidClient, queue: str, body: Any) -> None:
    client.put(queue, [body])
    assert client.take(queue).body == body


def test_properties_arrive_as_they_were_sent(client: QpidClient, queue: str) -> None:
    sent = Message(
        "text",
        id=UUID(int=9),
        subject="subject",
        correlation_id="c-1",
        reply_to="answers",
        properties={"number": 7, "flag": True, "nothing": None, "text": "x"},
        annotations={"x-opt-own": "y"},
        priority=7,
        ttl=3600.0,
        content_type="text/plain; charset=utf-8",
        group_id="g",
        group_sequence=3,
        reply_to_group_id="r",
        creation_time=1_700_000_000.5,
    )
    client.put(queue, [sent])
    got = client.take(queue)
    for name in (
        "body", "id", "subject", "correlation_id", "reply_to", "properties", "annotations", "priority", "ttl",
        "content_type", "group_id", "group_sequence", "reply_to_group_id", "creation_time",
    ):  # fmt: skip
        assert getattr(got, name) == getattr(sent, name), name
    assert got.durable, "always"
    assert got.address == queue
    assert got.delivery_count == 0
    assert abs(got.expiry_time - time.time() - 3600) < 60


@pytest.mark.parametrize("told", ["text", 7, UUID(int=3)])
def test_ids_of_every_kind(client: QpidClient, queue: str, told: Any) -> None:
    client.put(queue, [Message("x", id=told, correlation_id=told)])
    got = client.take(queue)
    assert (got.id, got.correlation_id) == (told, told)


@pytest.mark.parametrize(
    "message",
    [
        Message(7),
        Message({"a": object()}),
        Message({1: "a"}),
        Message([Described(Uint(1), "x")]),
        Message("x", properties={"qpid.subject": "mine"}),
        Message("x", annotations={"own": 1}),
        Message("x", instructions={"x-opt-a": 1}),
        Message({"a": 1}, content_type="text/plain"),
        Message("x", subject="s" * 70_000),
        Message("x", content_type="c" * 300),
        Message("x", priority=10),
        Message("x", content_type="amqp/map"),
        Message(b"x", content_type="amqp-0-10/list"),
        Message("x", content_encoding="gzip"),
        Message(gzip.compress(b"x")[:-1], content_encoding="gzip"),
        Message("x", priority=300),
    ],
)
def test_what_can_not_be_told_is_refused(client: QpidClient, queue: str, message: Message) -> None:
    xid = client.start()
    with pytest.raises(XaMisuse) as refused:
        client.session.send(queue, message)
    assert refused.value.code is Code.XAER_INVAL
    client.session.send(queue, Message("after it"))
    client.commit(xid)
    assert client.look(queue) == ["after it"]


def test_a_long_message_and_many_of_them(client: QpidClient, queue: str) -> None:
    long = "x" * 1_000_000
    client.put(queue, [long, *range_of(300)])
    assert client.take(queue).body == long
    xid = client.start()
    assert [message.body for message in client.session.receive_batch(queue, 1000, 5)] == range_of(300)
    client.commit(xid, two_phase=True)
    assert client.look(queue) == []


def test_thousands_of_messages_in_a_branch(client: QpidClient, queue: str) -> None:
    bodies = range_of(5000)
    client.put(queue, bodies)
    xid = client.start()
    messages = client.session.receive_batch(queue, 5000, 5)
    assert [message.body for message in messages] == bodies
    for message in messages[::2]:
        client.session.release(message)
    client.commit(xid, two_phase=True)
    assert client.look(queue) == bodies[::2]


def range_of(count: int) -> list[str]:
    return [f"m-{number}" for number in range(count)]


def test_what_is_taken_is_gone_and_what_is_rolled_back_comes_again(client: QpidClient, queue: str) -> None:
    client.put(queue, ["a", "b"])
    xid = client.start()
    assert client.session.receive(queue, 5).body == "a"
    client.session.send(f"{queue}-other", Message("answer"))
    client.rollback(xid)
    assert client.look(f"{queue}-other") == []
    assert client.look(queue) == ["a", "b"]
    xid = client.start()
    again = client.session.receive(queue, 5)
    assert (again.body, again.delivery_count) == ("a", 1)
    client.commit(xid, two_phase=True)
    assert client.look(queue) == ["b"]


def test_no_message_comes_in_time(client: QpidClient, queue: str) -> None:
    xid = client.start()
    for timeout_s in (0, 0.05):
        with pytest.raises(NoMessage):
            client.session.receive(queue, timeout_s)
        assert client.session.receive_batch(queue, 5, timeout_s) == []
    client.commit(xid)
    client.put(queue, ["a"])
    assert client.look(queue) == ["a"], "no credit was left with which somebody would have got it"


def test_messages_are_given_back(client: QpidClient, queue: str) -> None:
    client.put(queue, ["released", "failed", "kept"])
    xid = client.start()
    released, failed, kept = client.session.receive_batch(queue, 3, 5)
    client.session.release(released)
    client.session.modify(failed)
    with pytest.raises(XaMisuse):
        client.session.modify(kept, undeliverable=True)
    with pytest.raises(XaMisuse, match="dead letters"):
        client.session.reject(kept)
    client.commit(xid)
    xid = client.start()
    assert [(each.body, each.delivery_count) for each in client.session.receive_batch(queue, 3, 5)] == [
        ("released", 0),
        ("failed", 1),
    ]
    client.commit(xid)


def test_a_dead_letter_goes_with_the_branch(client: QpidClient, queue: str) -> None:
    client.put(queue, [Message({"a": 1}, subject="s", properties={"p": 1})])
    for commit in (False, True):
        xid = client.start()
        message = client.session.receive(queue, 5)
        client.session.dead_letter(message, f"{queue}-other", {"reason": "bad", "at-ms": 12})
        (client.commit if commit else client.rollback)(xid)
        assert len(client.look(f"{queue}-other")) == commit
    letter = client.take(f"{queue}-other")
    assert (letter.body, letter.subject, letter.properties) == ({"a": 1}, "s", {"p": 1})
    assert letter.annotations == {"x-opt-dead-reason": "bad", "x-opt-dead-at": 12}
    assert client.look(queue) == []


def test_a_queue_that_is_not_there(client: QpidClient, queue: str) -> None:
    xid = client.start()
    for call in (lambda: client.session.receive("nowhere", 0), lambda: client.session.send("nowhere", Message("x"))):
        with pytest.raises(XaMisuse, match="has no queue 'nowhere'"):
            call()
    with pytest.raises(XaMisuse):
        client.session.send("", Message("x"))
    client.session.send(queue, Message("after it"))
    client.commit(xid)
    assert client.look(queue) == ["after it"]


def test_nothing_is_sent_to_a_queue_that_does_not_outlive_the_broker(
    client: QpidClient, broker_j: BrokerJ, queue: str
) -> None:
    broker_j.make(f"{queue}-passing", durable=False)
    xid = client.start()
    with pytest.raises(ResourceError, match="is not durable"):
        client.session.send(f"{queue}-passing", Message("x"))
    client.rollback(xid)


def test_a_message_that_was_not_routed_fails_the_branch(client: QpidClient, broker_j: BrokerJ, queue: str) -> None:
    """The queue is deleted after it was found."""
    client.put(f"{queue}-other", ["seen"])
    channel = broker_j.connect()
    number = channel.send(QueueDelete(f"{queue}-other"), sync=True)
    channel.wait_complete(number, time.monotonic() + 5)
    channel.close(time.monotonic() + 2)
    xid = client.start()
    client.session.send(queue, Message("x"))
    client.session.send(f"{queue}-other", Message("x"))
    with pytest.raises(BranchRolledBack, match="did not take a message"):
        client.rm.end(xid, RMID, TMSUCCESS)
    with pytest.raises(BranchRolledBack):
        client.rm.prepare(xid, RMID)
    assert client.look(queue) == []


def test_a_body_that_is_not_what_its_type_says_is_octets(client: QpidClient, broker_j: BrokerJ, queue: str) -> None:
    channel = broker_j.connect()
    for content_type in ("amqp/map", "text/plain"):
        content = Content(
            DeliveryProperties(routing_key=queue, delivery_mode=2),
            MessageProperties(content_type=content_type),
            b"\xff\xff",
        )
        channel.send(MessageTransfer("", 1, 0), content)
    channel.wait_complete(channel.session.sync(), time.monotonic() + 5)
    channel.close(time.monotonic() + 2)
    client.put(queue, ["good"])
    xid = client.start()
    for content_type in ("amqp/map", "text/plain"):
        message = client.session.receive(queue, 5)
        assert (message.body, message.content_type) == (b"\xff\xff", content_type)
    assert client.session.receive(queue, 5).body == "good", "nothing stands before it"
    client.commit(xid)


def test_the_broker_inflates_what_is_compressed(client: QpidClient, queue: str) -> None:
    xid = client.start()
    client.session.send(queue, Message(gzip.compress(b"octets"), content_encoding="gzip"))
    client.session.send(queue, Message(b"own", content_encoding="x-own"))
    client.commit(xid)
    xid = client.start()
    inflated, own = client.session.receive_batch(queue, 2, 5)
    assert (inflated.body, inflated.content_encoding) == (b"octets", None)
    assert (own.body, own.content_encoding) == (b"own", "x-own")
    client.commit(xid)


def test_the_same_for_asyncio(client: QpidClient, queue: str) -> None:
    async def exchange() -> list[Any]:
        session = client.session.aio
        await session.send(queue, Message("a"))
        await session.send(queue, Message("b"))
        with pytest.raises(NoMessage):
            await session.receive(f"{queue}-other", 0)
        return [message.body async for message in session.browse(queue)]

    xid = client.start()
    assert asyncio.run(exchange()) == [], "not before the commit"
    client.commit(xid)

    async def receive() -> list[Any]:
        session = client.session.aio
        first = await session.receive(queue, 5)
        await session.dead_letter(first, f"{queue}-other", {"reason": "why"})
        return [first.body, *[message.body for message in await session.receive_batch(queue, 5, 5)]]

    xid = client.start()
    assert asyncio.run(receive()) == ["a", "b"]
    client.commit(xid)
    assert client.look(f"{queue}-other") == ["a"]


def test_a_refusal_takes_the_association(client: QpidClient, queue: str) -> None:
    """The broker ends the session: it takes no messages as long as this."""
    xid = client.start()
    client.session.send(queue, Message("x"))
    work = client.rm._thread().current
    assert work is not None
    work.work.channel.send(QueueDelete("nowhere"), sync=True)
    with pytest.raises(XaError) as refused:
        client.session.receive(queue, 1)
    assert refused.value.code is Code.XAER_RMFAIL
    assert "No queue nowhere found" in str(refused.value)
    client.rm.open(client.url, RMID)
    with pytest.raises(BranchRolledBack):
        client.rm.prepare(xid, RMID)
    assert client.look(queue) == []
