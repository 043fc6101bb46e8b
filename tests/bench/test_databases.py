"""These tests run `python -m bench db` and check that it prints every figure and that the compared programs did the
same work.
"""

from __future__ import annotations

import pytest

from bench import databases

WAYS = ("raw_commit", "raw_two_phase", "resource", "decider", "tm_resource", "tm_decider")


@pytest.mark.slow
@pytest.mark.long  # figures, which nothing depends on; what is measured: tests/rm_db
def test_every_figure_is_there() -> None:
    figures = databases.measure(quick=True)
    for clients in databases.CLIENTS:
        assert all(figures[f"{way}_per_s_{clients}"] > 0 for way in WAYS)
        for ratio in ("resource_ratio", "decider_ratio"):
            assert figures[f"{ratio}_{clients}"] > 0
