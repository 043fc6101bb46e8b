"""These tests cover ends that the client sends to the broker together with the prepare."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from dtx.amqp.conditions import Condition
from dtx.amqp.performatives import Target
from dtx.broker.broker import Broker
from dtx.protocol.conditions import Refusal
from rm_amqp import Message
from tests.rm_amqp.client import RMID, Client
from tests.rm_amqp.embedded import EmbeddedBroker
from xa import (
    TMASYNC,
    TMNOFLAGS,
    TMONEPHASE,
    TMSUCCESS,
    BranchRolledBack,
    Code,
    Handle,
    ResourceError,
    ResourceUnavailable,
    UnknownBranch,
    XaMisuse,
    Xid,
)

Connect = Callable[..., Client]

OPTIONS = ["", "ahead=true"]


@pytest.fixture(params=OPTIONS)
def client(connect: Connect, request: pytest.FixtureRequest) -> Client:
    return connect(request.param)


def work(client: Client, queue: str, *, late: bool = True) -> Xid:
    """A branch that has consumed "in" and sent "out", and whose association is ended late, or not yet."""
    client.put(queue, ["in"])
    xid = client.start()
    assert client.session.receive(queue, 5).body == "in"
    client.session.send(f"{queue}-out", Message("out"))
    if late:
        assert client.rm.end_late(xid, RMID, TMSUCCESS) is Code.XA_OK
    return xid


def seen(client: Client, queue: str) -> tuple[int, int]:
    """How many messages are available: what was consumed, what was sent."""
    return len(client.look(queue)), len(client.look(f"{queue}-out"))


def vote(client: Client, xid: Xid, flags: int) -> Code:
    """What prepare comes to, told at once or later."""
    answer = client.rm.prepare(xid, RMID, flags)
    if not isinstance(answer, Handle):
        return answer
    completion = client.rm.complete(answer, RMID)
    if completion.error is not None:
        raise completion.error
    return completion.code


@pytest.mark.parametrize("flags", [TMNOFLAGS, TMASYNC])
def test_prepare_tells_the_end_and_one_exchange_is_saved(
    client: Client, broker: EmbeddedBroker, queue: str, flags: int
) -> None:
    trips = []
    for late in (True, False):
        xid = work(client, queue, late=late)
        before = client.rm.round_trips
        if not late:
            client.end(xid)
        assert vote(client, xid, flags) is Code.XA_OK
        trips.append(client.rm.round_trips - before)
        assert client.rm.commit(xid, RMID) is Code.XA_OK
    assert trips == [1, 2]
    assert seen(client, queue) == (0, 2)
    assert not broker.left()


def test_until_then_the_branch_is_at_work_for_others(connect: Connect, client: Client, queue: str) -> None:
    xid = work(client, queue)
    with pytest.raises(XaMisuse):
        connect().rm.prepare(xid, RMID)
    assert client.rm.prepare(xid, RMID) is Code.XA_OK
    client.rollback(xid, end=False)
    assert seen(client, queue) == (1, 0)


def test_the_thread_is_not_at_work_any_more(client: Client, broker: EmbeddedBroker, queue: str) -> None:
    xid = work(client, queue)
    for misuse in (
        lambda: client.session.send(queue, Message("late")),
        lambda: client.rm.end(xid, RMID, TMSUCCESS),
        lambda: client.rm.close("", RMID),
    ):
        with pytest.raises(XaMisuse):
            misuse()
    client.rollback(xid, end=False)  # which ends it too
    assert seen(client, queue) == (1, 0)
    assert not broker.left()


def test_another_branch_of_the_thread_ends_it_first(client: Client, broker: EmbeddedBroker, queue: str) -> None:
    xid = work(client, queue)
    other = client.start()
    client.session.send(queue, Message("other"))
    client.commit(other)
    assert client.rm.prepare(xid, RMID) is Code.XA_OK
    assert client.rm.commit(xid, RMID) is Code.XA_OK
    assert seen(client, queue) == (1, 1)
    assert not broker.left()


def test_one_phase_ends_it_first(client: Client, queue: str) -> None:
    xid = work(client, queue)
    assert client.rm.commit(xid, RMID, TMONEPHASE) is Code.XA_OK
    assert seen(client, queue) == (0, 1)


def test_nothing_to_commit_is_a_read_only_vote(client: Client, broker: EmbeddedBroker) -> None:
    xid = client.start()
    client.rm.end_late(xid, RMID, TMSUCCESS)
    assert client.rm.prepare(xid, RMID) is Code.XA_RDONLY
    assert not broker.left()


@pytest.mark.parametrize("flags", [TMNOFLAGS, TMASYNC])
def test_a_branch_that_became_rollback_only_votes_so_and_is_gone(
    client: Client, broker: EmbeddedBroker, queue: str, flags: int
) -> None:
    client.put(queue, ["in"])
    xid = client.start()
    client.session.receive(queue, 5)
    assert not client.session.receive_batch(f"{queue}-nothing", 1, 0)  # from now on the broker knows the branch
    broker.expire(xid)
    client.rm.end_late(xid, RMID, TMSUCCESS)
    with pytest.raises(BranchRolledBack) as told:
        vote(client, xid, flags)
    assert told.value.code is Code.XA_RBTIMEOUT
    with pytest.raises(UnknownBranch):
        client.rm.rollback(xid, RMID)
    assert client.look(queue) == ["in"]
    assert not broker.left()


@pytest.mark.parametrize("flags", [TMNOFLAGS, TMASYNC])
def test_a_branch_that_lacks_a_message_is_not_to_be_committed(
    client: Client, broker: EmbeddedBroker, queue: str, flags: int
) -> None:
    xid = work(client, queue)
    gone = f"{queue}-out"

    def refuse_link(shell: Broker) -> None:
        for connection in tuple(shell.peers):
            for link in tuple(connection.links.values()):
                remote = link.endpoint.remote
                target = remote.target if remote is not None else None
                if isinstance(target, Target) and target.address == gone:
                    link.detach(Refusal(Condition.RESOURCE_DELETED, "the queue is gone", Code.XAER_NOTA))

    broker.inside(refuse_link)  # what was sent, and has not left yet, comes behind this
    with pytest.raises((ResourceError, BranchRolledBack)):
        vote(client, xid, flags)
    with suppress(UnknownBranch):
        client.rollback(xid, end=False)
    assert seen(client, queue) == (1, 0)
    assert not broker.left()


def test_a_connection_that_is_lost_before_the_vote_leaves_nothing(
    client: Client, broker: EmbeddedBroker, queue: str
) -> None:
    xid = work(client, queue)
    broker.cut(client.rm.container)
    with pytest.raises(ResourceUnavailable):
        client.rm.prepare(xid, RMID)
    assert client.rm.open(client.url, RMID) is Code.XA_OK
    with pytest.raises((UnknownBranch, BranchRolledBack)):
        client.rm.prepare(xid, RMID)
        client.rm.rollback(xid, RMID)
    assert seen(client, queue) == (1, 0)


def test_what_was_sent_ahead_behind_a_refused_vote_comes_in_order_again(
    connect: Connect, broker: EmbeddedBroker, queue: str
) -> None:
    client = connect("ahead=true&prefetch=3")
    client.put(queue, range(6))
    xid = client.start()
    assert [client.session.receive(queue, 5).body for _ in range(2)] == [0, 1]
    assert not client.session.receive_batch(f"{queue}-nothing", 1, 0)
    broker.expire(xid)
    client.rm.end_late(xid, RMID, TMSUCCESS)
    with pytest.raises(BranchRolledBack):
        client.rm.prepare(xid, RMID)
    with client.work() as session:
        assert [session.receive(queue, 5).body for _ in range(6)] == list(range(6))
    assert client.look(queue) == []
