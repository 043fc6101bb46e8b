"""A throw-away PostgreSQL for tests: the embedded one, in a folder that goes with it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.shop.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Mapping


class Postgres(EmbeddedPostgres):
    """One server with its data folder. Made once, started and stopped as often as a test wants, then removed."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        folder = Path(tempfile.mkdtemp(prefix="xabridge-postgres-"))
        folder.chmod(0o755)
        super().__init__(folder, settings)
