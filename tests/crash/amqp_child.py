"""This process moves messages from a queue of one broker to a queue of another one, and kills processes at a point.

    python -m tests.crash.amqp_child IN OUT FOLDER POINT [PID …]

IN and OUT are the brokers' host:port, or amqp010:// URLs. At POINT ("WHEN WHAT COUNT") it kills the processes PID; one
of them may be the process itself ("self"). If it survives, it goes on until COMMITTED of its transactions have
committed. For each message it writes to stdout the outcome that the application got ("BODY committed"). With "recover"
as POINT it recovers until nothing is in doubt, and ends.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from typing import Any

from bench.crash.points import GatedLog, hooked
from rm_amqp import AmqpResource, Message, NoMessage
from rm_amqp.amqp010.resource import QpidResource
from tests.crash.manager_child import AGAIN_S, Fuse, recover
from tm import ManagerUnusable, OutcomeUnknown, ResourceConfig, RolledBack, TransactionManager
from tm.log import FileLog
from xa import XaError

COMMITTED = 4
MOST_TRIES = 500


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

    log: Any = GatedLog(FileLog(folder, "mover-1", segment_size=65536), fuse.hit)
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
