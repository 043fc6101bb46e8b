"""These tests kill the broker with kill -9 at every step of its store and after its answer, for everything that it
makes durable.

What the broker answered must be true after the restart; what it forced may be there without an answer; what it did not
force must leave nothing behind. Prepared branches come back with their messages locked, and end as their transaction
manager decides. Each message that expires or is delayed must be in one queue, once, whatever is killed.

XABRIDGE_KILLS says how many random kills there are (in a long run: 500), XABRIDGE_SEED which.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
from proton import Message, symbol

from dtx.amqp.messages import DELIVERY_DELAY
from dtx.protocol.addresses import MANAGEMENT
from dtx.protocol.commands import CONTROL, Commit, Complete, End, Forget, Prepare, Recover, Rollback, Start
from dtx.protocol.replies import Recovered
from dtx.protocol.replies import Result as Told
from dtx.store.contract import Step
from tests.dtx.broker.remote import BrokerChild, BrokerGoneError, RemotePeer
from tests.waiting import until
from xa import Code, Xid
from xabridge.testing.contract.client import case

pytestmark = pytest.mark.slow

XID: Final = Xid(7, b"gtrid", b"bqual")
KILLS: Final = int(os.environ.get("XABRIDGE_KILLS", "4"))
SEED: Final = int(os.environ.get("XABRIDGE_SEED", "1"))
PATIENCE_S: Final = 20.0
ANSWERED: Final = None
"""The parent kills the broker, once it has the answer."""


@dataclass(frozen=True, slots=True)
class State:
    """What a client can find out: what stands in both queues, and how the branch is."""

    orders: tuple[str, ...]
    invoices: tuple[str, ...]
    branch: str = ""


def state(peer: RemotePeer) -> State:
    recovered = peer.ask(Recover(details=True))
    assert isinstance(recovered, Recovered)
    branches = {details.xid: details.state.value for details in recovered.details}
    assert branches.keys() <= {XID}
    return State(tuple(peer.contents("orders")), tuple(peer.contents("invoices")), branches.get(XID, ""))


BEFORE: Final = State(("a", "b"), ())
"""Two orders; a transaction takes one, and writes an invoice."""
DONE: Final = State(("b",), ("a!",))
HELD: Final = State(("b",), (), "prepared")


def work(peer: RemotePeer, txn_id: bytes) -> None:
    """Takes an order and writes an invoice, under a transaction."""
    _, delivery = delivered(peer)
    peer.post(peer.sender("invoices"), "a!", txn_id)
    peer.retire(delivery, txn_id)


def branch(peer: RemotePeer, start: Start | None = Start(XID)) -> Any:  # noqa: B008 — it is frozen
    """Work under a branch, or a local transaction: its control link and txn-id."""
    control = peer.coordinator()
    txn_id = control.declare(start)
    work(peer, txn_id)
    return control, txn_id


def ended(peer: RemotePeer) -> None:
    control, txn_id = branch(peer)
    control.discharge(txn_id)


def prepared(peer: RemotePeer) -> None:
    ended(peer)
    assert peer.ask(Prepare(XID)) == Told(Code.XA_OK)


def completed(peer: RemotePeer) -> None:
    prepared(peer)
    assert peer.ask(Complete(XID, commit=True)) == Told(Code.XA_OK)


def asks(command: Any) -> Callable[[RemotePeer, Any], None]:
    def ask(peer: RemotePeer, _: Any) -> None:
        assert peer.ask(command) == Told(Code.XA_OK), "the command was refused"

    return ask


def managed(**told: Any) -> Callable[[RemotePeer, Any], None]:
    def ask(peer: RemotePeer, _: Any) -> None:
        replies, requests = peer.receiver(None, 1), peer.sender(MANAGEMENT)
        message = Message(id="1", reply_to=str(replies.remote_source.address), properties=told)
        peer.send_octets(requests, bytes(message.encode()), "t", settled=True)
        peer.until(lambda: replies.current is not None and replies.current.readable)

    return ask


def accept(peer: RemotePeer, given: Any) -> None:
    """Retires a message outside of a transaction, with the answer that it is durable."""
    receiver, delivery = given
    delivery.update(delivery.ACCEPTED)
    peer.until(lambda: delivery.settled)
    delivery.settle()
    receiver.close()


def delivered(peer: RemotePeer) -> Any:
    receiver = peer.receiver("orders", 1)
    peer.until(lambda: receiver.current is not None and receiver.current.readable)
    delivery, message = peer.taken(receiver)
    assert message.body == "a"
    return receiver, delivery


@dataclass(frozen=True, slots=True)
class Case:
    """Something that becomes durable: what stands before, the act, and what is so after a crash before and after the
    force."""

    before: Callable[[RemotePeer], Any]
    act: Callable[[RemotePeer, Any], object]
    lost: State
    kept: State


CASES: Final = {
    "a plain post": Case(
        lambda peer: peer.sender("invoices"),
        lambda peer, link: peer.post(link, "a!"),
        BEFORE,
        State(("a", "b"), ("a!",)),
    ),
    "a plain acceptance": Case(delivered, accept, BEFORE, State(("b",), ())),
    "a local discharge": Case(
        lambda peer: branch(peer, None), lambda _, given: given[0].discharge(given[1]), BEFORE, DONE
    ),
    "prepare": Case(ended, asks(Prepare(XID)), BEFORE, HELD),
    "end with prepare": Case(
        branch, lambda _, given: given[0].outcome(CONTROL.encode(End(given[1], prepare=True))), BEFORE, HELD
    ),
    "one-phase": Case(ended, asks(Commit(XID, one_phase=True)), BEFORE, DONE),
    "commit": Case(prepared, asks(Commit(XID)), HELD, DONE),
    "rollback": Case(prepared, asks(Rollback(XID)), HELD, BEFORE),
    "heuristic commit": Case(prepared, asks(Complete(XID, commit=True)), HELD, State(("b",), ("a!",), "heuristic")),
    "heuristic rollback": Case(prepared, asks(Complete(XID, commit=False)), HELD, State(("a", "b"), (), "heuristic")),
    "move by an operator": Case(
        lambda _: None, managed(operation="move", queue="orders", to="invoices"), BEFORE, State((), ("a", "b"))
    ),
    "purge by an operator": Case(
        lambda _: None, managed(operation="purge", queue="orders", most=1), BEFORE, State(("b",), ())
    ),
    "copy by an operator": Case(
        lambda _: None, managed(operation="copy", queue="orders", to="invoices"), BEFORE, State(("a", "b"), ("a", "b"))
    ),
    "forget": Case(completed, asks(Forget(XID)), State(("b",), ("a!",), "heuristic"), DONE),
}


SOME: Final = ("a plain post", "prepare", "commit")
"""These are killed at each step, and while the store's thread forces, too; the others in the middle and at the end of
the force on the loop, and everywhere else only where tests are long."""


def ways() -> Iterator[Any]:
    """Where it forces, the step, and the acts that are killed there."""
    for forces in ("loop", "thread"):
        for step in (*Step, ANSWERED):
            everything = forces == "loop" and step in {Step.WRITTEN, Step.FORCED}
            name = f"{'answered' if step is ANSWERED else step.name}-{forces}"
            yield pytest.param(forces, step, tuple(CASES) if everything else SOME, id=name)
            if not everything:
                others = tuple(case for case in CASES if case not in SOME)
                yield pytest.param(forces, step, others, id=f"{name}-others", marks=pytest.mark.long)


@pytest.mark.parametrize(("child", "step", "acts"), list(ways()), indirect=["child"])
def test_a_kill_at_each_step(child: BrokerChild, step: Step | None, acts: Sequence[str]) -> None:
    """The broker that was started again after one act does the next one."""
    peer = child.start()
    for act in acts:
        with case(act):
            peer = killed(child, peer, CASES[act], step)
        for queue in ("orders", "invoices"):
            managed(operation="purge", queue=queue)(peer, None)
        if state(peer).branch:
            asks(Forget(XID))(peer, None)
        assert state(peer) == State((), ())


def killed(child: BrokerChild, peer: RemotePeer, it: Case, step: Step | None) -> RemotePeer:
    """The broker does it, is killed, and is looked at when it has started again; the peer of that one."""
    sender = peer.sender("orders")
    for body in ("a", "b"):
        peer.post(sender, body)
    given = it.before(peer)
    if step is ANSWERED:
        it.act(peer, given)
        child.kill()
    else:
        child.die_at(step)
        with pytest.raises(BrokerGoneError):
            it.act(peer, given)
        assert child.died() == -9
    peer = child.start()
    expected = it.kept if step in {Step.FORCED, ANSWERED} else it.lost
    assert state(peer) == expected
    if expected is HELD:  # and it can be finished
        commit = BEFORE not in {it.lost, it.kept} or it.lost is BEFORE
        assert peer.ask(Commit(XID) if commit else Rollback(XID)) == Told(Code.XA_OK)
        expected = DONE if commit else BEFORE
        assert state(peer) == expected

    if step is ANSWERED:
        child.kill()
        peer = child.start()
        assert state(peer) == expected, "the second restart tells something else"
    return peer


def post(peer: RemotePeer, body: str, txn_id: bytes | None = None, **said: Any) -> None:
    """Posts to orders."""
    octets = bytes(Message(body=body, **said).encode())
    peer.send_octets(peer.sender("orders"), octets, peer.name("m"), txn_id)
    peer.world.pump()


@pytest.mark.parametrize("step", list(Step))
def test_messages_that_expire_are_among_the_dead_letters_once(child: BrokerChild, step: Step) -> None:
    """The broker is killed a second time while what is left goes."""
    peer = child.start()
    bodies = ["a", "b", "c"]
    for body in bodies:
        post(peer, body, ttl=0.6)
    post(peer, "stays")
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
    post(peer, "later", txn_id, annotations={symbol(DELIVERY_DELAY): 1000})
    control.discharge(txn_id)
    assert peer.ask(Prepare(XID)) == Told(Code.XA_OK)
    child.die_at(step)
    with pytest.raises(BrokerGoneError):
        peer.ask(Commit(XID))
    assert child.died() == -9
    peer = child.start()
    committed = state(peer).branch == ""
    assert committed is (step is Step.FORCED)
    began = time.monotonic()

    if not committed:
        assert peer.ask(Commit(XID)) == Told(Code.XA_OK)
        assert peer.contents("orders") == []
        child.kill()
        peer = child.start()
    until(lambda: peer.contents("orders") != [])
    assert committed or time.monotonic() - began > 0.9
    assert peer.contents("orders") == ["later"]
    child.kill()
    assert child.start().contents("orders") == ["later"]


@pytest.mark.parametrize("step", list(Step))
def test_a_commit_to_a_topic_is_for_every_subscription_or_for_none(child: BrokerChild, step: Step) -> None:
    """Also for one that was made after the prepare; and after a kill at the deletion of one, the others have all."""
    peer = child.start()
    billing, audit, late = (f"topic:prices::{name}" for name in ("billing", "audit", "late"))
    for source in (billing, audit):
        peer.receiver(source).close()
    control = peer.coordinator()
    txn_id = control.declare(Start(XID))
    for body in ("one", "two"):
        peer.post(peer.sender("topic:prices"), body, txn_id)
    control.discharge(txn_id)
    asks(Prepare(XID))(peer, None)
    peer.receiver(late).close()

    child.die_at(step)
    with pytest.raises(BrokerGoneError):
        peer.ask(Commit(XID))
    assert child.died() == -9
    peer = child.start()
    committed = state(peer).branch == ""
    assert committed is (step is Step.FORCED)
    if not committed:
        assert [peer.contents(source) for source in (billing, audit, late)] == [[], [], []]
        asks(Commit(XID))(peer, None)
    assert [peer.contents(source) for source in (billing, audit, late)] == [["one", "two"]] * 3

    child.die_at(step)
    with pytest.raises(BrokerGoneError):
        managed(operation="delete-queue", queue=late, force=True)(peer, None)
    assert child.died() == -9
    peer = child.start()
    assert [peer.contents(source) for source in (billing, audit)] == [["one", "two"]] * 2
    assert peer.contents(late) == ([] if step is Step.FORCED else ["one", "two"])


MOVES: Final = 40
"""Messages that are moved from one queue to another one, each by a branch of its own."""


@dataclass
class Mover:
    """A transaction manager of one branch at a time: what it decided, and what it was told."""

    chance: random.Random
    decided: set[Xid]
    moved: set[str]
    count: int = 0

    def finish(self, peer: RemotePeer) -> None:
        """Recovery: commits what was decided, rolls back the rest."""
        recovered = peer.ask(Recover())
        assert isinstance(recovered, Recovered)
        for xid in recovered.in_doubt:
            assert peer.ask(Commit(xid) if xid in self.decided else Rollback(xid)) == Told(Code.XA_OK)

    def move(self, peer: RemotePeer, control: Any, receiver: Any, sender: Any) -> None:
        """One branch: takes a message, sends it on, prepares, decides, commits; or rolls back."""
        self.count += 1
        xid = Xid(7, f"move-{self.count}".encode(), b"b")
        peer.until(lambda: receiver.current is not None and receiver.current.readable)
        taken = peer.taken(receiver)
        txn_id = control.declare(Start(xid))
        peer.post(sender, taken[1].body, txn_id)
        peer.retire(taken[0], txn_id)
        control.discharge(txn_id)
        assert peer.ask(Prepare(xid)) == Told(Code.XA_OK)
        if self.chance.random() < 0.2:
            assert peer.ask(Rollback(xid)) == Told(Code.XA_OK)
            taken[0].update(taken[0].RELEASED)
            taken[0].settle()
            return

        self.decided.add(xid)
        self.moved.add(str(taken[1].body))
        assert peer.ask(Commit(xid)) == Told(Code.XA_OK)


@pytest.mark.parametrize("child", ["loop", "thread"], indirect=True)
def test_killed_at_random_while_messages_move(child: BrokerChild) -> None:
    """Each message is in one queue, once; and it has moved if and only if that was decided."""
    chance = random.Random(SEED)
    mover = Mover(chance, set(), set())
    bodies = [f"m{number}" for number in range(MOVES)]
    peer = child.start()
    link = peer.sender("from")
    for body in bodies:
        peer.post(link, body)

    for kill in range(KILLS + 1):
        if kill < KILLS:
            child.die_at(chance.choice(list(Step)), chance.randint(1, 3 * MOVES // (KILLS + 1)))
        try:
            control, receiver, sender = peer.coordinator(), peer.receiver("from", 1), peer.sender("to")
            while len(mover.moved) < MOVES:
                mover.move(peer, control, receiver, sender)
                receiver.flow(1)
        except BrokerGoneError:
            assert child.died() == -9
            peer = child.start()
            mover.finish(peer)
        here, there = peer.contents("from"), peer.contents("to")
        assert Counter(here + there) == Counter(bodies), f"XABRIDGE_SEED={SEED}, kill {kill}"
        assert set(there) == mover.moved, f"XABRIDGE_SEED={SEED}, kill {kill}"
    assert sorted(there) == sorted(bodies)
