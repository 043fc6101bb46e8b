"""The embedded broker in a process of its own, on a store in a folder; for benchmarks and tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from xabridge.testing.process_lifetime import marked_environment


class BrokerProcess:
    """A broker on a free port of this machine. `flags` are those of `xabridge broker`."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._command = [sys.executable, "-m", "dtx", "--store", f"sqlite:///{folder}/store.db"]
        self._command += flags or ("--listen", "127.0.0.1:0")
        self._errors = folder / "broker.err"
        self._process: subprocess.Popen[str] | None = None
        self.host = "127.0.0.1"
        self.ports: list[int] = []
        self.restored = 0
        """Prepared branches that it had at its latest start."""

    @property
    def port(self) -> int:
        """Where it listens; the first port where there are more."""
        return self.ports[0]

    def start(self) -> None:
        """Starts it, and waits until it listens."""
        with self._errors.open("a") as errors:
            self._process = subprocess.Popen(  # noqa: S603 — our own command
                self._command,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=marked_environment(),
                process_group=0,  # Ctrl+C is for us: we stop it
            )

        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        restored = re.search(r"([0-9]+) branch(?:es)? in doubt", line)
        self.restored = int(restored[1]) if restored else 0
        self.ports = [int(port) for port in re.findall(r"127\.0\.0\.1:([0-9]+)", line)]
        if not self.ports:
            self.kill()
            raise RuntimeError(f"the broker did not start: {line!r} {self.errors()}")

    def errors(self) -> str:
        """Its output on stderr."""
        return self._errors.read_text()

    def stop(self) -> int:
        """Asks it to stop, and waits; its exit code."""
        if self._process is None:
            raise RuntimeError("the broker does not run")
        self._process.terminate()
        self._process.communicate()
        code, self._process = self._process.returncode, None
        return code

    def kill(self) -> None:
        """kill -9, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    @property
    def running(self) -> bool:
        """Whether it has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        if self._process is None:
            raise RuntimeError("the broker does not run")
        return self._process.pid

    def cpu_s(self) -> float:
        """The processor time that it took so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        """Its resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_s(pid: int) -> float:
    """The processor time of a process and of those that it started."""
    import psutil  # type: ignore[import-untyped]  # noqa: PLC0415 — of the extra `demo`, which the shop does without

    leader = psutil.Process(pid)
    total = 0.0
    for process in (leader, *leader.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    ended = leader.cpu_times()
    return total + float(ended.children_user + ended.children_system)
