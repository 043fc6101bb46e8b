"""This process moves messages from a queue of one broker to a queue of another one, and kills processes at a point.

    python -m tests.crash.amqp_child IN OUT FOLDER POINT [PID …]

IN and OUT are the brokers' host:port, or amqp010:// URLs. At POINT ("WHEN WHAT COUNT") it kills the processes PID; one
of them may be the process itself ("self"). If it survives, it goes on until COMMITTED of its transactions have
committed. For each message it writes to stdout the outcome that the application got ("BODY committed"). With "recover"
as POINT it recovers until nothing is in doubt, and ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from typing import Any

from rm_amqp import AmqpResource, Message, NoMessage
from rm_amqp.amqp010.resource import QpidResource
from tests.tm.wrapped import Wrapped, hooked
from tm import ManagerUnusable, OutcomeUnknown, ResourceConfig, RolledBack, TransactionManager
from tm.log import FileLog
from xa import XaError

COMMITTED = 4
MOST_TRIES = 500
MOST_PASSES = 40
AGAIN_S = 0.05


class Fuse:
    """Kills when it passes the point for the count-th time."""

    def __init__(self, point: str, pids: list[str]) -> None:
        self._where, _, count = point.rpartition(" ")
        self._count = int(count)
        self._pids = [os.getpid() if pid == "self" else int(pid) for pid in pids]
        self._passed: Counter[str] = Counter()

    def hit(self, when: str, what: str) -> None:
        where = f"{when} {what}"
        self._passed[where] += 1
        if where == self._where and self._passed[where] == self._count:
            for pid in self._pids:
                os.kill(pid, signal.SIGKILL)
            if os.getpid() in self._pids:
                threading.Event().wait()  # for the signal


class FusedLog(Wrapped):
    """A FileLog with the point "force"."""

    def __init__(self, log: FileLog, fuse: Fuse) -> None:
        super().__init__(log)
        self._fuse = fuse

    def decide(self, decision: Any) -> None:
        self._fuse.hit("before", "force")
        self.rm.decide(decision)
        self._fuse.hit("after", "force")


def move(tm: TransactionManager, fuse: Fuse) -> tuple[str, str]:
    """One transaction: which message, and what was told."""
    body = ""
    try:
        with tm.begin() as tx:
            source, target = tx["in"], tx["out"]
            fuse.hit("before", "work")
            body = str(source.receive("x", 5).body)
            fuse.hit("between", "work")
            target.send("y", Message(body))
            fuse.hit("after", "work")
    except OutcomeUnknown:
        return body, "unknown"
    except (RolledBack, ManagerUnusable, XaError, NoMessage):  # unusable: it was not begun
        return body, "rolled back"
    return body, "committed"


def recover(tm: TransactionManager) -> None:
    for _ in range(MOST_PASSES):
        report = tm.recover()
        if report.clean and not report.ended and not report.findings:
            return
        threading.Event().wait(AGAIN_S)
    sys.exit(f"{MOST_PASSES} passes and still in doubt: {report}")


def main() -> None:
    source, target, folder, point, *pids = sys.argv[1:]
    recovers = point == "recover"
    fuse = Fuse("- 0" if recovers else point, pids)

    def config(name: str, address: str) -> ResourceConfig:
        def factory(registrar: Any) -> Any:
            made = QpidResource(registrar) if url.startswith("amqp010") else AmqpResource(registrar)
            return hooked(lambda when, verb: fuse.hit(when, f"{verb} {name}"))(made)

        url = address if "://" in address else f"amqp://{address}/?timeout=10&connect_timeout=2&branch_timeout=2"
        return ResourceConfig(url, factory=factory)

    log: Any = FusedLog(FileLog(folder, "mover-1", segment_size=65536), fuse)
    resources = {"in": config("in", source), "out": config("out", target)}
    work(TransactionManager("mover-1", log, resources, background=not recovers), fuse, recovers=recovers)


def work(tm: TransactionManager, fuse: Fuse, *, recovers: bool) -> None:
    """Moves until it has been told often enough that it was committed; or recovers."""
    if recovers:
        recover(tm)
        tm.close()
        return
    told: Counter[str] = Counter()
    for _ in range(MOST_TRIES):
        body, what = move(tm, fuse)
        told[what] += 1
        print(body, what, flush=True)  # noqa: T201 — what the parent reads
        if told["committed"] == COMMITTED:
            break
        if what != "committed":
            threading.Event().wait(AGAIN_S)
    else:
        sys.exit(f"{MOST_TRIES} tries: {told}")
    tm.close()


if __name__ == "__main__":
    main()
