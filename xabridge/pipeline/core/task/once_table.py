"""The table of the rows that were written: what makes a backfill write each row once.

A row is identified by a value, like the id of its message. The value goes into the table under the branch that writes
the row, so both are committed, or neither. A value that is there was written before: the row is left out. Queries that
share the table share its values, like a live query and a backfill.

If another transaction has just written a value, the database waits for its outcome. A batch that waits for another one
holds values itself, for which the other may wait. So it waits for a bounded time, then the attempt fails. One batch
must not have a value in two tasks, because the second would wait for the decision, and the decision for it. So rows of
one value come to one task (`xabridge.pipeline.spark.once_shuffle`).

Indexes take keys of a limited length. So the table keeps `key_of` a value: the value itself if it has at most 512
octets, else its beginning and the SHA-256 of the whole, which is longer than 512 octets.

`xabridge.pipeline.core.task.once_postgres` and `once_mariadb` have the tables of each kind of database.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from xabridge.pipeline.core.errors import BatchRefused

if TYPE_CHECKING:
    from xabridge.pipeline.core.values import OnceSettings

LONGEST: Final = 512
"""Octets of a value that is kept as it is."""
MOST: Final = LONGEST + hashlib.sha256().digest_size * 2
"""Octets that a key has at most."""


def key_of(value: str) -> str:
    """What the table keeps of a value. Different values have different keys."""
    octets = value.encode("utf-8")
    if len(octets) <= LONGEST:
        return value
    return octets[:LONGEST].decode("utf-8", "ignore") + hashlib.sha256(octets).hexdigest()


def refused(once: OnceSettings, error: Exception) -> BatchRefused:
    """Another transaction holds one of the values."""
    return BatchRefused(
        f"{once.values.table}: rows with the same {once.column} are just being written by another batch, or by "
        f"another task of this one: {error}"
    )
