"""These tests cover who reads a queue in its order: browsers and links that select. One user may have many of them, and
one message concerns them all."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from dtx.amqp.conditions import Condition
from dtx.broker.queues.readers import AT_ONCE, MOST, PAGE, Readers
from tests.dtx.broker.peer import Peer, World, condition_of

if TYPE_CHECKING:
    from dtx.broker.queues.entry import Continuing, Entry


class Reader:
    """A reader that only looks. `later` has what is to go on in other turns, of all of them."""

    def __init__(self, user: str, later: deque[Continuing]) -> None:
        self.user = user
        self.later = later
        self.looked = 0

    def continue_later(self, one: Continuing) -> None:
        self.later.append(one)

    def advance(self) -> None:
        self.looked += 1

    def returned(self, entry: Entry) -> None:
        raise NotImplementedError

    def came_due(self, entry: Entry) -> None:
        raise NotImplementedError

    def group_freed(self, group: str) -> None:
        raise NotImplementedError


def readers_of(later: deque[Continuing], **users: int) -> tuple[Readers, dict[str, list[Reader]]]:
    """Readers of a queue, by user."""
    readers = Readers({})
    found = {user: [Reader(user, later) for _ in range(count)] for user, count in users.items()}
    for several in found.values():
        assert all(readers.add(one) for one in several)
    return readers, found


def test_few_readers_look_at_once_and_many_in_turns() -> None:
    """What is new while they look is looked at by all of them."""
    later: deque[Continuing] = deque()
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
    later: deque[Continuing] = deque()
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
    later: deque[Continuing] = deque()
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
