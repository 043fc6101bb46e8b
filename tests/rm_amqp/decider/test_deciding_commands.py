"""These tests cover `mode = "decider"` with an amqp:// open string in xabridge.toml: the manager, `recover` and
`doctor`.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rm_amqp import AmqpResource, DecidingBroker, Message
from tests.rm_amqp.decider.deciding import DecidingBrokerHarness
from tests.rm_amqp.embedded import EmbeddedBroker
from tm import TransactionManager
from tm.log import Branch
from tm.log.decider_record import encode_branches
from xa import TMSUCCESS, Code, Gtrid, Owner, Xid
from xa.gtrid import FORMAT_ID
from xabridge.cli import main

NODE = "cli-1"
RMID = 3


class Node:
    """A node whose broker decides, and is once more there under another name, in two phases."""

    def __init__(self, broker: EmbeddedBroker, folder: Path, name: str) -> None:
        self.address = broker.address
        self.harness = DecidingBrokerHarness(broker, name)
        self.queue = f"q-{name}"
        self.url = f"amqp://{self.address}/?token_queue=tokens-{name}&slots=2"
        self.config = folder / "xabridge.toml"
        self.config.write_text(
            f"""
node = "{NODE}"
timeout_s = 0.2

[resources]
queues = {{ url = "{self.url}", mode = "decider" }}
others = "amqp://{self.address}"
""",
            encoding="utf-8",
        )

    def leave(self, *, decided: bool) -> Xid:
        """A process that dies between the decision and what follows it, or in front of the decision."""
        decider, other = DecidingBroker(), AmqpResource()
        decider.open(self.url, RMID)
        other.open(f"amqp://{self.address}", RMID)
        owner = Owner(NODE, b"12345678", "")
        for lease_s in (60, 0):
            decider.hold(owner, lease_s, RMID, 1, 17)

        gtrid = Gtrid(NODE, decider.decider_id, owner.incarnation, 1).encode()
        work, prepared = Xid(FORMAT_ID, gtrid, b"queues"), Xid(FORMAT_ID, gtrid, b"others")
        for rm, xid in ((decider, work), (other, prepared)):
            rm.start(xid, RMID)
            rm.session(RMID).send(f"{self.queue}-{xid.bqual.decode()}", Message("1"))
            rm.end(xid, RMID, TMSUCCESS)
        assert other.prepare(prepared, RMID) is Code.XA_OK
        if decided:
            decider.decide(work, RMID, encode_branches([Branch("others", prepared)]))
        decider.drop()
        other.drop()
        return prepared

    def sent(self) -> list[list[object]]:
        """What is in the two queues."""
        return self.harness.every([f"{self.queue}-{name}" for name in ("queues", "others")])


@pytest.fixture
def node(broker: EmbeddedBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    node = Node(broker, tmp_path, f"{os.getpid()}-{abs(hash(request.node.name))}")
    yield node
    node.harness.close()
    logging.getLogger("xabridge").propagate = True


def run(node: Node, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """What a command says."""
    capsys.readouterr()
    code = main([*arguments, "--config", str(node.config)])
    return code, capsys.readouterr().out


def test_transactions_from_the_configuration(node: Node) -> None:
    with TransactionManager.from_config(str(node.config)) as tm:
        assert tm.decider == "queues"
        with tm.begin() as tx:
            tx["queues"].send(f"{node.queue}-queues", Message("1"))
            tx["others"].send(f"{node.queue}-others", Message("1"))
        with pytest.raises(LookupError), tm.begin() as tx:
            tx["queues"].send(f"{node.queue}-queues", Message("2"))
            tx["others"].send(f"{node.queue}-others", Message("2"))
            raise LookupError
        with tm.begin() as tx:
            tx["queues"].send(f"{node.queue}-queues", Message("3"))
        assert node.sent() == [["1", "3"], ["1"]]


@pytest.mark.parametrize("decided", [True, False])
def test_an_operator_looks_and_recovers(node: Node, capsys: pytest.CaptureFixture[str], *, decided: bool) -> None:
    xid = node.leave(decided=decided)
    _, out = run(node, capsys, "recover", "list", "--json")
    (found,) = json.loads(out)["transactions"]
    assert found["gtrid"] == xid.gtrid.hex()
    assert found["decider"] == "queues"
    assert (found["decision"] == "commit") == decided
    done = "committed on others" if decided else "rolled back on others"
    give_up = time.monotonic() + 60
    code, out = run(node, capsys, "recover", "run")
    while not decided and done not in out:  # it is younger than timeout_s: another process may be about to decide
        assert time.monotonic() < give_up, out
        time.sleep(0.05)
        code, out = run(node, capsys, "recover", "run")

    assert code == 0, out
    assert done in out
    assert node.sent() == ([["1"], ["1"]] if decided else [[], []])
    _, out = run(node, capsys, "recover", "list", "--json")
    assert json.loads(out)["transactions"] == []


def test_doctor(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(node, capsys, "doctor")
    assert code == 0, out
    assert "local transactions, without a name" in out
    assert "decisions live in queues" in out
