"""This module chooses the seeds of simulated schedules: one that a user asks for, the first few, or a part of many. It
also says whether a fault is tried at every point, or at some of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

ROUNDS: Final = int(os.environ.get("XABRIDGE_ROUNDS", "1"))
"""How many storms a campaign has."""
SEED: Final = int(os.environ.get("XABRIDGE_SEED", "1"))
EVERY_POINT: Final = os.environ.get("XABRIDGE_POINTS") == "all"
FIRST: Final = 1_000_000
"""Where the many begin, behind the few."""


def few(quick: int) -> Sequence[int]:
    """XABRIDGE_SEED alone where it is set, else the first `quick` seeds."""
    chosen = os.environ.get("XABRIDGE_SEED")
    return [int(chosen)] if chosen is not None else range(quick)


def many(part: int, parts: int, schedules: int) -> Sequence[int]:
    """One of so many parts of so many seeds."""
    return range(FIRST + part, FIRST + schedules, parts)
