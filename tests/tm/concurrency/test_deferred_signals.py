"""These tests send signals to this process while its main thread is inside of code that must not be interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.programs import output_of
from tm.concurrency.deferred_signals import DeferredSignals

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """SIGINT raises, the others are as Python begins with them; the same handlers are there after the test."""
    before = [signal.signal(number, signal.SIG_DFL) for number in NUMBERS]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in zip(NUMBERS, before, strict=True):
        signal.signal(number, handler)


class Broken:
    """Counts how often connections were broken."""

    def __init__(self) -> None:
        self.times = 0
        self.heard = threading.Event()

    def __call__(self) -> None:
        self.times += 1
        self.heard.set()


class Heard(list[int]):
    """A handler of the application's own: which signals it has heard."""

    def __call__(self, number: int, frame: object) -> None:
        assert frame is not None
        self.append(number)


def deferred(work: Callable[[], object], broken: Broken | None = None) -> None:
    signals = DeferredSignals("the work", broken or Broken())
    try:
        signals.begin()
        work()
    finally:
        signals.end()


def send(*numbers: int) -> None:
    for number in numbers:
        signal.raise_signal(number)


def test_a_signal_is_handled_when_the_work_is_done_also_inside_of_other_work() -> None:
    done: list[str] = []

    def inner() -> None:
        send(signal.SIGINT)
        done.append("inner")

    def outer() -> None:
        deferred(inner)
        done.append("outer")

    for work, told in ((inner, ["inner"]), (outer, ["inner", "outer"])):
        done.clear()
        with pytest.raises(KeyboardInterrupt):
            deferred(work)
        assert done == told
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_every_signal_is_handled_once_and_none_is_lost_when_another_one_raises() -> None:
    heard = Heard()

    def leaves(number: int, frame: object) -> None:
        heard(number, frame)
        raise SystemExit(number)

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, leaves)
    with pytest.raises(SystemExit):
        deferred(lambda: send(signal.SIGUSR1, signal.SIGINT, signal.SIGUSR2, signal.SIGUSR1))
    assert heard == [signal.SIGUSR1, signal.SIGUSR2]


def test_what_the_application_ignores_or_leaves_to_the_system_is_not_touched() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def work() -> None:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        send(signal.SIGINT)

    deferred(work)


def test_a_handler_that_the_work_has_set_stays() -> None:
    mine = Heard()

    def work() -> None:
        signal.signal(signal.SIGINT, mine)
        send(signal.SIGINT)

    deferred(work)
    assert mine == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is mine


def left() -> DeferredSignals:
    """What an interruption left before its end."""
    signals = DeferredSignals("the work before", Broken())
    signals.begin()
    return signals


@pytest.mark.parametrize("again", [False, True], ids=["at a signal", "by the work after it"])
def test_handlers_that_an_interruption_did_not_put_back_are_put_back(*, again: bool) -> None:
    signals = left()
    with pytest.raises(KeyboardInterrupt):
        if again:
            deferred(lambda: send(signal.SIGINT))
        else:
            send(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signals.end()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_second_ctrl_c_breaks_connections_and_the_third_does_nothing_more() -> None:
    broken = Broken()

    def work() -> None:
        send(signal.SIGINT)
        assert not broken.heard.wait(0.05)
        send(signal.SIGINT)
        assert broken.heard.wait(30)
        send(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        deferred(work, broken)
    assert broken.times == 1


def test_a_handler_of_the_applications_own_breaks_nothing() -> None:
    """It may only take note, and wants the work done."""
    broken, heard = Broken(), Heard()
    signal.signal(signal.SIGINT, heard)

    def work() -> None:
        send(signal.SIGINT, signal.SIGINT)
        assert not broken.heard.wait(0.05)

    deferred(work, broken)
    assert heard == [signal.SIGINT]


def test_who_waits_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tm.concurrency.deferred_signals.REPORTED_AFTER_S", 0.01)
    told = threading.Event()
    monkeypatch.setattr("tm.concurrency.deferred_signals.logger.warning", lambda *_: told.set())

    def work() -> None:
        send(signal.SIGINT)
        assert told.wait(30)

    with pytest.raises(KeyboardInterrupt):
        deferred(work)


def test_in_a_child_the_thread_that_forked_is_the_one_that_signals_interrupt() -> None:
    program = """
import os, threading
from tm.concurrency.deferred_signals import interruptible

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0 if interruptible() else 1)
    told.append((interruptible(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))

told = []
forks = threading.Thread(target=fork)
forks.start()
forks.join()
print(interruptible(), *told)
"""
    assert output_of(program) == "True (False, 0)\n"
