"""This test looks at which tests a run has chosen."""

from __future__ import annotations

import pytest


def test_what_is_left_out_by_a_marker_got_the_marker_before(request: pytest.FixtureRequest) -> None:
    if request.config.option.markexpr != "not slow":
        pytest.skip("is about `make check`")
    assert not [item.nodeid for item in request.session.items if item.get_closest_marker("slow") is not None]


@pytest.mark.xdist_group("selection")
def test_a_group_stands_behind_the_name(request: pytest.FixtureRequest) -> None:
    """Otherwise each process of pytest-xdist starts every server."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("is about --dist loadgroup")
    assert request.node.nodeid.endswith("@selection")
