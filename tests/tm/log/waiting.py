"""This module waits until another thread has done what the test expects."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 60.0


def until(condition: Callable[[], object]) -> None:
    """Returns when `condition` holds; fails when it never does."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.0005)
