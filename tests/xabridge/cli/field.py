"""`Field` is a node with its log, a configuration file, and resource managers. The resource managers live in this
process, and any command reaches them through a socket. A test can put transactions in doubt there.
"""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tests.xabridge.cli.served import KEY, install
from tm.log import Branch, Decision, FileLog
from xa import FORMAT_ID, TMSUCCESS, Gtrid, Xid
from xa.gtrid import Incarnation
from xabridge.testing.reference import ReferenceResource, ReferenceStore
from xabridge.testing.reference.remote import ReferenceServer

ROOT: Final = Path(__file__).parents[3]
NODE: Final = "orders-1"
INCARNATION: Final = bytes.fromhex("3fa91c0000000001")
OTHERS: Final = bytes.fromhex("c07d110000000002")
OTHER_LOG: Final = bytes.fromhex("7f3a000000000001")
NAME: Final = "orders-1:3fa91c:1"
PATIENCE_S: Final = 60
Xabridge: TypeAlias = "Callable[..., Said]"
"""A command in this process: the fixture `xabridge`."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a command said: its exit code, stdout and stderr. The field's folder is called /field."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """All of it, without its line breaks."""
        return " ".join(f"{self.out} {self.err}".split())


class Typed:
    """A terminal on which somebody types a line. Before that, `meanwhile` is called."""

    def __init__(self, line: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._line = line
        self._meanwhile = meanwhile

    def isatty(self) -> bool:
        """It is one."""
        return True

    def readline(self) -> str:
        """What is typed."""
        self._meanwhile()
        return self._line


class Field:
    """`now` is the time of its stores' clocks; `socket` of a store may be made to lead nowhere."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1000.0
        self.stores = {name: ReferenceStore(name, clock=lambda: self.now) for name in ("broker", "shop", "analytics")}
        self._server = ReferenceServer(self.stores, str(folder / "s"), KEY)
        self.config = folder / "xabridge.toml"
        self.log_folder = folder / "log"
        self.environment = dict(install(folder / "plugin"))
        self.configure("broker", "shop")
        self._names = iter(range(1, 10_000))
        self.last_code: int | None = None

    def close(self) -> None:
        """The end."""
        self._server.close()

    # --- the node -----------------------------------------------------------------------------------------------------
    def url(self, store: str, *, scheme: str = "reference-test", socket: str = "s") -> str:
        """An open string for a store."""
        return f"{scheme}://{self.folder / socket}?store={store}"

    def configure(self, *stores: str, extra: str = "", urls: Sequence[tuple[str, str]] = ()) -> None:
        """Writes the configuration with these stores, and others by URL."""
        lines = [f'node = "{NODE}"', f'log = "file://{self.log_folder}"', extra, "[resources]"]
        lines += [f'{name} = "{url}"' for name, url in (*((name, self.url(name)) for name in stores), *urls)]
        self.config.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def open_log(self) -> FileLog:
        """The node's log, with an id and an incarnation that are the same in every run."""
        drawn = itertools.chain([INCARNATION], itertools.repeat(b"\xab" * 8))
        log = FileLog(self.log_folder, NODE, segment_size=65536, entropy=lambda count: next(drawn)[:count])
        if log.incarnation == INCARNATION:
            log.note_ceiling(2**40)  # tests take any sequence
        return log

    def gtrid(
        self, sequence: int, *, incarnation: Incarnation = INCARNATION, node: str = NODE, log_id: bytes = b"\xab" * 8
    ) -> bytes:
        """A gtrid of this node's log, unless said otherwise."""
        return Gtrid(node, log_id, incarnation, sequence).encode()

    def decide(self, gtrid: bytes, *resources: str) -> None:
        """Opens the log, decides, and closes it again."""
        log = self.open_log()
        log.decide(Decision(gtrid, tuple(Branch(name, xid_of(gtrid, name)) for name in resources)))
        log.close()

    def log_files(self) -> list[tuple[str, bytes]]:
        """The log's files, and what is in them."""
        return sorted((path.name, path.read_bytes()) for path in self.log_folder.iterdir())

    # --- what is in doubt ---------------------------------------------------------------------------------------------
    def prepare(self, store: str, gtrid: bytes, *keys: str, xid: Xid | None = None) -> Xid:
        """A prepared branch that has written `keys`."""
        xid = xid or xid_of(gtrid, store)
        rm = ReferenceResource(self.stores[store])
        rm.open(self.stores[store].url, 1)
        rm.start(xid, 1)
        for key in keys or (f"key {next(self._names)}",):
            rm.session(1).write(key, True)
        rm.end(xid, 1, TMSUCCESS)
        rm.prepare(xid, 1)
        return xid

    # --- commands -----------------------------------------------------------------------------------------------------
    def command(self, *arguments: str) -> list[str]:
        """The command line of `xabridge`, for this configuration."""
        return [sys.executable, "-m", "xabridge.cli", *arguments, "--config", str(self.config)]

    def popen(self, *arguments: str, **options: object) -> subprocess.Popen[str]:
        """A command that runs."""
        environment = {**os.environ, **self.environment, "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            self.command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            env=environment, **options,
        )  # fmt: skip

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """A command in a process of its own, and what it said."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(
            self.command(*arguments), input=stdin, capture_output=True, text=True, cwd=ROOT, env=environment,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def on_a_terminal(self, arguments: Sequence[str], *, until: str, typed: str) -> str:
        """What a command writes to a terminal of 80 columns. `typed` is typed when it has written `until`."""
        command = f"stty cols 80 rows 40; exec {shlex.join(self.command(*arguments))}"
        environment = {**os.environ, **self.environment}
        with subprocess.Popen(
            ["script", "-qec", command, "/dev/null"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
            env=environment,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            screen = b""
            while until.encode() not in screen:
                octets = os.read(process.stdout.fileno(), 65536)
                assert octets, screen
                screen += octets
            screen += process.communicate(typed.encode(), PATIENCE_S)[0]
            self.last_code = process.returncode
        return screen.decode()


def xid_of(gtrid: bytes, resource: str) -> Xid:
    """The xid of a transaction's branch there, as the manager makes it."""
    return Xid(FORMAT_ID, gtrid, resource.encode())
