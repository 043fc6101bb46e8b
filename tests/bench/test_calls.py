"""These tests limit how many functions, frames and modules lie between a call of the application and the disk or the
resource managers.
"""

from __future__ import annotations

import pytest

from bench.calls import measure

MOST = {"enlist": (40, 10), "commit": (110, 10)}
"""Verb → the most calls of ours, and the most frames of ours on a stack: 5 of the manager, and no more than 5 of the
resource manager. `docs/architecture.md` has a table of what is reached."""


@pytest.mark.parametrize("thread", ["main", "thread"])
def test_the_way_is_short(thread: str) -> None:
    figures = measure(quick=True)[thread]
    for verb, (calls, depth) in MOST.items():
        assert figures[verb]["calls"] <= calls, (verb, figures[verb])
        assert figures[verb]["depth"] <= depth, (verb, figures[verb])
