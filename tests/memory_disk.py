"""A folder in memory for the data of the tests' servers: a database that is made or committed to does not wait for a
disk. What tests kill is a process, whose writes the system keeps; none takes the machine's power away.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")  # noqa: S108 — the folders below it have random names
PREFIX: Final = "xabridge-tests-"
UNPRIVILEGED: Final = 65534
ROOM: Final = 8 << 30
"""A run of all tests makes some hundred databases in each of its processes. Where there is less, they are on disk."""


def new_folder(name: str) -> Path:
    """A new folder that every user may enter. It is gone when this process has ended."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_root()))
    folder.chmod(0o755)
    return folder


@contextmanager
def as_unprivileged() -> Iterator[None]:
    """In the block, this process opens files as a user without rights does. Root has all rights."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(UNPRIVILEGED)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@cache
def _root() -> Path:
    """This process's own. A lock on it says that the process lives: what a killed one has left is removed here."""
    if not _has_room():
        root = Path(tempfile.mkdtemp(prefix=PREFIX))
    else:
        for left in MEMORY.glob(f"{PREFIX}*"):
            _remove_unless_locked(left)
        root = _locked()
    root.chmod(0o755)
    process = os.getpid()
    atexit.register(lambda: shutil.rmtree(root, ignore_errors=True) if os.getpid() == process else None)
    return root


def _has_room() -> bool:
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ROOM:
        return False
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(memory["MemAvailable"].split()[0]) * 1024 >= ROOM


def _remove_unless_locked(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # another user's, or removed meanwhile
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _locked() -> Path:
    """A new one, whose lock is held until this process ends. One that is removed before it is locked is tried again."""
    while True:
        root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY))
        fcntl.flock(os.open(root, os.O_RDONLY), fcntl.LOCK_EX)
        if root.exists():
            return root
