"""This module runs a few lines of Python in a process of their own, and looks at what a package exports and loads."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any


def output_of(code: str, *arguments: str, **options: Any) -> str:
    """What these lines write. They must end without an error."""
    command = [sys.executable, "-c", code, *arguments]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(code: str) -> set[str]:
    """The modules that are loaded when these lines have run."""
    return set(output_of(f"{code}\nimport sys\nprint(*sys.modules)").splitlines()[-1].split())


def check_exports(package: ModuleType, names: str) -> None:
    """The package exports these names, and none that it does not have; also where it loads them when they are used."""
    assert sorted(package.__all__) == sorted(names.split())
    assert set(getattr(package, "_HOME", ())) <= set(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert not hasattr(package, "nothing")
