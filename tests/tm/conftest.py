"""These fixtures give the tests of the manager a manager over reference stores, with a clock that does not move by
itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory_folder import tmp_path  # noqa: F401 — logs force their decisions in memory
from tests.tm.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:  # noqa: F811 — the fixture
    """Two stores, `a` and `b`, and managers over them, one after another. Nothing may be leaked at the end."""
    made = Shop(tmp_path)
    yield made
    made.close()
