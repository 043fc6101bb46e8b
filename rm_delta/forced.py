"""Files and folders that are forced to disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def force(path: Path) -> None:
    """Forces what is written in a file, or which names a folder has. OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
        os.fsync(file.fileno())
