"""This module waits until something is so that nobody tells: another thread, a process or a server has done it."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMEOUT_S = 100.0
PAUSE_S = 0.002


def until(condition: Callable[[], object], shown: object = "it did not happen") -> None:
    """Returns when `condition` holds; fails when it never does, and says what is `shown`, or what that returns then."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, shown() if callable(shown) else shown
        time.sleep(PAUSE_S)
