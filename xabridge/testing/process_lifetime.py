"""What a process has started ends with it, however it ends: a server of a test is no one's when a run is interrupted.

`marked_environment` is the environment for what is to end with this process: it has a mark, which is inherited. A watch
in a process of its own learns from the system that this process is gone, and kills what has the mark. It needs
Linux, where an environment can be read in /proc; elsewhere nothing is killed.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME: Final = "XABRIDGE_ENDS_WITH"
PROCESSES: Final = Path("/proc")
DEAF_TO: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Who ends all processes of Python at once does not end what looks after the others."""
LOOK_S: Final = 0.5
LOOK_AGAIN_S: Final = 0.1
LOOKS: Final = 5


class _Watch:
    """The watch of this process, and the mark that it looks for."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.mark = f"{self.process}-{secrets.token_hex(8)}"
        ours, self._held = os.pipe()
        command = [sys.executable, "-I", "-S", __file__, str(self.process), self.mark]
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        stdin = (os.POSIX_SPAWN_DUP2, ours, 0)
        os.posix_spawn(command[0], command, {}, file_actions=[stdin, *quiet], setsid=True, setsigmask=DEAF_TO)
        os.close(ours)


_watch: _Watch | None = None


def marked_environment() -> dict[str, str]:
    """The environment of this process, with the mark for what ends with it."""
    global _watch  # noqa: PLW0603 — a process has one for all its servers
    if PROCESSES.exists() and (_watch is None or _watch.process != os.getpid()):
        _watch = _Watch()
    return {**os.environ, NAME: _watch.mark} if _watch is not None else dict(os.environ)


def main(process: int, mark: str) -> None:
    """Waits until the process is gone, and kills who has the mark. A child that it forked may hold its end of the pipe;
    so its parent is asked, too."""
    while os.getppid() == process:
        if select.select([0], [], [], LOOK_S)[0]:
            break
    wanted = f"{NAME}={mark}".encode()
    quiet = 0
    while quiet < LOOKS:  # one that was being started is seen when it has become its program
        found = [pid for pid in _processes() if _has(pid, wanted)]
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if found else quiet + 1
        time.sleep(LOOK_AGAIN_S)


def _processes() -> list[int]:
    return [int(entry.name) for entry in PROCESSES.iterdir() if entry.name.isdecimal()]


def _has(pid: int, wanted: bytes) -> bool:
    with suppress(OSError):
        return wanted in (PROCESSES / str(pid) / "environ").read_bytes().split(b"\0")
    return False


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
