"""Carrying out a group of batches in one transaction, kind by kind: creations, changes, deletions."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import bindparam, delete, select, update

from dtx.store.contract import PENDING
from dtx.store.schema import BRANCH, CHUNKS, MESSAGE, PAYLOAD, QUEUE, ROWS, Many, Statements

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection

    from dtx.store.contract import Batch

CHUNK_ROWS: Final = 16
"""Large rows go in smaller statements: 4 MiB each."""


def carry_out(group: Sequence[Batch], connection: Connection, statements: Statements) -> None:
    """Everything that `group` tells, in the connection's transaction."""
    _create(group, connection, statements)
    _change(group, connection, statements)
    _delete(group, connection, statements)


def _create(group: Sequence[Batch], connection: Connection, statements: Statements) -> None:
    def insert(many: Many, rows: Iterable[Sequence[Any]], at_once: int = ROWS) -> None:
        _execute(connection, many, list(rows), at_once)

    insert(statements.insert_queues, chain.from_iterable(batch.queues for batch in group))
    insert(statements.insert_messages, chain.from_iterable(batch.enqueues for batch in group))
    insert(statements.insert_payloads, chain.from_iterable(batch.payloads for batch in group))
    insert(statements.insert_chunks, chain.from_iterable(batch.chunks for batch in group), CHUNK_ROWS)
    insert(
        statements.insert_branches,
        (
            (number, xid.format_id, xid.gtrid, xid.bqual, owner, prepared_ms)
            for batch in group
            for number, xid, owner, prepared_ms in batch.branches
        ),
    )
    insert(statements.insert_work, chain.from_iterable(batch.work for batch in group))


def _change(group: Sequence[Batch], connection: Connection, statements: Statements) -> None:
    placements: dict[int, tuple[int, int, int]] = {}
    fences: dict[bytes, tuple[str, int] | None] = {}
    for batch in group:
        placements.update(batch.placements)
        fences.update(batch.fences)
    _execute(connection, statements.place, [(message, *place) for message, place in placements.items()])
    _execute(connection, statements.delete_fences, [(gtrid,) for gtrid in fences])
    fenced = [(gtrid, *fence) for gtrid, fence in fences.items() if fence is not None]
    _execute(connection, statements.insert_fences, fenced)
    completions = [completion for batch in group for completion in batch.completions]
    if completions:
        complete = update(BRANCH).where(BRANCH.c.number == bindparam("branch"))
        connection.execute(
            complete.values(outcome=bindparam("code"), completed_ms=bindparam("at")),
            [{"branch": branch, "code": code, "at": at} for branch, code, at in completions],
        )
        _execute(connection, statements.delete_work, [(branch,) for branch, _, _ in completions])


def _delete(group: Sequence[Batch], connection: Connection, statements: Statements) -> None:
    def drop(many: Many, keys: Iterable[int]) -> None:
        _execute(connection, many, [(key,) for key in keys])

    dequeues = [message for batch in group for message in batch.dequeues]
    drop(statements.delete_messages, dequeues)
    drop(statements.delete_payloads, dequeues)
    drop(statements.delete_chunks, chain.from_iterable(batch.chunked_dequeues for batch in group))
    finished = [branch for batch in group for branch in batch.finished]
    drop(statements.delete_branches, finished)
    drop(statements.delete_work, finished)
    queues = [queue for batch in group for queue in batch.queues_deleted]
    if queues:
        standing = (MESSAGE.c.queue.in_(queues), MESSAGE.c.position != PENDING)
        messages = select(MESSAGE.c.number).where(*standing)
        for table in (PAYLOAD, CHUNKS):
            connection.execute(delete(table).where(table.c.message.in_(messages)))
        connection.execute(delete(MESSAGE).where(*standing))
        connection.execute(delete(QUEUE).where(QUEUE.c.number.in_(queues)))


def _execute(connection: Connection, many: Many, rows: Sequence[Sequence[Any]], at_once: int = ROWS) -> None:
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        connection.exec_driver_sql(many.text(len(some)), tuple(chain.from_iterable(some)))
