"""This module fetches a broker that is written in Java, compiles what starts it, and runs it in a process of its own.
What was fetched and compiled is kept for all clones of this user's: Maven takes 17 s of a run that has it already.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

JAVA: Final = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
KEPT: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xabridge" / "java"
RECORDS: Final = "-XX:+RecordDynamicDumpInfo"
QUIET: Final = ("-Xlog:disable", "-Xlog:all=warning:stderr")
"""What Java warns of is for the log: what a broker prints is read."""


def maven_jars(pom: Path) -> Path:
    """The folder with the jars that a pom names. Maven copies them there the first time; the test is skipped where it
    can't."""
    name = pom.parent.name
    folder = KEPT / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    fetched = folder / ".fetched"

    with (folder / ".lock").open("w") as lock:  # tests may run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not fetched.exists():
            if shutil.which("mvn") is None:
                pytest.skip(f"the jars of {name} need Maven, which is not installed")
            fetch = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
            done = subprocess.run(fetch, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"the jars of {name} can't be fetched: {done.stdout.splitlines()[:1]}")
            fetched.touch()
    return folder


def java_program(source: Path, lib: Path) -> list[str]:
    """The command that runs the class `Broker` of a file with the jars of a folder. It is compiled the first time, and
    not at each start, of which tests have hundreds; and the first process that is ready leaves the classes that it has
    loaded in an archive, which takes a third off the processor time of all further starts."""
    jars = "".join(sorted(path.name for path in lib.glob("*.jar")))
    digest = hashlib.sha256(source.read_bytes() + jars.encode()).hexdigest()
    classes = KEPT / digest[:16]
    classes.mkdir(parents=True, exist_ok=True)
    program = classes / "broker.jar"  # an archive of classes takes them from jars only
    with (classes / ".lock").open("w") as lock:  # tests may run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            compiled = classes / "compiled"
            compiler = ["javac", "-nowarn", "-d", str(compiled), "-cp", f"{lib}/*", str(source)]
            packer = ["jar", "--create", "--file", f"{program}.new", "-C", str(compiled), "."]
            for tool in (compiler, packer):
                done = subprocess.run(tool, capture_output=True, text=True, check=False)
                assert done.returncode == 0, done.stdout + done.stderr
            Path(f"{program}.new").rename(program)

    archive = _archive(program)
    option = f"-XX:SharedArchiveFile={archive}" if archive.exists() else RECORDS
    return [*JAVA, option, *QUIET, "-cp", f"{program}:{lib}/*", "Broker"]


def _archive(program: Path) -> Path:
    return program.with_suffix(".jsa")


def _keep_classes(command: Sequence[str], pid: int) -> None:
    """Writes the archive, if that is what the process has recorded for. Without one everything works, and takes
    longer."""
    if RECORDS not in command:
        return
    archive = _archive(Path(command[command.index("-cp") + 1].partition(":")[0]))
    made = archive.with_name(f"{pid}.jsa")
    subprocess.run(["jcmd", str(pid), "VM.cds", "dynamic_dump", str(made)], capture_output=True, check=False)
    if made.exists():
        made.rename(archive)


class JavaProcess:
    """A broker whose program prints `ready` when it listens. It can be killed, and started again with what it has
    stored."""

    kind: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "broker.log"
        self._process: subprocess.Popen[str] | None = None

    def command(self) -> Sequence[str]:
        """How it is called."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts it, unless it runs, and waits until it listens."""
        if self._process is not None:
            return
        self.launch()
        self.await_ready()
        _keep_classes(self.command(), self.pid)

    def launch(self) -> None:
        """Starts it."""
        with self._log.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def await_ready(self) -> None:
        """Waits until it listens."""
        said = self.hear("ready")
        assert self._process is not None
        assert self._process.poll() is None, f"{self.kind} did not start: {said}, {self._log.read_text('utf-8')}"

    def hear(self, word: str) -> list[str]:
        """The lines that it prints before this one."""
        assert self._process is not None
        assert self._process.stdout is not None
        lines = []
        while (line := self._process.stdout.readline()) != f"{word}\n":
            if not line:
                self._process.wait(30)
                break
            lines.append(line.strip())
        return lines

    def ask(self, word: str) -> str:
        """The line that it prints when it is told this one."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()

    @property
    def pid(self) -> int:
        """Whom to kill."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """kill -9."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
