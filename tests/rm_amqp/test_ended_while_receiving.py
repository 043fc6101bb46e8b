"""In these tests another thread ends a branch while its own one receives, and a message comes at that moment. The
application does not get it, and everybody else can: nobody would ever say what became of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from dtx.protocol.conditions import RefusedError
from rm_amqp import AmqpResource, DecidingBroker
from rm_amqp.channel.work import Work
from rm_amqp.connection.connection import RunningSteps
from rm_amqp.errors import ConnectionLost
from tests.rm_amqp.client import RMID, look, new_xid, put, transaction
from tests.rm_amqp.network import Network
from xa import TMFAIL, TMNOFLAGS, TMSUCCESS, BranchRolledBack, Code, ThreadOfControl, XaError, Xid, entered

Resource = AmqpResource | DecidingBroker

PATIENCE_S = 20
URL = f"amqp://here/?timeout={PATIENCE_S}"
WAYS = ("receive", "receive acquired", "receive_batch")


class Scene:
    """A network in memory with the resource manager of the test and somebody else, on a clock of its own."""

    def __init__(self, *, decides: bool = False) -> None:
        self.network = Network()
        self.rm: Any = self.network.decider() if decides else self.network.resource()
        self.rm.open(URL, RMID)
        self.other = self.network.resource()
        self.other.open(URL, RMID)

    def message_is_sent(self) -> None:
        with entered(ThreadOfControl()):
            put(self.other, "q", ["a"])

    def others_get(self) -> object:
        """What somebody else receives."""
        with entered(ThreadOfControl()), transaction(self.other) as session:
            return session.receive("q", PATIENCE_S).body

    def left(self) -> list[object]:
        with entered(ThreadOfControl()):
            return look(self.other, "q")

    def roll_back(self, xid: Xid) -> None:
        assert self.rm.end(xid, RMID, TMFAIL) is Code.XA_OK
        assert self.rm.rollback(xid, RMID) is Code.XA_OK

    def commit(self, xid: Xid) -> None:
        assert self.rm.end(xid, RMID, TMSUCCESS) is Code.XA_OK
        if isinstance(self.rm, DecidingBroker):
            assert self.rm.decide(xid, RMID, b"record") is Code.XA_OK
        elif self.rm.prepare(xid, RMID) is not Code.XA_RDONLY:
            assert self.rm.commit(xid, RMID) is Code.XA_OK


@pytest.fixture(params=["two-phase", "decider"])
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(decides=request.param == "decider")


class Receiving:
    """A thread that waits for a message in its branch, at the step where it waits."""

    def __init__(self, scene: Scene, way: str) -> None:
        self.xid = new_xid()
        self._network = scene.network
        assert scene.rm.start(self.xid, RMID, TMNOFLAGS) is Code.XA_OK
        session = scene.rm.session(RMID)
        work: Work | None = session._context.current()
        assert work is not None
        operations = session.operations
        operation: Any
        if way == "gather":
            operation = operations.gather("q", 5)
        elif way == "receive_batch":
            operation = operations.receive_batch("q", 5, 60)
        else:
            operation = operations.receive("q", 60, acquire="acquired" in way)

        self.work = work
        self.connection = work.pooled.connection
        self.run: RunningSteps[Any] = self.connection.begin(operation(work.pooled.channel.messages, work), lambda: None)
        self.wait_until(lambda: self._receivers[0].attached)
        self.resume()

    @property
    def _receivers(self) -> list[Any]:
        links = self.work.pooled.channel.messages
        return [*links._receivers.values(), *links._bulk_receivers.values()]

    def wait_until(self, what: Callable[[], bool]) -> None:
        """Reads what the broker sends until that has come."""
        give_up = self._network.now + PATIENCE_S
        while not what():
            assert self._network.now < give_up
            self._network.sleep(0.01)
            self.connection.refresh()

    def message_comes(self) -> None:
        """It has arrived, and the thread has not noticed."""
        self.wait_until(lambda: any(one.arrived or getattr(one, "_taken", ()) for one in self._receivers))

    def resume(self) -> None:
        """The thread notices."""
        self.connection.resume(self.run)


@pytest.mark.parametrize("comes", ["before the end", "after the end"])
@pytest.mark.parametrize("way", WAYS)
def test_a_message_that_comes_at_the_end(scene: Scene, way: str, comes: str) -> None:
    receiving = Receiving(scene, way)
    if comes == "after the end":
        scene.roll_back(receiving.xid)
    scene.message_is_sent()
    if comes == "before the end" or way != "receive acquired":  # that link is gone
        receiving.message_comes()
    if comes == "before the end":
        scene.roll_back(receiving.xid)
    with pytest.raises(RefusedError, match="ended meanwhile"):
        receiving.resume()
    assert scene.others_get() == "a"


@pytest.mark.parametrize("way", WAYS)
def test_a_message_that_comes_before_the_answer_to_the_end(way: str) -> None:
    scene = Scene()
    receiving = Receiving(scene, way)
    work: Any = receiving.work
    channel, connection = work.pooled.channel, receiving.connection
    deadline = scene.network.now + PATIENCE_S
    ending = connection.begin(channel.end(work, deadline, fail=True), lambda: None)
    scene.message_is_sent()
    if way != "receive acquired":
        receiving.message_comes()

    with pytest.raises(RefusedError, match="ended meanwhile"):
        receiving.resume()
    while not ending.done:
        connection.resume(ending)
        scene.network.sleep(0.01)
    scene.rm.driver.leave(work)
    assert scene.others_get() == "a"


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "rolled back"])
@pytest.mark.parametrize("way", WAYS)
def test_the_next_branch_on_the_same_channel_gets_it_once(scene: Scene, way: str, committed: bool) -> None:
    """Also where the branch before had acquired it."""
    receiving = Receiving(scene, way)
    scene.message_is_sent()
    receiving.message_comes()
    (scene.commit if committed else scene.roll_back)(receiving.xid)
    with pytest.raises(RefusedError):
        receiving.resume()
    xid = new_xid()
    assert scene.rm.start(xid, RMID, TMNOFLAGS) is Code.XA_OK
    session = scene.rm.session(RMID)
    assert session.receive("q", PATIENCE_S, acquire="acquired" in way).body == "a"
    assert session.receive_batch("q", 5, 0) == []
    scene.commit(xid)
    assert scene.left() == []


@pytest.mark.parametrize("ended", ["with the vote", "before it", "rolled back"])
def test_what_was_gathered_in_vain_is_gathered_by_the_next_branch_once(ended: str) -> None:
    """The broker has taken it for the branch, which must not be committed without it."""
    scene = Scene()
    scene.message_is_sent()
    receiving, rm = Receiving(scene, "gather"), scene.rm
    receiving.message_comes()
    if ended == "rolled back":
        assert rm.end(receiving.xid, RMID, TMFAIL) is Code.XA_OK
    elif ended == "before it":
        with pytest.raises(BranchRolledBack, match="gathered from q"):
            rm.end(receiving.xid, RMID, TMSUCCESS)
    else:
        assert rm.end_late(receiving.xid, RMID, TMSUCCESS) is Code.XA_OK
        with pytest.raises(XaError, match="gathered from q"):
            rm.prepare(receiving.xid, RMID)

    with suppress(XaError):
        rm.rollback(receiving.xid, RMID)
    with pytest.raises((RefusedError, ConnectionLost)):
        receiving.resume()
    xid = new_xid()
    assert rm.start(xid, RMID, TMNOFLAGS) is Code.XA_OK
    assert len(rm.session(RMID).gather("q", 5)) == 1
    scene.commit(xid)
    assert scene.left() == []
