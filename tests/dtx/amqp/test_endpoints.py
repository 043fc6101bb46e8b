"""Two endpoints that talk with each other, in random walks. Every message arrives whole, in order and once, no frame
breaks a rule (`frame_rules`), and in the end both know the same: also when either side ends anything at any moment.
Then the connection is lost between any two octets. And the tables of the endpoint: every state can be reached."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeVar

import pytest

from dtx.amqp.connection import Connection
from dtx.amqp.delivery import PARTIAL, SETTLED, SETTLED_THERE, UNSETTLED, WAITING, IncomingDelivery, OutgoingDelivery
from dtx.amqp.events import ConnectionClosed, ConnectionOpened, SessionBegun, SessionEnded
from dtx.amqp.frames import AMQP_HEADER, performative_frame
from dtx.amqp.link import ReceiverLink, SenderLink
from dtx.amqp.performatives import Begin, End, Error, Open
from dtx.amqp.session import Session
from dtx.amqp.states import (
    CONNECTION,
    DELIVERY,
    LINK,
    SESSION,
    ConnectionState,
    ConnectionVerb,
    DeliveryState,
    DeliveryVerb,
    LinkState,
    LinkVerb,
    SessionState,
    SessionVerb,
)
from tests.cases import each
from tests.dtx.amqp.ends import ACCEPTED, RECEIVED, REFUSED, Application, Dice, ends
from tests.dtx.amqp.stranger import kept
from tests.simulation.seeds import few, many
from xa.machine import Machine, Result, advance

SCHEDULES = max(1, int(os.environ.get("XABRIDGE_SCHEDULES", "30")))
STEPS = 600
SIZES = (0, 1, 100, 400, 600, 3000, 20_000)
LARGE = 64 << 20
BEGUN = {SessionState.MAPPED, SessionState.BEGIN_SENT}
ATTACHED = {LinkState.ATTACHED, LinkState.ATTACH_SENT}
D = TypeVar("D", "IncomingDelivery", "OutgoingDelivery")


class Walk:
    """A random walk of both ends. `ending` says how often something is ended (0: nothing is)."""

    def __init__(self, seed: int, *, ending: int) -> None:
        self.random = Dice(seed)
        self.ending = ending
        pick = self.random.choice
        self.ends = ends(
            client=Connection("client", max_frame_size=pick((512, 600, 65_536)), window=pick((1, 2, 3, 50))),
            server=Connection("server", max_frame_size=pick((512, 600, 65_536)), window=pick((1, 2, 3, 50))),
            credit=pick((0, 1, 5)),
            count=pick((0, 2**32 - 3, 2**31 - 2)),
            numbers=pick((None, self.random)),
        )

        self.sent: dict[str, list[bytes]] = defaultdict(list)
        """By the names of links, what was sent whole and not aborted."""
        self.open: dict[OutgoingDelivery, bytes] = {}
        """Deliveries that are not complete, with what they have."""
        self.whole: dict[OutgoingDelivery, int] = {}
        """Complete ones that may be aborted still, with their places in `sent`."""
        self.names = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        end = self.random.choice((self.ends.client, self.ends.server))
        if end.connection.state is not ConnectionState.OPENED:
            return
        move = self.random.choice(
            [self.transport] * 6
            + [self.send] * 4
            + [self.credit] * 2
            + [self.begin, self.attach, self.add, self.abort, self.dispose, self.outgoing, self.echo]
            + [self.detach, self.end] * self.ending
        )
        move(end)
        end.drain()

    # -- moves
    def transport(self, end: Application) -> None:
        if self.random.random() < 0.6:
            self.ends.send(end)
        self.ends.arrive(end, self.random.choice((1, 7, 100, 1000, None)))

    def begin(self, end: Application) -> None:
        if sum(session.mapped for session in end.sessions) < 3:
            end.begin()

    def attach(self, end: Application) -> None:
        for session in self.random.some(one for one in end.sessions if one.state in BEGUN):
            if sum(link.attached for link in end.links) < 5:
                self.names += 1
                name = f"{end.connection.container} {self.names}" + REFUSED * (self.random.random() < 0.1)
                end.attach(session, name, receives=self.random.random() < 0.5)

    def credit(self, end: Application) -> None:
        for link in self.random.some(one for one in end.links if isinstance(one, ReceiverLink) and one.attached):
            link.give_credit(self.random.choice((0, 1, 2, 10)), drain=self.random.random() < 0.2)

    def send(self, end: Application) -> None:
        links = (one for one in end.links if isinstance(one, SenderLink) and one.attached)
        for link in self.random.some(one for one in links if one.credit and one.current is None):
            octets = self.random.randbytes(self.random.choice(SIZES))
            more = self.random.random() < 0.2
            state = self.random.choice((None, None, RECEIVED))
            tag = len(end.outgoing).to_bytes(4, "big")
            delivery = link.send(tag, octets, state, settled=self.random.random() < 0.3, more=more)
            end.outgoing.append(delivery)
            if more:
                self.open[delivery] = octets
            else:
                self._complete(delivery, octets)

    def _complete(self, delivery: OutgoingDelivery, octets: bytes) -> None:
        sent = self.sent[delivery.link.name]
        self.whole[delivery] = len(sent)
        sent.append(octets)

    def own(self, end: Application, among: Iterable[OutgoingDelivery]) -> list[OutgoingDelivery]:
        """One of these deliveries that this end sends, if there is one."""
        own = (one for one in among if one.link.session.connection is end.connection and one.link.attached)
        return self.random.some(one for one in own if one.progress in {WAITING, PARTIAL} and not one.aborting)

    def add(self, end: Application) -> None:
        for delivery in self.own(end, self.open):
            octets = self.random.randbytes(self.random.choice(SIZES))
            more = self.random.random() < 0.5
            delivery.add(octets, more=more)
            self.open[delivery] += octets
            if not more:
                self._complete(delivery, self.open.pop(delivery))

    def abort(self, end: Application) -> None:
        for delivery in self.own(end, (*self.open, *self.whole)):
            self.random.choice((delivery.abort, delivery.settle))()
            if self.open.pop(delivery, None) is None:
                self._take_back(delivery)

    def _take_back(self, delivery: OutgoingDelivery) -> None:
        place = self.whole.pop(delivery)
        name = delivery.link.name
        del self.sent[name][place]
        for other, at in self.whole.items():
            if other.link.name == name and at > place:
                self.whole[other] = at - 1

    def unsettled(self, among: Iterable[D]) -> list[D]:
        """Some of these in a row."""
        found = [one for one in among if one.progress in {UNSETTLED, SETTLED_THERE}]
        at = self.random.randrange(len(found) + 1)
        return found[at : at + self.random.choice((1, 3, 10))]

    def dispose(self, end: Application) -> None:
        for delivery in self.unsettled(end.incoming):
            delivery.update(self.random.choice((ACCEPTED, RECEIVED)), settled=self.random.random() < 0.7)

    def outgoing(self, end: Application) -> None:
        for delivery in self.unsettled(end.outgoing):
            if self.random.random() < 0.5:
                delivery.settle()
            else:
                delivery.update(RECEIVED, settled=self.random.random() < 0.5)

    def echo(self, end: Application) -> None:
        for session in self.random.some(session for session in end.sessions if session.mapped):
            flow = session.flow()
            flow.echo = True
            links = [link for link in end.links if link.session is session and link.attached]
            for link in self.random.some(links) if self.random.random() < 0.5 else ():
                flow.handle, flow.delivery_count = link.handle, link.delivery_count
                if isinstance(link, ReceiverLink):
                    flow.link_credit, flow.drain = link.credit, link.drain
                elif isinstance(link, SenderLink):
                    flow.drain = link._drain_echo
            session.send(flow)

    def detach(self, end: Application) -> None:
        for link in self.random.some(one for one in end.links if one.state in ATTACHED):
            text = "x" * self.random.choice((0, 1000))
            link.detach(error=self.random.choice((None, Error("amqp:link:detach-forced", text))))

    def end(self, end: Application) -> None:
        for session in self.random.some(session for session in end.sessions if session.mapped):
            if self.random.random() < 0.5:
                session.end(self.random.choice((None, Error("amqp:internal-error", "why not"))))

    # -- the end of a walk
    def finish(self) -> None:
        """Everything that is begun is completed and gets credit, until nothing is left to be said."""
        for delivery, octets in tuple(self.open.items()):
            if delivery.link.attached:
                delivery.add(b"last", more=False)
                self._complete(delivery, octets + b"last")
        self.ends.settle()
        for end in (self.ends.client, self.ends.server):
            for link in end.links:
                if isinstance(link, ReceiverLink):
                    link.give_credit(100)
        self.ends.settle()

    def check(self) -> None:
        client, server = self.ends.client, self.ends.server
        for end in (client, server):
            assert end.connection.state is ConnectionState.OPENED, end.events[-1]  # nobody has found an error
            end.rules.check_answers()
        for end in (client, server):
            self.check_messages(end)
            unsettled = sum(one.progress is not SETTLED for one in deliveries(end))
            alive = sum(session.mapped for session in end.sessions) + sum(link.attached for link in end.links)
            assert kept(end.connection) <= 5 * (alive + unsettled)
        self.check_sessions(client, server)
        self.check_sessions(server, client)

    def check_messages(self, end: Application) -> None:
        attached = {link.name for link in end.links if isinstance(link, SenderLink) and link.attached}
        other = self.ends.other(end)
        for name in [link.name for link in end.links if isinstance(link, SenderLink)]:
            came, sent = other.messages[name], self.sent[name]
            if name in attached:
                assert came == sent
            else:
                assert came == sent[: len(came)]
        assert len({id(delivery) for delivery in other.incoming}) == len(other.incoming)

    def check_sessions(self, end: Application, other: Application) -> None:
        """What `end` has sent, and what `other` knows of it."""
        assert len(end.connection.sessions) == len(other.connection.sessions)
        for session in end.connection.sessions.values():
            there = other.connection.sessions[session.channel]
            assert session.mapped
            assert there.mapped
            assert len(session.links) == len(there.links) == len(session._handles)
            assert not any(link.queued for link in session._handles.values() if isinstance(link, SenderLink))
            assert session.waiting_octets == 0
            assert session._next_outgoing_id == there._next_incoming_id
            assert numbers(session, UNSETTLED) == numbers(there, UNSETTLED, incoming=True)
            assert not numbers(session, SETTLED_THERE) & set(there.incoming)
            assert not numbers(there, SETTLED_THERE, incoming=True) & set(session.outgoing)

            for link in session.links.values():
                if isinstance(link, SenderLink):
                    peer = there._handles[link.remote_handle]
                    assert isinstance(peer, ReceiverLink)
                    assert peer.name == link.name
                    assert (peer.delivery_count, peer.credit) == (link.delivery_count, link.credit)

    def settle_all(self) -> None:
        for end in (self.ends.client, self.ends.server):
            for delivery in deliveries(end):
                delivery.settle()
        self.ends.settle()
        for end in (self.ends.client, self.ends.server):
            for session in end.connection.sessions.values():
                assert not session.incoming
                assert not session.outgoing


def numbers(session: Session, state: DeliveryState, *, incoming: bool = False) -> set[int]:
    found = session.incoming if incoming else session.outgoing
    return {number for number, one in found.items() if one.progress is state}


def deliveries(end: Application) -> list[IncomingDelivery | OutgoingDelivery]:
    return [*end.incoming, *end.outgoing]


def walk(seed: int, *, ending: int, steps: int = STEPS) -> Walk:
    """One to its end, with its checks."""
    found = Walk(seed, ending=ending)
    found.run(steps)
    found.finish()
    found.check()
    found.settle_all()
    return found


@each("seed", few(10))
def test_every_message_arrives_whole_in_order_and_once(seed: int) -> None:
    walk(seed, ending=0)


@each("seed", few(10))
def test_either_side_may_end_anything_at_any_moment(seed: int) -> None:
    found = walk(seed, ending=1)
    for end in (found.ends.client, found.ends.server):
        for session in tuple(end.connection.sessions.values()):
            session.end()
    found.ends.settle()
    for end in (found.ends.client, found.ends.server):
        assert_empty(end)
        end.rules.check_answers()


@each("seed", few(10))
def test_either_side_may_close_at_any_moment(seed: int) -> None:
    close(seed)


def close(seed: int) -> None:
    found = Walk(seed, ending=1)
    found.run(found.random.randrange(STEPS))
    client, server = found.ends.client, found.ends.server
    error = found.random.choice((None, Error("amqp:connection:forced", "it is late")))
    for end in found.random.choice(((client,), (server,), (client, server))):
        end.connection.close(error)
    found.run(20)
    found.ends.settle()
    for end in (client, server):
        assert end.connection.state is ConnectionState.END
        assert end.connection.finished
        end.rules.check_answers()
        assert_empty(end)


@each("seed", few(10))
def test_the_connection_may_be_lost_between_any_two_octets(seed: int) -> None:
    lose(seed)


def lose(seed: int) -> None:
    found = Walk(seed, ending=1)
    found.run(found.random.randrange(STEPS))
    for end in (found.ends.client, found.ends.server):
        found.ends.arrive(end, found.random.randrange(1000))
        end.connection.lose()
        assert end.connection.output() == b""
        assert end.connection.next_event() is None
        assert end.connection.finished
        assert_empty(end)
        for session in end.sessions:
            assert session.state is SessionState.ENDED
        for link in end.links:
            assert link.state is LinkState.GONE
            link.detach()
            if isinstance(link, ReceiverLink):
                link.give_credit(1)

        for delivery in deliveries(end):
            delivery.update(ACCEPTED, settled=True)
            delivery.settle()
        assert end.connection.output() == b""


def assert_empty(end: Application) -> None:
    """Nothing is kept of what is over."""
    connection = end.connection
    for table in (connection.sessions, connection._channels, connection.links, connection._owed, connection._disposing):
        assert not table
    for session in end.sessions:
        for left in (session.links, session._handles, session._unanswered, session.incoming, session.outgoing):
            assert not left
        assert not any(link.queued for link in session._handles.values() if isinstance(link, SenderLink))
        assert session.waiting_octets == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@each("seed", many(0, 1, SCHEDULES))
def test_more_walks_and_long_ones(seed: int) -> None:
    close(seed)
    lose(seed)
    if seed % 10 == 0:
        for ending in (0, 1):
            walk(seed, ending=ending, steps=10 * STEPS)


def test_the_parts_of_a_large_message_are_taken_without_copying_its_rest() -> None:
    """A broker that did so served nobody else for a minute."""
    both = ends()
    session = both.client.begin()
    link = both.client.attach(session, "out", receives=False)
    both.settle()
    assert isinstance(link, SenderLink)
    delivery = link.send(b"0", b"x" * LARGE)  # which has no credit
    taken = 0
    began = time.process_time()
    while delivery.size:
        taken += len(delivery.take(16 << 10))
    assert taken == LARGE
    assert time.process_time() - began < 4


@pytest.mark.parametrize("answered", [True, False])
def test_a_session_may_end_before_its_begin_was_answered(answered: bool) -> None:
    """An application that answers late still gets both events, and the peer gets a begin and an end."""
    connection = Connection("late")
    connection.feed(AMQP_HEADER + performative_frame(0, Open("peer")))
    assert isinstance(connection.next_event(), ConnectionOpened)
    connection.open()
    connection.output()
    connection.feed(performative_frame(0, Begin(None, 0, 10, 10)) + performative_frame(0, End()))
    begun, ended = connection.next_event(), connection.next_event()
    assert isinstance(begun, SessionBegun)
    assert isinstance(ended, SessionEnded)
    if answered:
        begun.session.begin()
    ended.session.end()
    assert begun.session.state is SessionState.ENDED
    assert not connection.sessions
    octets = connection.output()
    assert octets.count(b"\x00\x53\x11") == octets.count(b"\x00\x53\x17") == 1

    connection.feed(performative_frame(0, Begin(None, 0, 10, 10)) + performative_frame(0, End()) * 2)
    assert isinstance(connection.next_event(), SessionBegun)
    assert isinstance(connection.next_event(), SessionEnded)
    closed = connection.next_event()
    assert isinstance(closed, ConnectionClosed)
    assert "a second end" in str(closed)


# -- tables
AnyMachine = Machine[Any, Any]
MACHINES = (CONNECTION, SESSION, LINK, DELIVERY)
LAST: dict[str, tuple[Enum, Enum]] = {
    CONNECTION.name: (ConnectionState.END, ConnectionVerb.LOSE),
    SESSION.name: (SessionState.ENDED, SessionVerb.LOSE),
    LINK.name: (LinkState.GONE, LinkVerb.LOSE),
    DELIVERY.name: (DeliveryState.SETTLED, DeliveryVerb.LOSE),
}
UNANSWERED = {ConnectionState.HDR_RCVD, ConnectionState.OPEN_RCVD, SessionState.BEGIN_RCVD, LinkState.ATTACH_RCVD}
"""Where an end owes an answer, and reads nothing more before it has given it."""


def members(kind: type[Enum]) -> list[Any]:
    return list(kind)


@each("machine", MACHINES)
def test_every_state_is_reached_and_left_and_a_loss_ends_it(machine: AnyMachine) -> None:
    """Every state but the last one is left; and what happens has one result."""
    assert {result for _, _, result, _, _ in machine.transitions()} == {Result.OK}
    reached = {machine.initial}
    for _ in members(machine.states):
        reached |= {target for state, _, _, target, _ in machine.transitions() if state in reached}
    assert reached == set(members(machine.states))
    last, lose = LAST[machine.name]
    for state in members(machine.states):
        leaves = {target for source, _, _, target, _ in machine.transitions() if source is state} - {state}
        assert bool(leaves) == (state is not last)
        assert advance(machine, state, lose) is last


def test_a_sender_and_a_receiver_of_the_same_frames_are_never_at_odds() -> None:
    """The tables of both ends, driven by the same frames in every order in which they can cross: what one end may send,
    the other one may receive, whatever it has sent meanwhile."""
    tables: tuple[tuple[AnyMachine, dict[Any, Any]], ...] = (
        (
            SESSION,
            {
                SessionVerb.SEND_BEGIN: SessionVerb.RECEIVE_BEGIN,
                SessionVerb.SEND_END: SessionVerb.RECEIVE_END,
                SessionVerb.SEND_ERROR: SessionVerb.RECEIVE_END,
            },
        ),
        (
            LINK,
            {
                LinkVerb.SEND_ATTACH: LinkVerb.RECEIVE_ATTACH,
                LinkVerb.SEND_DETACH: LinkVerb.RECEIVE_DETACH,
            },
        ),
        (
            CONNECTION,
            {
                ConnectionVerb.SEND_HEADER: ConnectionVerb.RECEIVE_HEADER,
                ConnectionVerb.SEND_OPEN: ConnectionVerb.RECEIVE_OPEN,
                ConnectionVerb.SEND_CLOSE: ConnectionVerb.RECEIVE_CLOSE,
                ConnectionVerb.SEND_ERROR: ConnectionVerb.RECEIVE_CLOSE,
            },
        ),
    )

    for machine, pairs in tables:
        crossings(machine, pairs)


def crossings(machine: AnyMachine, pairs: dict[Any, Any]) -> None:
    """Explores both ends with the frames between them. A frame that a receiver has no row for is found."""
    start = (machine.initial, machine.initial, (), ())
    seen, front = {start}, [start]
    while front:
        state = front.pop()
        for side in (0, 1):
            own, inbound, outbound = state[side], state[2 + side], state[3 - side]
            moves: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = []
            for send, receive in pairs.items():
                if machine.refusal(own, send) is None and answers(machine, own, state[1 - side], inbound, send):
                    moves.append((advance(machine, own, send), inbound, (*outbound, receive)))

            if inbound and own not in UNANSWERED:
                moves.append((advance(machine, own, inbound[0]), inbound[1:], outbound))
            for after, came, went in moves:
                ends = (after, state[1 - side]) if side == 0 else (state[0], after)
                wires = (came, went) if side == 0 else (went, came)
                found = (*ends, *wires)
                if found not in seen:
                    seen.add(found)
                    front.append(found)


def answers(machine: AnyMachine, own: Any, other: Any, inbound: tuple[Any, ...], send: Any) -> bool:
    """One end begins a session or attaches a link, and the other one answers that: both at once would be two."""
    begins = send is SessionVerb.SEND_BEGIN or send is LinkVerb.SEND_ATTACH
    if not begins or own is not machine.initial:
        return True
    return other is machine.initial and not inbound
