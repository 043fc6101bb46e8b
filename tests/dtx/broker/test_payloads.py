"""These tests check that payloads from the store are read once, ahead and in order, and that never too many of them are
in memory.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from dtx.broker.queues.payloads import AHEAD, ROOM
from dtx.store.contract import CHUNK
from tests.dtx.broker.peer import World, filled

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

UNCACHED = -1


def counted(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[int]]:
    """The messages of every fetch from the store, as they are asked."""
    asked: list[Sequence[int]] = []
    fetch = world.store.fetch

    def counting(messages: Sequence[int], done: Any) -> None:
        asked.append(messages)
        fetch(messages, done)

    monkeypatch.setattr(world.store, "fetch", counting)
    return asked


def test_a_consumer_that_takes_one_by_one_rarely_waits_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 3 * AHEAD
    world, peer = filled(cached_size=UNCACHED)
    peer.post_many(range(count))
    asked = counted(world, monkeypatch)
    receiver, found = peer.receiver("q"), []
    for _ in range(count):
        world.more(receiver, 1)
        found += peer.bodies(receiver)
    assert found == list(range(count))
    assert sum(map(len, asked)) == count, "each payload is read once"
    assert len(asked) <= 4


def test_a_consumer_and_browsers_get_a_message_that_is_read_for_all_of_them() -> None:
    world, peer = filled("x", cached_size=UNCACHED)
    links = [peer.receiver("q", browse=True), peer.receiver("q", browse=True), peer.receiver("q")]
    for link in links:
        link.flow(1)
    world.pump()
    assert [peer.bodies(link) for link in links] == [["x"]] * 3


def test_what_is_read_ahead_is_bounded_whatever_the_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    world, peer = filled(cached_size=UNCACHED)
    body = bytes(CHUNK // 2)
    each = ROOM // CHUNK
    queues = ["a", "b", "c", "d"]
    for queue in queues:
        peer.fill(queue, *[body] * each)
    asked = counted(world, monkeypatch)
    receivers = [peer.receiver(queue) for queue in queues]
    for _ in range(each):
        for receiver in receivers:
            world.more(receiver, 1)
            assert [len(one) for one in peer.bodies(receiver)] == [len(body)]
            assert 0 <= world.container.resource.payloads.octets <= ROOM
    assert sum(map(len, asked)) <= 2 * each * len(queues), "no queue reads much more than it sends"


def test_payloads_read_ahead_of_messages_that_go_otherwise_do_no_harm() -> None:
    left = 200
    world, peer = filled(cached_size=UNCACHED)
    peer.post_many(range(left))
    other = world.connect()
    chance, found = random.Random(4), []
    receivers = [(peer, peer.receiver("q")), (other, other.receiver("q"))]
    while left:
        who, receiver = receivers[chance.randrange(2)]
        receiver.flow(1)
        world.pump(store=chance.random() < 0.5)
        got = who.bodies(receiver)
        if not got:
            world.pump()
            got = who.bodies(receiver)
        found += got
        left -= len(got)
    assert found == list(range(200))
