"""These tests cover who is served next: shares of time, urgent work, and that nobody waits for ever."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from dtx.broker.turns import AHEAD_S, FEWEST, URGENT_IN_A_ROW, Turns
from tests.cases import each

LONGEST_S = 0.004


def served(turns: Turns[str], seconds: float, random: Random, urgent: frozenset[str] = frozenset()) -> Counter[str]:
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
    turns: Turns[str] = Turns()
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
    turns: Turns[str] = Turns()
    for number in range(random.choice((1, 20))):
        turns.add(f"urgent {number}", "one", urgent=True)
    turns.add("post", "other")
    urgent = frozenset(f"urgent {number}" for number in range(20))
    shares = served(turns, 2.0, random, urgent)
    assert 0 < shares["one"] - shares["other"] <= AHEAD_S + LONGEST_S


def test_what_is_urgent_goes_first_and_keeps_nothing_of_its_payer_waiting() -> None:
    turns: Turns[str] = Turns()
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
    turns: Turns[str] = Turns()
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
    turns: Turns[str] = Turns()
    turns.add("a", "one")
    served(turns, 100.0, Random(1))
    turns.add("b", "other")
    shares = served(turns, 1.0, Random(2))
    assert abs(shares["one"] - shares["other"]) <= 2 * LONGEST_S


def test_who_is_gone_is_not_served() -> None:
    turns: Turns[str] = Turns()
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
    turns: Turns[int] = Turns()
    turns.add(-1, "who waits")
    for number in range(10_000):
        turns.add(number, f"from {number}")
        turns.remove(number)
        turns.spent(f"from {number}", 0.001 * (number % 7))
    assert turns.accounts <= 4 * FEWEST
    assert -1 in turns
