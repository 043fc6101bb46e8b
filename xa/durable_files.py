"""Files and folders that are forced to disk, so that a crash of the machine does not take them away again."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
"""Where it exists, fsync leaves the octets in the drive's cache, and this does not."""


def force(path: Path) -> None:
    """Forces what is written in a file, or which names a folder has. OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        force_descriptor(descriptor)
    finally:
        os.close(descriptor)


def force_descriptor(descriptor: int) -> None:
    """Forces the file that is open as `descriptor`. OSError."""
    if FULL_SYNC is not None:
        fcntl.fcntl(descriptor, FULL_SYNC)
    else:
        os.fsync(descriptor)


def make_folder(path: Path) -> None:
    """Makes a folder, and those above it, durably. OSError."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    force(path.parent)


def write_file(path: Path, octets: bytes) -> None:
    """Writes a new file, and forces its content. The name is durable when the folder has been forced. OSError."""
    with path.open("wb") as file:
        file.write(octets)
        file.flush()
        force_descriptor(file.fileno())
