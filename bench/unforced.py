"""A disk that forces nothing, to measure the cost of the processor alone. It is for benchmarks only, because it loses
data in a crash."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tm.log.log_folder import PosixFile, PosixFiles

if TYPE_CHECKING:
    from pathlib import Path


class UnforcedFile(PosixFile):
    """A file whose forces do nothing."""

    def write_forced(self, offset: int, octets: bytes) -> None:
        """Writes."""
        self.write(offset, octets)

    def force(self) -> None:
        """Does nothing."""


class UnforcedFiles(PosixFiles):
    """A directory of such files."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._folder = directory

    def create(self, name: str) -> PosixFile:
        return UnforcedFile(self._folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def open(self, name: str) -> PosixFile:
        return UnforcedFile(self._folder / name, os.O_WRONLY)

    def force_names(self) -> None:
        """Does nothing."""
