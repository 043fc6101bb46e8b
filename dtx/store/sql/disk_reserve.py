"""DiskReserve: a file that keeps some space of the store's disk, for when there is no other.

To free space takes space: what is deleted is written to SQLite's log first. So when the disk is full, the reserve is
released, and from then on the store takes only what frees space, or needs next to none, until it can be made again.

A small part stays until the store is opened the next time: that takes space, too, and somebody else may have all the
rest by then.
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


FOR_OPENING: Final = 256 * 1024
"""What stays when it is released."""


class DiskReserve:
    """The file; `held` while it is there and not released."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._folder = str(path.parent)  # a path builds its text anew, and every group of changes asks for `free`
        size = path.stat().st_size if path.exists() else 0
        self.held = size >= LEAST
        self.octets = max(size, LEAST)
        """How much it is, or was when it was held last."""

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
            self._allocate(octets)
        except OSError:
            self.release()
            return False
        self.held, self.octets = True, octets
        return True

    def _allocate(self, octets: int) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, octets)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @property
    def free(self) -> int:
        """Octets that are free on the disk, beside it."""
        place = os.statvfs(self._folder)
        return place.f_bavail * place.f_frsize

    def release(self) -> bool:
        """Gives the space back, but for what the next opening needs; whether there was any."""
        held, self.held = self.held, False
        with suppress(FileNotFoundError):
            if self._path.stat().st_size > FOR_OPENING:
                os.truncate(self._path, FOR_OPENING)
        return held

    def release_for_opening(self) -> None:
        """Gives all of it back: the store is opened, and there is little space."""
        self.held = False
        self._path.unlink(missing_ok=True)

    def keep_for_opening(self) -> None:
        """The store is closed: what its log had taken is kept for the next opening, as far as that needs it."""
        if not self.held:
            with suppress(OSError):
                self._allocate(min(FOR_OPENING, self.free))
