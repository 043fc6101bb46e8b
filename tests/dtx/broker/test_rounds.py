"""Who is served next: shares of time, urgent work, and that nobody waits for ever. Then rounds over a model of an event
loop, whose clock moves by what the work costs: an honest peer posts one message after the other, beside a greedy user
with many connections.

The loop looks who has sent something. Then it carries out, in this order as asyncio does, what was ready before, what
was sent, and what is due; and so on. A force is done on the loop, or by a thread. With XABRIDGE_SCHEDULES, whatever it
is, they run longer."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from types import SimpleNamespace
from typing import Final, cast

import pytest

from dtx.broker.broker import Broker
from dtx.broker.fair_queue import AHEAD_S, FEWEST, URGENT_IN_A_ROW, FairQueue
from dtx.broker.peer_scheduler import (
    LONG_TURN_S,
    LONGEST_SHARED_ROUND_S,
    SHARED_ROUND_S,
    SHARED_WAITING,
    PeerScheduler,
)
from tests.cases import each
from tests.event_loop import in_loop

# -- turns
LONGEST_S = 0.004


def served(turns: FairQueue[str], seconds: float, random: Random, urgent: frozenset[str] = frozenset()) -> Counter[str]:
    """What each payer had of so many seconds, in which everything that waits has always more to do."""
    shares: Counter[str] = Counter()
    spent_s = 0.0
    while spent_s < seconds:
        payer = turns.next_payer
        one = turns.take()
        took_s = random.uniform(0.0001, LONGEST_S)
        turns.spent(payer, took_s)
        turns.add(one, payer, urgent=one in urgent)
        shares[payer] += took_s  # type: ignore[assignment]
        spent_s += took_s
    return shares


@each("seed", range(5))
def test_payers_have_equal_shares_however_many_peers_they_have(seed: int) -> None:
    random = Random(seed)
    turns: FairQueue[str] = FairQueue()
    payers = [f"user {number}" for number in range(random.randint(2, 8))]
    for payer in payers:
        for number in range(random.choice((1, 20, 200))):
            turns.add(f"{payer}/{number}", payer)
    shares = served(turns, 10.0, random)
    assert max(shares.values()) - min(shares[payer] for payer in payers) <= LONGEST_S


@each("seed", range(5))
def test_who_decides_about_transactions_gets_no_more_than_a_little_ahead(seed: int) -> None:
    """One user floods with what is urgent, the other posts."""
    random = Random(seed)
    turns: FairQueue[str] = FairQueue()
    for number in range(random.choice((1, 20))):
        turns.add(f"urgent {number}", "one", urgent=True)
    turns.add("post", "other")
    urgent = frozenset(f"urgent {number}" for number in range(20))
    shares = served(turns, 2.0, random, urgent)
    assert 0 < shares["one"] - shares["other"] <= AHEAD_S + LONGEST_S


def test_what_is_urgent_goes_first_and_keeps_nothing_of_its_payer_waiting() -> None:
    turns: FairQueue[str] = FairQueue()
    for number in range(3):
        turns.add(f"post {number}", "one")
    for number in range(2):
        turns.add(f"commit {number}", "one", urgent=True)
    order = []
    for _ in range(20):
        one = turns.take()
        order.append(one)
        turns.spent("one", 0.001)
        turns.add(one, "one", urgent=one.startswith("commit"))
    assert order[: URGENT_IN_A_ROW + 1] == ["commit 0", "commit 1", "commit 0", "post 0"]
    assert {one for one in order if one.startswith("post")} == {"post 0", "post 1", "post 2"}


def test_who_comes_with_little_is_next_at_once() -> None:
    """However long the others have been waiting, and however many they are."""
    turns: FairQueue[str] = FairQueue()
    for number in range(200):
        turns.add(f"greedy {number}", "greedy")
    random = Random(0)
    for _ in range(100):
        served(turns, 0.02, random)
        turns.add("honest", "honest")
        assert turns.take() == "honest"
        turns.spent("honest", 0.0001)


def test_nobody_saves_time_up() -> None:
    """Who was away for long is not served alone when it comes back."""
    turns: FairQueue[str] = FairQueue()
    turns.add("a", "one")
    served(turns, 100.0, Random(1))
    turns.add("b", "other")
    shares = served(turns, 1.0, Random(2))
    assert abs(shares["one"] - shares["other"]) <= 2 * LONGEST_S


def test_who_is_gone_has_no_turn() -> None:
    turns: FairQueue[str] = FairQueue()
    for one, payer in (("a", "one"), ("b", "one"), ("c", "other")):
        turns.add(one, payer)
    turns.remove("a")
    turns.remove("c")
    turns.remove("never there")
    assert ("a" in turns, "b" in turns, len(turns)) == (False, True, 1)
    assert turns.take() == "b"
    assert not turns
    with pytest.raises(IndexError):
        turns.take()


def test_those_who_came_once_are_forgotten() -> None:
    """An address that can choose among many leaves no account behind for each."""
    turns: FairQueue[int] = FairQueue()
    turns.add(-1, "who waits")
    for number in range(10_000):
        turns.add(number, f"from {number}")
        turns.remove(number)
        turns.spent(f"from {number}", 0.001 * (number % 7))
    assert turns.accounts <= 4 * FEWEST
    assert -1 in turns


# -- rounds
POST_S: Final = 0.000_03
ROW_S: Final = 0.000_01
ANSWER_S: Final = 0.000_005
CLIENT_S: Final = 0.000_25
"""From an answer to the next message of a client: sockets, and its own work."""
CREDIT: Final = 500
SECONDS: Final = 5.0 if "XABRIDGE_SCHEDULES" in os.environ else 1.0
"""Of the model's clock."""


class Peer:
    """A connection. `window` is how many posts it has on their way."""

    def __init__(self, shell: Shell, payer: str, window: int) -> None:
        self.shell = shell
        self.payer = payer
        self.window = window
        self.waiting = 0
        self.reading = True
        self.unread = 0
        self.answers = 0
        self.slowest_s = 0.0
        self.sent_at = 0.0
        self.urgent = False

    @property
    def writes(self) -> bool:
        return self.waiting > 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def send(self, count: int) -> None:
        self.unread += count
        self.sent_at = self.shell.now

    def answered(self, count: int) -> None:
        self.answers += count
        self.slowest_s = max(self.slowest_s, self.shell.now - self.sent_at)
        self.shell.later(CLIENT_S, lambda: self.send(count))


class Shell:
    """The loop and the store."""

    def __init__(self, force_s: float, *, thread: bool) -> None:
        self.now = 0.0
        self.force_s = force_s
        self.post_s = POST_S
        self.thread = thread
        self.busy = False
        self.overloaded = False
        self.long_turns = 0
        self.forces = 0
        self.peers: list[Peer] = []
        self.submitted: list[Peer] = []
        self.waiting: Counter[str] = Counter()
        self.ready: deque[Callable[[], None]] = deque()
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.number = 0
        self.scheduler = PeerScheduler(self, lambda: self.now)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.number += 1
        heappush(self.timers, (self.now + seconds, self.number, call))

    # -- the port
    def serve(self, peer: Peer, budget_s: float) -> bool:
        until = self.now + budget_s
        while peer.waiting and self.now <= until:
            self.now += self.post_s
            peer.waiting -= 1
            self.submitted.append(peer)
            self.waiting[peer.payer] += 1
        return peer.waiting > 0

    def turn_was_long(self) -> None:
        self.long_turns += 1

    def soon(self, call: Callable[[], None]) -> None:
        self.later(0.0, call)

    def flush_soon(self) -> None:
        self.ready.append(self.flush)

    def flush(self) -> None:
        if self.scheduler.end() and not self.busy and self.submitted:
            group, self.submitted = self.submitted, []
            took_s = self.force_s + ROW_S * len(group)
            self.forces += 1
            if self.thread:
                self.busy = True
                self.later(took_s, lambda: self.completed(group, took_s))
            else:
                self.now += took_s
                self.scheduler.forced(took_s)
                self.answer(group)
        self.scheduler.go_on()

    def completed(self, group: list[Peer], took_s: float) -> None:
        self.busy = False
        self.scheduler.forced(took_s)
        self.answer(group)
        self.scheduler.answered()
        self.flush_soon()

    def answer(self, group: list[Peer]) -> None:
        for peer, count in Counter(group).items():
            self.now += ANSWER_S * count
            self.waiting[peer.payer] -= count
            if not self.waiting[peer.payer]:
                del self.waiting[peer.payer]
            peer.answered(count)

    # -- the loop
    def connect(self, payer: str, window: int) -> Peer:
        peer = Peer(self, payer, window)
        self.peers.append(peer)
        peer.send(window)
        return peer

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            if not self.ready and not any(peer.reading and peer.unread for peer in self.peers):
                self.now = max(self.now, self.timers[0][0])
            sent = [(peer, peer.unread) for peer in self.peers if peer.reading and peer.unread]
            due = [heappop(self.timers)[2] for timer in sorted(self.timers) if timer[0] <= self.now]
            for _ in range(len(self.ready)):
                self.ready.popleft()()
            for peer, count in sent:
                if peer.reading:
                    peer.waiting, peer.unread = peer.waiting + count, peer.unread - count
                    self.scheduler.has_input(peer)
            for call in due:
                call()


@pytest.mark.parametrize(
    ("thread", "force_s"), [(False, 0.0002), (False, 0.003), (False, 0.02), (True, 0.001), (True, 0.006)]
)
@pytest.mark.parametrize("connections", [1, 200])
def test_an_honest_peer_keeps_its_share_beside_a_greedy_user(connections: int, force_s: float, *, thread: bool) -> None:
    alone = Shell(force_s, thread=thread)
    reference = alone.connect("honest", 1)
    alone.run(SECONDS)

    shell = Shell(force_s, thread=thread)
    for _ in range(connections):
        shell.connect("greedy", CREDIT)
    honest = shell.connect("honest", 1)
    shell.run(SECONDS)
    assert honest.answers >= 0.4 * reference.answers
    assert honest.slowest_s < 0.5
    assert shell.forces <= 2 * honest.answers


def test_who_comes_during_a_turn_is_next() -> None:
    """Also where the one that had the turn wants more: it is charged for what it had."""
    shell = Shell(0.001, thread=False)
    greedy, honest = shell.connect("greedy", CREDIT), shell.connect("honest", 1)
    greedy.waiting = CREDIT
    shell.scheduler.has_input(greedy)
    honest.waiting = 1
    shell.scheduler.has_input(honest)
    before = greedy.waiting
    while honest.waiting:
        heappop(shell.timers)[2]()
    assert greedy.waiting == before


@in_loop
async def test_a_turn_comes_after_what_was_sent_meanwhile_is_read() -> None:
    """asyncio calls what `call_soon` was given before what it has read."""
    happened: list[str] = []
    loop, both = asyncio.get_running_loop(), asyncio.Event()
    ours, theirs = socket.socketpair()

    def note(what: str) -> None:
        happened.append(what)
        if what == "read":
            loop.remove_reader(ours)
        if len(happened) == 2:
            both.set()

    with ours, theirs:
        loop.add_reader(ours, note, "read")
        theirs.send(b"something")
        Broker.soon(cast("Broker", SimpleNamespace(_loop=loop)), lambda: note("turn"))
        await both.wait()
    assert happened == ["read", "turn"]


@pytest.mark.parametrize("thread", [False, True], ids=["forced on the loop", "forced by the thread"])
def test_of_many_users_each_is_answered(*, thread: bool) -> None:
    """Nobody starves, whoever has more connections, and whatever is urgent."""
    shell = Shell(0.002, thread=thread)
    peers = [shell.connect(f"user {number}", CREDIT) for number in range(10) for _ in range(1 + 19 * (number == 3))]
    for peer in peers[:3]:
        peer.urgent = True
    shell.run(SECONDS)
    had: Counter[str] = Counter()
    for peer in peers:
        had[peer.payer] += peer.answers
    assert min(had.values()) >= 0.5 * max(had.values())
    assert min(peer.answers for peer in peers) > 0


def test_one_payer_alone_has_long_rounds_and_few_forces() -> None:
    """What fairness costs, it costs where somebody else is there."""
    shell = Shell(0.002, thread=False)
    for _ in range(16):
        shell.connect("one", 100)
    shell.run(2.0)
    answers = sum(peer.answers for peer in shell.peers)
    assert answers / shell.forces > 200


def test_who_waits_for_the_store_has_little_there() -> None:
    """The store is slow: a greedy user fills its part of what may wait there, and is read no more."""
    shell = Shell(0.5, thread=True)
    for _ in range(50):
        shell.connect("greedy", CREDIT)
    shell.connect("honest", 1)
    most = 0
    for _ in range(400):
        shell.run(0.005)
        most = max(most, sum(shell.waiting.values()) if shell.scheduler.is_shared else 0)
    assert 0 < most <= 2 * SHARED_WAITING * LONGEST_SHARED_ROUND_S / SHARED_ROUND_S


def test_a_long_turn_is_counted() -> None:
    shell = Shell(0.001, thread=False)
    peer = shell.connect("one", 1)
    began = shell.now

    peer.waiting = 1
    shell.post_s = 2 * LONG_TURN_S
    shell.scheduler.has_input(peer)
    assert shell.now - began == 2 * LONG_TURN_S
    assert shell.long_turns == 1


def test_who_is_gone_is_not_served() -> None:
    shell = Shell(0.002, thread=True)
    peers = [shell.connect("one", CREDIT) for _ in range(20)] + [shell.connect("other", CREDIT)]
    shell.run(0.05)
    for peer in peers[:20]:
        shell.scheduler.left(peer)
        shell.peers.remove(peer)
        peer.waiting = -1  # to serve it would show
    shell.run(1.0)
    assert all(peer.waiting == -1 for peer in peers[:20])
