"""A Spark standalone cluster on this machine: a master, and workers each on an address of its own (127.0.0.2, .3, …),
so that Spark takes them for different hosts.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xabridge.testing.ports import free_port

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

START_S: Final = 60.0
WAIT_S: Final = 10.0
MASTER: Final = "org.apache.spark.deploy.master.Master"
WORKER: Final = "org.apache.spark.deploy.worker.Worker"


class Cluster:
    """A master and `workers` workers with one core each, and their files below `folder`."""

    def __init__(self, folder: Path, workers: int = 2, memory: str = "1g") -> None:
        self._folder = folder
        self._workers = workers
        self._memory = memory
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port = free_port()
        self._page = free_port()

    @property
    def url(self) -> str:
        """The master URL for a session."""
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        self._start("master", MASTER, "127.0.0.1", "--port", str(self._port), "--webui-port", str(self._page))
        self._wait("master", "New state: ALIVE")
        for number in range(self._workers):
            page = str(free_port())
            flags = ("--cores", "1", "--memory", self._memory, "--webui-port", page, self.url)
            self._start(f"worker-{number + 1}", WORKER, f"127.0.0.{number + 2}", *flags)
        for number in range(self._workers):
            self._wait(f"worker-{number + 1}", "Successfully registered with master")

    def _start(self, name: str, main: str, host: str, *flags: str) -> None:
        folder = self._folder / name
        folder.mkdir(parents=True)
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(folder),
            "SPARK_WORKER_DIR": str(folder),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # it would take a port of everybody's
            "PYSPARK_PYTHON": sys.executable,
        }

        command = [str(_spark_home() / "bin" / "spark-class"), main, "--host", host, *flags]
        with (folder / "log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(  # noqa: S603 — our own command
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, process_group=0
                )
            )

    def _wait(self, name: str, text: str) -> None:
        log = self._folder / name / "log"
        deadline = time.monotonic() + START_S
        while text not in log.read_text(errors="replace"):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                raise RuntimeError(f"Spark's {name} did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)

    def close(self) -> None:
        """Ends all of it, executors too."""
        for process in reversed(self._processes):
            end(process.pid)
            process.wait(WAIT_S)
        self._processes.clear()


def end(pid: int) -> None:
    """kill -9 for a process and those that it started."""
    import psutil  # type: ignore[import-untyped]  # noqa: PLC0415 — of the extra `demo`, which jobs do without

    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        processes = [*leader.children(recursive=True), leader]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes[:-1], WAIT_S)


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise RuntimeError("PySpark is not installed")
    return Path(spec.origin).parent
