"""These tests cover errors that keep a branch from being completed and must never be reported as its outcome. They also
cover channels for other requests while branches use all of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dtx.amqp.conditions import Condition
from dtx.broker.access.credentials import set_password
from dtx.broker.access.permissions import Permissions
from dtx.protocol.commands import Commit, Rollback
from dtx.protocol.conditions import Refusal
from rm_amqp import Message
from rm_amqp.decider.decision_log import DecisionLog
from rm_amqp.errors import refusal_error
from tests.rm_amqp.client import RMID, Client
from tests.rm_amqp.decider.deciding import DecidingBrokerHarness
from tests.rm_amqp.embedded import EmbeddedBroker
from xa import TMONEPHASE, Code, Xid
from xa.configuration import Section
from xabridge.testing.contract.client import RMID as DECIDER_RMID
from xabridge.testing.contract.client import elsewhere, new_key, refused
from xabridge.testing.contract.deciding import RECORD, Decider

OWN = {"produce": ["*"], "consume": ["*"], "create": ["*"], "coordinate": "own"}


class Guarded:
    """A broker with two users."""

    def __init__(self, folder: Path) -> None:
        self._users = folder / "users"
        for user in ("alice", "bob"):
            self.set_password(user, "secret")
        rules = Permissions.from_section(Section({"alice": OWN, "bob": OWN}))
        self.broker = EmbeddedBroker(folder, users=self._users, permissions=rules)

    def set_password(self, user: str, password: str) -> None:
        """From the broker's next start on."""
        set_password(self._users, user, password, iterations=4096)

    def restart(self, password: str) -> None:
        """Alice has another password from now on."""
        self.broker.stop()
        self.set_password("alice", password)
        self.broker.start()

    def client(self, user: str) -> Client:
        """A client of a user's."""
        return Client(f"{user}:secret@{self.broker.address}", "timeout=20")


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """One for each test."""
    guarded = Guarded(tmp_path)
    yield guarded
    guarded.broker.stop()


def prepared(client: Client) -> Xid:
    """A branch with a message in it."""
    xid = client.start()
    client.session.send("orders", Message("x"))
    client.end(xid)
    assert client.rm.prepare(xid, RMID) is Code.XA_OK
    return xid


@pytest.mark.slow
def test_a_broker_that_does_not_let_us_in_any_more(guarded: Guarded) -> None:
    alice = guarded.client("alice")
    xids = {verb: prepared(alice) for verb in ("commit", "rollback")}
    guarded.restart("another")
    with refused(Code.XAER_RMFAIL):
        alice.rm.commit(xids["commit"], RMID)  # the connection is gone
    with refused(Code.XAER_RMERR):
        alice.rm.open(alice.url, RMID)
    for verb, xid in xids.items():
        with elsewhere(), refused(Code.XAER_RMFAIL):
            getattr(alice.rm, verb)(xid, RMID)  # a thread of control that has not heard of it connects anew

    guarded.restart("secret")
    alice.rm.open(alice.url, RMID)
    assert set(alice.rm.prepared(RMID)) == set(xids.values())
    for verb, xid in xids.items():
        assert getattr(alice.rm, verb)(xid, RMID) is Code.XA_OK
    assert alice.look("orders") == ["x"]
    alice.rm.close("", RMID)


def test_a_user_who_may_not(guarded: Guarded) -> None:
    alice, bob = guarded.client("alice"), guarded.client("bob")
    for verb in ("commit", "rollback"):
        xid = prepared(alice)
        with refused(Code.XAER_PROTO):
            getattr(bob.rm, verb)(xid, RMID)
        assert alice.rm.prepared(RMID) == [xid]
        assert getattr(alice.rm, verb)(xid, RMID) is Code.XA_OK
    for client in (alice, bob):
        client.rm.close("", RMID)


@pytest.mark.parametrize("command", [Commit, Rollback])
@pytest.mark.parametrize(
    "condition", [Condition.UNAUTHORIZED, Condition.INTERNAL_ERROR, Condition.RESOURCE_LIMIT, "any:thing"]
)
def test_a_refusal_is_no_outcome(command: type, condition: str) -> None:
    """Neither of a broker that tells XAER_RMERR for what it does not do, nor of one that tells no code at all."""
    verb = command.__name__.lower()
    for refusal in (Refusal(condition, "no", Code.XAER_RMERR), Refusal.read(condition, "no", None)):
        assert refusal_error(verb, refusal).code is Code.XA_RETRY


# --- channels ---------------------------------------------------------------------------------------------------
def test_reading_beside_a_branch_that_has_the_only_channel(broker: EmbeddedBroker) -> None:
    client = Client(broker.address, "timeout=5&channels=1")
    client.put("orders", ["one"])
    with client.work() as session:
        assert client.rm.first("orders", RMID) is not None
        assert client.rm.count("orders", RMID) == 1
        session.send("orders", Message("two"))
    client.rm.close("", RMID)


def test_a_worn_token_while_a_branch_has_the_only_channel(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is sent anew over another channel before the branch decides."""
    harness = DecidingBrokerHarness(broker, "worn", slots=1)
    harness.narrow()
    client = Decider(harness)
    monkeypatch.setattr("rm_amqp.decider.decision_log.WORN", 0)
    renewed: list[int] = []
    renew = DecisionLog.renew

    def noted(log: DecisionLog, slot: int, deadline: float) -> None:
        renewed.append(slot)
        monkeypatch.setattr("rm_amqp.decider.decision_log.WORN", 1000)
        renew(log, slot, deadline)

    monkeypatch.setattr(DecisionLog, "renew", noted)
    assert client.decide(client.ended(key := new_key()), RECORD) is Code.XA_OK
    assert renewed == [0]
    assert key in harness.committed()
    assert client.commit(client.ended(new_key()), TMONEPHASE) is Code.XA_OK
    client.rm.close("", DECIDER_RMID)
    harness.close()
