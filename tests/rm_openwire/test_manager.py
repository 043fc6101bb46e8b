"""These tests use the manager over ActiveMQ Classic and Artemis: consumers, `xabridge recover` and `doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rm_amqp import Message
from tests.rm_openwire.client import Client, new_name
from tests.rm_openwire.java_brokers import JavaBroker
from tests.tm.telemetry.test_telemetry import Exported
from tests.tm.telemetry.traced import check_messages_are_traced
from tests.waiting import until
from tm import TransactionManager
from xabridge.cli.main import main


def test_a_consumer(broker: JavaBroker, tmp_path: Path) -> None:
    """Each message is handled and passed on once; one that always fails becomes a dead letter."""
    client = Client(broker.url)
    queue, out = new_name(), new_name("out")
    client.put(queue, [*[str(number) for number in range(20)], "bad"])
    with TransactionManager("node", f"file://{tmp_path}/log", {"broker": broker.url}) as tm:

        @tm.consumer(queue, workers=2, batch=10, max_deliveries=2, timeout_s=20)
        def handle(message: Message, tx: Any) -> None:
            if message.body == "bad":
                raise ValueError(message.body)
            tx["broker"].send(out, Message(f"{message.body} handled"))

        with handle:
            until(lambda: handle.counts.handled >= 20 and handle.counts.dead_lettered, lambda: handle.counts)
    assert sorted(client.look(out)) == sorted(f"{number} handled" for number in range(20))
    assert client.look(queue) == []
    assert client.look(f"{queue}.dead") == ["bad"]
    assert client.in_doubt() == set()
    client.rm.drop()


def test_recover_and_doctor(
    broker: JavaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the commands list is what the broker's own tool counts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "xabridge.toml").write_text(
        f'node = "node"\nlog = "file://{tmp_path}/log"\n[resources]\nbroker = "{broker.url}?queues_stay=true"\n'
    )

    with TransactionManager.from_config("xabridge.toml"):
        pass
    client = Client(broker.url)
    xid = client.prepared(lambda session: session.send(new_name(), Message("in doubt")))
    assert broker.ask("prepared") == "1"
    main(["recover", "list", "--json"])
    listed = capsys.readouterr().out
    assert str(xid) in listed
    main(["doctor", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert broker.kind in json.dumps(told)
    client.rm.rollback(xid, 3)
    assert broker.ask("prepared") == "0"
    client.rm.drop()


def test_messages_carry_the_trace(broker: JavaBroker, tmp_path: Path) -> None:
    exported = Exported()
    check_messages_are_traced(exported, broker.url, new_name(), new_name("other"), tmp_path)
    exported.close()
