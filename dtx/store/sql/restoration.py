"""The contents of a SQL store, read back at its opening: queues, branches with their work, fences, facts of
messages."""

from __future__ import annotations

from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import literal_column, select

from dtx.store.contract import (
    PENDING,
    StoredBranch,
    StoredDequeue,
    StoredFence,
    StoredMessage,
    StoredQueue,
    StoredRecord,
)
from dtx.store.sql.database import OPENING_FAILURES, opening_error
from dtx.store.sql.tables import BRANCH, FENCE, MESSAGE, QUEUE, RECORD, WORK
from xa import Code, Xid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sqlalchemy import Connection

FETCHED: Final = 1000
_message: Final[Callable[[type[StoredMessage], Any], StoredMessage]] = tuple.__new__
"""Makes a message from a row. `StoredMessage._make` does so by a call in Python, for each of a million messages."""


class RestoredFromSql:
    """A `dtx.store.contract.Restored`. `messages` reads from `connection` while it is iterated."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.queues: Sequence[StoredQueue] = [
            StoredQueue(*row) for row in connection.execute(select(QUEUE).order_by(QUEUE.c.number))
        ]
        self.fences: Sequence[StoredFence] = [StoredFence(*row) for row in connection.execute(select(FENCE))]
        self.records: Sequence[StoredRecord] = [
            StoredRecord(*row) for row in connection.execute(select(RECORD).order_by(RECORD.c.number))
        ]
        self.branches: Sequence[StoredBranch] = list(self._read_branches())

    def _read_branches(self) -> Iterator[StoredBranch]:
        enqueues: dict[int, list[StoredMessage]] = {}
        dequeues: dict[int, list[StoredDequeue]] = {}
        work = select(WORK.c.branch, WORK.c.message, WORK.c.outcome, MESSAGE).select_from(
            WORK.join(MESSAGE, WORK.c.message == MESSAGE.c.number)
        )
        for branch, message, outcome, *facts in self._connection.execute(work.order_by(WORK.c.branch, WORK.c.ordinal)):
            if outcome is None:
                enqueues.setdefault(branch, []).append(StoredMessage(*facts))
            else:
                dequeues.setdefault(branch, []).append(StoredDequeue(message, outcome))

        for row in self._connection.execute(select(BRANCH).order_by(BRANCH.c.number)):
            number, format_id, gtrid, bqual, owner, prepared_ms, outcome, completed_ms = row
            yield StoredBranch(
                number,
                Xid(format_id, gtrid, bqual),
                owner,
                prepared_ms,
                None if outcome is None else Code(outcome),
                completed_ms or 0,
                tuple(enqueues.get(number, ())),
                tuple(dequeues.get(number, ())),
            )

    def messages(self) -> Iterator[StoredMessage]:
        standing = select(MESSAGE).where(MESSAGE.c.position != literal_column(str(PENDING)))
        standing = standing.order_by(MESSAGE.c.queue, MESSAGE.c.position)
        try:
            if self._connection.dialect.name == "sqlite":  # SQLAlchemy's own rows would take a tenth of the start
                cursor = self._connection.connection.cursor()
                cursor.execute(str(standing.compile(dialect=self._connection.dialect)))
                fetched: Iterable[Sequence[Any]] = iter(partial(cursor.fetchmany, FETCHED), [])
            else:
                fetched = self._connection.execution_options(stream_results=True).execute(standing).partitions(FETCHED)
            yield from map(_message, repeat(StoredMessage), chain.from_iterable(fetched))
        except OPENING_FAILURES as error:
            raise opening_error(error) from None
