"""Who reads a queue in its order: browsers and links that select. One user may have many of them, and one message
concerns them all. And payloads from the store: they are read once, ahead and in order, and never are too many in
memory."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from dtx.amqp.conditions import Condition
from dtx.broker.queues.entry import Entry, ResumableWork
from dtx.broker.queues.payloads import AHEAD, ROOM
from dtx.broker.queues.readers import AT_ONCE, MOST, PAGE, Readers
from dtx.store.contract import CHUNK
from tests.dtx.broker.peer import Peer, World, condition_of, filled


# -- readers
class Reader:
    """A reader that only looks. `later` has what is to go on in other turns, of all of them."""

    def __init__(self, user: str, later: deque[ResumableWork]) -> None:
        self.user = user
        self.later = later
        self.looked = 0

    def continue_later(self, one: ResumableWork) -> None:
        self.later.append(one)

    def advance(self) -> None:
        self.looked += 1

    def returned(self, entry: Entry) -> None:
        raise NotImplementedError

    def came_due(self, entry: Entry) -> None:
        raise NotImplementedError

    def group_freed(self, group: str) -> None:
        raise NotImplementedError


def readers_of(later: deque[ResumableWork], **users: int) -> tuple[Readers, dict[str, list[Reader]]]:
    """Readers of a queue, by user."""
    readers = Readers({})
    found = {user: [Reader(user, later) for _ in range(count)] for user, count in users.items()}
    for several in found.values():
        assert all(readers.add(one) for one in several)
    return readers, found


def test_few_readers_look_at_once_and_many_in_turns() -> None:
    """What is new while they look is looked at by all of them."""
    later: deque[ResumableWork] = deque()
    readers, of = readers_of(later, few=AT_ONCE, many=5 * AT_ONCE - 1)

    def looks_of_a_turn() -> int:
        before = sum(one.looked for one in of["many"])
        later.popleft().go_on()
        return sum(one.looked for one in of["many"]) - before

    readers.look(news=True)
    assert [one.looked for one in of["few"]] == [1] * AT_ONCE
    turns = [looks_of_a_turn() for _ in range(5)]
    assert not later
    assert max(turns) <= AT_ONCE
    assert [one.looked for one in of["many"]] == [1] * (5 * AT_ONCE - 1)
    for _ in range(7):
        readers.look(news=True)
        assert len(later) == 1
        assert looks_of_a_turn() <= AT_ONCE
    looked = [one.looked for one in of["many"]]
    readers.look(news=True)
    while later:
        assert looks_of_a_turn() <= AT_ONCE
    assert all(now > before for now, before in zip((one.looked for one in of["many"]), looked, strict=True))


def test_readers_that_are_gone_look_no_more() -> None:
    later: deque[ResumableWork] = deque()
    readers, of = readers_of(later, many=3 * AT_ONCE)
    readers.look(news=True)
    for one in of["many"][AT_ONCE:]:
        readers.remove(one)
    while later:
        later.popleft().go_on()
    assert sum(one.looked for one in of["many"]) == AT_ONCE
    for one in of["many"][:AT_ONCE]:
        readers.remove(one)
    assert not readers
    readers.look(news=True)
    assert not later


def test_only_the_one_that_asks_for_it_looks_again() -> None:
    later: deque[ResumableWork] = deque()
    readers, of = readers_of(later, user=3)
    assert [readers.look_again(of["user"][1]) for _ in range(2)] == [True, False]
    readers.look(news=False)
    readers.look(news=False)
    assert [one.looked for one in of["user"]] == [0, 1, 0]


def test_a_user_has_only_so_many_readers_of_a_queue(world: World) -> None:
    poster, peer = world.connect("poster"), world.connect("reader")
    poster.post(poster.sender("q"), "x")
    readers = world.queue().readers
    others = [Reader("reader", deque()) for _ in range(MOST)]
    assert all(readers.add(one) for one in others)
    refused = peer.receiver("q", 1, browse=True)
    assert condition_of(refused).condition == Condition.RESOURCE_LIMIT
    assert world.connect("another").drained("q") == ["x"]
    assert peer.bodies(peer.receiver("q", 1)) == ["x"], "the queue is there for those who take"
    readers.remove(others[0])
    assert peer.receiver("q", 1, browse=True).remote_condition is None


@pytest.mark.slow
def test_many_browsers_of_a_long_queue_see_all_of_it(world: World) -> None:
    """While messages come, go and come back; and none of them has a copy of the queue."""
    peer, other = world.connect("browsing"), world.connect("working")
    count = 3 * PAGE
    other.post_many(range(count))
    browsers = [peer.receiver("q", 10, browse=True) for _ in range(AT_ONCE + 3)]
    taken = other.receiver("q", 20)
    other.post_many(range(count, count + 5))
    world.close(taken)
    for browser in browsers:
        world.more(browser, count)
        assert peer.bodies(browser) == list(range(count + 5))


def test_the_line_of_a_queue_is_as_long_as_the_queue(world: World, peer: Peer) -> None:
    consumer, browser = peer.receiver("q", 1100), peer.receiver("q", 1, browse=True)
    for _ in range(11):
        peer.post_many(range(100))
        assert peer.bodies(consumer) == list(range(100))
    line = world.queue().readers._line
    assert line is not None
    assert len(line) <= 1100
    peer.fill("q", "after it was made anew", "and one more")
    assert peer.bodies(browser)[0] == 0, "what it had been sent before it was taken"
    assert "and one more" in peer.drained("q")


# -- payloads
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
