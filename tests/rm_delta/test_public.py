"""These tests pin the public names of rm_delta, and that a resource manager's name is known without its library."""

from __future__ import annotations

import subprocess
import sys

import rm_delta


def test_public_names() -> None:
    assert sorted(rm_delta.__all__) == ["DeltaResource", "DeltaSession", "NAME"]
    assert set(rm_delta.__all__) <= set(dir(rm_delta))
    for name in rm_delta.__all__:
        assert getattr(rm_delta, name) is not None
    assert not hasattr(rm_delta, "nothing")


def test_importing_it_loads_nothing_else() -> None:
    code = "import sys, rm_delta, xabridge.pipeline.core.resources; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"deltalake", "pyarrow"} & set(told.stdout.split())
