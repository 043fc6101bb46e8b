"""The job that the benchmark compares with: a plain Data Source for the same work without distributed transactions, as
a developer would write it for speed: pipelined sends, psycopg COPY, Arrow batches, and connections that each Python
worker keeps.

It is at-least-once: a task commits its rows when every message that it sends is accepted. A worker accepts what it
received when Spark asks it to read a later batch, because Spark has logged the earlier one before then. A crash repeats
messages.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyarrow import csv
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from bench.pipelines.clients import MINE
from xabridge.testing.management import Management

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

TABLE_COLUMNS: Final = ["number", "content"]
BODY: Final = pa.schema([("body", pa.binary())])


class PlainSource(DataSource):
    """`plain`: options `broker` (host:port), `queue`, `partitions`, `rows` (of a batch)."""

    @classmethod
    def name(cls) -> str:
        return "plain"

    def schema(self) -> str:
        """The bodies."""
        return "body binary"

    def streamReader(self, schema: StructType) -> PlainReader:  # noqa: ARG002, N802 — Spark's
        return PlainReader(dict(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PlainWriter:  # noqa: ARG002, N802 — Spark's
        """Takes the options `broker`, `address`, `database`, `table`."""
        return PlainWriter(dict(self.options))


@dataclass(frozen=True)
class Share(InputPartition):
    """What one task reads."""

    batch: int
    rows: int


class PlainReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes messages, and accepts them a batch later."""

    def __init__(self, options: dict[str, str]) -> None:
        self._client, self._broker, self._queue = options["client"], options["broker"], options["queue"]
        self._partitions, self._rows = int(options["partitions"]), int(options["rows"])

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 — Spark's
        """What is there by and by is taken."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 — Spark's
        """No batch yet."""
        return {"batch": 0, "rows": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802 — Spark's
        """One batch more, where there is something in the queue."""
        waiting = self._depth()
        return {"batch": start["batch"] + 1, "rows": min(waiting, self._rows)} if waiting else start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Share]:
        """The batch in equal shares."""
        count = self._partitions
        return [Share(start["batch"], (end["rows"] + number) // count) for number in range(count)]

    def read(self, partition: Share) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The share, as Arrow batches."""
        client = MINE.client(self._client, self._broker)
        client.settle_before(self._queue, partition.batch)
        if partition.rows:
            for bodies in client.receive(self._queue, partition.batch, partition.rows):
                yield pa.record_batch([pa.array(bodies, pa.binary())], schema=BODY)

    def _depth(self) -> int:
        host, _, port = self._broker.rpartition(":")
        with Management(host, int(port)) as management:
            return management.waiting(self._queue)

    def commit(self, end: dict[str, int]) -> None:
        """The workers accept."""


@dataclass
class Written(WriterCommitMessage):
    """What a task has written."""

    rows: int


class PlainWriter(DataSourceStreamArrowWriter):
    """Rows by COPY, messages by pipelined sends."""

    def __init__(self, options: dict[str, str]) -> None:
        self._client, self._broker, self._address = options["client"], options["broker"], options["address"]
        self._database, self._table = options["database"], options["table"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Sends and copies; the rows are committed when every message is accepted."""
        client, database = MINE.client(self._client, self._broker), MINE.database(self._database)
        rows = 0
        with database.transaction(), database.cursor() as cursor:
            with cursor.copy(f"COPY {self._table} FROM STDIN (FORMAT csv)".encode()) as copy:
                for batch in iterator:
                    octets = io.BytesIO()
                    csv.write_csv(batch.select(TABLE_COLUMNS), octets, csv.WriteOptions(include_header=False))
                    copy.write(octets.getbuffer())
                    client.send(self._address, batch.column("body").to_pylist())
                    rows += batch.num_rows
            client.wait()
        return Written(rows)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 — Spark's
        """Everything is written."""

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 — Spark's
        """Nothing is undone: at least once."""
