"""The contents of a SQL store, read back at its opening: queues, branches with their work, fences, facts of
messages.

A broker's start and a look from outside (`dtx.store.sql.inspection`) read them here, so that what one of them refuses,
the other one refuses too.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, repeat
from operator import ge, itemgetter
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import func, literal_column, select

from dtx.store.contract import (
    NUMBERS_PER_OPENING,
    PENDING,
    StoreDamaged,
    StoredBranch,
    StoredDequeue,
    StoredFence,
    StoredMessage,
    StoredQueue,
    StoredRecord,
    read_held_messages,
)
from dtx.store.sql.database import OPENING_FAILURES
from dtx.store.sql.tables import BRANCH, FENCE, MESSAGE, QUEUE, RECORD, RESTORE, SHARE, checked
from xa import Code, Xid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Connection, Table

    from dtx.store.contract import StoreError

FETCHED: Final = 1000
_PLACE: Final = itemgetter(1, 2)
"""Of a row of a message: its queue and position."""
_DUE: Final = itemgetter(6)
_message: Final[Callable[[type[StoredMessage], Any], StoredMessage]] = tuple.__new__
"""Makes a message from a row. `StoredMessage._make` does so by a call in Python, for each of a million messages."""


class RestoredFromSql:
    """A `dtx.store.contract.Restored` of a store whose next numbers begin at `first_number`. StoreDamaged: it holds
    what no store writes. `messages` reads from `connection` while it is iterated; an error of the database is what
    `refusal` makes of it there, and is raised as it is before that."""

    def __init__(self, connection: Connection, first_number: int, refusal: Callable[[Exception], StoreError]) -> None:
        self._connection = connection
        self._refusal = refusal
        self.queues: Sequence[StoredQueue] = [StoredQueue(*row) for row in self._rows(QUEUE)]
        self.fences: Sequence[StoredFence] = [StoredFence(*row) for row in self._rows(FENCE)]
        self.records: Sequence[StoredRecord] = [StoredRecord(*row) for row in self._rows(RECORD)]
        self.shares: Mapping[int, int] = dict(map(tuple, self._rows(SHARE)))
        self.branches: Sequence[StoredBranch] = list(self._read_branches())
        self._check_numbers(first_number)

    def _rows(self, table: Table) -> Sequence[Any]:
        return checked(self._connection.execute(select(table).order_by(*table.primary_key)).all(), table.columns)

    def _check_numbers(self, first_number: int) -> None:
        """None was given out that the next openings give out again."""
        highest = func.max(MESSAGE.c.number), func.max(MESSAGE.c.position)
        ((number, position),) = checked(
            self._connection.execute(select(*(func.coalesce(one, 0) for one in highest))).all(),
            (MESSAGE.c.number, MESSAGE.c.position),
        )
        kept: Sequence[Any] = (*self.queues, *self.records, *self.branches)
        shared = max(self.shares.values(), default=0)
        if max(number, position, shared, *(one.number for one in kept)) >= first_number:
            raise StoreDamaged(
                f"the store was opened {first_number // NUMBERS_PER_OPENING - 1} times by its own count, and has "
                f"numbers of a later opening: {RESTORE}"
            )

    def _read_branches(self) -> Iterator[StoredBranch]:
        pending = select(MESSAGE).where(MESSAGE.c.position == literal_column(str(PENDING)))
        rows = checked(self._connection.execute(pending).all(), MESSAGE.columns)
        posts = {row.number: StoredMessage(*row) for row in rows}

        for number, format_id, gtrid, bqual, owner, prepared_ms, octets, outcome, completed_ms in self._rows(BRANCH):
            held = _held(octets)
            enqueues = [message for message, how in held if how is None]
            if not posts.keys() >= set(enqueues):
                raise StoreDamaged(f"the store lacks messages that prepared branches post: {RESTORE}")
            yield StoredBranch(
                number,
                Xid(format_id, gtrid, bqual),
                owner,
                prepared_ms,
                None if outcome is None else Code(outcome),
                completed_ms or 0,
                tuple(posts.pop(message) for message in enqueues),
                tuple(StoredDequeue(message, how) for message, how in held if how is not None),
            )
        if posts:
            raise StoreDamaged(f"the store lacks branches that hold messages: {RESTORE}")

    def messages(self) -> Iterator[StoredMessage]:
        standing = select(MESSAGE).where(MESSAGE.c.position != literal_column(str(PENDING)))
        standing = standing.order_by(MESSAGE.c.queue, MESSAGE.c.position)
        try:
            if self._connection.dialect.name == "sqlite":  # SQLAlchemy's own rows would take a tenth of the start
                cursor = self._connection.connection.cursor()
                cursor.execute(str(standing.compile(dialect=self._connection.dialect)))
                fetched: Iterable[Sequence[Sequence[Any]]] = iter(partial(cursor.fetchmany, FETCHED), [])
            else:
                fetched = self._connection.execution_options(stream_results=True).execute(standing).partitions(FETCHED)
            yield from map(_message, repeat(StoredMessage), chain.from_iterable(_in_places(fetched)))
        except OPENING_FAILURES as error:
            raise self._refusal(error) from None


def _in_places(fetched: Iterable[Sequence[Sequence[Any]]]) -> Iterator[Sequence[Sequence[Any]]]:
    """The rows of messages, in the order of their places. StoreDamaged: two have the same place, or one that stands in
    its queue waits for the commit of a branch."""
    before: tuple[Any, ...] = (0, PENDING)
    for rows in fetched:
        places = list(map(_PLACE, checked(rows, MESSAGE.columns)))
        if any(map(ge, [before, *places], places)):
            raise StoreDamaged(f"the store has two messages in one place: {RESTORE}")
        if min(map(_DUE, rows)) < 0:
            raise StoreDamaged(f"the store has a message whose delay has not begun in its queue: {RESTORE}")
        before = places[-1]
        yield rows


def _held(octets: bytes) -> list[tuple[int, bytes | None]]:
    try:
        return read_held_messages(octets)
    except ValueError as error:
        raise StoreDamaged(f"a row of the table {BRANCH.name} of the store: {error}; {RESTORE}") from None
