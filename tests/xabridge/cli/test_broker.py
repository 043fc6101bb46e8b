"""These tests run the commands over the embedded broker: what a prepared transaction locks in queues, and doctor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rm_amqp import AmqpResource, Message
from tm import TransactionManager
from xa import FORMAT_ID, TMSUCCESS, Gtrid, Xid
from xabridge.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.rm_amqp.embedded import EmbeddedBroker


def run(config: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = main([*arguments, "--config", str(config)])
    return code, capsys.readouterr().out


def test_messages_are_counted_by_queue(
    broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"amqp://{broker.address}/?timeout=20"
    config = tmp_path / "xabridge.toml"
    config.write_text(f'node = "orders-1"\nlog = "file://{tmp_path}/log"\n[resources]\nbroker = "{url}"\n')
    with TransactionManager.from_config(config) as tm:
        with tm.begin() as tx:
            tx["broker"].send("orders", Message("order"))
        assert tm.log is not None
        gtrid = Gtrid("orders-1", tm.log.log_id, tm.log.incarnation, 8231).encode()
    xid = Xid(FORMAT_ID, gtrid, b"broker")
    rm = AmqpResource()
    rm.open(url, 1)
    rm.start(xid, 1)
    assert rm.session(1).receive("orders", timeout_s=20) is not None
    rm.session(1).send("invoices", Message("invoice"))
    rm.end(xid, 1, TMSUCCESS)
    rm.prepare(xid, 1)
    rm.close("", 1)

    code, out = run(config, capsys, "recover", "list")
    assert code == 3
    assert "    2 messages: 1 from orders, 1 to invoices\n" in out
    code, out = run(config, capsys, "doctor", "--json")
    found = {(check["of"], check["check"]): check for check in json.loads(out)["checks"]}
    assert found["broker", "usable"]["health"] == "ok"
    code, out = run(config, capsys, "recover", "run")
    assert (code, out) == (0, f"{Gtrid.decode(gtrid)} rolled back on broker\n")
    assert run(config, capsys, "recover", "list")[0] == 0
    broker.stop()
    code, out = run(config, capsys, "recover", "list")
    assert code == 4
    assert "broker could not be reached: " in out
    code, out = run(config, capsys, "doctor")
    assert code == 1
    assert "start the broker, or make it reachable from this machine" in " ".join(out.split())
