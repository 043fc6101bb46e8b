"""A small disk: a file system of some megabytes, in memory, which an ordinary user can fill without harm.

It needs Linux, and the right to have mounts of one's own: root has it, and each user who may make a user namespace,
which containers and some distributions forbid. `python -m xabridge.demo.game_day.small_disk FOLDER` tries it, in a
process of its own: it exits with 0, or with 1 and the reason on stderr.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

MEGABYTES: Final = 16
OWN_USERS: Final = 0x10000000
OWN_MOUNTS: Final = 0x00020000
PRIVATE: Final = 0x40000 | 0x4000
"""CLONE_NEWUSER and CLONE_NEWNS; MS_PRIVATE with MS_REC: no mount of ours is seen by others."""


def why_not(folder: Path) -> str:
    """Why none can be mounted at the folder; empty if it can be."""
    command = [sys.executable, "-m", __name__, str(folder)]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 — our own command
    return "" if not tried.returncode else (tried.stderr.strip().splitlines() or ["it can't be tried"])[-1]


def mount(folder: Path) -> None:
    """Gives this process, and those that it starts from now on, mounts of their own, and mounts an empty small disk at
    the folder. It goes with the last of these processes. OSError where that is not allowed."""
    if sys.platform != "linux":
        raise OSError("mounts of one's own need Linux")
    system = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    _check(system.unshare(OWN_MOUNTS if user == 0 else OWN_MOUNTS | OWN_USERS), "unshare")
    if user:  # in a namespace of its own it is the same user as outside
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")

    _check(system.mount(b"none", b"/", None, PRIVATE, None), "mount")
    size = f"size={MEGABYTES}m,mode=0755".encode()
    _check(system.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, size), "mount")


def _check(result: int, call: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def fill(file: Path) -> None:
    """Has a file take all the space that is left beside it."""
    with file.open("ab", buffering=0) as taken:
        for size in (65_536, 4096, 512):
            try:
                while True:
                    taken.write(b"\1" * size)
            except OSError:
                continue


if __name__ == "__main__":
    try:
        mount(Path(sys.argv[1]))
    except OSError as error:
        sys.exit(error.strerror or str(error))
