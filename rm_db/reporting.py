"""What PostgreSQL's prepared branches hold, for operators: since when, whose, and which tables are locked.

A row lock stands in the row, not in the server's table of locks: that rows of a table are locked shows by the lock on
the table that goes with it, and how many can't be told.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from rm_db.gid import decode_gid
from xa.holdings import MAX_HOLDINGS, Holding, InDoubtBranch, Relation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from xa import Xid

REPORT: Final = """
WITH locks AS MATERIALIZED (SELECT * FROM pg_locks WHERE pid IS NULL),
     tables AS (
         SELECT x.transactionid::text AS transaction, json_agg(json_build_array(n.nspname, c.relname, l.mode)
                                          ORDER BY n.nspname, c.relname, l.mode) AS held
           FROM locks x
           JOIN locks l ON l.virtualtransaction = x.virtualtransaction AND l.locktype = 'relation'
           JOIN pg_class c ON c.oid = l.relation
           JOIN pg_namespace n ON n.oid = c.relnamespace
          WHERE x.locktype = 'transactionid' AND c.relkind IN ('r', 'p', 'm', 'f') AND n.nspname <> 'pg_catalog'
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND l.mode <> 'AccessShareLock'
          GROUP BY x.transactionid::text)
SELECT {gid}, extract(epoch FROM clock_timestamp() - p.prepared), p.owner, t.held
  FROM pg_prepared_xacts p LEFT JOIN tables t ON t.transaction = p.transaction::text
 WHERE {mine} ORDER BY p.prepared, p.gid
"""
"""Age and owner of every branch that can be completed here, and the tables that it has locked for more than reading."""

_OF_ROWS: Final = frozenset({"RowShareLock", "RowExclusiveLock"})
"""Modes of table locks that go with locks on rows."""


def read_report(rows: Sequence[Sequence[bytes | None]]) -> Iterator[InDoubtBranch]:
    """The branches in the rows of a report; what somebody else named is left out."""
    for gid_hex, age_s, owner, held in rows:
        xid: Xid | None = decode_gid(bytes.fromhex((gid_hex or b"").decode("ascii")))
        if xid is None:
            continue
        holdings = tuple(_holdings(json.loads((held or b"[]").decode("utf-8", "replace"))))
        yield InDoubtBranch(
            xid,
            float(age_s or b"0"),
            (owner or b"").decode("utf-8", "replace"),
            None,
            holdings[:MAX_HOLDINGS],
            max(len(holdings) - MAX_HOLDINGS, 0),
        )


def _holdings(held: list[tuple[str, str, str]]) -> Iterator[Holding]:
    modes: dict[str, list[str]] = {}
    for schema, table, mode in held:
        modes.setdefault(f"{schema}.{table}", []).append(mode)
    for place, of_it in modes.items():
        unit = "row" if _OF_ROWS.issuperset(of_it) else "table"
        yield Holding(Relation.LOCKED, place, unit, None, ", ".join(of_it))
