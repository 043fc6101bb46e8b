"""Carrying out a group of batches in one transaction, kind by kind: creations, changes, deletions."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from dtx.store.schema import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dtx.store.contract import Batch
    from dtx.store.databases import Transactions
    from dtx.store.schema import Many, Statements

CHUNK_ROWS: Final = 16
"""Large rows go in smaller statements: 4 MiB each."""


def carry_out(group: Sequence[Batch], transactions: Transactions, statements: Statements) -> None:
    """Everything that `group` tells, in the transaction that was begun."""
    _create(group, transactions, statements)
    _change(group, transactions, statements)
    _delete(group, transactions, statements)


def _create(group: Sequence[Batch], transactions: Transactions, statements: Statements) -> None:
    def insert(many: Many, rows: Iterable[Sequence[Any]], at_once: int = ROWS) -> None:
        _execute(transactions, many, list(rows), at_once)

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


def _change(group: Sequence[Batch], transactions: Transactions, statements: Statements) -> None:
    placements: dict[int, tuple[int, int, int]] = {}
    fences: dict[bytes, tuple[str, int] | None] = {}
    for batch in group:
        placements.update(batch.placements)
        fences.update(batch.fences)
    _execute(transactions, statements.place, [(message, *place) for message, place in placements.items()])
    _execute(transactions, statements.delete_fences, [(gtrid,) for gtrid in fences])
    fenced = [(gtrid, *fence) for gtrid, fence in fences.items() if fence is not None]
    _execute(transactions, statements.insert_fences, fenced)
    completions = [completion for batch in group for completion in batch.completions]
    _execute(transactions, statements.complete, completions)
    _execute(transactions, statements.delete_work, [(branch,) for branch, _, _ in completions])


def _delete(group: Sequence[Batch], transactions: Transactions, statements: Statements) -> None:
    def drop(many: Many, keys: Iterable[int]) -> None:
        _execute(transactions, many, [(key,) for key in keys])

    dequeues = [message for batch in group for message in batch.dequeues]
    drop(statements.delete_messages, dequeues)
    drop(statements.delete_payloads, dequeues)
    drop(statements.delete_chunks, chain.from_iterable(batch.chunked_dequeues for batch in group))
    finished = [branch for batch in group for branch in batch.finished]
    drop(statements.delete_branches, finished)
    drop(statements.delete_work, finished)
    queues = [queue for batch in group for queue in batch.queues_deleted]
    drop(statements.delete_payloads_of_queues, queues)
    drop(statements.delete_chunks_of_queues, queues)
    drop(statements.delete_messages_of_queues, queues)
    drop(statements.delete_queues, queues)


def _execute(transactions: Transactions, many: Many, rows: Sequence[Sequence[Any]], at_once: int = ROWS) -> None:
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        transactions.execute(many.text(len(some)), tuple(chain.from_iterable(some)))
