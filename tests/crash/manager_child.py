"""This process is the one that tests kill: a transaction manager over a FileLog and two reference stores in the parent
process.

    python -m tests.crash.manager_child ADDRESS AUTHKEY FOLDER NAME THREADS POINT

Each thread runs transactions that write one key, named after NAME, into both stores, and writes the outcome that it got
to stdout ("KEY committed"). At POINT ("WHEN WHAT COUNT", or "- 0") the process kills itself. With 0 threads it recovers
until nothing is in doubt, and ends.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from bench.crash.points import GatedLog, hooked
from tm import OutcomeUnknown, ResourceConfig, RolledBack, TransactionManager
from tm.log import FileLog
from xabridge.testing.reference.remote import RemoteReference

if TYPE_CHECKING:
    from collections.abc import Sequence

STORES = ("a", "b")
MOST_PASSES = 40
AGAIN_S = 0.05


class Fuse:
    """Kills with SIGKILL when it passes the point for the count-th time: this process ("self"), and others."""

    def __init__(self, point: str, pids: Sequence[str] = ("self",)) -> None:
        self._where, _, count = point.rpartition(" ")
        self._count = int(count)
        self._pids = [os.getpid() if pid == "self" else int(pid) for pid in pids]
        self._passed: Counter[str] = Counter()
        self._lock = threading.Lock()

    def hit(self, when: str, what: str) -> None:
        with self._lock:
            where = f"{when} {what}"
            self._passed[where] += 1
            if where == self._where and self._passed[where] == self._count:
                for pid in self._pids:
                    os.kill(pid, signal.SIGKILL)
                if os.getpid() in self._pids:
                    threading.Event().wait()  # for the signal


def recover(tm: TransactionManager) -> None:
    """Until nothing is in doubt."""
    for _ in range(MOST_PASSES):
        report = tm.recover()
        if report.clean and not report.ended and not report.findings:
            return
        threading.Event().wait(AGAIN_S)
    sys.exit(f"{MOST_PASSES} passes and still in doubt: {report}")


def run(tm: TransactionManager, name: str, number: int, said: threading.Lock) -> None:
    for count in itertools.count():
        key = f"{name}-{number}-{count}"
        try:
            with tm.begin() as tx:
                for store in STORES:
                    tx[store].write(key, 1)
                if count % 5 == 4:
                    tx.set_rollback_only()
            told = "committed"
        except RolledBack:
            told = "rolled back"
        except OutcomeUnknown:
            told = "unknown"
        with said:
            print(key, told, flush=True)  # noqa: T201 — what the parent reads


def main() -> None:
    address, authkey, folder, name, threads, point = sys.argv[1:]
    fuse = Fuse(point)

    def config(store: str) -> ResourceConfig:
        def factory(registrar: Any) -> Any:
            remote = RemoteReference(address, bytes.fromhex(authkey), store, registrar)
            return hooked(lambda when, verb: fuse.hit(when, f"{verb} {store}"))(remote)

        return ResourceConfig(f"reference://{store}", factory=factory)

    log: Any = GatedLog(FileLog(folder, "orders-1", segment_size=65536), fuse.hit)
    tm = TransactionManager("orders-1", log, {store: config(store) for store in STORES}, background=int(threads) > 0)
    if threads == "0":
        recover(tm)
        left = log.decisions()
        tm.close()
        sys.exit(f"decisions left: {left}" if left else 0)
    said = threading.Lock()
    for number in range(int(threads)):
        threading.Thread(target=run, args=(tm, name, number, said)).start()


if __name__ == "__main__":
    main()
