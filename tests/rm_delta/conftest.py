"""This module puts the lakes of these tests into memory: a lake forces each file to disk, and what tests kill is a
process.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.memory_disk import new_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory."""
    folder = new_folder("lake")
    yield folder
    shutil.rmtree(folder)
