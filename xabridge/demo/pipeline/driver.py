"""Driver: the demo's Spark application in a process of its own."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from xabridge.demo.pipeline.cluster import end

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME: Final = "demo"
"""Of the pipeline."""
STOP_S: Final = 60.0


class Driver:
    """The application in a process of its own, with the JVM that it starts. It can be killed, and started again."""

    def __init__(self, config: Path, checkpoint: Path, rows: int, master: str) -> None:
        self._command = [sys.executable, "-m", "xabridge.demo.pipeline.application", "--config", str(config)]
        self._command += ["--checkpoint", str(checkpoint), "--rows", str(rows), "--master", master]
        self._folder = config.parent
        self.errors_at = self._folder / "driver.err"
        self._process: subprocess.Popen[str] | None = None
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def start(self) -> None:
        """Starts it; `ready` comes when it works."""
        with self.errors_at.open("a") as errors:
            self._process = process = subprocess.Popen(  # noqa: S603 — our own command
                self._command, stdout=subprocess.PIPE, stderr=errors, text=True, process_group=0, cwd=self._folder
            )
        threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            with process.stdout as lines:
                for line in lines:
                    if line.startswith("{"):  # Spark says a word or two of its own
                        self._events.put(json.loads(line))

    def events(self) -> Iterator[dict[str, Any]]:
        """The events that it has reported since the last call."""
        while not self._events.empty():
            yield self._events.get()

    @property
    def running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    def errors(self) -> str:
        """Its output on stderr."""
        return self.errors_at.read_text(errors="replace")

    def stop(self) -> None:
        """Asks it to end, and waits."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """kill -9 for it, its JVM, and the Python workers of both, if they run."""
        if self._process is not None:
            end(self._process.pid)
            self._process.wait()
            self._process = None
