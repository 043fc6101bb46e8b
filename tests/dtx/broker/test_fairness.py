"""What those who have nothing to do with it pay for a greedy user, a storm of wrong passwords, and a backlog.

Brokers over sockets compare work, not times, so that they hold on a busy machine too; `python -m bench fairness` has
the times. For a backlog the calls of Python functions are counted in which another queue's messages are posted,
dispatched and settled, and time passes. XABRIDGE_BACKLOG says how many messages wait (in a long run: 1,000,000)."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import pytest
from proton import Delivery

from bench.fairness import LOGINS, PASSWORD, aftermath_s, beside, broker_with_users, login_s, storm
from bench.load import message
from dtx.store.contract import StoredMessage, StoredQueue
from dtx.store.memory import Disk
from dtx.store.sql import SqlStore
from tests.dtx.broker.peer import Peer, World
from tests.dtx.broker.sockets import LONG_S, on_a_broker, until
from xabridge.testing.amqp_client import Client, RunningGenerator, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dtx.broker.broker import Broker
    from xabridge.testing.amqp_client import Waits

# -- users
POSTS = 60
CONNECTIONS = 20
MOST_FORCES = 3
"""For each message of the honest user, whatever the greedy one does. It is between 1 and 2."""
LARGEST_FORCE = 1500
"""Of the greedy user's messages in one."""


class Talking:
    """A client on the loop of the broker: however busy the machine is, it answers when the loop looks again."""

    def __init__(self, client: Client, work: Waits) -> None:
        self._client = client
        self._running = RunningGenerator(client, work)
        loop = asyncio.get_running_loop()
        self.ended = loop.create_future()
        loop.add_reader(client.socket, self._readable)
        self._running.go_on()

    def _readable(self) -> None:
        self._client.receive()
        if self._running.go_on() and not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        """Leaves."""
        asyncio.get_running_loop().remove_reader(self._client.socket)
        self._client.close()


def one_by_one(client: Client) -> Waits:
    """Posts, and waits for each answer."""
    sender = yield from client.sender("honest")
    for _ in range(POSTS):
        yield lambda: client.may_send(sender)
        yield from client.accepted(client.ask(sender, message(16)))


def pipelined(client: Client) -> Waits:
    """Posts as much as it may, for ever."""
    sender = yield from client.sender("greedy")
    asked: deque[int] = deque()
    while True:
        yield lambda: client.may_send(sender)
        while client.may_send(sender) and len(asked) < 400:
            asked.append(client.ask(sender, message(16)))
        yield from client.accepted(asked.popleft())


@on_a_broker(users=("honest", "greedy"))
async def test_a_user_with_many_connections_leaves_the_others_their_turns(broker: Broker) -> None:
    port, queues, store = broker.addresses[0].port, broker.container.resource.queues, broker._store
    assert isinstance(store, SqlStore)
    honest, *others = [
        await asyncio.to_thread(Client, "127.0.0.1", port, None, (user, "right"))
        for user in ("honest", *["greedy"] * CONNECTIONS)
    ]
    peers = [Talking(one, pipelined(one)) for one in others]
    await until(lambda: "greedy" in queues and queues["greedy"].counters.came > 1000)
    forces, came = store.groups, queues["greedy"].counters.came
    peers.append(Talking(honest, one_by_one(honest)))

    async with asyncio.timeout(LONG_S):
        await peers[-1].ended
    forces, came = store.groups - forces, queues["greedy"].counters.came - came
    for peer in peers:
        peer.close()
    assert forces / POSTS <= MOST_FORCES
    assert came / forces <= LARGEST_FORCE


@pytest.mark.slow
def test_wrong_passwords_cost_a_part_of_a_processor_and_nothing_when_they_are_over(tmp_path: Path) -> None:
    broker = broker_with_users(tmp_path)
    broker.start()
    try:
        client = Client(broker.host, broker.port, login=("honest", PASSWORD))
        with beside(storm, broker, 40) as tried:
            began, spent_s = time.monotonic(), broker.cpu_s()
            logins = [login_s(broker, user) for user in LOGINS]
            run(client, one_by_one(client))
            while tried() < 200:
                time.sleep(0.01)
            share = (broker.cpu_s() - spent_s) / (time.monotonic() - began)

        client.close()
        assert share < 0.75
        assert max(logins) < 5.0
        assert aftermath_s(broker) < 5.0
    finally:
        broker.kill()


# -- backlogs
BACKLOG: Final = int(os.environ.get("XABRIDGE_BACKLOG", "20000"))
MESSAGES: Final = 20
FIRST: Final = 1000
OCTETS: Final = b"\0Sw\xa1\1x"
FAR_MS: Final = 10**13
KINDS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "delayed": {"due_ms": FAR_MS},
    "expiring": {"expires_ms": FAR_MS},
    "of one group": {"group": "g"},
}


def waiting(count: int, **facts: Any) -> World:
    """A broker that has just started, with so many messages in one queue."""
    disk = Disk()
    disk.queues[1] = StoredQueue(1, "backlog", "")
    facts = {"expires_ms": 0, **facts}
    for number in range(FIRST, FIRST + count):
        disk.messages[number] = StoredMessage(number, 1, number, len(OCTETS), 0, **facts)
        disk.pieces[number] = {0: OCTETS}
    return World(disk=disk)


def calls(work: Callable[[], object]) -> int:
    """How many Python functions it calls."""
    count = 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def elsewhere(world: World, peer: Peer) -> Callable[[], None]:
    """Messages of another queue, and two seconds."""
    sender, receiver = peer.sender("q"), peer.receiver("q", 100)

    def work() -> None:
        for number in range(MESSAGES):
            peer.post(sender, number)
            assert peer.bodies(receiver) == [number]
        world.pass_time(1)
        world.pass_time(1)

    work()
    return work


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_backlog_costs_nobody_else_anything(kind: str) -> None:
    """With a consumer that holds one message of it, and one that waits for more."""
    cost = []
    for count in (10, BACKLOG):
        world = waiting(count, **KINDS[kind])
        one, two = world.connect(), world.connect()
        held = one.receiver("backlog", 1)
        assert (one.take(held) is None) is (kind == "delayed")
        two.receiver("backlog", 5)
        cost.append(calls(elsewhere(world, world.connect())))
    assert cost[1] <= cost[0] + 100, cost


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_group_goes_on_from_one_consumer_to_the_next_whatever_waits_behind() -> None:
    cost = []
    for count in (10, BACKLOG):
        world = waiting(count, group="g")
        one, two = world.connect(), world.connect()
        theirs = [(one, one.receiver("backlog")), (two, two.receiver("backlog"))]

        def turn(world: World = world, theirs: Any = theirs) -> None:
            for peer, receiver in theirs * 2:
                world.more(receiver, 1)
                delivery, _ = peer.take(receiver)
                peer.settle(delivery, Delivery.ACCEPTED)

        cost.append(calls(turn))
    assert cost[1] <= cost[0] + 100, cost
