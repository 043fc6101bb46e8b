"""`Child` is a process of the campaign: it reads commands line by line, answers in lines of JSON, and is killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.crash.nursery import Nursery

PATIENCE_S: Final = 60.0
DUMP_S: Final = 2.0


class ChildGone(Exception):
    """The process ended before it said what was waited for."""


class Stuck(Exception):
    """What was waited for did not come."""


class Child:
    """One process after the other with the same command. `hear` gets what it says unasked, in a thread."""

    def __init__(
        self,
        nursery: Nursery,
        module: str,
        arguments: dict[str, Any],
        errors: Path,
        hear: Callable[[dict[str, Any]], None],
    ) -> None:
        self._nursery = nursery
        self.module = module
        self.arguments = arguments
        self._errors = errors
        self._hear = hear
        self._process: int | None = None
        self._orders: IO[str] | None = None
        self._listener: threading.Thread | None = None
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._listener is not None and self._listener.is_alive()

    def launch(self, **more: Any) -> None:
        """Starts it; `wait("ready")` is still to come."""
        read_orders, write_orders = os.pipe()
        read_answers, write_answers = os.pipe()
        errors = os.open(self._errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        theirs = (read_orders, write_answers, errors)
        self._process = self._nursery.bear(self.module, {**self.arguments, **more}, theirs)
        for descriptor in theirs:
            os.close(descriptor)
        self._orders = os.fdopen(write_orders, "w")
        self._said = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, args=(os.fdopen(read_answers), self._said), daemon=True)
        self._listener.start()

    def _listen(self, answers: IO[str], said: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        with answers:
            for line in answers:
                if not line.endswith("\n"):
                    continue  # it was killed in the middle of it
                event = json.loads(line)
                if event["event"] == "report":
                    self._hear(event)
                else:
                    said.put(event)
        said.put(None)

    def tell(self, *words: object) -> None:
        """One order."""
        if self._orders is None:
            raise ChildGone(f"{self.module} does not run")
        with suppress(BrokenPipeError):  # it was killed; who waits for an answer will hear of it
            self._orders.write(" ".join(map(str, words)) + "\n")
            self._orders.flush()

    def wait(self, *events: str, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """What it says next under one of these names; what it says before that is dropped. ChildGone: it ended
        before. Stuck: it did not say so in time."""
        said = self.listen(*events, patience_s=patience_s)
        if said is None:
            event = " or ".join(events)
            raise Stuck(f"{self.module} did not say {event!r}:\n{self.errors()}\n{self.stacks()}")
        return said

    def listen(self, *events: str, patience_s: float) -> dict[str, Any] | None:
        """Waits for one of these; None when it did not say so in time."""
        event = " or ".join(events)
        deadline = time.monotonic() + patience_s
        while True:
            try:
                said = self._said.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                return None
            if said is None:
                self._said.put(None)
                raise ChildGone(f"{self.module} ended before it said {event!r}:\n{self.errors()}")
            if said["event"] in events:
                return said

    def stacks(self) -> str:
        """Where each of its threads stands, if it lives."""
        if not self.running or self._process is None:
            return f"{self.module} does not run"
        before = self._errors.stat().st_size
        os.kill(self._process, signal.SIGUSR1)
        deadline = time.monotonic() + DUMP_S
        while (
            "runpy" not in (said := self._errors.read_bytes()[before:].decode(errors="replace"))
            and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        return said

    def errors(self) -> str:
        """The end of what it wrote on stderr."""
        return self._errors.read_text(errors="replace")[-3000:]

    def pause(self) -> None:
        """SIGSTOP: it does nothing until `go_on`, and keeps all that it has."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise ChildGone(f"{self.module} does not run")
        with suppress(ProcessLookupError):  # it has ended; who waits for it will hear of it
            os.kill(self._process, number)

    def kill(self) -> None:
        """kill -9, if it runs; what it has said until then is read before this returns."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            while True:  # its files and locks are its own until its process id is gone
                os.kill(self._process, signal.SIGKILL)
                time.sleep(0.001)
        if self._listener is not None:
            self._listener.join()
        if self._orders is not None:
            with suppress(BrokenPipeError):
                self._orders.close()
        self._process = self._orders = None
