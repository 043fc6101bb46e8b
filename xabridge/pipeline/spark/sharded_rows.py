"""Rows for the shards of an address: those of one key go to one queue, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from xabridge.shards import shard_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xabridge.pipeline.core import AddressTarget


def by_shard(batch: pa.RecordBatch, target: AddressTarget) -> Iterator[tuple[AddressTarget, pa.RecordBatch]]:
    """The rows of each shard, with its queue. All rows go to the address itself where it has no shards."""
    if not target.shards:
        yield target, batch
        return
    rows: dict[int, list[int]] = {}
    for row, key in enumerate(batch.column(target.key).to_pylist()):
        rows.setdefault(shard_of(key, target.shards), []).append(row)
    for shard in sorted(rows):
        yield target.shard(shard), batch.take(pa.array(rows[shard], pa.int64()))
