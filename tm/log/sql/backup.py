"""A copy of a SqlLog in a file of SQLite, taken while a process is at work with it.

In the copy each incarnation that was not closed is cut (`tm.log.incarnations`): it presumes nothing about what they
decided since. So it does not depend on the identity of its file, by which a copy made by other means is recognised.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from tm.log.backup import BackUp
from tm.log.contract import LogError
from tm.log.incarnations import INCARNATION, IncarnationState, IncarnationVerb
from tm.log.sql.database import database_url
from tm.log.sql.log import read_sql_log
from tm.log.sql.tables import VERSION
from xa.format_version import version_refusal
from xa.machine import advance
from xa.sql.copying import CopyFailed, copy_file

if TYPE_CHECKING:
    import sqlite3


def back_up_sql(url: str, node: str, destination: Path) -> BackUp:
    """Copies the file of SQLite that `url` names, with the logs of every node in it, into the file `destination`, which
    must not be there; what it has of `node`. LogError: there is no copy."""
    parsed = database_url(url)
    if parsed.get_backend_name() != "sqlite":
        raise LogError(
            "a log in PostgreSQL is copied by PostgreSQL, also while managers are at work: "
            f"pg_dump --format=custom --file={destination} URL"
        )
    try:
        copy_file(Path(str(parsed.database)), destination, _cut)
    except CopyFailed as error:
        raise LogError(str(error)) from error
    image = read_sql_log(f"sqlite:///{destination.absolute()}", node)
    return BackUp(node, image.log_id, len(image.decisions), len(image.heuristics), image.incarnations.cut)


def _cut(copy: sqlite3.Connection) -> None:
    versions = [version for (version,) in copy.execute("SELECT version FROM xabridge_schema")]
    if len(versions) != 1 or not isinstance(versions[0], int):
        raise CopyFailed("the decision log lacks its version: it is damaged")
    refusal = version_refusal("the decision log", versions[0], VERSION)
    if refusal is not None:
        raise CopyFailed(refusal)
    cut = advance(INCARNATION, IncarnationState.OPEN, IncarnationVerb.COPY)
    change = "UPDATE xabridge_incarnation SET standing = ? WHERE standing = ?"
    copy.execute(change, (cut.value, IncarnationState.OPEN.value))
    copy.execute("UPDATE xabridge_node SET lease_until = 0.0, holder = 'nobody', worked_at = ?", (time.time(),))
    # the leases are on the original
