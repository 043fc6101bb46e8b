"""The shop's worker: a process that turns orders into rows and invoices. `python -m xabridge.demo.shop`.

It says what happens as lines of JSON on stdout: `ready`, `recovered` after each recovery pass that met a branch,
`stopped` with what its messages came to. WorkerProcess starts one, listens to it, and kills it.
"""

from __future__ import annotations

import argparse
import json
import logging
import queue
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tm import Action, Consumer, TransactionManager
from xa.telemetry.log_lines import TEXT, write_lines
from xabridge.demo.shop.orders import ORDERS, handle
from xabridge.testing.process_lifetime import marked_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tm import Report

LOOK_S: Final = 0.05
COUNTED: Final = {
    Action.COMMITTED: "committed",
    Action.ROLLED_BACK: "rolled_back",
    Action.PENDING: "pending",
    Action.HEURISTIC: "heuristic",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of a worker."""
    parser.add_argument("--config", type=Path, default=Path("xabridge.toml"), metavar="FILE", help="xabridge.toml")
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="handlers at a time (default 4)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="orders in one transaction (default 1)")


def run(arguments: argparse.Namespace) -> int:
    """Works until SIGTERM or SIGINT."""
    with TransactionManager.from_config(arguments.config) as manager:
        consumer = Consumer(manager, ORDERS, handle, workers=arguments.workers, batch=arguments.batch)
        ended = threading.Event()
        watcher = threading.Thread(target=_watch, args=(manager, ended), daemon=True)
        _tell("ready", **_findings(manager.last_report))
        watcher.start()
        counts = consumer.run()
        ended.set()
        watcher.join()
    _tell("stopped", **asdict(counts))
    return 0


def _watch(manager: TransactionManager, ended: threading.Event) -> None:
    """Tells what recovery does meanwhile."""
    seen = manager.last_report
    while not ended.wait(LOOK_S):
        report = manager.last_report
        if report is not seen:
            seen = report
            findings = _findings(report)
            if any(findings.values()):
                _tell("recovered", **findings)


def _findings(report: Report | None) -> dict[str, int]:
    counts = dict.fromkeys(COUNTED.values(), 0)
    for finding in report.findings if report is not None else ():
        if finding.action in COUNTED:
            counts[COUNTED[finding.action]] += 1
    return counts


def _tell(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


class WorkerProcess:
    """A worker in a process of its own, with what `environment` returns at each start. It can be killed, and started
    again."""

    def __init__(
        self,
        config: Path,
        *,
        workers: int = 4,
        batch: int = 1,
        environment: Callable[[], Mapping[str, str]] = marked_environment,
    ) -> None:
        self._command = [sys.executable, "-m", "xabridge.demo.shop", "--config", str(config)]
        self._command += ["--workers", str(workers), "--batch", str(batch)]
        self.errors_at = config.with_suffix(".err")
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self._listener: threading.Thread
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def start(self) -> dict[str, Any]:
        """Starts it, and waits until it works; what its first recovery pass did."""
        with self.errors_at.open("a") as errors:
            self._process = process = subprocess.Popen(  # noqa: S603 — our own command
                self._command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environment(),
                process_group=0,
            )

        self._events = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, args=(process, self._events), daemon=True)
        self._listener.start()
        event = self._events.get()
        if event is None:
            raise RuntimeError(f"the worker did not start:\n{self.errors()[-4000:]}")
        return event

    @staticmethod
    def _listen(process: subprocess.Popen[str], events: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        if process.stdout is not None:
            with process.stdout as lines:
                for line in lines:
                    events.put(json.loads(line))
        events.put(None)

    def events(self) -> Iterator[dict[str, Any]]:
        """The events that it has reported since the last call."""
        while not self._events.empty():
            event = self._events.get()
            if event is not None:
                yield event

    @property
    def running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    def errors(self) -> str:
        """Its output on stderr."""
        return self.errors_at.read_text()

    def stop(self, timeout_s: float = 60.0) -> int:
        """Asks it to finish, and waits; its exit code."""
        if self._process is None:
            raise RuntimeError("the worker does not run")
        self._process.terminate()
        code = self._process.wait(timeout_s)
        self._listener.join()
        self._process = None
        return code

    def kill(self) -> None:
        """kill -9, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._listener.join()
            self._process = None


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m xabridge.demo.shop`."""
    write_lines(TEXT, logging.INFO, named=True)
    parser = argparse.ArgumentParser(prog="python -m xabridge.demo.shop", description="orders into rows and invoices")
    add_arguments(parser)
    return run(parser.parse_args(argv))
