"""What every lease needs: the clock that it is measured by, and the holder's name for people.

A lease keeps others out while its holder is at work, and no decision depends on it: what is right is decided by an
epoch that each change compares (`tm.log.sql.node`, `dtx.store.sql.lease`), or by the first to settle a transaction
(`tm.recovery.lease`).
"""

from __future__ import annotations

import os
import socket
import time


def since_boot() -> float:
    """Seconds on a clock that goes on while this process, or the machine, is suspended; where the system has none, on
    the monotonic one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def holder_name() -> str:
    """This process, for people: at most 255 characters."""
    return f"process {os.getpid()} on {socket.gethostname()}"[:255]
