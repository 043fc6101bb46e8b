"""The executors' side of a pipeline: `read` and `SinkTask`. No decision log is needed here, and none is loaded.

Resource managers stay open in the process, for the tasks that come after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pipeline.core.messages import Messages
    from pipeline.core.values import AddressTarget, Attempt, SinkPlan, SinkReport, SourcePartition, TableTarget

CHUNK = 10_000


def read(partition: SourcePartition, *, chunk: int = CHUNK) -> Iterator[Messages]:
    """The messages of the partition, at most `chunk` at a time: the same ones in the same order in every attempt.
    They are prepared, durably, before the first one is yielded. BatchRefused: the epoch was given up meanwhile."""
    raise NotImplementedError


class SinkTask:
    """What one attempt of one task writes: a branch for each resource manager, begun when it is first needed.

    As context manager it rolls back what was not prepared.
    """

    def __init__(self, plan: SinkPlan, attempt: Attempt) -> None:
        raise NotImplementedError

    def write_csv(self, target: TableTarget, columns: Sequence[str], octets: bytes, rows: int) -> None:
        """Writes rows in PostgreSQL's CSV form (`COPY … FORMAT csv`: what is empty and not quoted is null). The
        fast way: `pyarrow.csv` writes it. With a key every row is upserted; the last one of a key counts."""
        raise NotImplementedError

    def write_rows(self, target: TableTarget, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Writes rows of Python values."""
        raise NotImplementedError

    def send(self, target: AddressTarget, messages: Messages) -> None:
        """Sends messages."""
        raise NotImplementedError

    def prepare(self) -> SinkReport:
        """Prepares every branch; durable when it returns. BatchRefused: the batch was given up meanwhile, or a row
        can't be written."""
        raise NotImplementedError

    def rollback(self) -> None:
        """Rolls back what is not prepared."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        raise NotImplementedError
