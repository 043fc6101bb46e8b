"""The peer in Java: Narayana, ActiveMQ Artemis and pgjdbc, fetched and built by Maven, as two processes.

The sources are in the folder `java`. Artemis is set up as `artemis create` does it. What Maven has built is kept below
.bench/, and built again only when a source has changed, so that the second time needs no network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.peers.programs import Program
from xabridge.testing.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    Prepare = Literal["together", "in-turn"]

SOURCES: Final = Path(__file__).with_name("java")
PROGRAMS: Final = ("java", "javac", "mvn")
STAMP: Final = "built"
BROKER_OPTIONS: Final = (
    "-XX:AutoBoxCacheMax=20000", "-XX:+UseG1GC", "-XX:+UseStringDeduplication", "-Xms512M", "-Xmx2G",
    "--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED",
)  # fmt: skip
"""Those of the profile that `artemis create` writes."""
CLIENT_OPTIONS: Final = ("-Xms512M", "-Xmx1G")
NATIVE: Final = ("activemq-artemis-native-*.jar", "lib/linux-x86_64/libartemis-native-64.so")
"""The jar with the library that Artemis needs for asynchronous writes; its distribution has it beside the jars."""


class PeerMissing(ModuleNotFoundError):
    """A program that the peers need is not installed, or can't be fetched; the message says which."""


def build(folder: Path) -> list[str]:
    """How Java is called for both programs, which are built into `folder` if they are not there yet."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise PeerMissing(
            f"{', '.join(missing)} not found: the peers in Java need Maven and a JDK of version 17 or newer"
        )

    stamp, wanted = folder / STAMP, _fingerprint()
    if not stamp.is_file() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = ["mvn", "-q", "-B", "-f", str(SOURCES / "pom.xml"), f"-Dtarget={folder}", "compile"]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'lib'}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 — our own command
        if done.returncode:
            (folder / "maven.log").write_text(done.stdout + done.stderr)
            raise PeerMissing(f"Maven could not fetch or build the peers in Java: see {folder / 'maven.log'}")
        _unpack(folder)
        stamp.write_text(wanted)
    classpath = f"{folder / 'classes'}{os.pathsep}{folder / 'lib'}/*"
    return ["java", f"-Djava.library.path={folder / 'native'}", "-cp", classpath]


def _unpack(folder: Path) -> None:
    pattern, library = NATIVE
    for jar in (folder / "lib").glob(pattern):
        with zipfile.ZipFile(jar) as archive:
            native = folder / "native" / Path(library).name
            native.parent.mkdir()
            native.write_bytes(archive.read(library))


def _fingerprint() -> str:
    sources = (path for path in sorted(SOURCES.iterdir()) if path.name == "pom.xml" or path.suffix == ".java")
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()


class Artemis(Program):
    """The broker, with its data in `folder`."""

    def __init__(self, java: Sequence[str], folder: Path) -> None:
        folder.mkdir(parents=True)
        self.port = free_port()
        command = [*java, *BROKER_OPTIONS, "Broker", str(SOURCES / "broker.xml"), str(folder), str(self.port)]
        super().__init__("Artemis", command, folder / "errors")
        self.journal, self.nanoseconds = self.expect("ready").split()


class Narayana(Program):
    """The client, with its log of decisions in `folder`. It prepares both branches "together" or "in-turn"."""

    def __init__(self, java: Sequence[str], folder: Path, artemis: Artemis, database: str, prepare: Prepare) -> None:
        folder.mkdir(parents=True)
        command = [*java, *CLIENT_OPTIONS, "Client", str(artemis.port), str(folder / "log"), artemis.nanoseconds]
        command.append(prepare)
        super().__init__("Narayana", command, folder / "errors", {"PEER_DATABASE": database})
        self.expect("ready")
