"""Processes that a test kills, forked from one that has imported what they need: imports would be most of what they
cost. `multiprocessing` forks them; the first one starts what forks."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from multiprocessing import connection
from pathlib import Path
from typing import IO

_LOCK = threading.Lock()
"""Who asks for an exit code reads it from a pipe, where another thread could read it at the same moment; who starts a
process asks for those of all others."""
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "dtx.broker.command",
        "tests.crash.amqp_child",
        "tests.crash.decider_child",
        "tests.crash.manager_child",
        "tests.dtx.store.crashing",
    ]
)


class ForkedProcess:
    """`main` of a module in a process of its own, with such arguments. `errors` is the file for its stderr, where it is
    not that of the test."""

    def __init__(self, module: str, *arguments: str, errors: Path | None = None) -> None:
        reader, writer = _FORKS.Pipe(duplex=False)
        with reader, writer:
            self._process = _FORKS.Process(target=_run, args=(module, arguments, errors, writer))
            with _LOCK:
                self._process.start()
            self.stdout: IO[str] = os.fdopen(os.dup(reader.fileno()))
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        with _LOCK:
            return self._process.is_alive()

    def lines(self) -> Iterator[str]:
        """What it writes, until it ends; no line that it was killed in the middle of."""
        return (line for line in self.stdout if line.endswith("\n"))

    def wait(self, patience_s: float) -> int:
        """Its exit code."""
        connection.wait([self._process.sentinel], patience_s)
        with _LOCK:
            code = self._process.exitcode
        assert code is not None, f"it has not ended within {patience_s} s"
        return code

    def kill(self) -> None:
        """kill -9, if it runs; what it has written can still be read."""
        with _LOCK:
            self._process.kill()
        connection.wait([self._process.sentinel])

    def close(self) -> None:
        """The same, and the end."""
        self.kill()
        self.stdout.close()


def _run(module: str, arguments: tuple[str, ...], errors: Path | None, writer: connection.Connection) -> None:
    if errors is not None:
        descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, sys.stderr.fileno())
        os.close(descriptor)
    os.dup2(writer.fileno(), sys.stdout.fileno())
    writer.close()
    sys.argv = [module, *arguments]
    sys.exit(import_module(module).main())
