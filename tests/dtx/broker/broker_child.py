"""This process is a broker that tests kill: `ForkedProcess("tests.dtx.broker.broker_child", FORCES, FOLDER)`.

FORCES says whether it forces on the event loop ("loop") or in its store's thread ("thread"), however quick the disk is
today. It writes its port to stdout. When the file FOLDER/die names a step of the store ("FORCED 3": the third time that
the store reaches it from now on), it kills itself there.
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
from dtx.store.sql import fsync_latency

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
    print(broker.addresses[0].port, flush=True)  # noqa: T201 — what the test reads
    await broker.run()


def main() -> None:
    forces, folder = sys.argv[1:]
    fsync_latency.QUICK_S = fsync_latency.SLOW_S = {"loop": float("inf"), "thread": 0.0}[forces]  # type: ignore[misc]
    asyncio.run(serve(Path(folder)))
