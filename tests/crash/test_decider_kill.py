"""These tests kill one of several nodes and siblings that move messages at the same time, over one token queue of a
broker that decides (`tests.crash.together`). One process alone: `test_amqp_kill.py`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.crash.test_amqp_kill import Site
from tests.crash.together import POINTS, Together
from tests.simulation.seeds import EVERY_POINT


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("dies", [0, 1], ids=["of a node by itself", "with a sibling"])
def test_several_nodes_and_siblings_share_a_token_queue(tmp_path: Path, dies: int) -> None:
    with ExitStack() as stack:
        source, target = Site(tmp_path / "in"), Site(tmp_path / "out")
        stack.callback(source.remove)
        stack.callback(target.remove)
        together = Together(source, target)
        for point in POINTS if EVERY_POINT else POINTS[dies::2]:
            together.run(dies, point)
        together.finish()
        together.check()
