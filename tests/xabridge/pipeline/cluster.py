"""This module starts a standalone Spark cluster: a master and workers, which Spark takes for different hosts."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Final

import pyspark

from tests.xabridge.pipeline.environment import JAVA_OPTIONS
from tests.xabridge.pipeline.faults import await_until
from xabridge.testing.ports import free_port

HOME: Final = Path(pyspark.__file__).parent
HOSTS: Final = ("127.0.0.2", "127.0.0.3", "127.0.0.4")

STARTED_S: Final = 180.0
"""A JVM takes long to start where many do."""


class Cluster:
    """Started by construction; `environment` is that of executors too."""

    def __init__(self, folder: Path, environment: dict[str, str], workers: int = 2) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._environment = os.environ | {"SPARK_HOME": str(HOME), "SPARK_NO_DAEMONIZE": "1"} | environment
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._start_all(port, workers)
        except BaseException:
            self.close()
            raise

    def _start_all(self, port: int, workers: int) -> None:
        folder = self._folder
        self._start("master", "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
        self._await("master", "I have been elected leader")
        for number, host in enumerate(HOSTS[:workers]):
            work = ("--work-dir", str(folder / f"work-{number}"), "--webui-port", "0")
            limits = ("--host", host, "--cores", "1", "--memory", "600m")
            self._start(f"worker-{number}", "worker.Worker", *limits, *work, self.master)
        for number in range(workers):
            self._await(f"worker-{number}", "Successfully registered with master")

    @property
    def settings(self) -> dict[str, str]:
        """What a driver needs to run on it."""
        return {"spark.master": self.master, "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1"}

    def _start(self, name: str, role: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{role}", *arguments],
                stdout=log,
                stderr=log,
                env=self._environment | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS},
                process_group=0,
            )
        self._processes.append(process)

    def _await(self, name: str, words: str) -> None:
        log = self._folder / f"{name}.log"
        await_until(lambda: words in log.read_text(errors="replace"), STARTED_S)
        assert words in log.read_text(errors="replace"), log.read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """Ends all of it."""
        for process in self._processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
