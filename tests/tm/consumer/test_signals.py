"""These tests send the signals for which a consumer's `run` waits."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from tm.consumer.signals import SIGNALS, StopSignals

PATIENCE_S = 5.0
IN_WAIT_S = 0.02
"""After so long the main thread waits."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The same handlers are there after the test, and the same descriptor to wake."""
    numbers = (*SIGNALS, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before[: len(SIGNALS)]
    assert signal.set_wakeup_fd(descriptor) == descriptor
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def heard(*numbers: int) -> bool:
    """Whether `wait` ends when the system hands these signals to another thread than the main one, as it does while the
    main one has another signal to handle."""
    ended = threading.Event()
    hung: list[bool] = []

    def send() -> None:
        time.sleep(IN_WAIT_S)
        for number in numbers:
            signal.pthread_kill(threading.get_ident(), number)
        hung.append(not ended.wait(PATIENCE_S))
        stopper.wake()

    with StopSignals() as stopper:
        sender = threading.Thread(target=send)
        sender.start()
        stopper.wait()
        ended.set()
        sender.join()
    return hung == [False]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_another_thread_gets_is_heard(number: int) -> None:
    assert heard(number)


def test_other_signals_have_their_effect_and_end_nothing() -> None:
    told: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: told.append(number))
    assert heard(signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM)
    assert told
    told.clear()
    woken = threading.Event()

    def send() -> None:
        time.sleep(IN_WAIT_S)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        woken.wait(0.05)
        woken.set()
        stopper.wake()

    with StopSignals() as stopper:
        threading.Thread(target=send).start()
        stopper.wait()
        assert woken.is_set()
    assert told == [signal.SIGUSR1]
