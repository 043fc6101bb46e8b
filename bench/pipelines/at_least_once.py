"""The benchmark's other job: a plain Data Source for the same work without distributed transactions, as somebody would
write it who cares for speed: python-qpid-proton, psycopg COPY, Arrow batches, connections kept by each Python worker.

At least once: a task commits its rows when every message that it sends is accepted; what a worker has received it
accepts when it is asked to read a later batch, since Spark has logged the one before then. A crash repeats messages.
"""

from __future__ import annotations

import io
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
from proton import Delivery, Message
from proton.utils import BlockingConnection
from pyarrow import csv
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from bench.pipelines.stage import depth

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

ARROW_ROWS: Final = 10_000
TIMEOUT_S: Final = 120.0
TABLE_COLUMNS: Final = ["number", "content"]
BODY: Final = pa.schema([("body", pa.binary())])


class PlainSource(DataSource):
    """`plain`: options `broker` (host:port), `queue`, `partitions`, `rows` (of a batch)."""

    @classmethod
    def name(cls) -> str:
        """As Spark asks."""
        return "plain"

    def schema(self) -> str:
        """The bodies."""
        return "body binary"

    def streamReader(self, schema: StructType) -> PlainReader:  # noqa: ARG002, N802 — Spark's
        """As Spark asks."""
        return PlainReader(dict(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PlainWriter:  # noqa: ARG002, N802 — Spark's
        """As Spark asks; options `broker`, `address`, `database`, `table`."""
        return PlainWriter(dict(self.options))


class Connections:
    """What one Python worker keeps: its connections, and what it has received and not accepted yet."""

    def __init__(self) -> None:
        self._brokers: dict[str, BlockingConnection] = {}
        self._databases: dict[str, psycopg.Connection[Any]] = {}
        self._links: dict[tuple[str, str], Any] = {}
        self._held: deque[tuple[int, Any]] = deque()

    def broker(self, address: str) -> BlockingConnection:
        """The connection to a broker."""
        if address not in self._brokers:
            self._brokers[address] = BlockingConnection(address, allowed_mechs="ANONYMOUS", timeout=TIMEOUT_S)
        return self._brokers[address]

    def database(self, url: str) -> psycopg.Connection[Any]:
        """The connection to a database."""
        if url not in self._databases:
            self._databases[url] = psycopg.connect(url)
        return self._databases[url]

    def sender(self, broker: str, address: str) -> Any:
        """The link to an address."""
        key = (broker, f">{address}")
        if key not in self._links:
            self._links[key] = self.broker(broker).create_sender(address)
        return self._links[key]

    def receiver(self, broker: str, queue: str) -> Any:
        """The link from a queue, without credit."""
        key = (broker, f"<{queue}")
        if key not in self._links:
            self._links[key] = self.broker(broker).create_receiver(queue, credit=0)
        return self._links[key]

    def accept_before(self, batch: int) -> None:
        """Accepts what was received for earlier batches; gives back what was for this one: it is read again."""
        while self._held:
            received, delivery = self._held.popleft()
            delivery.update(Delivery.ACCEPTED if received < batch else Delivery.RELEASED)
            delivery.settle()

    def hold(self, batch: int, receiver: Any) -> None:
        """What has been received for a batch waits for the next one."""
        unsettled = receiver.fetcher.unsettled
        self._held.extend((batch, delivery) for delivery in unsettled)
        unsettled.clear()


MINE: Final = Connections()


@dataclass(frozen=True)
class Share(InputPartition):
    """What one task reads."""

    batch: int
    rows: int


class PlainReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes messages, and accepts them a batch later."""

    def __init__(self, options: dict[str, str]) -> None:
        self._broker, self._queue = options["broker"], options["queue"]
        self._partitions, self._rows = int(options["partitions"]), int(options["rows"])

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 — Spark's
        """What is there by and by is taken."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 — Spark's
        """No batch yet."""
        return {"batch": 0, "rows": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802 — Spark's
        """One batch more, where there is something in the queue."""
        waiting = depth(MINE.broker(self._broker), self._queue)
        return {"batch": start["batch"] + 1, "rows": min(waiting, self._rows)} if waiting else start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Share]:
        """The batch in equal shares."""
        count = self._partitions
        return [Share(start["batch"], (end["rows"] + number) // count) for number in range(count)]

    def read(self, partition: Share) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """The share, as Arrow batches."""
        MINE.accept_before(partition.batch)
        receiver = MINE.receiver(self._broker, self._queue)
        if partition.rows:
            receiver.link.flow(partition.rows)
        connection, fetcher = MINE.broker(self._broker), receiver.fetcher
        for start in range(0, partition.rows, ARROW_ROWS):
            count = min(ARROW_ROWS, partition.rows - start)
            # BlockingReceiver.receive would ask for one more message whenever everything it asked for is there
            connection.wait(partial(_there, fetcher.incoming, count), timeout=TIMEOUT_S)
            messages = [fetcher.pop() for _ in range(count)]  # a body is a view into its message
            bodies = [bytes(message.body) for message in messages]
            yield pa.record_batch([pa.array(bodies, pa.binary())], schema=BODY)
        MINE.hold(partition.batch, receiver)

    def commit(self, end: dict[str, int]) -> None:
        """The workers accept."""


def _there(incoming: Sequence[Any], count: int) -> bool:
    return len(incoming) >= count


@dataclass
class Written(WriterCommitMessage):
    """What a task has written."""

    rows: int


class PlainWriter(DataSourceStreamArrowWriter):
    """Rows by COPY, messages by pipelined sends."""

    def __init__(self, options: dict[str, str]) -> None:
        self._broker, self._address = options["broker"], options["address"]
        self._database, self._table = options["database"], options["table"]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Sends and copies; the rows are committed when every message is accepted."""
        sender = MINE.sender(self._broker, self._address)
        connection, database = MINE.broker(self._broker), MINE.database(self._database)
        unsettled: deque[Any] = deque()
        rows = 0
        with database.transaction(), database.cursor() as cursor:
            with cursor.copy(f"COPY {self._table} FROM STDIN (FORMAT csv)".encode()) as copy:
                for batch in iterator:
                    octets = io.BytesIO()
                    csv.write_csv(batch.select(TABLE_COLUMNS), octets, csv.WriteOptions(include_header=False))
                    copy.write(octets.getbuffer())
                    for text in batch.column("body").to_pylist():
                        if not sender.link.credit:
                            connection.wait(lambda: sender.link.credit, timeout=TIMEOUT_S)
                        unsettled.append(sender.link.send(Message(body=text.encode(), inferred=True)))
                    rows += batch.num_rows
            connection.wait(lambda: _accepted(unsettled), timeout=TIMEOUT_S)
        return Written(rows)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 — Spark's
        """Everything is written."""

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 — Spark's
        """Nothing is undone: at least once."""


def _accepted(unsettled: deque[Any]) -> bool:
    """Whether the broker has answered for each, and accepted it."""
    while unsettled and unsettled[0].settled:
        delivery = unsettled.popleft()
        if delivery.remote_state != Delivery.ACCEPTED:
            raise RuntimeError(f"a message was not accepted: {delivery.remote_state}")
        delivery.settle()
    return not unsettled
