"""This module gives the tests their throw-away PostgreSQL, the same as in the benchmarks and the demo, without its
password, and with its data in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.memory_disk import new_folder
from xabridge.testing import postgres

__all__ = ["Postgres"]


class Postgres(postgres.Postgres):
    """It takes everybody's word for who they are: tests come as many users, none of whom has a password."""

    authentication = "trust"

    def __init__(self, settings: Mapping[str, str] | None = None, binaries: Path | None = None) -> None:
        super().__init__(settings, binaries, folder=new_folder("postgres"))
