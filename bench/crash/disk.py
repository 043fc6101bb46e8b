"""A disk for the decision log that can be full, slow, or broken: `Files` over the real ones."""

from __future__ import annotations

import errno
import os
import time
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tm.log.log_folder import File, Files, Lock

SLOW_S: Final = 0.02


class Health(Enum):
    """How the disk is."""

    WELL = "well"
    FULL = "full"
    SLOW = "slow"
    BROKEN = "broken"
    REFUSING = "refusing"


class Disk:
    """`Files` as `files` has them, while the disk is well. Full, it has no room for what makes a file longer; slow,
    every force takes a while; broken, a force fails after the octets were written: it is unknown whether they last;
    refusing, it takes nothing at all, not even where there was something before, as a full one does that copies on
    write."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.health = Health.WELL

    def __str__(self) -> str:
        return str(self._files)

    def lock(self) -> Lock:
        return self._files.lock()

    def names(self) -> Sequence[str]:
        return self._files.names()

    def create(self, name: str) -> File:
        return _File(self, self._files.create(name))

    def open(self, name: str) -> File:
        return _File(self, self._files.open(name))

    def read(self, name: str) -> bytes:
        return self._files.read(name)

    def identity(self, name: str) -> bytes:
        return self._files.identity(name)

    def rename(self, old: str, new: str) -> None:
        self._files.rename(old, new)

    def remove(self, name: str) -> None:
        self._files.remove(name)

    def force_names(self) -> None:
        self.forced()
        self._files.force_names()

    def forced(self) -> None:
        """A force takes place."""
        if self.health is Health.SLOW:
            time.sleep(SLOW_S)
        if self.health is Health.BROKEN:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def extends(self, end: int, size: int) -> None:
        """A file gets longer, perhaps."""
        if self.health is Health.FULL and end > size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _File:
    """A file on such a disk."""

    def __init__(self, disk: Disk, file: File) -> None:
        self._disk = disk
        self._file = file

    def size(self) -> int:
        return self._file.size()

    def write(self, offset: int, octets: bytes) -> None:
        self._disk.extends(offset + len(octets), self._file.size())
        self._file.write(offset, octets)

    def write_forced(self, offset: int, octets: bytes) -> None:
        self._disk.extends(offset + len(octets), self._file.size())
        if self._disk.health is Health.REFUSING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._disk.health is Health.BROKEN:
            self._file.write(offset, octets)
        self._disk.forced()
        self._file.write_forced(offset, octets)

    def force(self) -> None:
        self._disk.forced()
        self._file.force()

    def close(self) -> None:
        self._file.close()
