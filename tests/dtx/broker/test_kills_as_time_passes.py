"""These tests kill the broker with kill -9 at every step of its store while messages expire, and while a delay begins.

Each message must be in one queue, once, whatever is killed; and a second crash while the rest goes changes nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from proton import Message, symbol

from dtx.amqp.messages import DELIVERY_DELAY
from dtx.protocol.commands import Commit, Prepare, Recover, Start
from dtx.protocol.replies import Recovered
from dtx.protocol.replies import Result as Told
from dtx.store.contract import Step
from tests.dtx.broker.remote import BrokerGoneError
from xa import Code, Xid

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.dtx.broker.remote import BrokerChild, RemotePeer

pytestmark = pytest.mark.slow

XID: Final = Xid(7, b"gtrid", b"bqual")
OK: Final = Told(Code.XA_OK)
PATIENCE_S: Final = 20.0


def post(peer: RemotePeer, queue: str, body: str, txn_id: bytes | None = None, **said: Any) -> None:
    octets = bytes(Message(body=body, **said).encode())
    peer.send_octets(peer.sender(queue), octets, peer.name("m"), txn_id)
    peer.world.pump()


def until(reached: Callable[[], bool]) -> None:
    """Looks again and again."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, "it does not come to that"


@pytest.mark.parametrize("step", list(Step))
def test_messages_that_expire_are_among_the_dead_letters_once(child: BrokerChild, step: Step) -> None:
    """The broker is killed a second time while what is left goes."""
    peer = child.start()
    bodies = ["a", "b", "c"]
    for body in bodies:
        post(peer, "orders", body, ttl=1)
    post(peer, "orders", "stays")
    child.die_at(step)
    with pytest.raises(BrokerGoneError):
        peer.until(lambda: False)
    assert child.died() == -9
    child.start()
    child.kill()
    peer = child.start()
    until(lambda: peer.contents("orders.dead") != [])
    assert peer.contents("orders.dead") == bodies
    assert peer.contents("orders") == ["stays"]
    child.kill()
    assert child.start().contents("orders.dead") == bodies


@pytest.mark.parametrize("step", list(Step))
def test_a_delayed_message_is_due_once_whatever_happens_at_its_commit(child: BrokerChild, step: Step) -> None:
    """Its branch was in doubt over a restart."""
    peer = child.start()
    control = peer.coordinator()
    txn_id = control.declare(Start(XID))
    delay = {symbol(DELIVERY_DELAY): 1500}
    post(peer, "orders", "later", txn_id, annotations=delay)
    control.discharge(txn_id)
    assert peer.ask(Prepare(XID)) == OK
    child.die_at(step)
    with pytest.raises(BrokerGoneError):
        peer.ask(Commit(XID))
    assert child.died() == -9
    peer = child.start()
    recovered = peer.ask(Recover())
    assert isinstance(recovered, Recovered)
    assert bool(recovered.in_doubt) is (step is not Step.FORCED)
    began = time.monotonic()
    if recovered.in_doubt:
        assert peer.ask(Commit(XID)) == OK
        assert peer.contents("orders") == []
        child.kill()
        peer = child.start()
    until(lambda: peer.contents("orders") != [])
    if step is not Step.FORCED:
        assert time.monotonic() - began > 1.4
    assert peer.contents("orders") == ["later"]
    child.kill()
    assert child.start().contents("orders") == ["later"]
