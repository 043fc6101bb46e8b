"""These tests cover what an application does with messages over Qpid Broker-J, how they are mapped, and the commands
for operators: doctor, and what recover lists and finishes.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rm_amqp import Message
from rm_amqp.amqp010.session import MessageContent
from rm_amqp.amqp010.structs import DeliveryProperties, MessageProperties, MessageTransfer, QueueDelete
from tests.broker_j import BrokerJ
from tests.rm_amqp.amqp010.client import QpidClient
from tests.rm_amqp.client import RMID, batches
from tests.rm_amqp.messaging_suite import *  # noqa: F403 — the suite
from tests.tm.telemetry.test_telemetry import Exported
from tests.tm.telemetry.traced import check_messages_are_traced
from xa import FORMAT_ID, TMSUCCESS, BranchRolledBack, Code, Gtrid, ResourceError, XaError, XaMisuse, Xid
from xabridge.cli import main


def test_a_long_message_and_thousands_of_them_in_a_branch(client: QpidClient, queue: str) -> None:
    bodies = ["x" * 1_000_000, *(f"m-{number}" for number in range(1999))]
    client.put(queue, bodies)
    with client.work(two_phase=True) as session:
        messages = batches(session, queue, 2000)
        assert [message.body for message in messages] == bodies
        for message in messages[::2]:
            session.release(message)
    assert client.look(queue) == bodies[::2]


def test_messages_are_not_refused(client: QpidClient, queue: str) -> None:
    client.put(queue, ["kept"])
    with client.work() as session:
        kept = session.receive(queue, 5)
        with pytest.raises(XaMisuse):
            session.modify(kept, undeliverable=True)
        with pytest.raises(XaMisuse, match="dead letters"):
            session.reject(kept)
    assert client.look(queue) == [], "taken, as it was"


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
        content = MessageContent(
            DeliveryProperties(routing_key=queue, delivery_mode=2),
            MessageProperties(content_type=content_type),
            b"\xff\xff",
        )
        channel.send(MessageTransfer("", 1, 0), content)

    channel.wait_complete(channel.session.sync(), time.monotonic() + 5)
    channel.close(time.monotonic() + 2)
    client.put(queue, ["good"])
    with client.work() as session:
        for content_type in ("amqp/map", "text/plain"):
            message = session.receive(queue, 5)
            assert (message.body, message.content_type) == (b"\xff\xff", content_type)
        assert session.receive(queue, 5).body == "good", "nothing stands before it"


def test_the_broker_inflates_what_is_compressed(client: QpidClient, queue: str) -> None:
    with client.work() as session:
        session.send(queue, Message(gzip.compress(b"octets"), content_encoding="gzip"))
        session.send(queue, Message(b"own", content_encoding="x-own"))
    with client.work() as session:
        inflated, own = batches(session, queue, 2)
        assert (inflated.body, inflated.content_encoding) == (b"octets", None)
        assert (own.body, own.content_encoding) == (b"own", "x-own")


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


def test_messages_carry_the_trace(broker_j: BrokerJ, queue: str, tmp_path: Path) -> None:
    exported = Exported()
    check_messages_are_traced(exported, broker_j.url, queue, f"{queue}-other", tmp_path)
    exported.close()


@pytest.fixture
def run(tmp_path: Path, broker_j: BrokerJ, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """A command: its exit code, and what it prints."""
    config = tmp_path / "xabridge.toml"
    config.write_text(
        f'node = "orders-1"\nlog = "file://{tmp_path}/log"\n[resources]\nqpid = "{broker_j.url}"\n', encoding="utf-8"
    )

    def command(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        return main([*arguments, "--config", str(config)]), capsys.readouterr().out

    return command


def test_an_operator_looks_and_finishes_what_is_in_doubt(
    run: Callable[..., tuple[int, str]], client: QpidClient, queue: str
) -> None:
    assert run("recover", "run")[0] == 0  # makes the log
    _, said = run("doctor", "--json")
    checks = {check["check"]: check for check in json.loads(said)["checks"] if check["of"] == "qpid"}
    assert {check["health"] for check in checks.values()} == {"ok"}
    assert "Broker-J" in checks["broker"]["found"]
    xid = Xid(FORMAT_ID, Gtrid("orders-1", b"\x7f" * 8, 1, 1).encode(), b"qpid")
    client.prepared(lambda session: session.send(queue, Message("x")), xid)
    assert str(xid) in run("recover", "list", "--json")[1]
    code, said = run("recover", "commit", str(xid), "--yes", "--heuristic")
    assert code == 0, said
    assert xid not in client.in_doubt()
    assert client.look(queue) == ["x"]
