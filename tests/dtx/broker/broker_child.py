"""This process starts the brokers that tests kill: python -m tests.dtx.broker.broker_child

Each line of its stdin, "loop FOLDER" or "thread FOLDER", forks one broker, so that what brokers import is imported
once. The broker forces on the event loop, or in its store's thread, however quick the disk is today. It writes its pid
and its port to stdout; when it has ended, this process writes its exit code, and reads the next line.

When the file FOLDER/die names a step of the store ("FORCED 3": the third time that the store reaches it from now on),
the broker kills itself there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from dtx.broker.broker import Broker
from dtx.broker.config import Address, BrokerConfig
from dtx.broker.settings import QueueSettings, Settings
from dtx.store.contract import Step
from dtx.store.sql import pace

QUEUES = ("orders", "invoices")


class Fuse:
    """Counts steps, and kills this process at the one that is named."""

    def __init__(self, order: Path) -> None:
        self._order = order
        self._passed = 0

    def hit(self, step: Step) -> None:
        """Called on the thread that writes."""
        if not self._order.exists():
            return
        name, count = self._order.read_text().split()
        self._passed += step is Step[name]
        if step is Step[name] and self._passed == int(count):
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()  # for the signal


async def serve(folder: Path) -> None:
    """Until it is killed."""
    queues = {name: QueueSettings() for name in QUEUES}  # made at the start, and not while somebody counts forces
    config = BrokerConfig(
        listen=(Address("127.0.0.1", 0),), store=f"sqlite:///{folder}/store.db", settings=Settings(queues=queues)
    )
    broker = Broker(config, Fuse(folder / "die").hit)
    await broker.start()
    print(os.getpid(), broker.addresses[0].port, flush=True)  # noqa: T201 — what the test reads
    await broker.run()


def run(forces: str, folder: Path) -> None:
    """A broker, in a process of its own."""
    errors = os.open(folder / "broker.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(errors, sys.stderr.fileno())
    pace.QUICK_S = pace.SLOW_S = {"loop": float("inf"), "thread": 0.0}[forces]  # type: ignore[misc]
    asyncio.run(serve(folder))


def main() -> None:
    for line in sys.stdin:
        forces, folder = line.rstrip("\n").split(" ", 1)
        pid = os.fork()
        if not pid:
            run(forces, Path(folder))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)  # noqa: T201 — what the test reads


if __name__ == "__main__":
    main()
