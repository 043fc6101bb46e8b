"""Which rows of a batch go where: `split` by the target that their routing column names, `by_shard` by the shard of an
address to which their key belongs, so that the rows of one key stay in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from xabridge.pipeline.core import BatchRefused
from xabridge.shards import shard_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xabridge.pipeline.core import AddressTarget
    from xabridge.pipeline.routing import Routing

T = TypeVar("T")


def split(routing: Routing[T], batch: pa.RecordBatch, what: str) -> Iterator[tuple[T, pa.RecordBatch]]:
    """The targets in their order, each with its rows in theirs; targets without rows are left out. `what` is the option
    that names the targets. BatchRefused: a row names no target, and there is no default."""
    if not routing or not len(batch):
        return
    if not routing.column:
        yield routing.targets[0], batch
        return
    places = _places(routing, batch.column(routing.column), what)
    for place, target in enumerate(routing.targets):
        chosen = pc.equal(places, place)
        rows = pc.sum(chosen).as_py()
        if rows:
            yield target, batch if rows == len(batch) else batch.filter(chosen)


def _places(routing: Routing[T], names: pa.Array, what: str) -> pa.Array:
    """The place of each row's target."""
    known = dict(routing.places)
    encoded = names.dictionary_encode()
    values = encoded.dictionary.to_pylist()
    wanted = [known.get(value, routing.default) for value in values]
    if names.null_count:
        values, wanted = [*values, None], [*wanted, routing.default]
    if None in wanted:
        value = values[wanted.index(None)]
        raise BatchRefused(
            f"a row's column {routing.column} is {'null' if value is None else repr(value)}, and names none of the "
            f"options {what} ({', '.join(known)}): correct the query, or set {what}_default",
            of_rows=True,
        )
    indices = encoded.indices.fill_null(len(values) - 1)
    return pa.array(wanted, pa.int32()).take(indices)


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
