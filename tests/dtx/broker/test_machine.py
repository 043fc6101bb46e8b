"""These tests run random clients against a model of queues and branches, also with crashes between any two steps of the
store. No message may be lost, be there twice or be visible early, and no lock may stay.

After every step the queues must hold exactly the messages that the model says are available, the branches in doubt must
be those of the model, and each acquired message must be held by the client that holds it in the model.
XABRIDGE_SCHEDULES says how many histories there are (in a long run: 5000); a failing one is printed with the command
that repeats it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from proton import Delivery, symbol
from proton import Message as ProtonMessage

from dtx.amqp.conditions import Condition
from dtx.amqp.messages import DELIVERY_DELAY
from dtx.broker.settings import QueueSettings, Settings
from dtx.protocol.addresses import branch_address
from dtx.protocol.commands import (
    CONTROL,
    Commit,
    Complete,
    Discharge,
    Fence,
    Forget,
    Prepare,
    Recover,
    Rollback,
    Start,
)
from dtx.protocol.conditions import STATUS_OF, Refusal
from dtx.protocol.replies import RESULT, Recovered
from dtx.protocol.replies import Result as Told
from dtx.store.contract import Step, StoreStopped
from tests.dtx.broker.peer import OK, Coordinator, Peer, World, condition_of
from xa import NULL_XID, Code, Xid

QUEUES = ("q", "r")
FOREVER = 10**9
GARBAGE = b"\xff no message"
DELAY = {symbol(DELIVERY_DELAY): 300_000}
"""Shorter than the time that passes at once, and longer than nothing."""
CALM = 5
"""Steps between things that end most of what is going on."""
SETTINGS = Settings(
    queues={name: QueueSettings(max_deliveries=0) for name in QUEUES},
    rollback_only_s=FOREVER,
    branch_timeout_s=600,
    local_timeout_s=600,
)
index = st.integers(0, 999)
T = TypeVar("T")


def one_of(some: Sequence[T], which: int) -> T:
    return some[which % len(some)]


@dataclass(eq=False)
class Message:
    """Where a message is: `holder` is the client that holds it, `txn` the transaction that posts, acquires or retires
    it; with neither it is available. `gone` for good."""

    body: str
    queue: str
    holder: Client | None = None
    delivery: Delivery | None = None
    txn: Txn | None = None
    acquired: bool = False
    """Whether its acquisition belongs to the transaction too."""
    retired: bool = False
    """Whether the transaction has an outcome for it."""
    gone: bool = False
    delayed: bool = False
    """Whether its time has not come, or begins only with its commit."""

    @property
    def available(self) -> bool:
        return self.holder is None and self.txn is None and not self.gone and not self.delayed


@dataclass(eq=False)
class Txn:
    """A local transaction (no xid), or a branch."""

    client: Client
    txn_id: bytes
    xid: Xid | None = None
    posts: list[Message] = field(default_factory=list)
    retired: list[Message] = field(default_factory=list)
    state: str = "active"
    """active; ended, prepared, heuristic (branches); dead: rolled back by a timeout, a fail, or a lost client."""
    associated: bool = True
    suspended: bool = False
    completed: bool = False
    """How it was completed heuristically."""

    @property
    def empty(self) -> bool:
        return not self.posts and not self.retired

    @property
    def lasting(self) -> bool:
        """Whether a commit has something to force: more than messages that go back to their client."""
        return bool(self.posts) or any(one.retired or one.delivery is None for one in self.retired)


@dataclass(eq=False)
class Client:
    """A connection with a control link, and a link in each direction for each queue."""

    peer: Peer
    control: Coordinator
    senders: dict[str, Any]
    receivers: dict[str, Any]


class BrokerMachine(RuleBasedStateMachine):
    """The broker, its clients, and what should be so."""

    def __init__(self) -> None:
        super().__init__()
        self.step: Step | None = None
        """Where the store stops."""
        self.world = World(SETTINGS, hook=self.hit)
        self.messages: list[Message] = []
        self.clients: list[Client] = []
        self.txns: list[Txn] = []
        self.count = 0
        self.calm = 0
        """Steps since everything was thrown over."""
        self.observer = self.world.connect()

    def hit(self, step: Step) -> None:
        if step is self.step:
            raise StoreStopped("the machine crashes here")

    # -- the model
    def name(self) -> str:
        self.count += 1
        return f"n{self.count}"

    def of(self, *states: str, branch: bool | None = None) -> list[Txn]:
        return [txn for txn in self.txns if txn.state in states and (branch is None or branch == (txn.xid is not None))]

    def chosen(self, which: int, *states: str, branch: bool | None = None) -> tuple[Txn, Xid]:
        """One of those in these states, and its xid, if it is a branch."""
        txn = one_of(self.of(*states, branch=branch), which)
        return txn, txn.xid or NULL_XID

    def free(self) -> list[Message]:
        """Deliveries that a client holds, and that no transaction has."""
        return [message for message in self.messages if message.holder is not None and message.txn is None]

    def applied(self, txn: Txn) -> None:
        """Its work is committed."""
        for message in txn.posts:
            message.txn = None
        self.let_go(txn)
        for message in txn.retired:
            message.gone = message.retired
            if message.delivery is not None:
                assert message.delivery.settled, "a retired delivery is settled by the broker"
                message.delivery.settle()
            message.txn = message.holder = message.delivery = None
            message.acquired = message.retired = False
        txn.posts, txn.retired = [], []

    def let_go(self, txn: Txn) -> None:
        """What was acquired, and is live without an outcome, is its client's, and not the transaction's any more."""
        for message in [one for one in txn.retired if not one.retired and one.delivery is not None]:
            txn.retired.remove(message)
            message.txn, message.acquired = None, False

    def undone(self, txn: Txn) -> None:
        """Its work is rolled back: what it posted is gone, what it retired is where it was."""
        for message in txn.posts:
            message.gone, message.txn = True, None
        for message in txn.retired:
            message.txn = None
            if message.acquired and message.delivery is not None:
                assert message.delivery.settled, "the acquisition is rolled back"
                message.delivery.settle()
                message.holder = message.delivery = None
            elif message.delivery is not None:
                assert not message.delivery.settled, "the delivery is live at its client"
            message.acquired = message.retired = False
        txn.posts, txn.retired = [], []

    def decided(self, txn: Txn, *, commit: bool) -> None:
        if commit:
            self.applied(txn)
        else:
            self.undone(txn)

    def lost(self, client: Client) -> None:
        """A client is gone: what it held is free, what it did is undone, but for what was ended."""
        self.clients.remove(client)
        for message in self.messages:
            if message.holder is client:
                message.holder = message.delivery = None
            if message.txn is not None and message.txn.state == "ended" and message.acquired and not message.retired:
                message.delivery = None
        for txn in [txn for txn in self.txns if txn.client is client and txn.associated]:
            self.undone(txn)
            if txn.xid is None:
                self.txns.remove(txn)
            else:
                txn.state, txn.associated, txn.suspended = "dead", False, False

    # -- clients
    @initialize()
    def begin_with_something(self) -> None:
        for queue in QUEUES:
            self.connect()
            self.post(0, queue)
            self.post(0, queue)

    @precondition(lambda self: len(self.clients) < 3)
    @rule()
    def connect(self) -> None:
        peer = self.world.connect()
        senders = {name: peer.sender(name) for name in QUEUES}
        receivers = {name: peer.receiver(name) for name in QUEUES}
        self.clients.append(Client(peer, peer.coordinator(), senders, receivers))

    @precondition(lambda self: self.calm > CALM and self.clients)
    @rule(which=index)
    def vanish(self, which: int) -> None:
        client = one_of(self.clients, which)
        client.peer.vanish()
        self.world.peers.remove(client.peer)
        self.lost(client)

    # -- work outside of transactions
    def send(self, client: Client, queue: str, txn_id: bytes | None = None, *, delayed: bool = False) -> Delivery:
        """Posts a message with the name that was given last."""
        octets = ProtonMessage(body=f"n{self.count}", annotations=DELAY if delayed else None).encode()
        delivery = client.peer.send_octets(client.senders[queue], octets, client.peer.name("m"), txn_id)
        self.world.pump()
        return delivery

    @precondition(lambda self: self.clients)
    @rule(which=index, queue=st.sampled_from(QUEUES), delayed=st.sampled_from([False, False, True]))
    def post(self, which: int, queue: str, *, delayed: bool = False) -> None:
        client, body = one_of(self.clients, which), self.name()
        assert self.send(client, queue, delayed=delayed).remote_state == Delivery.ACCEPTED
        self.messages.append(Message(body, queue, delayed=delayed))

    def send_settled(self, client: Client, queue: str, octets: bytes) -> None:
        """Sends a message whose outcome is not waited for; nothing has moved yet."""
        client.peer.send_octets(client.senders[queue], octets, client.peer.name("m"), settled=True)

    @precondition(lambda self: self.clients)
    @rule(which=index, queue=st.sampled_from(QUEUES), refused=st.booleans())
    def post_settled(self, which: int, queue: str, *, refused: bool) -> None:
        """A message that is refused is counted, and leaves nothing; the link goes on."""
        client, body = one_of(self.clients, which), self.name()
        before = self.world.container.settled_and_refused
        self.send_settled(client, queue, GARBAGE if refused else ProtonMessage(body=body).encode())
        self.world.pump()
        assert self.world.container.settled_and_refused == before + refused
        if not refused:
            self.messages.append(Message(body, queue))

    @precondition(lambda self: self.clients)
    @rule(which=index, queue=st.sampled_from(QUEUES), closed=st.booleans())
    def post_and_detach(self, which: int, queue: str, *, closed: bool) -> None:
        """A settled message and, if the link is not closed, one whose outcome comes behind the detach."""
        client = one_of(self.clients, which)
        link = client.senders[queue]
        bodies = [self.name(), self.name()][: 1 if closed else 2]
        self.send_settled(client, queue, ProtonMessage(body=bodies[0]).encode())
        if closed:
            link.close()
        else:
            octets = ProtonMessage(body=bodies[1]).encode()
            delivery = client.peer.send_octets(link, octets, client.peer.name("m"))
            link.detach()
        self.world.pump()
        assert link.state & link.REMOTE_CLOSED or not closed
        assert closed or delivery.remote_state == Delivery.ACCEPTED
        self.messages += [Message(body, queue) for body in bodies]
        client.senders[queue] = client.peer.sender(queue)

    @precondition(lambda self: self.clients)
    @rule(which=index, queue=st.sampled_from(QUEUES))
    def post_and_be_refused(self, which: int, queue: str) -> None:
        """The link is closed with an error for a message: its sender has the outcome of the one before."""
        client, body = one_of(self.clients, which), self.name()
        peer, link = client.peer, client.senders[queue]
        delivery = peer.send_octets(link, ProtonMessage(body=body).encode(), peer.name("m"))
        peer.send_octets(link, GARBAGE, peer.name("m"), b"no transaction", settled=True)
        self.world.pump()
        assert condition_of(link).condition == Condition.UNKNOWN_ID
        assert delivery.remote_state == Delivery.ACCEPTED
        self.messages.append(Message(body, queue))
        self.world.close(link)
        client.senders[queue] = peer.sender(queue)

    @precondition(lambda self: self.calm > CALM and self.clients)
    @rule(which=index, queue=st.sampled_from(QUEUES), session=st.booleans())
    def leave(self, which: int, queue: str, *, session: bool) -> None:
        """A client says goodbye behind a settled message: it is in its queue when the goodbye is answered."""
        client, body = one_of(self.clients, which), self.name()
        self.send_settled(client, queue, ProtonMessage(body=body).encode())
        one = client.peer.session if session else client.peer.connection
        one.close()
        self.world.pump()
        assert one.state & one.REMOTE_CLOSED
        client.peer.vanish()
        self.world.peers.remove(client.peer)
        self.messages.append(Message(body, queue))
        self.lost(client)

    @precondition(lambda self: len(self.clients) > 1)
    @rule(which=index, left=st.booleans())
    def dynamic_node(self, which: int, *, left: bool) -> None:
        """Others send to a node of a client's own, and it is gone with the client's link; so is what it had."""
        owner, other = one_of(self.clients, which), one_of(self.clients, which + 1)
        link = owner.peer.receiver(None, 1)
        address = str(link.remote_source.address)
        sender = other.peer.sender(address)
        assert other.peer.post(sender, self.name()).remote_state == Delivery.ACCEPTED
        assert owner.peer.take(link) is not None
        if left:
            other.peer.post(sender, self.name(), settled=True)
        link.close()
        self.world.pump()
        assert address not in self.world.container.resource.queues

    @precondition(lambda self: self.clients)
    @rule(which=index, queue=st.sampled_from(QUEUES))
    def receive(self, which: int, queue: str, txn: Txn | None = None) -> None:
        """Takes a message, if there is one: the first one that is available."""
        client = one_of(self.clients, which)
        receiver = client.receivers[queue]
        receiver.drain(1)
        self.world.pump()
        taken = client.peer.take(receiver)
        available = [message for message in self.messages if message.available and message.queue == queue]
        assert (taken is not None) == bool(available), "a message is lost, or there twice"
        if taken is not None:
            found = [message for message in available if message.body == taken[1].body]
            assert len(found) == 1, f"{taken[1].body!r} can't be had"
            found[0].holder, found[0].delivery = client, taken[0]
            if txn is not None:
                found[0].txn, found[0].acquired = txn, True
                txn.retired.append(found[0])

    @precondition(lambda self: self.free())
    @rule(which=index, accepted=st.booleans())
    def settle(self, which: int, *, accepted: bool) -> None:
        message = one_of(self.free(), which)
        assert message.delivery is not None
        message.delivery.update(Delivery.ACCEPTED if accepted else Delivery.RELEASED)
        message.delivery.settle()
        self.world.pump()
        message.gone, message.holder, message.delivery = accepted, None, None

    @property
    def at_work(self) -> list[Txn]:
        """Transactions that take work."""
        return [txn for txn in self.of("active") if not txn.suspended]

    # -- work in transactions
    @precondition(lambda self: self.clients)
    @rule(which=index, branch=st.booleans())
    def begin(self, which: int, *, branch: bool) -> None:
        client = one_of(self.clients, which)
        xid = Xid(7, self.name().encode(), b"b") if branch else None
        txn_id = client.control.declare(None if xid is None else Start(xid))
        self.txns.append(Txn(client, txn_id, xid))

    @precondition(lambda self: self.at_work)
    @rule(which=index, queue=st.sampled_from(QUEUES), delayed=st.sampled_from([False, False, True]))
    def post_in(self, which: int, queue: str, *, delayed: bool = False) -> None:
        txn, body = one_of(self.at_work, which), self.name()
        self.send(txn.client, queue, txn.txn_id, delayed=delayed)
        message = Message(body, queue, txn=txn, delayed=delayed)
        self.messages.append(message)
        txn.posts.append(message)

    def retirable(self) -> list[tuple[Txn, Message]]:
        """What a transaction may retire: deliveries of its client that are nobody's, or that it acquired itself."""
        mine = [
            (one.txn, one) for one in self.messages if one.acquired and not one.retired and one.delivery is not None
        ]
        pairs = [
            (txn, one) for txn, one in mine if txn is not None and txn in self.at_work and one.holder is txn.client
        ]
        return pairs + [(txn, one) for txn in self.at_work for one in self.free() if one.holder is txn.client]

    @precondition(lambda self: self.retirable())
    @rule(which=index, settle=st.booleans())
    def retire_in(self, which: int, *, settle: bool = False) -> None:
        txn, message = one_of(self.retirable(), which)
        assert message.delivery is not None
        txn.client.peer.retire(message.delivery, txn.txn_id, settle=settle)
        if message.txn is None:
            message.txn = txn
            txn.retired.append(message)
        message.retired = True
        if settle:  # from here on the client knows nothing of it
            message.holder = message.delivery = None

    @precondition(lambda self: self.at_work)
    @rule(which=index, queue=st.sampled_from(QUEUES))
    def acquire_in(self, which: int, queue: str) -> None:
        """Takes a message under the transaction: its acquisition is undone with it."""
        txn = one_of(self.at_work, which)
        receiver = txn.client.receivers[queue]
        txn.client.peer.acquire_for(receiver, txn.txn_id)
        self.receive(self.clients.index(txn.client), queue, txn)
        txn.client.peer.acquire_for(receiver, None)
        self.world.more(receiver, 0)

    @precondition(lambda self: self.clients)
    @rule(
        which=index, branch=st.booleans(), queue=st.sampled_from(QUEUES), ends=st.sampled_from(["", "end", "prepare"])
    )
    def work(self, which: int, queue: str, ends: str, *, branch: bool) -> None:
        """What an application does: takes a message and sends one, in a transaction."""
        client = one_of(self.clients, which)
        self.begin(which, branch=branch)
        txn = self.txns[-1]
        self.post_in(self.at_work.index(txn), QUEUES[queue == QUEUES[0]])
        self.receive(which, queue)
        mine = [number for number, (one, _) in enumerate(self.retirable()) if one is txn]
        if mine:
            self.retire_in(mine[-1])
        if branch and ends:
            assert txn.client is client
            self.end(self.ending().index(txn), fail=False)
            if ends == "prepare":
                self.prepare(self.of("ended", "dead", "active", branch=True).index(txn))

    def ending(self) -> list[Txn]:
        return [txn for txn in self.of("active", "dead", branch=True) if txn.associated and not txn.suspended]

    @precondition(lambda self: any(txn.xid is not None for txn in self.at_work))
    @rule(which=index)
    def suspend(self, which: int) -> None:
        txn = one_of([txn for txn in self.at_work if txn.xid is not None], which)
        code, _, _ = txn.client.control.end(txn.txn_id, suspend=True)
        assert code == Delivery.ACCEPTED
        txn.suspended = True

    @precondition(lambda self: any(txn.suspended for txn in self.of("active")))
    @rule(which=index)
    def resume(self, which: int) -> None:
        txn = one_of([txn for txn in self.of("active") if txn.suspended], which)
        assert txn.xid is not None
        txn.txn_id = txn.client.control.declare(Start(txn.xid, resume=True))
        txn.suspended = False

    @precondition(lambda self: self.clients and self.of("ended"))
    @rule(which=index, who=index)
    def join(self, which: int, who: int) -> None:
        """Somebody goes on with a branch that was ended."""
        (txn, xid), client = self.chosen(which, "ended"), one_of(self.clients, who)
        txn.txn_id = client.control.declare(Start(xid, join=True))
        txn.client, txn.state, txn.associated = client, "active", True

    @precondition(lambda self: self.of("active", "ended", "prepared", branch=True))
    @rule(which=index)
    def fence(self, which: int) -> None:
        """No branch of the global transaction can be prepared any more, but those that are."""
        txn, xid = self.chosen(which, "active", "ended", "prepared", branch=True)
        assert self.observer.ask(Fence(xid.format_id, xid.gtrid)) == OK
        if txn.state != "prepared":
            self.undone(txn)
            txn.state = "dead"

    # -- decisions
    @precondition(lambda self: self.of("active", "dead", branch=False))
    @rule(which=index, commit=st.booleans())
    def discharge_local(self, which: int, *, commit: bool) -> None:
        txn, _ = self.chosen(which, "active", "dead", branch=False)
        self.txns.remove(txn)
        code, _, _ = txn.client.control.outcome(CONTROL.encode(Discharge(txn.txn_id, not commit)))
        if txn.state == "dead":
            assert code == (Delivery.REJECTED if commit else Delivery.ACCEPTED)
            return
        assert code == Delivery.ACCEPTED
        self.decided(txn, commit=commit)

    @precondition(lambda self: self.ending())
    @rule(which=index, fail=st.booleans())
    def end(self, which: int, *, fail: bool) -> None:
        txn = one_of(self.ending(), which)
        code, _, refusal = txn.client.control.outcome(CONTROL.encode(Discharge(txn.txn_id, fail)))
        txn.associated = False
        if txn.state == "dead":
            assert code == Delivery.ACCEPTED if fail else refusal is not None
            return
        assert code == Delivery.ACCEPTED
        txn.state = "dead" if fail else "ended"
        if fail:
            self.undone(txn)

    @precondition(lambda self: self.of("ended", "dead", "active", branch=True))
    @rule(which=index)
    def prepare(self, which: int) -> None:
        txn, xid = self.chosen(which, "ended", "dead", "active", branch=True)
        reply = self.observer.ask(Prepare(xid))
        if txn.associated:
            assert isinstance(reply, Refusal)
            assert reply.code is Code.XAER_PROTO
        elif txn.state == "dead":
            assert reply != OK
            self.txns.remove(txn)
            self.observer.ask(Rollback(xid))
        else:
            self.let_go(txn)
            assert reply == (Told(Code.XA_RDONLY) if txn.empty else OK)

            if txn.empty:
                self.txns.remove(txn)
            else:
                txn.state = "prepared"

    @precondition(lambda self: any(txn.xid is not None for txn in self.at_work))
    @rule(which=index)
    def end_and_prepare(self, which: int) -> None:
        """Both in one exchange."""
        txn = one_of([txn for txn in self.at_work if txn.xid is not None], which)
        self.let_go(txn)
        code, data, _ = txn.client.control.end(txn.txn_id, prepare=True)
        assert code == int(RESULT.code) & 0xFFFF_FFFF_FFFF_FFFF
        txn.associated = False
        if txn.empty:
            assert data[0] == STATUS_OF[Code.XA_RDONLY]
            self.txns.remove(txn)
        else:
            assert data[0] == STATUS_OF[Code.XA_OK]
            txn.state = "prepared"

    @precondition(lambda self: self.of("prepared"))
    @rule(which=index)
    def read(self, which: int) -> None:
        """Whoever may coordinate a branch reads what it holds, in its order."""
        txn, xid = self.chosen(which, "prepared")
        held = [message.body for message in txn.retired] + [message.body for message in txn.posts]
        assert self.observer.drained(branch_address(xid)) == held

    @precondition(lambda self: self.of("ended", "prepared", branch=True))
    @rule(which=index, commit=st.booleans())
    def decide(self, which: int, *, commit: bool) -> None:
        txn, xid = self.chosen(which, "ended", "prepared", branch=True)
        command = Commit(xid, one_phase=txn.state == "ended") if commit else Rollback(xid)
        assert self.observer.ask(command) == OK
        self.txns.remove(txn)
        self.decided(txn, commit=commit)

    @precondition(lambda self: self.of("prepared"))
    @rule(which=index, commit=st.booleans())
    def complete(self, which: int, *, commit: bool) -> None:
        txn, xid = self.chosen(which, "prepared")
        assert self.observer.ask(Complete(xid, commit)) == OK
        txn.state, txn.completed = "heuristic", commit
        self.decided(txn, commit=commit)

    @precondition(lambda self: self.of("heuristic"))
    @rule(which=index, commit=st.booleans())
    def forget(self, which: int, *, commit: bool) -> None:
        """The late decision hears what was done, and it is forgotten."""
        txn, xid = self.chosen(which, "heuristic")
        heard = Told(Code.XA_HEURCOM if txn.completed else Code.XA_HEURRB)
        assert self.observer.ask(Commit(xid) if commit else Rollback(xid)) == heard
        assert self.observer.ask(Forget(xid)) == OK
        self.txns.remove(txn)

    # -- time and crashes
    @precondition(lambda self: self.calm > CALM)
    @rule()
    def time_passes(self) -> None:
        """Longer than anything that is not prepared may take. What was suspended then is so until its client goes."""
        self.calm = 0
        self.world.pass_time(601)
        for message in self.messages:
            message.delayed = message.delayed and message.txn is not None
        for txn in self.of("active", "ended"):
            self.undone(txn)
            txn.state = "dead"

    def restart(self) -> None:
        """Another node on the same disk."""
        self.step = None
        self.world = World(SETTINGS, disk=self.world.disk, hook=self.hit, seconds=self.world.clock.seconds)
        for client in tuple(self.clients):
            self.lost(client)
        for txn in self.of("ended", "dead"):
            self.undone(txn)
            self.txns.remove(txn)
        self.calm = 0
        self.observer = self.world.connect()
        self.connect()
        self.connect()

    @precondition(lambda self: self.calm > CALM)
    @rule()
    def crash(self) -> None:
        self.restart()

    @precondition(lambda self: self.calm > CALM and self.clients)
    @rule(which=index, step=st.sampled_from(list(Step)), queue=st.sampled_from(QUEUES))
    def crash_while_posting(self, which: int, step: Step, queue: str) -> None:
        client, body = one_of(self.clients, which), self.name()
        self.step = step
        delivery = client.peer.post(client.senders[queue], body)
        assert not int(delivery.remote_state), "answered, and it may be lost"
        assert self.world.stopped, "the store was not asked"
        if step is Step.FORCED:
            self.messages.append(Message(body, queue))
        self.restart()

    @precondition(lambda self: self.calm > CALM and self.clients)
    @rule(which=index, step=st.sampled_from(list(Step)), what=st.sampled_from(["link", "session", "connection"]))
    def crash_behind_a_settled_message(self, which: int, step: Step, what: str) -> None:
        """The end of a link, a session or a connection is not answered before the message is stored."""
        client, body = one_of(self.clients, which), self.name()
        ends = {"link": client.senders["q"], "session": client.peer.session, "connection": client.peer.connection}
        self.step = step
        self.send_settled(client, "q", ProtonMessage(body=body).encode())
        ends[what].close()
        self.world.pump()
        assert not ends[what].state & ends[what].REMOTE_CLOSED, "answered, and the message may be lost"
        assert self.world.stopped, "the store was not asked"
        if step is Step.FORCED:
            self.messages.append(Message(body, "q"))
        self.restart()

    @precondition(lambda self: self.calm > CALM and any(txn.lasting for txn in self.of("active", branch=False)))
    @rule(which=index, step=st.sampled_from(list(Step)))
    def crash_while_discharging(self, which: int, step: Step) -> None:
        txn = one_of([txn for txn in self.of("active", branch=False) if txn.lasting], which)
        self.step = step
        delivery = txn.client.control.send(CONTROL.encode(Discharge(txn.txn_id)))
        self.world.pump()
        assert not int(delivery.remote_state), "answered, and it may be lost"
        assert self.world.stopped, "the store was not asked"
        self.crashed_while(txn, step, lambda: self.applied(txn))

    @precondition(lambda self: self.calm > CALM and any(txn.lasting for txn in self.of("ended", "prepared")))
    @rule(which=index, step=st.sampled_from(list(Step)), verb=st.sampled_from(["prepare", "commit", "rollback"]))
    def crash_while_coordinating(self, which: int, step: Step, verb: str) -> None:
        txn = one_of([txn for txn in self.of("ended", "prepared") if txn.lasting], which)
        assert txn.xid is not None
        if txn.state == "ended" and verb == "rollback":  # it needs no force
            verb = "prepare"
        elif txn.state == "prepared" and verb == "prepare":
            verb = "commit"

        commands: dict[str, Any] = {
            "prepare": Prepare(txn.xid),
            "commit": Commit(txn.xid, one_phase=txn.state == "ended"),
            "rollback": Rollback(txn.xid),
        }
        self.observer.ask(Recover())  # the command channel is there
        self.step = step
        self.observer.request(commands[verb])
        self.world.pump()
        replies: Any = self.observer._replies
        assert replies.current is None, "answered, and it may be lost"
        assert self.world.stopped, "the store was not asked"
        if verb == "prepare" and step is Step.FORCED:
            self.let_go(txn)
            txn.state = "prepared"
            self.restart()
        else:
            self.crashed_while(txn, step, lambda: self.applied(txn) if verb == "commit" else self.undone(txn))

    def crashed_while(self, txn: Txn, step: Step, done: Callable[[], None]) -> None:
        if step is Step.FORCED:
            self.let_go(txn)
        for message in txn.retired:  # nobody hears of the deliveries any more
            message.holder = message.delivery = None
        if step is Step.FORCED:
            self.txns.remove(txn)
            done()
        self.restart()

    # -- what is so after every step
    @invariant()
    def it_is_calm(self) -> None:
        self.calm += 1

    @invariant()
    def queues_hold_what_is_available(self) -> None:
        for queue in QUEUES:
            expected = [message.body for message in self.messages if message.available and message.queue == queue]
            assert sorted(self.observer.drained(queue)) == sorted(expected)

    @invariant()
    def in_doubt_is_what_was_prepared(self) -> None:
        reply = self.observer.ask(Recover())
        assert isinstance(reply, Recovered)
        assert list(reply.in_doubt) == sorted(
            txn.xid for txn in self.of("prepared", "heuristic") if txn.xid is not None
        )

    @invariant()
    def nothing_else_is_held_or_waited_for(self) -> None:
        for name in QUEUES:
            queue = self.world.queue(name)
            mine = [message for message in self.messages if message.queue == name and not message.gone]
            posted = sum(1 for message in mine if message.txn is not None and message in message.txn.posts)
            delayed = sum(1 for message in mine if message.delayed and message.txn is None)
            taken = sum(1 for message in mine if not message.available) - posted - delayed
            assert (queue.counters.held, queue.counters.pending, queue.counters.delayed) == (taken, posted, delayed)

    def teardown(self) -> None:
        """When everybody is gone and all is decided, every message that was not retired can be had."""
        for client in tuple(self.clients):
            client.peer.vanish()
            self.world.peers.remove(client.peer)
            self.lost(client)
        for txn in self.of("ended", "dead", "prepared", branch=True):
            assert txn.xid is not None
            assert self.observer.ask(Rollback(txn.xid)) == OK
            self.undone(txn)
            self.txns.remove(txn)
        self.queues_hold_what_is_available()
        self.nothing_else_is_held_or_waited_for()
        assert len(self.world.container.registry) == len(self.of("heuristic"))
        assert self.world.container.resource.unstored.octets == 0


SCHEDULES = int(os.environ.get("XABRIDGE_SCHEDULES", "24"))
TestBroker = pytest.mark.timeout(120 + 10 * SCHEDULES)(pytest.mark.slow(BrokerMachine.TestCase))
TestBroker.settings = settings(
    max_examples=SCHEDULES,
    stateful_step_count=40,
    deadline=None,
    derandomize="XABRIDGE_SCHEDULES" not in os.environ,
    print_blob=True,
)
