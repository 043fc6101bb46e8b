"""Measures what Spark itself needs for a micro-batch: its source makes rows of nothing, and its sink drops them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType


class Nothing(DataSource):
    """`nothing`: options `partitions`, `rows` (of a batch) and `batches`."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> str:
        return "body binary"

    def streamReader(self, schema: StructType) -> Maker:  # noqa: ARG002, N802 — Spark's
        return Maker(int(self.options["partitions"]), int(self.options["rows"]), int(self.options["batches"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> Dropper:  # noqa: ARG002, N802 — Spark's
        return Dropper()


@dataclass(frozen=True)
class Rows(InputPartition):
    """So many rows."""

    count: int


class Maker(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Makes them."""

    def __init__(self, partitions: int, rows: int, batches: int) -> None:
        self._partitions, self._rows, self._batches = partitions, rows, batches

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 — Spark's
        """Spark calls it; there is nothing to do."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 — Spark's
        return {"batch": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802 — Spark's
        """One batch more."""
        return {"batch": min(start["batch"] + 1, self._batches)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Rows]:  # noqa: ARG002 — Spark's
        """Equal ones."""
        return [Rows(self._rows // self._partitions) for _ in range(self._partitions)]

    def read(self, partition: Rows) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The rows."""
        bodies = pa.array([b"%08d" % number for number in range(partition.count)], pa.binary())
        yield pa.record_batch([bodies], names=["body"])

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do."""


class Dropper(DataSourceStreamArrowWriter):
    """Drops rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Reads them."""
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 — Spark's
        """Nothing to do."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 — Spark's
        """Nothing to do."""
