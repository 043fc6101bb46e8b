"""Supervisor: the processes of `xabridge run`, each with its configuration, and what becomes of them.

1. Each process is started by itself, with its number. It reads a pipe from the supervisor, so that it stops when
   the supervisor is gone, whatever it died of.
2. One that ends is started again: after `FIRST_S`, twice as long after each further end, at most `MOST_S`. One that has
   lived for `GOOD_S` is as one that never ended.
3. One that ends with `Exit.USAGE` would do so again: everything stops, or with `--reload` it waits for a change.
4. To stop, each is sent SIGTERM, and has a time to finish what it does; then it is killed, which rolls back what it
   did.
5. If a source file has changed (`--reload`), all are stopped and started again.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tm import ConfigurationError
from tm.log.factory import folder_of
from xa.open_string import host_and_port
from xabridge.exit_codes import Exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tm import Configuration


logger = logging.getLogger("xabridge.run")

FIRST_S: Final = 0.5
MOST_S: Final = 30.0
GOOD_S: Final = 60.0
LOOK_S: Final = 0.1
"""How often it looks at its processes."""
FILES_S: Final = 1.0
"""How often it looks at source files."""
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


class _Process:
    """One of the processes, over its lives."""

    def __init__(self, number: int, start: Callable[[int], subprocess.Popen[bytes]]) -> None:
        self.number = number
        self._start = start
        self._ends = 0
        self._due = 0.0
        self._began = 0.0
        self.running: subprocess.Popen[bytes] | None = None

    def look(self) -> int | None:
        """Starts it if that is due; its exit code, if it has just ended."""
        now = time.monotonic()
        if self.running is None:
            if now >= self._due:
                self.running, self._began = self._start(self.number), now
                logger.info("process %d is %d", self.number, self.running.pid)
            return None
        code = self.running.poll()
        if code is None:
            return None

        self._gone()
        self._ends = 1 if now - self._began > GOOD_S else self._ends + 1
        wait_s = min(FIRST_S * 2.0 ** min(self._ends - 1, 10), MOST_S)
        self._due = now + wait_s
        if code == Exit.USAGE:  # it would end so again
            logger.error("process %d has ended with %s", self.number, _name_of(code))
        else:
            logger.error(
                "process %d has ended with %s; it is started again in %.1f s", self.number, _name_of(code), wait_s
            )
        return code

    def stop(self, number: int) -> None:
        """Sends it a signal."""
        if self.running is not None and self.running.poll() is None:
            self.running.send_signal(number)

    def wait(self, until: float) -> bool:
        """Whether it has ended by then."""
        if self.running is None:
            return True
        try:
            self.running.wait(max(until - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            return False
        self._gone()
        return True

    def try_now(self) -> None:
        """Lets it start at once: the cause of its end may be repaired."""
        self._due, self._ends = 0.0, 0

    def try_no_more(self) -> None:
        """Never starts it again, because it would fail again."""
        self._due = math.inf

    def _gone(self) -> None:
        if self.running is not None and self.running.stdin is not None:
            self.running.stdin.close()
        self.running = None


def _name_of(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


class Supervisor:
    """A number of processes of `command`, which gets `--process NUMBER`. `watched` is the folder of the source
    files."""

    def __init__(self, command: Sequence[str], processes: int, shutdown_s: float, watched: Path | None = None) -> None:
        self._command = list(command)
        self._shutdown_s = shutdown_s
        self._watched = watched
        self._files: dict[Path, int] = {}
        self._asked = False
        self._hurry = False
        self._processes = [_Process(number, self._start) for number in range(1, processes + 1)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [*self._command, "--process", str(number)]
        # a group of its own: Ctrl+C is for the supervisor, which asks them to stop
        return subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)  # noqa: S603 — our own command

    def run(self) -> Exit:
        """Runs until SIGTERM or SIGINT; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        if self._watched is not None:
            self._files = source_files(self._watched)
        looked = time.monotonic()
        try:
            while not self._asked:
                for process in self._processes:
                    if process.look() != Exit.USAGE:
                        continue
                    if self._watched is None:
                        return Exit.USAGE
                    process.try_no_more()

                if self._watched is not None and time.monotonic() - looked > FILES_S:
                    looked = time.monotonic()
                    self._reload_if_changed(self._watched)
                time.sleep(LOOK_S)
        finally:
            self._stop()
        return Exit.DONE

    def _on_signal(self, _number: int, _frame: Any) -> None:
        self._hurry, self._asked = self._asked, True

    def _reload_if_changed(self, folder: Path) -> None:
        files = source_files(folder)
        if files == self._files:
            return
        changed = sorted(
            str(path.relative_to(folder)) for path in files.keys() | self._files.keys()
            if files.get(path) != self._files.get(path)
        )  # fmt: skip
        logger.info("%s changed: starting again", ", ".join(changed[:3]) + (" …" if len(changed) > 3 else ""))
        self._files = files
        self._stop()
        for process in self._processes:
            process.try_now()

    def _stop(self) -> None:
        """Asks all to stop, and waits; kills what has not ended by then, or at once after a second signal."""
        for process in self._processes:
            process.stop(signal.SIGTERM)
        until = time.monotonic() + self._shutdown_s
        left = list(self._processes)
        while left and time.monotonic() < until and not self._hurry:
            left = [process for process in left if not process.wait(time.monotonic() + LOOK_S)]
        for process in left:
            if self._hurry:
                logger.warning("process %d is killed, because of the second signal", process.number)
            else:
                logger.error("process %d has not stopped in time, and is killed", process.number)
            process.stop(signal.SIGKILL)
            process.wait(time.monotonic() + 10)


def source_files(folder: Path) -> dict[Path, int]:
    """Python files below a folder, with the time of their last change. Hidden folders and installed packages are left
    out."""
    found: dict[Path, int] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [
            one
            for one in folders
            if not one.startswith(".") and one not in _SKIPPED and not Path(place, one, "pyvenv.cfg").exists()
        ]
        for name in names:
            if name.endswith(".py"):
                path = Path(place, name)
                try:
                    found[path] = path.stat().st_mtime_ns
                except OSError:
                    continue
    return found


_FILE: Final = "file://"
_LAST_PORT: Final = 65535


def configuration_of(configuration: Configuration, number: int) -> Configuration:
    """The configuration of the process `number`, from 1 on, among several that run the same App.

    If a resource decides, and there is no log, all processes share one: each is known by its incarnation and its lease.
    If there is a log, also beside a resource that decides, each process needs a node and a log of its own, because a
    log belongs to one process at a time; and they must be the same after a restart, because only their node finishes
    what was left in doubt under it. So process 1 has the node and the log of the configuration, and process number 2
    has `<node>-2` and, in files, `<log>-2`. Where pages are served, process 1 has the port of `http`, and process
    number 2 the next one. ConfigurationError: there is no such port.
    """
    if number == 1:
        return configuration
    own = replace(configuration, http=_numbered_port(configuration.http, number))
    if own.log is None:
        return own
    return replace(own, node=f"{own.node}-{number}", log=_numbered(own.log, number))


def configuration_to_recover(configuration: Configuration, number: int) -> Configuration:
    """The configuration of a manager that finishes what the process `number` has left behind, and serves no page."""
    own = configuration_of(replace(configuration, http=None), number)
    return replace(own, http_token_env=None, http_act_token_env=None)


def _numbered_port(http: str | None, number: int) -> str | None:
    if http is None:
        return None
    host, port = host_and_port(http)
    if port and port + number - 1 > _LAST_PORT:
        raise ConfigurationError(f"http {http}: process {number} would need port {port + number - 1}: begin lower")
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{port + number - 1 if port else 0}"


def _numbered(log: str, number: int) -> str:
    if not log.startswith(_FILE):
        return log  # one database has the logs of many nodes
    return f"{log.rstrip('/')}-{number}"


def left_behind(configuration: Configuration, processes: int) -> Iterator[int]:
    """The numbers of former processes that have logs in files and are above `processes`. What their nodes have left in
    doubt is finished by no other process."""
    if configuration.log is None:
        return
    log = folder_of(configuration.log)
    if log is None:
        return
    for folder in sorted(log.parent.glob(f"{log.name}-*")):
        number = folder.name.removeprefix(f"{log.name}-")
        if folder.is_dir() and number.isdecimal() and int(number) > max(processes, 1):
            yield int(number)
