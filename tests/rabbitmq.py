"""This module starts Debian's `rabbitmq-server` for the tests: on loopback and free ports, with a data folder and a
cookie of its own, and removes it afterwards.

The server is the Erlang machine itself, in a process group of its own, so that it can be killed as a crash does. Its
distribution protocol and Erlang's port mapper have free ports of their own.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from xabridge.testing.ports import free_port
from xabridge.testing.process_lifetime import NAME, marked_environment

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0
PROGRAM: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def installed() -> bool:
    """Whether there is a RabbitMQ to start."""
    return PROGRAM.exists() and shutil.which("erl") is not None


class RabbitMQ:
    """One server; made once, started and stopped as often as one likes, then removed."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="xabridge-rabbitmq-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self._epmd_port = free_port()
        config = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "disk_free_limit.absolute": "1MB",
            "log.file.level": "warning",
            **(settings or {}),
        }
        (self._folder / "rabbitmq.conf").write_text("".join(f"{key} = {value}\n" for key, value in config.items()))
        (self._folder / "plugins").write_text("[].\n")
        cookie = self._folder / ".erlang.cookie"
        cookie.write_text("XABRIDGETESTS")
        cookie.chmod(0o600)

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The relay's open string."""
        return f"amqp091://guest:guest@{self.address}/"

    def start(self) -> None:
        """Starts it, unless it runs; returns when it answers."""
        if self._process is not None:
            return
        environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self._folder),
            "RABBITMQ_NODENAME": f"xabridge{self.port}@localhost",
            "RABBITMQ_MNESIA_BASE": str(self._folder / "data"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(self._folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self._folder / "none"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "plugins"),
            "RABBITMQ_PID_FILE": str(self._folder / "pid"),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(self._folder / "flags"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            NAME: marked_environment()[NAME],
            "ERL_EPMD_RELAXED_COMMAND_CHECK": "1",  # it may be stopped also while it believes that a node lives
        }
        with (self._folder / "output").open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAM], env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop(immediate=True)
                raise RuntimeError((self._folder / "output").read_text("utf-8", "replace"))
            time.sleep(0.1)

    def _answers(self) -> bool:
        """Whether it answers the protocol's header with connection.start: the listeners are the last that it starts."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                probe.sendall(b"AMQP\x00\x00\x09\x01")
                return probe.recv(1) == b"\x01"
        except OSError:
            return False

    def stop(self, *, immediate: bool = False) -> None:
        """Stops it; `immediate` as a crash does."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(process.pid, signal.SIGKILL if immediate else signal.SIGTERM)
            process.wait(STOP_TIMEOUT_S)

    def remove(self) -> None:
        """For good."""
        self.stop(immediate=True)
        subprocess.run(  # the port mapper that the server has started, at a port of its own
            ["epmd", "-port", str(self._epmd_port), "-kill"],
            capture_output=True,
            check=False,
        )
        shutil.rmtree(self._folder)
