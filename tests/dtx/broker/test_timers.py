"""These tests check that timers run when they are due, that cancelled ones don't, and that a cancelled timer leaves
nothing behind.
"""

from __future__ import annotations

import random

from dtx.broker.timers import MOST_DEAD, Timers


def test_what_was_called_off_does_not_come_and_does_not_stay() -> None:
    chance, timers, called = random.Random(7), Timers(), list[int]()
    standing = {}
    for number in range(20_000):
        standing[number] = timers.add(1 + chance.random(), lambda number=number: called.append(number))  # type: ignore[misc]
        if chance.random() < 0.99:
            standing.pop(chance.choice(list(standing))).cancel()
        assert len(timers) <= 2 * len(standing) + MOST_DEAD + 1
    timers.run(3.0)
    assert sorted(called) == sorted(standing)
    assert len(timers) == 0
    for timer in standing.values():
        timer.cancel()  # too late, and no harm
    assert timers.next_in(0.0) is None


def test_what_is_due_is_called_in_its_order_and_once_and_may_add_and_call_off_others() -> None:
    timers, called = Timers(), list[str]()
    for due in (5, 1, 3, 1):
        timers.add(due, lambda due=due: called.append(str(due)))  # type: ignore[misc]
    other = timers.add(6, lambda: called.append("other"))

    def first() -> None:
        other.cancel()
        timers.add(1, lambda: called.append("added"))

    assert timers.next_in(0.0) == 1
    timers.run(0.9)
    assert called == []
    timers.run(3.0)
    timers.run(3.0)
    assert called == ["1", "1", "3"]
    assert timers.next_in(9.0) == 0
    timers.add(4, first)
    timers.run(9.0)
    assert sorted(called[3:]) == ["5", "added"]
