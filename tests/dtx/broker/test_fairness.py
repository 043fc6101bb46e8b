"""These tests run a broker over sockets, beside a greedy user and beside a storm of wrong passwords. They compare work,
not times, so that they hold on a busy machine too; `python -m bench fairness` has the times."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

import pytest

from bench.fairness import LOGINS, PASSWORD, aftermath_s, beside, broker_with_users, login_s, storm
from bench.load import message
from dtx.store.sql import SqlStore
from tests.dtx.broker.sockets import LONG_S, on_a_broker, until
from xabridge.testing.amqp_client import Client, Running, run

if TYPE_CHECKING:
    from pathlib import Path

    from dtx.broker.broker import Broker
    from xabridge.testing.amqp_client import Waits

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
        self._running = Running(client, work)
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
    await until(lambda: "greedy" in queues and queues["greedy"].came > 1000)
    forces, came = store.groups, queues["greedy"].came
    peers.append(Talking(honest, one_by_one(honest)))
    async with asyncio.timeout(LONG_S):
        await peers[-1].ended
    forces, came = store.groups - forces, queues["greedy"].came - came
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
