"""These tests cover the application's session: the messages that it receives and sends, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rm_amqp import Message, NoMessage
from rm_amqp.channel.message_links import MAX_LINKS
from rm_amqp.channel.work import MAX_HELD
from rm_amqp.connection.connection import SocketConnection
from rm_amqp.session import TOGETHER
from tests.rm_amqp.client import RMID, Client, NetworkClient
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.rm_amqp.messaging_suite import *  # noqa: F403 — the suite
from tests.rm_amqp.network import Network
from tests.waiting import until
from xa import (
    TMRESUME,
    TMSUSPEND,
    BranchRolledBack,
    Code,
    ThreadOfControl,
    XaMisuse,
    entered,
)
from xabridge.testing.contract.client import elsewhere

Connect = Callable[..., Client]


@pytest.mark.parametrize("how", ["delay", "deliver_at", "batch"])
def test_a_delayed_message_comes_when_its_time_has_come(queue: str, how: str) -> None:
    """Which is counted from the commit."""
    delay_s = 0.4
    network = Network()
    client = NetworkClient(network)
    xid = client.start()
    if how == "deliver_at":
        client.session.send(queue, Message("later", deliver_at=network.now + 2 * delay_s))
    elif how == "delay":
        client.session.send(queue, Message("later", delay=delay_s, annotations={"x-opt-own": 1}))
    else:
        client.session.send_batch(queue, [Message("now"), Message("later", delay=delay_s)])

    client.end(xid)
    network.sleep(delay_s)  # a delay does not begin yet
    began = network.now
    client.commit(xid, end=False, two_phase=True)
    assert client.look(queue) == (["now"] if how == "batch" else [])
    with client.work() as session:
        if how == "batch":
            assert session.receive(queue, 5).body == "now"
        message = session.receive(queue, 5)
        assert message.body == "later"
        assert network.now - began > delay_s * (0.5 if how == "deliver_at" else 0.99)
        assert (message.delay, message.deliver_at) == (0, 0), "or who passes it on would delay it again"
        session.dead_letter(message, f"{queue}-dead", {"reason": "bad"})
    assert client.look(f"{queue}-dead") == ["later"], "a dead letter is there at once"


@pytest.mark.pure
@pytest.mark.parametrize("batch", [False, True])
def test_a_broker_that_does_not_delay_is_not_asked_to(
    monkeypatch: pytest.MonkeyPatch, connect: Connect, queue: str, *, batch: bool
) -> None:
    monkeypatch.setattr("dtx.broker.endpoint.connection.CAPABILITIES", ("ANONYMOUS-RELAY",))
    client = connect()
    with client.work() as session:
        message = Message("later", delay=5)
        with pytest.raises(XaMisuse, match="does not offer DELAYED_DELIVERY"):
            session.send_batch(queue, [message]) if batch else session.send(queue, message)
        session.send(queue, Message("now"))
    assert client.look(queue) == ["now"]


@pytest.mark.parametrize("options", ["", "prefetch=3"])
@pytest.mark.parametrize("prepared", [False, True])
def test_after_a_rollback_messages_are_available_again_in_order_and_the_delivery_is_counted(
    connect: Connect, queue: str, options: str, *, prepared: bool
) -> None:
    client = connect(options)
    client.put(queue, range(6))
    xid = client.start()
    assert [client.session.receive(queue, 5).body for _ in range(3)] == [0, 1, 2]
    client.session.send(f"{queue}-out", Message("out"))
    if prepared:
        client.end(xid)
        assert client.rm.prepare(xid, RMID) is Code.XA_OK
        client.rollback(xid, end=False)
    else:
        client.rollback(xid)

    other = connect()
    xid = other.start()
    again = [other.session.receive(queue, 5) for _ in range(3)]
    assert [(message.body, message.delivery_count) for message in again] == [(0, 1), (1, 1), (2, 1)]
    other.rollback(xid)
    assert client.look(f"{queue}-out") == []


@pytest.mark.parametrize(
    ("options", "two_phase", "one_phase"), [("", 5, 4), ("ahead=true&prefetch=100", 3, 2)], ids=["defaults", "ahead"]
)
def test_what_a_transaction_costs(connect: Connect, queue: str, options: str, two_phase: int, one_phase: int) -> None:
    """In round trips, as docs/amqp-client.md says; the first one attaches, and credit is topped up now and then."""
    client = connect(options)
    client.put(queue, range(100))
    cost: dict[bool, list[int]] = {True: [], False: []}
    for number in range(20):
        prepared = number % 2 == 0
        before = client.rm.round_trips
        xid = client.start()
        assert client.session.receive(queue, 5).body == number
        client.session.send(f"{queue}-out", Message("out"))
        client.commit(xid, two_phase=prepared)
        cost[prepared].append(client.rm.round_trips - before)
    assert min(cost[True][1:]) == two_phase
    assert min(cost[False][1:]) == one_phase


def test_transactional_acquisition(client: Client, connect: Connect, queue: str) -> None:
    client.put(queue, ["a", "b"])
    xid = client.start()
    assert client.session.receive(queue, 5, acquire=True).body == "a"
    client.rollback(xid)
    other = connect()
    assert other.look(queue) == ["a", "b"]
    with client.work(two_phase=True) as session:
        assert session.receive(queue, 5, acquire=True).body == "a"
        assert session.receive(queue, 5, acquire=True).body == "b"
        with pytest.raises(NoMessage):
            session.receive(queue, 0, acquire=True)
    assert other.look(queue) == []


@pytest.mark.slow
def test_more_messages_than_are_held_at_a_time(client: Client, queue: str) -> None:
    """The outcomes of the oldest are told before the end; the transaction decides about them as about the rest."""
    count = MAX_HELD + 200
    client.put(queue, range(count))
    for _ in range(2):
        xid = client.start()
        got: list[Message] = []
        while len(got) < count:
            got += client.session.receive_batch(queue, 500, 5)
        assert [message.body for message in got] == list(range(count))
        with pytest.raises(XaMisuse):
            client.session.release(got[0])
        client.rollback(xid)
    assert client.look(queue) == list(range(count))


def test_an_outcome_can_be_changed_until_the_end_and_by_the_receiver_only(client: Client, queue: str) -> None:
    client.put(queue, ["a"])
    xid = client.start()
    message = client.session.receive(queue, 5)
    client.session.reject(message)
    client.session.release(message)
    with pytest.raises(XaMisuse, match="not received here"):
        client.session.release(Message("a"))
    client.end(xid, TMSUSPEND)
    client.start(TMRESUME, xid)
    with pytest.raises(XaMisuse, match="settled already"):
        client.session.reject(message)
    client.commit(xid)
    assert client.look(queue) == ["a"]


@pytest.mark.parametrize("in_use", [False, True])
def test_what_was_sent_ahead_goes_back_by_itself(queue: str, *, in_use: bool) -> None:
    """Its delivery is not counted. Nobody receives from that queue any more, and the channel may be in use for others
    all the time."""
    network = Network()
    hoarder, other = NetworkClient(network, "&prefetch=100"), NetworkClient(network)
    hoarder.put(queue, range(10))
    assert hoarder.take(queue).body == 0
    give_up = network.now + 20
    got: list[tuple[object, int]] = []
    while len(got) < 9:
        assert network.now < give_up
        if in_use:
            hoarder.put(f"{queue}-other", ["again"])
        with other.work() as session:
            got += [(message.body, message.delivery_count) for message in session.receive_batch(queue, 9, 0)]
        network.sleep(0.1)
    assert got == [(number, 0) for number in range(1, 10)]


def test_a_slow_consumer_keeps_what_was_sent_ahead(queue: str) -> None:
    network = Network()
    hoarder, other = NetworkClient(network, "&prefetch=100"), NetworkClient(network)
    hoarder.put(queue, range(3))
    for number in range(3):
        with hoarder.work() as session:
            assert session.receive(queue, 5).body == number
            network.sleep(1.2)
            with entered(ThreadOfControl()), other.work() as beside:
                assert beside.receive_batch(queue, 9, 0) == []


@pytest.mark.parametrize("options", ["", "&prefetch=5"])
@pytest.mark.parametrize("stay", [True, False])
def test_what_is_put_back_stays_for_the_next_transaction_or_goes_back(queue: str, options: str, *, stay: bool) -> None:
    """Nothing overtakes it, whatever was sent ahead."""
    network = Network()
    client, other = NetworkClient(network, options), NetworkClient(network)
    client.put(queue, range(20))
    with client.work() as session:
        messages = session.receive_batch(queue, 4, 5)
        session.put_back(messages[2:], stay=stay)
        if not stay:
            assert [message.body for message in session.receive_batch(queue, 1, 5)] == [2], "before the others"
            session.put_back(messages[:0], stay=False)
    round_trips = client.rm.round_trips
    with client.work() as session:
        again = session.receive_batch(queue, 2, 5)
    assert [message.body for message in again] == ([2, 3] if stay else [3, 4])
    assert [message.delivery_count for message in again] == [0, 0]
    if stay:
        assert client.rm.round_trips - round_trips == 3, "to begin, and to commit; none to receive"

    xid = client.start()
    first = client.session.receive_batch(queue, 6, 5)
    client.session.put_back(first[1:])
    client.rollback(xid)
    with entered(ThreadOfControl()), other.work() as beside:
        assert first[0].body == beside.receive_batch(queue, 1, 5)[0].body
    with client.work() as session:
        again = session.receive_batch(queue, 3, 5)
    assert [message.body for message in again] == [message.body for message in first[1:4]]
    assert [message.delivery_count for message in again] == [0, 0, 0]


def test_what_was_put_back_goes_back_when_no_one_receives_any_more(queue: str) -> None:
    network = Network()
    client, other = NetworkClient(network), NetworkClient(network)
    client.put(queue, range(3))
    with client.work() as session:
        messages = session.receive_batch(queue, 3, 5)
        session.put_back(messages[1:])
    give_up = network.now + 5
    got: list[tuple[object, int]] = []
    while len(got) < 2:
        assert network.now < give_up
        with other.work() as session:
            got += [(message.body, message.delivery_count) for message in session.receive_batch(queue, 9, 0)]
        network.sleep(0.1)
    assert got == [(1, 0), (2, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("in_batches", [False, True])
def test_no_more_is_sent_ahead_than_asked_for(connect: Connect, queue: str, *, in_batches: bool) -> None:
    """What has arrived and is not received counts, however often something is received."""
    hoarder, other = connect("prefetch=10"), connect()
    hoarder.put(queue, range(200))
    for number in range(20):
        with hoarder.work() as session:
            if in_batches:
                (message,) = session.receive_batch(queue, 1, 5)
            else:
                message = session.receive(queue, 5)
            assert message.body == number
        assert len(other.look(queue)) >= 200 - (number + 1) - 10


def test_the_next_batch_is_sent_while_one_is_handled(
    connect: Connect, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The credit for it does not wait until the handler sends something."""
    monkeypatch.setattr(SocketConnection, "maintain", lambda _: None)  # nobody else writes what waits
    client, other = connect("prefetch=64"), connect()
    client.put(queue, range(200))
    with client.work() as session:
        assert len(session.receive_batch(queue, 40, 5)) == 40
        until(lambda: len(other.look(queue)) <= 200 - 40 - 64)


def test_what_was_sent_ahead_goes_back_when_the_resource_manager_is_closed(connect: Connect, queue: str) -> None:
    """Nobody has seen it: its delivery is not counted."""
    hoarder, other = connect("prefetch=100"), connect()
    hoarder.put(queue, range(30))
    assert hoarder.take(queue).body == 0
    assert hoarder.rm.close("", RMID) is Code.XA_OK
    with other.work() as session:
        got = [session.receive(queue, 5) for _ in range(29)]
        assert [(message.body, message.delivery_count) for message in got] == [(n, 0) for n in range(1, 30)]


def test_more_addresses_than_links_are_kept(client: Client, queue: str) -> None:
    with client.work() as session:
        for number in range(MAX_LINKS + 6):
            session.send(f"{queue}-{number}", Message(number))
    with client.work() as session:
        for number in range(MAX_LINKS + 6):
            assert session.receive(f"{queue}-{number}", 5).body == number


# --- who may use it -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("committed", [True, False])
def test_a_batch_is_sent_in_its_order(client: Client, queue: str, *, committed: bool) -> None:
    client.put(f"{queue}-out", ["before"])
    xid = client.start()
    client.session.send(f"{queue}-out", Message("first"))
    client.session.send_batch(f"{queue}-out", (Message(number) for number in range(TOGETHER * 20 + 1)))
    client.session.send_batch(f"{queue}-out", [])
    with pytest.raises(XaMisuse, match="body is of type object") as refused:  # and nothing of that batch is sent
        client.session.send_batch(f"{queue}-out", [Message("never"), Message(object())])
    assert refused.value.code is Code.XAER_INVAL
    client.session.send(f"{queue}-out", Message("last"))
    client.end(xid)
    assert client.look(f"{queue}-out") == ["before"]
    client.commit(xid, end=False, two_phase=True) if committed else client.rollback(xid, end=False)
    found = client.look(f"{queue}-out")
    assert found == (["before", "first", *range(TOGETHER * 20 + 1), "last"] if committed else ["before"])


def test_from_another_thread(client: Client, queue: str) -> None:
    with client.work() as session:
        with elsewhere(), pytest.raises(XaMisuse, match="another thread of control"):
            session.send(queue, Message("x"))
        session.send(queue, Message("mine"))
    assert client.look(queue) == ["mine"]


def test_a_branch_that_became_rollback_only(client: Client, broker: EmbeddedBroker, queue: str) -> None:
    client.put(queue, ["a"])
    xid = client.start()
    session = client.session
    session.receive(queue, 5)
    broker.expire(xid)
    session.send(queue, Message("never"))  # waits for nothing, and is told at the end
    with pytest.raises(BranchRolledBack) as raised:
        client.end(xid)
    assert raised.value.code is Code.XA_RBTIMEOUT
    client.rollback(xid, end=False)
    assert client.look(queue) == ["a"]


# --- dynamic registration, and work outside of any transaction --------------------------------------------------
def test_outside_of_any_transaction_work_is_done_at_once(connect: Connect, queue: str) -> None:
    client, onlooker = connect(dynamic=True), connect()
    session = client.session
    for number in range(3):
        session.send(queue, Message(number))
    session.send_batch(queue, [Message(3), Message(4)])
    assert onlooker.look(queue) == [0, 1, 2, 3, 4]
    assert session.receive(queue, 5).body == 0
    assert [message.body for message in session.receive_batch(queue, 5, 5)] == [1, 2, 3, 4]
    assert onlooker.look(queue) == []
    assert client.registrar.calls[:2] == [("ax_reg", RMID, 0), ("ax_unreg", RMID, 0)]


@pytest.mark.pure
@pytest.mark.parametrize("offered", [False, True])
@pytest.mark.parametrize("options", ["", "prefetch=3"])
def test_what_a_branch_is_rolled_back_for_is_told_to_the_next_receiver(
    monkeypatch: pytest.MonkeyPatch, connect: Connect, queue: str, options: str, *, offered: bool
) -> None:
    if not offered:
        monkeypatch.setattr("dtx.broker.endpoint.connection.CAPABILITIES", ("ANONYMOUS-RELAY",))
    client = connect(options)
    for reason in ("first", *("x" * length for length in range(212, 220)), "last " + "x" * 3000):  # a list8, a list32
        client.put(queue, ["a"])
        xid = client.start()
        client.session.explain(client.session.receive(queue, 5), reason)
        client.rollback(xid)
        with client.work() as session:
            message = session.receive(queue, 5)
            assert message.instructions == ({"x-opt-retry-reason": reason[:2000]} if offered else None)

    client.put(queue, ["a", "b"])
    with client.work() as session:
        message, other = session.receive_batch(queue, 2, 5)
        assert (message.body, other.body, other.instructions) == ("a", "b", None)
        with pytest.raises(XaMisuse, match="was not received here"):
            session.explain(Message("another"), "no")
    assert client.look(queue) == []


@pytest.mark.pure
@pytest.mark.parametrize("offered", [False, True])
@pytest.mark.parametrize("prepared", [False, True])
def test_a_rollback_counts_for_no_message_that_is_excused(
    monkeypatch: pytest.MonkeyPatch, connect: Connect, queue: str, *, offered: bool, prepared: bool
) -> None:
    if not offered:
        monkeypatch.setattr("dtx.broker.endpoint.connection.CAPABILITIES", ("ANONYMOUS-RELAY",))
    client = connect()
    client.put(queue, ["blamed", "excused", "both"])
    xid = client.start()
    messages = client.session.receive_batch(queue, 3, 5)
    assert client.session.excuse(messages[1:], "in company") is offered
    client.session.explain(messages[0], "its own fault")
    client.session.explain(messages[2], "not any more")
    client.session.excuse([messages[2]])
    if prepared:
        client.end(xid)
        assert client.rm.prepare(xid, RMID) is Code.XA_OK
    client.rollback(xid, end=not prepared)

    with client.work() as session:
        found = session.receive_batch(queue, 3, 5)
        apart = {"x-opt-retry-apart": True}
        told = [
            (1, {"x-opt-retry-reason": "its own fault"}),
            (0, apart | {"x-opt-retry-reason": "in company"}),
            (0, apart),
        ]
        assert [(one.delivery_count, one.instructions) for one in found] == (told if offered else [(1, None)] * 3)
    client.put(queue, ["c"])
    with client.work() as session:
        session.excuse(session.receive_batch(queue, 1, 5))
    assert client.look(queue) == [], "what is said of a rollback changes nothing of a commit"
