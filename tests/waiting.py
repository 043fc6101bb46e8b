"""This module waits until something is so that nobody tells: another thread, a process or a server has done it."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMEOUT_S = 100.0
PAUSE_S = 0.002


def until(condition: Callable[[], object], shown: object = "it did not happen") -> None:
    """Returns when `condition` holds; fails when it never does, and says what is `shown`, or what that returns then.
    Between two looks it rests for as long as a look takes, so that what it waits for has the processor too."""
    looked = time.monotonic()
    deadline = looked + TIMEOUT_S
    while not condition():
        took_s = time.monotonic() - looked
        assert looked < deadline, shown() if callable(shown) else shown
        time.sleep(PAUSE_S + took_s)
        looked = time.monotonic()
