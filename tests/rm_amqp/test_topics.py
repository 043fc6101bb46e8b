"""Topics by the client: what is sent to one is received by each of its subscriptions, once, with the branch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rm_amqp import Message, NoMessage
from tests.rm_amqp.client import RMID, Client, look, put
from tests.rm_amqp.embedded import EmbeddedBroker
from xa import Code, XaError, XaMisuse


@pytest.fixture
def topic(queue: str) -> str:
    """The address of a topic that no other test uses."""
    return f"topic:{queue}"


def test_each_subscription_gets_what_is_sent_with_the_branch(client: Client, topic: str) -> None:
    with client.work() as session:
        for name in ("billing", "audit"):
            with pytest.raises(NoMessage):
                session.receive(topic, 0, subscription=name)
    with client.work(two_phase=True) as session:
        session.send(topic, Message("one"))
        session.send(topic, Message("two"))
        with pytest.raises(NoMessage):
            session.receive(topic, 0, subscription="billing")
    with client.work() as session:
        assert session.receive(topic, 5, subscription="billing").body == "one"
        assert [message.body for message in session.receive_batch(topic, 9, 5, subscription="audit")] == ["one", "two"]
    assert look(client.rm, f"{topic}::billing") == ["two"]
    assert look(client.rm, f"{topic}::audit") == []


def test_what_is_received_is_there_again_after_a_rollback_and_others_are_not_concerned(
    client: Client, topic: str
) -> None:
    for name in ("billing", "audit"):
        assert look(client.rm, f"{topic}::{name}") == []
    put(client.rm, topic, ["x"])
    xid = client.start()
    assert client.session.receive(topic, 5, subscription="billing").body == "x"
    client.end(xid)
    client.rm.rollback(xid, RMID)
    with client.work() as session:
        again = session.receive(topic, 5, subscription="billing")
        assert again.delivery_count == 1
        assert session.receive(topic, 5, subscription="audit").delivery_count == 0


def test_a_subscription_lasts_when_its_client_and_the_broker_are_gone(
    broker: EmbeddedBroker, client: Client, topic: str
) -> None:
    """Also with a branch that was prepared before."""
    assert look(client.rm, f"{topic}::billing") == []
    xid = client.start()
    client.session.send(topic, Message("prepared"))
    client.end(xid)
    assert client.rm.prepare(xid, RMID) is Code.XA_OK
    client.rm.drop()
    broker.stop()
    broker.start()

    other = Client(broker.address)
    try:
        assert look(other.rm, f"{topic}::late") == []
        assert other.rm.commit(xid, RMID) is Code.XA_OK
        for name in ("billing", "late"):
            assert look(other.rm, f"{topic}::{name}") == ["prepared"]
    finally:
        other.rm.drop()


def test_asyncio(client: Client, topic: str) -> None:
    async def main() -> list[object]:
        with pytest.raises(NoMessage):
            await client.session.aio.receive(topic, 0, subscription="billing")
        await client.session.aio.send(topic, Message("x"))
        return [await client.session.aio.receive_batch(topic, 5, 0, subscription="billing")]

    xid = client.start()
    assert asyncio.run(main()) == [[]], "it is not committed"
    client.end(xid)
    client.rm.commit(xid, RMID, 0x40000000)
    assert look(client.rm, f"{topic}::billing") == ["x"]


def test_wrong_use_is_refused(client: Client, topic: str, queue: str) -> None:
    uses: dict[str, Callable[[Any], object]] = {
        "is a topic, from which messages come by a subscription": lambda session: session.receive(topic, 0),
        "by a subscription": lambda session: list(session.browse(topic)),
        "is no topic": lambda session: session.receive(queue, 0, subscription="billing"),
        "no name of a subscription": lambda session: session.receive(topic, 0, subscription=""),
        "and does not begin with": lambda session: session.receive(topic, 0, subscription="$mine"),
        "and no ::": lambda session: session.receive(topic, 0, subscription="a::b"),
        "wildcards": lambda session: session.send(f"{topic}.*", Message("x")),
    }
    for why, use in uses.items():
        with client.work() as session, pytest.raises((XaMisuse, XaError), match=why) as refused:
            use(session)
        assert refused.value.code is Code.XAER_INVAL, why
