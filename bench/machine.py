"""Collects the facts of the machine that a figure was measured on, and finds the interpreter to measure with.

An interpreter that was built with profile-guided optimisation, as distributions ship it, is a quarter faster in a loop
than one that was built without. So a figure says which one it comes from, and benchmarks run with the distribution's
interpreter where there is one of the same version.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import sysconfig
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).parents[1]
USE_PROFILE: Final = "-fprofile-use"
NEEDED: Final = "import ctypes, sqlite3, ssl"
"""What a small package of an interpreter may lack."""
FLAGS: Final = ("PY_CFLAGS", "PY_CFLAGS_NODIST", "PY_CORE_CFLAGS", "CFLAGS", "CONFIGURE_CFLAGS")


def machine_facts() -> dict[str, Any]:
    """Processor, memory, operating system, Python and the date; what is unknown is None."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": _first("/proc/cpuinfo", r"model name\s*:\s*(.+)"),
        "cores": os.cpu_count(),
        "memory_kib": _integer(_first("/proc/meminfo", r"MemTotal:\s*(\d+)")),
        "load_1m": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "python_build": " ".join((*platform.python_build(), platform.python_compiler())),
        "python_optimised": optimisation(sysconfig.get_config_vars()),
    }


def optimisation(build: Mapping[str, Any]) -> str:
    """How an interpreter was optimised when it was built, as its build's variables (`sysconfig`) say: "profile" or
    "none", with "link-time" behind it.

    Debian gives the profile to `make`, not to `configure`, and removes the flags from the variables afterwards: what
    `configure` always writes, the flags for the use of a profile, is empty there, and nowhere else.
    """
    given = str(build.get("CONFIG_ARGS") or "")
    flags = " ".join(str(build.get(name) or "") for name in FLAGS)
    removed = build.get("PGO_PROF_USE_FLAG") == "" and "PGO_PROF_GEN_FLAG" in build
    profiled = "--enable-optimizations" in given or USE_PROFILE in flags or removed
    linked = "--with-lto" in given or "-flto" in flags
    return ("profile" if profiled else "none") + (", link-time" if linked else "")


def run_with_the_systems_interpreter() -> None:
    """Goes on as the interpreter of the distribution, if this one was built without a profile and the other one has the
    same version (its packages stay those of this one). It returns where there is none."""
    system = Path(f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}")
    if optimisation(sysconfig.get_config_vars()) != "none" or not system.exists():
        return
    if system.resolve() == Path(sys.executable).resolve():
        return
    whole = subprocess.run([system, "-c", NEEDED], capture_output=True, check=False)  # noqa: S603 — our own command
    if whole.returncode:
        return

    paths = (str(ROOT), sysconfig.get_path("purelib"), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    os.execve(system, [str(system), *sys.orig_argv[1:]], environment)  # noqa: S606 — our own command


def _first(path: str, pattern: str) -> str | None:
    try:
        match = re.search(pattern, Path(path).read_text())
    except OSError:
        return None
    return match[1].strip() if match else None


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None else None
