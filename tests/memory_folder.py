"""The fixture `tmp_path` for tests that force much to disk: a folder in memory. What they kill is a process, and the
system keeps its writes. A conftest.py imports it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.memory_disk import new_folder


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory."""
    folder = new_folder("test")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
