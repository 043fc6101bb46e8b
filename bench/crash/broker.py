"""The broker of the campaign: the embedded broker, which the campaign can stop at each step of its store, and whose
store it can slow down.

    python -m bench.crash.broker '{"port": …, "store": …}'

It reads the commands `arm COUNT STEP`, `go`, `disk slow` and `clock SECONDS` from stdin, and writes `ready` and `at` to
stdout.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import Any

from bench.crash.disk import SLOW_S, Health
from bench.crash.points import Gate, tell
from bench.crash.worker import NEVER
from dtx.broker.broker import Broker, SystemClock
from dtx.broker.config import Address, BrokerConfig
from dtx.broker.settings import QueueSettings, Settings
from dtx.store.contract import Step


class Jumping(SystemClock):
    """The machine's time, as an operator has set it."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.offset_s

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self.offset_s * 1000)


class CrashBroker:
    """The process."""

    def __init__(self, port: int, store: str, deliveries: int = NEVER) -> None:
        self.gate = Gate()
        self.clock = Jumping()
        self.health = Health.WELL
        settings = replace(Settings(), queue_defaults=QueueSettings(max_deliveries=deliveries))
        self.config = BrokerConfig((Address("127.0.0.1", port),), store=store, settings=settings)

    def step(self, step: Step) -> None:
        """The store is at this step."""
        if self.health is Health.SLOW and step is Step.WRITTEN:
            time.sleep(SLOW_S)
        self.gate.hit("at", step.value)

    async def run(self) -> None:
        """Until SIGTERM, or a kill."""
        broker = Broker(self.config, self.step, self.clock)
        await broker.start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, broker.stop)
        threading.Thread(target=self._listen, daemon=True).start()
        tell("ready", in_doubt=broker.container.registry.in_doubt_count)
        await broker.run()

    def _listen(self) -> None:
        for line in sys.stdin:
            words: list[Any] = line.split()
            if words[0] == "arm":
                self.gate.arm(" ".join(words[2:]), int(words[1]), begun=True)
            elif words[0] == "go":
                self.gate.go()
            elif words[0] == "disk":
                self.health = Health(words[1])
            elif words[0] == "clock":
                self.clock.offset_s += float(words[1])


def main() -> None:
    """`python -m bench.crash.broker`."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    options = json.loads(sys.argv[1])
    asyncio.run(CrashBroker(**options).run())


if __name__ == "__main__":
    main()
