"""Which process this is, in a text that others can read: whether a process that was at work is known to be gone."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_DEAD: Final = frozenset({"Z", "X"})


def this_process() -> str:
    """Boot id, pid namespace, pid and start time of this process; "" where the system does not tell them."""
    where = _where()
    stat = _stat(os.getpid())
    return f"{where}/{os.getpid()}/{stat[1]}" if where and stat is not None else ""


def is_gone(process: str) -> bool:
    """Whether `process`, as `this_process` wrote it there, is known not to run any more. Nothing is known of a process
    of another machine, container, or start of this machine."""
    parts = process.rsplit("/", 2)
    if len(parts) != 3 or not parts[0] or parts[0] != _where() or not parts[1].isdecimal():
        return False
    pid = int(parts[1])
    try:
        os.kill(pid, 0)  # signal 0 is none; /proc may hide the processes of other users
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    stat = _stat(pid)
    return stat is not None and (stat[0] in _DEAD or stat[1] != parts[2])


def _where() -> str:
    """The start of this machine, and the namespace in which pids mean something."""
    if sys.platform != "linux":
        return ""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except (OSError, ValueError):
        return ""


def _stat(pid: int) -> tuple[str, str] | None:
    """State and start time of a process; None where they can't be read."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        fields = text.rpartition(")")[2].split()  # behind the command's name, in which anything may stand
        return fields[0], fields[19]
    except (OSError, IndexError):
        return None
