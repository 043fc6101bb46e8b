"""These tests check what the manager logs during an outage: that it began, from time to time that it lasts, and that it
is over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest

from tests.tm.two_resources import Clock, TwoResources
from tm import OutcomeUnknown
from tm.consumer.handler import Handler
from tm.consumer.job import Job
from tm.consumer.settings import ConsumerSettings
from tm.consumer.statistics import Statistics
from tm.log import LogStopped
from tm.recovery.messages import RecoveryMessages
from tm.throttle import WarningThrottle
from xabridge.testing.reference import NetworkFault

NIGHT_S = 2 * 3600
EVERY_S = 60
REMINDERS = NIGHT_S // 600
NUMBERS = count()


@pytest.fixture
def both(caplog: pytest.LogCaptureFixture) -> Iterator[TwoResources]:
    with caplog.at_level(logging.INFO, logger="xabridge"), TwoResources() as both:
        yield both


def lines(caplog: pytest.LogCaptureFixture, text: str, level: int = logging.WARNING) -> list[str]:
    return [r.getMessage() for r in caplog.records if text in r.getMessage() and r.levelno >= level]


def leave_in_doubt(both: TwoResources, how_many: int) -> None:
    """Transactions that are decided, and that `two` has not heard of."""
    for _ in range(how_many):
        both.two.script.plan("commit", fate=NetworkFault.REQUEST_LOST, times=3)
        with suppress(OutcomeUnknown), both.manager.begin():
            both.write(f"key {next(NUMBERS)}")


def test_a_night_of_an_outage(both: TwoResources, caplog: pytest.LogCaptureFixture) -> None:
    """Recovery tries every minute; what is in doubt is told once, and then how much of it there is."""
    both.two.partition()
    for _ in range(NIGHT_S // EVERY_S):
        both.manager.recover()
        both.clock.now += EVERY_S
    down = lines(caplog, "recovery: two can't be reached")
    assert len(down) <= REMINDERS + 1
    assert "can't be reached: " in down[0]
    assert "for 10 min: " in down[1]
    assert f"for {NIGHT_S // 60 - 10} min: " in down[-1]
    assert len(lines(caplog, "", logging.WARNING)) == len(down)
    both.two.heal()
    both.manager.recover()
    assert lines(caplog, "recovery: two can be reached again, after 7200 s", logging.INFO)


def test_each_outage_is_told_of(both: TwoResources, caplog: pytest.LogCaptureFixture) -> None:
    for number in (1, 2, 3):
        both.two.partition()
        both.manager.recover()
        both.two.heal()
        both.clock.now += EVERY_S
        both.manager.recover()
        assert len(lines(caplog, "recovery: two can't be reached")) == number


def test_a_night_with_branches_in_doubt(both: TwoResources, caplog: pytest.LogCaptureFixture) -> None:
    """The resource can be reached, and can't commit."""
    leave_in_doubt(both, 5)
    caplog.clear()
    both.two.script.plan("commit", fate=NetworkFault.REQUEST_LOST, times=1_000_000)
    for _ in range(NIGHT_S // EVERY_S):
        both.manager.recover()
        both.clock.now += EVERY_S
    told = lines(caplog, "still in doubt")
    each, summed = [line for line in told if "(xid" in line], [line for line in told if "branches" in line]
    assert len(each) == 5
    assert len({line.split("(xid")[0] for line in each}) == 5
    assert 0 < len(summed) <= REMINDERS
    assert summed[0] == "recovery: 5 branches for 10 min: still in doubt; `xabridge recover list` shows them"
    leave_in_doubt(both, 1)
    both.manager.recover()
    assert len([line for line in lines(caplog, "still in doubt") if "(xid" in line]) == 6, "a new one is told at once"


def test_a_log_that_can_not_be_read(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    told = RecoveryMessages(clock)
    for _ in range(NIGHT_S // EVERY_S):
        told.log_unreadable(LogStopped("the disk is gone"))
        told.failed(ValueError("a bug"))
        told.unreadable("shop", ValueError("no such table"))
        clock.now += EVERY_S
    for text in ("can't read the log", "failed with an unexpected error", "the decisions in shop can't be read"):
        assert 1 < len(lines(caplog, text)) <= REMINDERS + 1


def test_a_consumer_that_can_not_receive(both: TwoResources, caplog: pytest.LogCaptureFixture) -> None:
    """One line for all of its workers."""
    clock = Clock()
    job = Job(
        both.manager, ConsumerSettings("orders", resource="one"), Handler(print), Statistics("orders", None, clock)
    )
    for _ in range(NIGHT_S // EVERY_S):
        for worker in range(4):
            job.failed_to_receive(worker, ConnectionError("refused"))
        clock.now += EVERY_S
    assert len(lines(caplog, "orders: nothing can be received")) <= REMINDERS + 1
    for worker in range(4):
        assert not lines(caplog, "can be received again", logging.INFO)
        job.received(worker, None)
    assert lines(caplog, "orders: messages can be received again, after 7200 s", logging.INFO)
    job.failed_to_receive(0, ConnectionError("refused"))
    assert "for" not in lines(caplog, "orders: nothing can be received")[-1].partition("received")[2].partition(":")[0]


def test_what_is_remembered_is_bounded() -> None:
    reminders = WarningThrottle(Clock())
    for number in range(20_000):
        assert reminders.due(number) == ""
    assert reminders.due(19_999) is None
    assert reminders.due(0) == "", "forgotten, and taken for new"
    assert reminders.over(5) is None
