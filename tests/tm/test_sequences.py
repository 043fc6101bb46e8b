"""These tests look at the floor of a manager: it never passes a transaction of which a branch may be prepared, and
passes every other one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from tests.tm.shop import Clock, Shop, outcome_of
from tm import RolledBack, TransactionError
from tm import sequences as module
from tm.sequences import LATE_S, Sequences
from xa import TMNOFLAGS, Code
from xabridge.testing.reference import NetworkFault

if TYPE_CHECKING:
    from collections.abc import Callable


def gtrid(number: int) -> bytes:
    return b"node\0" + number.to_bytes(8, "big")


def test_it_stands_at_the_first_one_that_is_not_over() -> None:
    sequences = Sequences(Clock())
    assert sequences.floor() == 1
    taken = [sequences.take() for _ in range(5)]
    assert sequences.floor() == 1
    for number, floor in zip((2, 5, 1, 4, 3), (1, 1, 3, 3, 6), strict=True):
        sequences.over(gtrid(taken[number - 1]))
        assert sequences.floor() == floor
    assert sequences.skip() == 6
    assert sequences.floor() == 7


def test_a_doubtful_one_waits_for_a_late_pass_that_has_met_nothing_of_it_where_it_may_be() -> None:
    clock = Clock()
    sequences = Sequences(clock)
    for number in (sequences.take(), sequences.take()):
        sequences.doubt(gtrid(number), ["a", "b"])
    sequences.passed(clock() + LATE_S - 1, (), ())
    assert sequences.floor() == 1, "a request may still be on its way"
    sequences.passed(clock() + LATE_S, {gtrid(1)}, ())
    assert sequences.floor() == 1
    sequences.passed(clock() + LATE_S, (), {"b": "away"})
    assert sequences.floor() == 1
    sequences.passed(clock() + LATE_S, (), {"c": "away"})
    assert sequences.floor() == 3


def test_beyond_as_many_doubtful_ones_as_it_remembers_it_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    clock = Clock()
    sequences = Sequences(clock)
    for _ in range(4):
        sequences.doubt(gtrid(sequences.take()), ["a"])
    for _ in range(100):
        sequences.over(gtrid(sequences.take()))
        sequences.take()
    assert sequences.floor() == 1
    sequences.passed(clock() + LATE_S, (), ())
    assert sequences.floor() == 3
    assert sequences._open == {3}, "what is behind it costs nothing"


def test_under_load_everything_below_it_was_over_before() -> None:
    sequences = Sequences(Clock())
    done: set[int] = set()

    def work(_: int) -> None:
        for _ in range(5000):
            number = sequences.take()
            done.add(number)
            sequences.over(gtrid(number))

    with ThreadPoolExecutor(2) as pool:
        working = [pool.submit(work, one) for one in range(2)]
        while not all(one.done() for one in working):
            floor = sequences.floor()
            assert set(range(1, floor)) <= done.copy()
    assert sequences.floor() == 10_001


# --- of a manager -----------------------------------------------------------------------------------------------
def floor_of(shop: Shop) -> int:
    return shop.tm._sequences.floor()


def test_what_was_committed_rolled_back_or_read_only_is_over(shop: Shop) -> None:
    for number in range(1, 4):
        with shop.tm.begin() as tx:
            shop.write(tx, names="ab"[: number - 1])
            assert floor_of(shop) == number
    shop.tm.begin().rollback()
    with shop.tm.begin() as tx:
        shop.write(tx, 2)
        tx.rollback()
    shop["a"].script.plan("prepare", Code.XA_RBDEADLOCK)
    with pytest.raises(RolledBack), shop.tm.begin() as tx:
        shop.write(tx, 3)
    assert floor_of(shop) == 7


@pytest.mark.parametrize(
    ("verb", "answer", "fate"),
    [
        ("prepare", None, NetworkFault.REQUEST_LOST),
        ("prepare", None, NetworkFault.REPLY_LOST),
        ("prepare", None, NetworkFault.IN_FLIGHT),
        ("prepare", Code.XAER_RMERR, NetworkFault.ARRIVES),
        ("commit", None, NetworkFault.REQUEST_LOST),
        ("commit", Code.XA_HEURCOM, NetworkFault.ARRIVES),
        ("commit", Code.XA_HEURRB, NetworkFault.ARRIVES),
        ("rollback", None, NetworkFault.REQUEST_LOST),
        ("rollback", Code.XAER_RMERR, NetworkFault.ARRIVES),
    ],
)
def test_what_has_not_answered_or_ended_on_its_own_is_passed_by_a_late_pass_only(
    shop: Shop, verb: str, answer: Code | None, fate: NetworkFault
) -> None:
    if verb == "rollback":
        shop["b"].script.plan("prepare", Code.XA_RBDEADLOCK)
    shop["a"].script.plan(verb, answer, fate, times=3)
    with suppress(TransactionError), shop.tm.begin() as tx:
        shop.write(tx)
    assert floor_of(shop) == 1
    shop["a"].script.clear()
    shop["a"].deliver()
    shop.tm.recover()
    assert floor_of(shop) == 1
    shop.clock.pass_by(LATE_S)

    for xid in shop["a"].in_doubt:
        shop.tm.forget("a", xid)
    for note in shop.log.heuristics():
        shop.log.drop_heuristic(note.branch)
    shop.tm.recover()
    shop.tm.recover()
    assert floor_of(shop) == 2
    shop.assert_nothing_left()


def leave_to_recovery(shop: Shop) -> None:
    """A transaction with two branches at work is rolled back while "b" is away."""
    with shop.tm.begin() as tx:
        shop.write(tx)
        shop["b"].partition()
        tx.rollback()
    assert [branch.resource for branch in outcome_of(tx).pending] == ["b"]


def refuse_to_end(shop: Shop) -> None:
    """A transaction is to be committed, and has to be rolled back: an association can't be ended."""
    shop.flags["b"] = TMNOFLAGS  # its end is not sent with the prepare
    shop["b"].script.plan("end", None, NetworkFault.REQUEST_LOST)
    shop["b"].script.plan("rollback", None, NetworkFault.REQUEST_LOST, times=3)
    with pytest.raises(RolledBack), shop.tm.begin() as tx:
        shop.write(tx)
    assert [branch.resource for branch in outcome_of(tx).pending] == ["b"]


def answer_with_an_error(shop: Shop) -> None:
    shop["b"].script.plan("rollback", Code.XAER_RMERR)
    with shop.tm.begin() as tx:
        shop.write(tx)
        tx.rollback()


@pytest.mark.parametrize("leave", [leave_to_recovery, refuse_to_end, answer_with_an_error])
def test_what_was_never_asked_to_prepare_is_over_whether_its_rollback_was_answered_or_not(
    shop: Shop, leave: Callable[[Shop], None]
) -> None:
    leave(shop)
    assert floor_of(shop) == 2
    shop["b"].script.clear()
    shop["b"].heal()
    shop.tm.recover()
    shop.assert_nothing_left()


def test_what_was_never_asked_and_ended_on_its_own_may_be_listed(shop: Shop) -> None:
    shop["b"].script.plan("rollback", Code.XA_HEURRB)
    with shop.tm.begin() as tx:
        shop.write(tx)
        tx.rollback()
    assert floor_of(shop) == 1


@pytest.mark.parametrize("away", [False, True])
def test_what_a_commit_that_broke_has_asked_to_prepare_is_not_over_by_a_rollback(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    shop["b"].script.plan("prepare", None, NetworkFault.IN_FLIGHT)
    shop["b"].script.plan("rollback", None, NetworkFault.REQUEST_LOST, times=6 if away else 1)
    tx = shop.tm.begin()
    shop.write(tx)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(shop.tm.executor, "_leave_to_recovery", Mock(side_effect=MemoryError))
        tx.commit()
    tx.rollback()
    assert bool(outcome_of(tx).pending) is away
    assert floor_of(shop) == 1
    shop["b"].deliver()
    shop["b"].script.clear()
    shop.tm.recover()
    shop.assert_nothing_left()


def test_what_a_pass_finds_is_not_over_before_the_next_one(shop: Shop) -> None:
    shop.in_doubt("a")
    shop.clock.pass_by(LATE_S)
    shop["a"].script.clear()
    assert not shop.tm.recover().undone
    assert floor_of(shop) == 1
    shop.tm.recover()
    assert floor_of(shop) == 2
