"""These tests limit how many functions, frames and modules lie between a call of the application and the disk or the
resource managers.
"""

from __future__ import annotations

import pytest

from bench.calls import measure

MOST = {
    "reference": {"enlist": (28, 8), "commit": (97, 10)},
    "amqp": {"enlist": (60, 10), "work": (28, 8), "commit": (237, 13)},
    "database": {"enlist": (52, 10), "work": (40, 7), "commit": (263, 13)},
}
"""Resources → verb → the most calls of ours, and the most frames of ours on a stack. `docs/architecture.md` has a table
of what is reached."""


@pytest.mark.parametrize(
    "over", [over if over == "reference" else pytest.param(over, marks=pytest.mark.slow) for over in MOST]
)
def test_the_way_is_short(over: str) -> None:
    for thread, figures in measure(quick=True, over=over).items():
        for verb, (calls, depth) in MOST[over].items():
            assert figures[verb]["calls"] <= calls, (thread, verb, figures[verb])
            assert figures[verb]["depth"] <= depth, (thread, verb, figures[verb])
