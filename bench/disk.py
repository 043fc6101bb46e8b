"""Disks for benchmarks of a FileLog: the real one with a counter, and the real one that forces nothing."""

from __future__ import annotations

import os
from pathlib import Path

from tm.log.files import PosixFile, PosixFiles


class BenchFiles(PosixFiles):
    """The directory on disk. `forces` counts; unless `forced`, what is written is left to the page cache."""

    def __init__(self, directory: str | os.PathLike[str], *, forced: bool = True) -> None:
        super().__init__(directory)
        self._path = Path(directory)
        self.forced = forced
        self.forces = 0

    def open(self, name: str) -> PosixFile:
        """As `Files.open`."""
        return _BenchFile(self, self._path / name)


class _BenchFile(PosixFile):
    __slots__ = ("_files",)

    def __init__(self, files: BenchFiles, path: Path) -> None:
        super().__init__(path, os.O_WRONLY)
        self._files = files

    def write_forced(self, offset: int, octets: bytes) -> None:
        self._files.forces += 1
        if self._files.forced:
            super().write_forced(offset, octets)
        else:
            self.write(offset, octets)
