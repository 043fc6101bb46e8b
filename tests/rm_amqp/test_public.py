"""These tests pin the public names of rm_amqp and the methods of every messaging session."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import proton

import rm_amqp
from rm_amqp import Message, MessagingSession, Session

if TYPE_CHECKING:
    from tests.rm_amqp.client import Client


def test_public_names() -> None:
    assert sorted(rm_amqp.__all__) == [
        "AmqpResource",
        "AsyncSession",
        "DecidingBroker",
        "Environment",
        "Message",
        "MessagingSession",
        "NoMessage",
        "Session",
        "Settings",
        "deciding",
        "dynamic",
        "qpid",
        "static",
    ]


def test_a_session_is_a_messaging_session(client: Client, queue: str) -> None:
    def exchange(session: MessagingSession) -> Message:
        session.send(queue, Message("x", subject="s"))
        (message,) = session.browse(f"{queue}-other")
        return message

    client.put(f"{queue}-other", ["y"])
    with client.work():
        session: Session = client.session
        assert exchange(session).body == "y"
    assert client.look(queue) == ["x"]


def test_a_message_of_protons_is_sent_as_well(client: Client, queue: str) -> None:
    with client.work() as session:
        made = proton.Message({"n": 1}, id="m", subject="s", properties={"p": proton.ulong(7)}, durable=True, ttl=60.0)
        session.send(queue, made)
    with client.work() as session:
        message = session.receive(queue, 5)
        assert type(message) is Message
        told = (message.body, message.id, message.subject, message.properties, message.durable)
        assert told == ({"n": 1}, "m", "s", {"p": 7}, True)
        assert 0 < message.ttl <= 60


def test_proton_s_python_is_not_loaded() -> None:
    code = (
        "import sys, rm_amqp; print([name for name in sys.modules if name.partition('.')[0] in ('proton', 'cproton')])"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "[]\n"


def test_a_message_loads_no_connection() -> None:
    code = "import sys; from rm_amqp import Message; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "rm_amqp.message" in modules
    assert not {"rm_amqp.connections", "rm_amqp.decider", "ssl", "asyncio"} & set(modules)


def test_a_name_that_is_none() -> None:
    assert not hasattr(rm_amqp, "nothing")
    assert set(rm_amqp.__all__) == set(rm_amqp._HOME)
    assert set(rm_amqp.__all__) <= set(dir(rm_amqp))
