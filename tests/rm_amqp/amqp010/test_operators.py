"""These tests run the commands for operators over Qpid Broker-J: doctor, and what recover lists and finishes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from rm_amqp import Message
from tests.rm_amqp.amqp010.client import QpidClient
from tests.rm_amqp.client import RMID
from xa import FORMAT_ID, Code, Gtrid, Xid
from xabridge.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from tests.broker_j import BrokerJ


class Commands:
    """The commands, over one configuration."""

    def __init__(self, folder: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._config = folder / "xabridge.toml"
        self._config.write_text(f'node = "orders-1"\nlog = "file://{folder}/log"\n[resources]\nqpid = "{url}"\n')
        self._capsys = capsys

    def run(self, *arguments: str) -> tuple[int, str]:
        """The exit code, and what it prints."""
        self._capsys.readouterr()
        code = main([*arguments, "--config", str(self._config)])
        return code, self._capsys.readouterr().out


@pytest.fixture
def commands(tmp_path: Path, broker_j: BrokerJ, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path, broker_j.url, capsys)


def test_doctor(commands: Commands) -> None:
    assert commands.run("recover", "run")[0] == 0  # makes the log
    _, said = commands.run("doctor", "--json")
    checks = {check["check"]: check for check in json.loads(said)["checks"] if check["of"] == "qpid"}
    assert {check["health"] for check in checks.values()} == {"ok"}
    assert "Broker-J" in checks["broker"]["found"]


def test_what_is_in_doubt_is_listed_and_finished(commands: Commands, broker_j: BrokerJ, queue: str) -> None:
    client = QpidClient(broker_j.url)
    xid = Xid(FORMAT_ID, Gtrid("orders-1", b"\x7f" * 8, 1, 1).encode(), b"qpid")
    client.start(xid=xid)
    client.session.send(queue, Message("x"))
    client.end(xid)
    assert client.rm.prepare(xid, RMID) is Code.XA_OK
    _, said = commands.run("recover", "list", "--json")
    assert str(xid) in said
    code, said = commands.run("recover", "commit", str(xid), "--yes", "--heuristic")
    assert code == 0, said
    assert xid not in client.in_doubt()
    assert client.look(queue) == ["x"]
    client.rm.close("", RMID)
