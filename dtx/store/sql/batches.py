"""Carries a group of batches out in one transaction: creations first, then changes, then deletions."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from dtx.store.contract import Batch
from dtx.store.sql.statements import ROWS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dtx.store.sql.database import Transactions
    from dtx.store.sql.statements import MultiRowStatement, Statements

CHUNK_ROWS: Final = 16
"""Large rows go in smaller statements: 4 MiB each."""


def carry_out(
    group: Sequence[Batch], transactions: Transactions, statements: Statements, *, leave_payloads: bool = False
) -> None:
    """Everything that `group` tells, in the transaction that was begun; with `leave_payloads` the payloads of messages
    that go stay, and belong to no message any more."""
    batch = group[0] if len(group) == 1 else Batch.merged(group)
    _create(batch, transactions, statements)
    _change(batch, transactions, statements)
    if batch.unshared:
        _keys(transactions, statements.delete_shares, [message for message, _ in batch.unshared])
    if not leave_payloads:
        _delete_payloads(batch, transactions, statements)
    _delete(batch, transactions, statements)


def _create(batch: Batch, transactions: Transactions, statements: Statements) -> None:
    if batch.queues:
        _rows(transactions, statements.insert_queues, [(number, *facts) for number, facts in batch.queues.items()])
    if batch.enqueues:
        _rows(transactions, statements.insert_messages, batch.enqueues)
        _rows(transactions, statements.insert_payloads, batch.payloads)
    if batch.chunks:
        _rows(transactions, statements.insert_chunks, batch.chunks, CHUNK_ROWS)
    if batch.copies:
        _rows(transactions, statements.insert_messages, batch.copies)
        _rows(transactions, statements.insert_shares, batch.shares)
    if batch.branches:
        _rows(transactions, statements.insert_branches, batch.branches)


def _change(batch: Batch, transactions: Transactions, statements: Statements) -> None:
    if batch.placements:
        places = [(message, *place) for message, place in batch.placements.items()]
        _rows(transactions, statements.place, places)
    if batch.fences:
        _keys(transactions, statements.delete_fences, batch.fences)
        fenced = [(gtrid, *fence) for gtrid, fence in batch.fences.items() if fence is not None]
        _rows(transactions, statements.insert_fences, fenced)
    if batch.records:
        _keys(transactions, statements.delete_records, batch.records)
        rows = [(number, *record) for number, record in batch.records.items() if record is not None]
        _rows(transactions, statements.insert_records, rows)
    if batch.completions:
        _rows(transactions, statements.complete, [(*completion, b"") for completion in batch.completions])


def _delete_payloads(batch: Batch, transactions: Transactions, statements: Statements) -> None:
    if batch.dequeues:
        _keys(transactions, statements.delete_payloads, batch.dequeues)
        _keys(transactions, statements.delete_chunks, batch.chunked_dequeues)
    if batch.unshared:
        payloads = dict.fromkeys(payload for _, payload in batch.unshared)
        _keys(transactions, statements.delete_unshared_payloads, payloads)
        _keys(transactions, statements.delete_unshared_chunks, payloads)
    if batch.queues_deleted:  # while their messages are there, by which they are found
        _keys(transactions, statements.delete_payloads_of_queues, batch.queues_deleted)
        _keys(transactions, statements.delete_chunks_of_queues, batch.queues_deleted)
        for queue in batch.queues_deleted:  # one after the other: two may have the last copies of one message
            transactions.execute(statements.delete_payloads_of_copies, (queue, queue))
            transactions.execute(statements.delete_chunks_of_copies, (queue, queue))
            _keys(transactions, statements.delete_shares_of_queues, [queue])


def _delete(batch: Batch, transactions: Transactions, statements: Statements) -> None:
    if batch.dequeues:
        _keys(transactions, statements.delete_messages, batch.dequeues)
    if batch.unposted:
        _keys(transactions, statements.delete_messages, batch.unposted)
    if batch.unshared:
        _keys(transactions, statements.delete_messages, [message for message, _ in batch.unshared])
    if batch.finished:
        _keys(transactions, statements.delete_branches, batch.finished)
    if batch.queues_deleted:
        _keys(transactions, statements.delete_shares_of_queues, batch.queues_deleted)
        _keys(transactions, statements.delete_messages_of_queues, batch.queues_deleted)
        _keys(transactions, statements.delete_queues, batch.queues_deleted)


def _rows(
    transactions: Transactions, many: MultiRowStatement, rows: Sequence[tuple[Any, ...]], at_once: int = ROWS
) -> None:
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        transactions.execute(many.text(len(some)), tuple(chain.from_iterable(some)))


def _keys(transactions: Transactions, many: MultiRowStatement, keys: Collection[Any]) -> None:
    all_keys = tuple(keys)
    for start in range(0, len(all_keys), ROWS):
        some = all_keys[start : start + ROWS]
        transactions.execute(many.text(len(some)), some)
