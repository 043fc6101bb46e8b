"""This module starts PgBouncer in transaction mode in front of one of the tests' servers; `.ci/run` installs it from
Debian.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tests.postgres import Postgres
from xabridge.testing.ports import free_port

START_TIMEOUT_S = 60
SETTINGS = """
[databases]
* = host=127.0.0.1 port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {size}
server_login_retry = 0
logfile = {folder}/log
"""


def installed() -> bool:
    """Whether there is one."""
    return _program() is not None


class Pooler:
    """A pooler before `server` that has `size` connections to each database."""

    def __init__(self, server: Postgres, size: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="xabridge-pooler-"))
        self.port = free_port()
        settings = SETTINGS.format(port=server.port, listen=self.port, folder=self._folder, size=size)
        (self._folder / "settings").write_text(settings)
        (self._folder / "users").write_text('"postgres" ""\n')
        user: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to run as root
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}
            for path in (self._folder, *self._folder.iterdir()):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)

        program = _program()
        assert program is not None
        self._process = subprocess.Popen(
            [program, "-q", str(self._folder / "settings")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **user,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready(server.url):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PgBouncer did not start: {(self._folder / 'log').read_text(errors='replace')}")
            time.sleep(0.02)

    def url(self, url: str) -> str:
        """The way through the pooler to what `url` reaches without it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{conninfo_to_dict(url)['dbname']}"

    def remove(self) -> None:
        """Its end."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)

    def _ready(self, url: str) -> bool:
        try:
            psycopg.connect(self.url(url), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True


def _program() -> str | None:
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
