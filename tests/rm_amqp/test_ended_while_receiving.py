"""In these tests another thread ends a branch while its own one receives, and a message comes at that moment. The
application does not get it, and everybody else can: nobody would ever say what became of it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from dtx.protocol.conditions import RefusedError
from rm_amqp import AmqpResource, DecidingBroker
from rm_amqp.errors import ConnectionLost
from tests.rm_amqp.client import RMID, Client, new_xid
from xa import TMFAIL, TMNOFLAGS, TMSUCCESS, BranchRolledBack, Code, XaError
from xabridge.testing.contract.client import ScriptedRegistrar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rm_amqp.channel.work import Work
    from rm_amqp.connection.connection import StepsRun
    from tests.rm_amqp.embedded import EmbeddedBroker
    from xa import Xid

    Connect = Callable[..., Client]
    Resource = AmqpResource | DecidingBroker

PATIENCE_S = 20
WAYS = ("receive", "receive acquired", "receive_batch")


@pytest.fixture(params=["two-phase", "decider"])
def rm(request: pytest.FixtureRequest, connect: Connect, broker: EmbeddedBroker, queue: str) -> Iterator[Resource]:
    if request.param == "two-phase":
        yield connect().rm
        return
    made = DecidingBroker(ScriptedRegistrar())
    assert made.open(f"amqp://{broker.address}/?token_queue=tokens-{queue}", RMID) is Code.XA_OK
    yield made
    made.drop()


class Receiving:
    """A thread that waits for a message in its branch, at the step where it waits."""

    def __init__(self, rm: Resource, way: str, queue: str) -> None:
        self.xid = new_xid()
        assert rm.start(self.xid, RMID, TMNOFLAGS) is Code.XA_OK
        session = rm.session(RMID)
        work: Work | None = session._context.current()
        assert work is not None
        operations = session.operations
        operation: Any
        if way == "gather":
            operation = operations.gather(queue, 5)
        elif way == "receive_batch":
            operation = operations.receive_batch(queue, 5, 60)
        else:
            operation = operations.receive(queue, 60, acquire="acquired" in way)
        self.work = work
        self.connection = work.pooled.connection
        self.run: StepsRun[Any] = self.connection.begin(operation(work.pooled.channel.messages, work), lambda: None)
        self.wait_until(lambda: self._receivers[0].attached)
        self.resume()

    @property
    def _receivers(self) -> list[Any]:
        links = self.work.pooled.channel.messages
        return [*links._receivers.values(), *links._bulk_receivers.values()]

    def wait_until(self, what: Callable[[], bool]) -> None:
        """Reads what the broker sends until that has come."""
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline
            self.connection.refresh()

    def message_comes(self) -> None:
        """It has arrived, and the thread has not noticed."""
        self.wait_until(lambda: any(one.arrived or getattr(one, "_taken", ()) for one in self._receivers))

    def resume(self) -> None:
        """The thread notices."""
        self.connection.resume(self.run)


def others_get(connect: Connect, queue: str) -> list[Any]:
    """What another client receives."""
    client = connect()
    with client.work() as session:
        message = session.receive(queue, PATIENCE_S)
    return [message.body]


@pytest.mark.parametrize("way", WAYS)
def test_a_message_that_came_before_the_end(rm: Resource, way: str, connect: Connect, queue: str) -> None:
    receiving = Receiving(rm, way, queue)
    connect().put(queue, ["a"])
    receiving.message_comes()
    assert rm.end(receiving.xid, RMID, TMFAIL) is Code.XA_OK
    assert rm.rollback(receiving.xid, RMID) is Code.XA_OK
    with pytest.raises(RefusedError, match="ended meanwhile"):
        receiving.resume()
    assert others_get(connect, queue) == ["a"]


@pytest.mark.parametrize("way", WAYS)
def test_a_message_that_comes_after_the_end(rm: Resource, way: str, connect: Connect, queue: str) -> None:
    receiving = Receiving(rm, way, queue)
    assert rm.end(receiving.xid, RMID, TMFAIL) is Code.XA_OK
    assert rm.rollback(receiving.xid, RMID) is Code.XA_OK
    connect().put(queue, ["a"])
    if way != "receive acquired":  # that link is gone
        receiving.message_comes()
    with pytest.raises(RefusedError, match="ended meanwhile"):
        receiving.resume()
    assert others_get(connect, queue) == ["a"]


@pytest.mark.parametrize("way", WAYS)
def test_a_message_that_comes_before_the_answer_to_the_end(connect: Connect, way: str, queue: str) -> None:
    rm = connect().rm
    receiving = Receiving(rm, way, queue)
    work: Any = receiving.work
    channel, connection = work.pooled.channel, receiving.connection
    ending = connection.begin(channel.end(work, time.monotonic() + PATIENCE_S, fail=True), lambda: None)
    connect().put(queue, ["a"])
    if way != "receive acquired":
        receiving.message_comes()
    with pytest.raises(RefusedError, match="ended meanwhile"):
        receiving.resume()
    while not ending.done:
        connection.resume(ending)
    rm.driver.leave(work)
    assert others_get(connect, queue) == ["a"]


def commit(rm: Resource, xid: Xid) -> None:
    assert rm.end(xid, RMID, TMSUCCESS) is Code.XA_OK
    if isinstance(rm, AmqpResource):
        if rm.prepare(xid, RMID) is not Code.XA_RDONLY:
            assert rm.commit(xid, RMID) is Code.XA_OK
    else:
        assert rm.decide(xid, RMID, b"record") is Code.XA_OK


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
@pytest.mark.parametrize("way", WAYS)
def test_the_next_branch_on_the_same_channel_gets_it_once(
    rm: Resource, way: str, committed: bool, connect: Connect, queue: str
) -> None:
    """Also where the branch before had acquired it."""
    receiving = Receiving(rm, way, queue)
    connect().put(queue, ["a"])
    receiving.message_comes()
    if committed:
        commit(rm, receiving.xid)
    else:
        assert rm.end(receiving.xid, RMID, TMFAIL) is Code.XA_OK
        assert rm.rollback(receiving.xid, RMID) is Code.XA_OK
    with pytest.raises(RefusedError):
        receiving.resume()
    xid = new_xid()
    assert rm.start(xid, RMID, TMNOFLAGS) is Code.XA_OK
    message = rm.session(RMID).receive(queue, PATIENCE_S, acquire="acquired" in way)
    assert message.body == "a"
    assert rm.session(RMID).receive_batch(queue, 5, 0) == []
    commit(rm, xid)
    assert connect().look(queue) == []


@pytest.mark.parametrize("ended", ["with the vote", "before it", "rolled back"])
def test_what_was_gathered_in_vain_is_gathered_by_the_next_branch_once(
    connect: Connect, ended: str, queue: str
) -> None:
    """The broker has taken it for the branch, which must not be committed without it."""
    rm = connect().rm
    connect().put(queue, ["a"])
    receiving = Receiving(rm, "gather", queue)
    receiving.message_comes()
    if ended == "rolled back":
        assert rm.end(receiving.xid, RMID, TMFAIL) is Code.XA_OK
    elif ended == "before it":
        with pytest.raises(BranchRolledBack, match=f"gathered from {queue}"):
            rm.end(receiving.xid, RMID, TMSUCCESS)
    else:
        assert rm.end_late(receiving.xid, RMID, TMSUCCESS) is Code.XA_OK
        with pytest.raises(XaError, match=f"gathered from {queue}"):
            rm.prepare(receiving.xid, RMID)
    with suppress(XaError):
        rm.rollback(receiving.xid, RMID)
    with pytest.raises((RefusedError, ConnectionLost)):
        receiving.resume()
    xid = new_xid()
    assert rm.start(xid, RMID, TMNOFLAGS) is Code.XA_OK
    assert len(rm.session(RMID).gather(queue, 5)) == 1
    commit(rm, xid)
    assert connect().look(queue) == []
