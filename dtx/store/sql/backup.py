"""A copy of a store in SQLite, taken while its broker is at work, or while none is.

The copy says of itself when it was made, in a record of the kind `COPY`: "openings milliseconds". It is a copy as it
was made as long as the store counts these openings. The record has the last number that the opening could have used,
which no other opening uses.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dtx.store.contract import NUMBERS_PER_OPENING, StoreError
from dtx.store.sql.database import store_url
from dtx.store.sql.tables import opening_number, refuse_other_version
from xa.sql.copying import CopyFailed, copy_file

if TYPE_CHECKING:
    import sqlite3

COPY: Final = "copy"


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """What a copy has: how often the store was opened, messages, and branches in doubt; its octets."""

    openings: int
    messages: int
    branches: int
    octets: int


def back_up(url: str, destination: Path) -> StoreCopy:
    """Copies the store at `url` into the file `destination`, which must not be there. StoreError: there is no copy."""
    parsed = store_url(url)
    if parsed.get_backend_name() not in {"sqlite", "postgresql"}:
        raise StoreError(f"a store lives in sqlite or postgresql, not in {parsed.get_backend_name()}")
    if parsed.get_backend_name() == "postgresql":
        raise StoreError(
            f"a store in PostgreSQL is copied by PostgreSQL, also while the broker is at work: "
            f"pg_dump --format=custom --file={destination} URL"
        )
    found: list[int] = []

    def finish(copy: sqlite3.Connection) -> None:
        facts = dict(copy.execute("SELECT name, value FROM dtx_meta").fetchall())
        refuse_other_version(facts.get("version"))
        openings = opening_number(facts.get("openings"))
        number = (openings + 1) * NUMBERS_PER_OPENING - 1
        record = (number, COPY, f"{openings} {time.time_ns() // 1_000_000}")
        copy.execute("INSERT OR REPLACE INTO dtx_record (number, kind, text) VALUES (?, ?, ?)", record)
        messages = copy.execute("SELECT count(*) FROM dtx_message").fetchone()[0]
        branches = copy.execute("SELECT count(*) FROM dtx_branch").fetchone()[0]
        found.extend((openings, messages, branches))

    try:
        copy_file(Path(str(parsed.database)), destination, finish)
    except CopyFailed as error:
        raise StoreError(str(error)) from error
    openings, messages, branches = found
    return StoreCopy(openings, messages, branches, destination.stat().st_size)
