"""The holdings of PostgreSQL's prepared branches, for operators: their age, their owner, and which tables are locked.

PostgreSQL keeps a row lock in the row and not in its table of locks. That rows are locked can be seen by the lock on
their table which goes with row locks; how many rows it are can't be seen.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, TypeAlias

from rm_db.postgres.gid import decode_gid
from xa.holdings import MAX_HOLDINGS, Holding, InDoubtBranch, Relation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from xa import Xid

REPORT: Final = """
SELECT {gid}, extract(epoch FROM clock_timestamp() - p.prepared), p.owner, p.transaction::text
  FROM pg_prepared_xacts p WHERE {mine} ORDER BY p.prepared, p.gid
"""
"""Age, owner and transaction id of every branch that can be completed here."""

LOCKED: Final = """
SELECT string_agg(l.transactionid::text, ' '),
       json_agg(json_build_array(n.nspname, c.relname, c.relkind, l.mode, c.oid::regclass)
                ORDER BY n.nspname, c.relname, l.mode) FILTER (WHERE c.oid IS NOT NULL)
  FROM pg_locks l
  LEFT JOIN pg_class c ON c.oid = l.relation AND l.locktype = 'relation'
                      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE l.pid IS NULL AND l.locktype IN ('relation', 'transactionid')
 GROUP BY l.virtualtransaction
"""
"""The tables that prepared transactions have locked in this database, each with its transaction id and those of its
savepoints.

The locks of all of them are asked for at once and joined with the branches here, because the server has no statistics
of pg_locks and would join it with itself by comparing every pair."""

_TABLES: Final = frozenset("rpmf")
"""Kinds of relations that hold rows."""
_OF_ROWS: Final = frozenset({"RowShareLock", "RowExclusiveLock"})
"""Modes of table locks that go with locks on rows."""


Locked: TypeAlias = "tuple[str, str, str, str, str]"
"""A lock on a relation: schema, name, kind, mode, and the name as the server's own tools write it."""


def read_locks(rows: Sequence[Sequence[bytes | None]]) -> dict[bytes, list[Locked]]:
    """The result of LOCKED: transaction id → the locks."""
    return {
        transaction: [(*lock,) for lock in json.loads(held.decode("utf-8", "replace"))]
        for transactions, held in rows
        if transactions is not None and held is not None
        for transaction in transactions.split()
    }


def read_report(
    rows: Sequence[Sequence[bytes | None]], locks: Mapping[bytes, Sequence[Locked]]
) -> Iterator[InDoubtBranch]:
    """The branches in the rows of a report, with what they have locked for more than reading. Transactions whose gid is
    not the text form of an xid are left out."""
    for gid_hex, age_s, owner, transaction in rows:
        xid: Xid | None = decode_gid(bytes.fromhex((gid_hex or b"").decode("ascii")))
        if xid is None:
            continue
        holdings = tuple(_holdings(locks.get(transaction or b"", ())))
        yield InDoubtBranch(
            xid,
            float(age_s or b"0"),
            (owner or b"").decode("utf-8", "replace"),
            None,
            holdings[:MAX_HOLDINGS],
            max(len(holdings) - MAX_HOLDINGS, 0),
        )


def _holdings(held: Sequence[Locked]) -> Iterator[Holding]:
    modes: dict[str, list[str]] = {}
    for schema, table, kind, mode, _ in held:
        if kind in _TABLES and schema != "pg_catalog" and mode != "AccessShareLock":
            modes.setdefault(f"{schema}.{table}", []).append(mode)
    for place, of_it in modes.items():
        unit = "row" if _OF_ROWS.issuperset(of_it) else "table"
        yield Holding(Relation.LOCKED, place, unit, None, ", ".join(of_it))
