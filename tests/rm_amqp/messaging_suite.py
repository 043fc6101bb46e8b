"""What an application does with messages, whatever its broker speaks: import all of this into a test module that has
the fixtures `client`, `queue` and `broker`. AMQP 1.0 runs it over the broker of our own, AMQP 0-10 over Qpid Broker-J,
OpenWire over ActiveMQ Classic and Artemis."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import proton
import pytest

from rm_amqp import Message, NoMessage
from tests.rm_amqp.client import RMID, MessagingClient, batches, new_xid
from xa import TMFAIL, BranchRolledBack, Code, ThreadOfControl, XaError, XaMisuse, entered
from xabridge.testing.contract.client import case

BODIES: tuple[Any, ...] = (None, "", "Καλημέρα 🌍 \0", "x" * 100_000, b"", b"octets\0\xff", b"x" * 300_000, {})
BODIES += ({"int": 7, "large": -(2**63), "float": 2.5, "text": "é", "octets": b"\0", "true": True, "none": None},)
FIELDS: dict[str, Any] = {
    "id": "order-7",
    "subject": "order",
    "correlation_id": "c-1",
    "reply_to": "answers",
    "properties": {"number": 7, "name": "Ada", "ratio": 0.5, "urgent": True},
    "priority": 7,
    "content_type": "text/plain",
    "group_id": "g",
    "group_sequence": 2,
}


def test_every_kind_of_body_arrives_as_it_was_sent(client: MessagingClient, queue: str) -> None:
    bodies = [*BODIES, *client.bodies]
    client.put(queue, bodies)
    for body in bodies:
        with case(repr(body)[:20]):
            assert client.take(queue).body == body


def test_what_a_message_has_besides(client: MessagingClient, queue: str) -> None:
    now, fields = time.time(), {**FIELDS, **client.fields}
    client.put(queue, [Message("body", ttl=60, **fields)])
    got = client.take(queue)
    assert {name: getattr(got, name) for name in fields} == fields
    assert (got.body, got.delivery_count) == ("body", 0)
    assert (got.address, got.durable) == ((None, False) if client.as_sent else (queue, True))
    assert 55 < got.ttl <= 60
    assert "creation_time" in fields or now - 5 < got.creation_time < now + 60 or got.creation_time == 0


def test_what_can_not_be_sent_is_refused_by_name(client: MessagingClient, queue: str) -> None:
    """The transaction goes on."""
    for message, why in client.unsendable:
        with case(message, why), client.work() as session:
            with pytest.raises(XaMisuse, match=why or None) as refused:
                session.send(queue, message)
            assert refused.value.code is Code.XAER_INVAL
            session.send(queue, Message("fine"))
    assert client.look(queue) == ["fine"] * len(client.unsendable)


def test_what_is_no_address(client: MessagingClient, queue: str) -> None:
    for address in client.no_addresses:
        with case(str(address)[:20]), client.work() as session:
            for use in (session.send, session.receive):
                with pytest.raises(XaMisuse) as refused:
                    use(address, Message("x") if use == session.send else 0)
                assert refused.value.code is Code.XAER_INVAL
            with pytest.raises(XaMisuse):
                list(session.browse(address))
            session.send(queue, Message("fine"))
    assert client.look(queue) == ["fine"] * len(client.no_addresses)


def test_in_order_and_none_twice(client: MessagingClient, queue: str) -> None:
    client.put(queue, [f"{number}" for number in range(30)])
    with client.work(two_phase=True) as session:
        assert [message.body for message in batches(session, queue, 10)] == [f"{n}" for n in range(10)]
        assert session.receive(queue, 5).body == "10"
    with client.work() as session:
        assert [message.body for message in batches(session, queue, 19)] == [f"{n}" for n in range(11, 30)]
        assert session.receive_batch(queue, 5, 0) == []
        for timeout_s in (0, 0.05):
            with pytest.raises(NoMessage):
                session.receive(queue, timeout_s)
        with pytest.raises(XaMisuse):
            session.receive_batch(queue, 0)
    client.put(queue, ["a"])
    assert client.look(queue) == ["a"], "no credit was left with which somebody would have got it"


def test_a_browse_takes_nothing(client: MessagingClient, queue: str) -> None:
    client.put(queue, [f"{number}" for number in range(250)])
    assert client.look(queue) == client.look(queue) == [f"{number}" for number in range(250)]


def test_what_is_rolled_back_comes_again_and_is_counted(client: MessagingClient, queue: str) -> None:
    client.put(queue, ["a", "b"])
    for delivered in range(3):
        xid = client.start()
        message = client.session.receive(queue, 5)
        assert (message.body, message.delivery_count) == ("a", min(delivered, client.counts_to))
        client.session.send(f"{queue}-other", Message("never"))
        client.rollback(xid)
    assert client.look(f"{queue}-other") == []
    xid = client.prepared(lambda session: session.receive(queue, 5))
    assert client.look(queue) == ["b"]
    client.rollback(xid, end=False)
    got = {message.body: message.delivery_count for message in (client.take(queue), client.take(queue))}
    assert got.keys() == {"a", "b"}
    assert got["a"] >= min(3, client.counts_to)


def test_prepared_branches_outlive_the_broker(client: MessagingClient, queue: str, broker: Any) -> None:
    """What they have taken and what they have sent is invisible meanwhile, and whole afterwards; so is what is not
    durable by itself."""
    client.put(queue, ["a", "b", "c"])

    def move(session: Any) -> None:
        session.send(f"{queue}-other", Message({"of": session.receive(queue, 5).body}, durable=False))

    xids = [client.prepared(move) for _ in range(2)]
    broker.kill()
    broker.start()
    client.rm.drop()
    assert client.rm.open(client.url, RMID) is Code.XA_OK
    assert client.in_doubt() >= set(xids)
    assert (client.look(queue), client.look(f"{queue}-other")) == (["c"], [])
    assert client.rm.commit(xids[0], RMID) is Code.XA_OK
    assert client.rm.rollback(xids[1], RMID) is Code.XA_OK
    assert (sorted(client.look(queue)), client.look(f"{queue}-other")) == (["b", "c"], [{"of": "a"}])
    assert {client.take(queue).body for _ in range(2)} == {"b", "c"}
    assert not client.in_doubt() & set(xids)


def test_messages_are_given_back(client: MessagingClient, queue: str) -> None:
    """Released, a delivery is not counted; modified, it is."""
    client.put(queue, ["a"])
    counts = []
    for verb in ("release", "modify", ""):
        with client.work() as session:
            message = session.receive(queue, 5)
            counts.append(message.delivery_count)
            if verb:
                getattr(session, verb)(message)
            with pytest.raises(XaMisuse, match="not received here"):
                session.release(Message("another"))
    assert counts == [0, 0, 1]
    assert client.look(queue) == []
    with client.work() as session, pytest.raises(XaMisuse):
        session.release(message)


@pytest.mark.parametrize("ending", ["commit", "rollback", "rollback after the vote"])
def test_what_is_put_back_was_not_received(client: MessagingClient, queue: str, ending: str) -> None:
    """It comes again in its order, behind what was rolled back, and its delivery is not counted."""
    client.put(queue, ["a", "b", "c", "d"])
    xid = client.start()
    messages = batches(client.session, queue, 4)
    client.session.put_back(messages[2:])
    with pytest.raises(XaMisuse, match="not received here"):
        client.session.release(messages[2])
    if ending == "commit":
        client.commit(xid)
    elif ending == "rollback":
        client.rollback(xid)
    else:
        client.end(xid)
        assert client.rm.prepare(xid, RMID) is Code.XA_OK
        client.rollback(xid, end=False)

    with client.work() as session:
        again = batches(session, queue, 2 if ending == "commit" else 4)
    assert [message.body for message in again] == (["c", "d"] if ending == "commit" else ["a", "b", "c", "d"])
    assert [message.delivery_count for message in again[-2:]] == [0, 0]
    assert client.look(queue) == []


def test_a_dead_letter_goes_with_the_branch(client: MessagingClient, queue: str) -> None:
    client.put(queue, [Message({"a": 1}, subject="s", properties={"p": 1})])
    for commit in (False, True):
        xid = client.start()
        message = client.session.receive(queue, 5)
        client.session.dead_letter(message, f"{queue}-other", {"reason": "bad", "at-ms": 5})
        (client.commit if commit else client.rollback)(xid)
        assert len(client.look(f"{queue}-other")) == commit
    letter = client.take(f"{queue}-other")
    assert (letter.body, letter.subject) == ({"a": 1}, "s")
    told = {**(letter.properties or {}), **(letter.annotations or {})}
    assert (told["p"], told["x-opt-dead-reason"]) == (1, "bad")
    assert 5 in {told.get("x-opt-dead-at"), told.get("x-opt-dead-at-ms")}, "Classic and Artemis have no type for a time"
    assert client.look(queue) == []


def test_the_same_for_asyncio(client: MessagingClient, queue: str) -> None:
    async def exchange() -> list[Any]:
        session = client.session.aio
        for body in ("a", "b"):
            await session.send(queue, Message(body))
        with pytest.raises(NoMessage):
            await session.receive(f"{queue}-other", 0)
        return [message.body async for message in session.browse(queue)]

    async def receive() -> list[Any]:
        session = client.session.aio
        first = await session.receive(queue, 5)
        await session.dead_letter(first, f"{queue}-other", {"reason": "why"})
        return [first.body, *[message.body for message in await session.receive_batch(queue, 5, 5)]]

    with client.work():
        assert asyncio.run(exchange()) == [], "not before the commit"
    with client.work():
        assert asyncio.run(receive()) == ["a", "b"]
    assert client.look(f"{queue}-other") == ["a"]


def test_a_message_that_comes_while_somebody_waits(client: MessagingClient, queue: str) -> None:
    async def receive() -> object:
        waiting = asyncio.create_task(client.session.aio.receive(queue, 20))
        await asyncio.sleep(0.05)  # or it is there before
        await asyncio.get_running_loop().run_in_executor(None, client.put, queue, ["late"])
        return (await waiting).body

    with client.work():
        assert asyncio.run(receive()) == "late"
    assert client.look(queue) == []


def test_a_message_of_protons_is_sent_as_well(client: MessagingClient, queue: str) -> None:
    made = proton.Message({"n": 1}, id="m", subject="s", properties={"p": 7}, durable=True, ttl=60.0)
    with client.work() as session:
        session.send(queue, made)
    message = client.take(queue)
    assert type(message) is Message
    told = (message.body, message.id, message.subject, message.properties, message.durable)
    assert told == ({"n": 1}, "m", "s", {"p": 7}, True)
    assert 0 < message.ttl <= 60


def test_a_session_of_an_association_that_has_ended(client: MessagingClient, queue: str) -> None:
    xid = client.start()
    session = client.session
    client.end(xid)
    for use, what in ((session.send, Message("x")), (session.receive, 1)):
        with pytest.raises(XaMisuse, match="ended"):
            use(queue, what)
    assert client.rm.rollback(xid, RMID) is Code.XA_OK


def test_a_manager_that_ends_the_work_of_a_thread_that_waits(client: MessagingClient, queue: str) -> None:
    """The reaper's way: it acts for the application's thread of control, which is inside of receive."""
    control, waiting = ThreadOfControl(), threading.Event()
    xid, raised = new_xid(), []

    def work() -> None:
        with entered(control):
            client.start(xid=xid)
            session = client.session
            session.send(queue, Message("never"))
            waiting.set()
            try:
                session.receive(f"{queue}-other", 60)
            except XaError as error:
                raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    waiting.wait(10)
    time.sleep(0.3)  # until it waits
    began = time.monotonic()
    with entered(control):
        client.end(xid, TMFAIL)
        assert client.rm.rollback(xid, RMID) is Code.XA_OK
    assert time.monotonic() - began < 20
    thread.join(10)
    assert [type(error) for error in raised] == [BranchRolledBack]
    assert client.look(queue) == []
    client.put(queue, ["after"])
    assert client.take(queue).body == "after"
