"""This module puts logs, stores and databases of these tests into memory: what they kill is a process, whose writes the
system keeps, and a disk is what they would wait for most.
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
    folder = new_folder("crash")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
