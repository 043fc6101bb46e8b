"""The name of a process: no other process ever has the same one, and from it follows whether the process still
lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_STARTED: Final = 21
"""The field of /proc/PID/stat, from 0: when the process was started, in ticks since the boot."""


def process_id(pid: int | None = None, proc: Path = PROC) -> str:
    """The name of a process of this host (this one): host, pid and start, `host/1234/567890`. ProcessLookupError: there
    is none."""
    number = os.getpid() if pid is None else pid
    return f"{socket.gethostname()}/{number}/{_stat(number, proc)[1]}"


def driver_id(proc: Path = PROC) -> str:
    """The name of the nearest ancestor that is a Java process, the driver's JVM; without one, this process's."""
    number = os.getpid()
    while number > 1:
        try:
            command, _, parent = _stat(number, proc)
        except ProcessLookupError:
            break
        if command == "java":
            return process_id(number, proc)
        number = parent
    return process_id(proc=proc)


def is_alive(name: str, proc: Path = PROC) -> bool | None:
    """Whether the process lives; None if unknown: it is of another host, or the name is not valid."""
    host, _, rest = name.rpartition("/")[0].rpartition("/")
    if host != socket.gethostname() or not rest.isdecimal():
        return None
    try:
        return process_id(int(rest), proc) == name
    except ProcessLookupError:
        return False


def _stat(pid: int, proc: Path) -> tuple[str, str, int]:
    """The command of a process, when it was started, and its parent."""
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    before, _, behind = stat.rpartition(")")
    fields = behind.split()  # from the third on: state, parent, …
    return before.partition("(")[2], fields[_STARTED - 2], int(fields[1])
