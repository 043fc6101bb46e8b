"""MariaDB in a process of its own, for tests: the system's `mariadb-server` on loopback, with data of its own that are
removed afterwards. It needs the extra `mariadb`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

try:
    import pymysql
except ModuleNotFoundError:
    raise ModuleNotFoundError("MariaDB for tests needs PyMySQL: install xabridge[mariadb]", name="pymysql") from None

from xabridge.testing.ports import free_port
from xabridge.testing.process_lifetime import marked_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0
PASSWORD: Final = "s3cret"  # noqa: S105 — of a server that lives as long as the tests


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(f"/usr/sbin/{name}")


def installed() -> bool:
    """Whether there is a MariaDB to start."""
    return _program("mariadbd") is not None and _program("mariadb-install-db") is not None


class MariaDB:
    """One server; made once, started and stopped as often as one likes, then removed. Its data are in `folder`, a new
    one."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, folder: Path | None = None) -> None:
        if folder is not None:
            folder.mkdir()
        self._folder = folder or Path(tempfile.mkdtemp(prefix="xabridge-mariadb-"))
        (self._folder / "temporary").mkdir()
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self.port = free_port()

        made = subprocess.run(  # noqa: S603 — the system's own program
            [
                _program("mariadb-install-db") or "",
                "--no-defaults",
                "--force",  # also where neither the machine's name nor localhost has an address
                *self._folders(),
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                *self._as_root(),
            ],
            check=False,
            capture_output=True,
            text=True,
        )
        if made.returncode != 0:
            raise RuntimeError(f"mariadb-install-db exited with {made.returncode}: {made.stdout}{made.stderr}")

    def _folders(self) -> list[str]:
        """The folders for its data and for temporary tables: a server that starts removes those that it finds there."""
        return [f"--datadir={self._folder}/data", f"--tmpdir={self._folder}/temporary"]

    @staticmethod
    def _as_root() -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []

    def start(self) -> None:
        """Starts it, unless it runs; returns when it answers."""
        if self._process is not None:
            return

        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 — the system's own program
                [
                    _program("mariadbd") or "",
                    "--no-defaults",
                    *self._folders(),
                    f"--socket={self._folder}/socket",
                    f"--pid-file={self._folder}/pid",
                    f"--port={self.port}",
                    "--bind-address=127.0.0.1",
                    "--innodb-buffer-pool-size=16M",
                    "--innodb-log-file-size=8M",
                    *(f"--{name}={value}" for name, value in self._settings.items()),
                    *self._as_root(),
                ],
                stdout=log,
                stderr=log,
                env=marked_environment(),
            )

        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "log").read_text("utf-8", "replace"))
            time.sleep(0.05)
        self.admin("SELECT 1")

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(f"{self._folder}/socket") == 0

    def stop(self, *, immediate: bool = False) -> None:
        """Stops it; `immediate` as a crash does."""
        if self._process is not None:
            if immediate:
                self._process.kill()
            else:
                self._process.terminate()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def remove(self) -> None:
        """Removes it for good."""
        self.stop(immediate=True)
        shutil.rmtree(self._folder)

    def freeze(self) -> None:
        """Stops it: it neither reads nor answers from now on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets it go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def connect(self) -> pymysql.Connection[Any]:
        """A connection of the superuser's, which commits each statement. Without TLS, because PyMySQL would read all
        certificates of the system for it, which takes longer than most tests."""
        return pymysql.connect(unix_socket=f"{self._folder}/socket", user="root", autocommit=True, ssl_disabled=True)

    def admin(self, *statements: str) -> None:
        """Statements of the superuser."""
        with self.connect() as connection:
            for statement in statements:
                connection.cursor().execute(statement)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        """What a statement of the superuser answers."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def create_database(self, scheme: str = "mysql+pymysql") -> str:
        """A new, empty database, with a user who may do everything there, and no more; its URL."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.admin(
            f"CREATE DATABASE {name}",
            f"CREATE USER {name}@'%' IDENTIFIED BY '{PASSWORD}'",
            f"GRANT ALL ON {name}.* TO {name}@'%'",
        )
        return f"{scheme}://{name}:{PASSWORD}@127.0.0.1:{self.port}/{name}"
