"""Collects the facts of the machine that a figure was measured on."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any


def machine_facts() -> dict[str, Any]:
    """Processor, memory, operating system and Python; what is unknown is None."""
    return {
        "cpu": _first("/proc/cpuinfo", r"model name\s*:\s*(.+)"),
        "cores": os.cpu_count(),
        "memory_kib": _integer(_first("/proc/meminfo", r"MemTotal:\s*(\d+)")),
        "load_1m": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _first(path: str, pattern: str) -> str | None:
    try:
        match = re.search(pattern, Path(path).read_text())
    except OSError:
        return None
    return match[1].strip() if match else None


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None else None
