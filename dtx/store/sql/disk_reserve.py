"""DiskReserve: a file that keeps some space of the store's disk, for when there is no other.

To free space takes space: what is deleted is written to SQLite's log first. So when the disk is full, the reserve is
released, and from then on the store takes only what frees space, or needs next to none, until it can be made again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

MOST: Final = 16 * 1024 * 1024
LEAST: Final = 1024 * 1024
SHARE: Final = 8
"""It takes this part of what is free, between `LEAST` and `MOST`."""
BESIDES: Final = 4
"""There has to be so many times as much, or none is made."""
REST: Final = LEAST // 2
"""So much has to be left on the disk itself, for what is written first to the log."""


class DiskReserve:
    """The file; `held` while it is there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = str(path.parent)  # a path builds its text anew, and every group of changes asks for `free`
        self.octets = path.stat().st_size if path.exists() else LEAST
        """How much it is, or was when it was held last."""
        self.held = path.exists()

    def hold(self, unused: int = 0) -> bool:
        """Makes the file, where there is enough room for it and for others; whether it is there. `unused` octets are
        free inside of the store's own file."""
        if self.held:
            return True
        free = self.free
        octets = min(MOST, max(LEAST, free // SHARE))
        if free + unused < BESIDES * octets or free < octets + REST:
            return False

        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, octets)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            self.release()
            return False
        self.held, self.octets = True, octets
        return True

    @property
    def free(self) -> int:
        """Octets that are free on the disk, beside it."""
        place = os.statvfs(self._folder)
        return place.f_bavail * place.f_frsize

    def release(self) -> bool:
        """Gives the space back; whether there was any."""
        held, self.held = self.held, False
        with suppress(FileNotFoundError):
            self._path.unlink()
        return held
