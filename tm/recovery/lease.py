"""Lease: what a manager holds at the resource that decides, so that other processes of its node see that it is at work.

It is taken before the first transaction that is decided there, renewed long before it expires, and ended when the
manager is closed. No decision depends on it: another process that takes its owner for dead lets the decider settle each
transaction first. But once the lease may have expired, another process of the node may have finished what this one has
decided. `held` tells for which transactions that can't be.

Its owner says which process it is (`this_process`), so that others need not wait for the lease of one that `is_gone`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tm.throttle import WarningThrottle
from xa import Owner, ThreadOfControl, XaError, entered
from xa.gtrid import INCARNATION_SIZE
from xa.lease import since_boot

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.resources import Resource
    from tm.sequences import Sequences

logger = logging.getLogger("xabridge.tm")

LEASE_S: Final = 10.0
RENEWALS: Final = 3
"""How often it is renewed while it runs."""
_PROC: Final = Path("/proc")
_DEAD: Final = frozenset({"Z", "X"})


class Lease:
    """The lease of one manager at `resource`. Each renewal notes floor and ceiling of the manager's `sequences`. One
    that came too late takes a number, which says how many transactions have begun so far. Safe to use from many
    threads."""

    def __init__(
        self,
        node: str,
        resource: Resource,
        sequences: Sequences,
        clock: Callable[[], float] = since_boot,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.owner = Owner(node, entropy(INCARNATION_SIZE), this_process())
        self._resource = resource
        self._sequences = sequences
        self._clock = clock
        self._control = ThreadOfControl()
        self._lock = threading.Lock()
        self._until: float | None = None
        self._doubtful = 0
        self._ceiling = sequences.ceiling
        self._closing = threading.Event()
        self._keeper: threading.Thread | None = None

    @property
    def resource(self) -> str:
        """The name of the resource that decides."""
        return self._resource.name

    def take(self, ceiling: int = 0) -> None:
        """Takes it, or renews it, and notes another ceiling, where there is one. XaError: the decider can't be used."""
        with self._lock, entered(self._control):
            self._ceiling = ceiling or self._ceiling
            if self._resource.suspect:
                self._resource.reopen()
            asked_at = self._clock()
            try:
                self._hold(LEASE_S)
            except Exception as raised:
                raise self._resource.as_xa_error(raised, "hold") from raised
            if self._until is not None and self._clock() >= self._until:
                self._doubtful = self._sequences.skip()
            self._until = asked_at + LEASE_S

    def held(self, sequence: int) -> bool:
        """Whether the lease has been held without a break since the transaction `sequence` of this incarnation began,
        so that no other process can have finished it."""
        with self._lock:
            return self._until is not None and self._clock() < self._until and sequence > self._doubtful

    def keep(self) -> None:
        """Starts the thread that renews it."""
        self._keeper = threading.Thread(target=self._renew, name="xabridge-lease", daemon=True)
        self._keeper.start()

    def end(self) -> None:
        """Ends it, so that other processes of the node take over at once what this one leaves in doubt."""
        self._closing.set()
        if self._keeper is not None:
            self._keeper.join()
        if self._until is None:
            return
        with self._lock, entered(self._control):
            self._until = None
            try:
                if self._resource.suspect:  # perhaps a thread has lost it, and it can be used nevertheless
                    self._resource.reopen()
                self._hold(0)
            except Exception as raised:  # noqa: BLE001 — a resource manager of anybody's; it runs out by itself
                error = self._resource.as_xa_error(raised, "hold")
                logger.info("the lease at %s could not be ended, it runs out: %s", self._resource.name, error)

    def _hold(self, lease_s: float) -> None:
        floor = self._sequences.floor()
        self._resource.decider.hold(self.owner, lease_s, self._resource.rmid, floor, self._ceiling)

    def _renew(self) -> None:
        throttle = WarningThrottle(time.monotonic)
        while not self._closing.wait(LEASE_S / RENEWALS):
            if self._until is None:
                continue  # nothing was begun yet
            try:
                if not self._sequences.adjust(self.take):
                    self.take()
                throttle.over("lease")
            except XaError as error:
                lasted = throttle.due("lease")
                if lasted is not None:
                    name = self._resource.name
                    logger.warning("the lease at %s could not be renewed%s, will try again: %s", name, lasted, error)


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
