"""These tests check what the timelines of a node keep, how much of it, and what a transaction costs them."""

from __future__ import annotations

from tests.tm.two_resources import Clock
from tm.outcome import Outcome, Verdict
from tm.telemetry.node_page import phases
from tm.telemetry.timelines import LAST, SLOT_S, SLOTS, SLOWEST, STEPS, Step, Timelines
from xa import Code, Xid


def ran(timelines: Timelines, clock: Clock, number: int, took_s: float, steps: int = 1) -> None:
    gtrid = number.to_bytes(8, "big")
    timelines.began(gtrid)
    for _ in range(steps):
        timelines.verb("one", "prepare", clock(), Code.XA_OK, Xid(1, gtrid, b"one"))
    clock.now += took_s
    timelines.completed(Outcome(gtrid, Verdict.COMMITTED, True))


def test_the_last_and_the_slowest_of_an_hour_are_kept_and_no_more() -> None:
    clock = Clock()
    timelines = Timelines(clock=clock)
    ran(timelines, clock, 0, 9.0)

    for number in range(1, 1000):
        ran(timelines, clock, number, 0.001 * (number % 100), steps=STEPS + 5 if number == 999 else 1)
    assert [int.from_bytes(one.gtrid, "big") for one in timelines.last] == list(range(999, 999 - LAST, -1))
    assert len(timelines.last[0].steps) == STEPS
    assert timelines.last[0].omitted == 5
    slowest = [round(one.took_s, 3) for one in timelines.slowest]
    assert len(slowest) == SLOWEST
    assert slowest[0] == 9.0
    assert slowest[1:] == sorted(slowest[1:], reverse=True)
    assert min(slowest) >= 0.095
    assert sum(map(len, timelines._slots.values())) <= SLOWEST * (SLOTS + 1)
    clock.now += SLOT_S * (SLOTS + 1)
    assert timelines.slowest == []
    ran(timelines, clock, 1001, 0.5)
    assert len(timelines.slowest) == 1
    ran(timelines, clock, 1002, 0.5, steps=0)  # has done nothing
    assert len(timelines.slowest) == 1
    assert timelines._live == {}


def test_rates_are_those_of_the_last_minute() -> None:
    clock = Clock()
    timelines = Timelines(clock=clock)
    for _ in range(30):
        timelines.consumed("amqp", "orders", "handled", 10, 0.1)
        timelines.consumed("amqp", "orders", "failed", 1, 0.1)
        timelines.consumed("amqp", "other", "handled", 1, 0.1)
        clock.now += 10
    assert timelines.rates("orders") == {"handled": 1.0, "failed": 0.1}
    assert len(timelines._consumed) <= 2 * 8
    clock.now += 100
    assert timelines.rates("orders") == {}


def test_the_phases_of_a_transaction() -> None:
    steps = [
        Step("one", "start", 0.0, 0.1, "XA_OK"),
        Step("one", "prepare", 1.0, 0.5, "XA_OK"),
        Step("two", "prepare", 1.1, 0.9, "XA_OK"),
        Step("", "decision", 2.0, 0.25, ""),
        Step("one", "commit", 2.5, 0.5, "XA_OK"),
    ]
    assert phases(steps, 3.5) == {"work": 1.0, "prepare": 1.0, "decide": 0.25, "commit": 0.5}
    assert phases([], 3.5) == {"work": 3.5}
