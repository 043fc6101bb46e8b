"""These fixtures give the tests of the manager a manager over reference stores, with a clock that does not move by
itself.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.memory_disk import new_folder
from tests.tm.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory: a log that forces its decisions there does not wait for a disk. What tests kill is a process,
    whose writes the system keeps."""
    folder = new_folder("tm")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """Two stores, `a` and `b`, and managers over them, one after another. Nothing may be leaked at the end."""
    made = Shop(tmp_path)
    yield made
    made.close()
