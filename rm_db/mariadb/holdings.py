"""The holdings of prepared branches of MariaDB and MySQL, for operators, as far as the server tells.

XA RECOVER lists xids, and information_schema.INNODB_TRX lists InnoDB's transactions, without their xids. What brings
the two together is the session: that of a branch of ours holds the user lock `rm_db.mariadb.xid.lock_name`. When the
session has ended, for instance because its program or the server has crashed, InnoDB's transaction has none. Then the
two are one only if there is no second branch and no second transaction without a session; otherwise it is unknown.

INNODB_TRX has the numbers of locked rows and of tables, and not the tables' names. MariaDB names a table if another
transaction waits for a lock on it (INNODB_LOCKS); MySQL 8 names all (performance_schema.data_locks). MariaDB's numbers
are lower than the truth for rows that were inserted, and begin at 0 when the server starts again. These tables need the
right PROCESS, in MySQL also SELECT on performance_schema; a user without it sees only the xids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rm_db.mariadb.xid import lock_name
from xa.holdings import MAX_HOLDINGS, Holding, InDoubtBranch, Relation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from xa import Xid

TRANSACTIONS: Final = (
    b"SELECT trx_id, trx_mysql_thread_id, trx_tables_locked, trx_rows_locked, trx_rows_modified"
    b" FROM information_schema.innodb_trx"
)
MARIADB_TABLES: Final = b"SELECT DISTINCT lock_trx_id, lock_table FROM information_schema.innodb_locks"
MYSQL_TABLES: Final = (
    b"SELECT DISTINCT engine_transaction_id, CONCAT(object_schema, '.', object_name)"
    b" FROM performance_schema.data_locks WHERE object_name IS NOT NULL"
)
_AT_ONCE: Final = 50


class Locks(NamedTuple):
    """One of InnoDB's transactions: its session, 0 where that has ended, and what it has locked and changed."""

    session: int
    tables: int
    rows: int
    changes: int
    names: tuple[str, ...]


def holder_queries(xids: Sequence[Xid]) -> Iterator[bytes]:
    """Statements each of which answers with one row: the sessions of so many branches, in their order."""
    for start in range(0, len(xids), _AT_ONCE):
        asked = ", ".join(f"IS_USED_LOCK('{lock_name(xid)}')" for xid in xids[start : start + _AT_ONCE])
        yield f"SELECT {asked}".encode("ascii")


def read_locks(transactions: Sequence[Sequence[Any]], tables: Sequence[Sequence[Any]]) -> list[Locks]:
    """The answers to TRANSACTIONS and to MARIADB_TABLES or MYSQL_TABLES."""
    names: dict[int, list[str]] = {}
    for transaction, table in tables:
        names.setdefault(int(transaction), []).append(str(table).replace("`", ""))
    return [
        Locks(int(session), int(count), int(rows), int(changes), tuple(sorted(names.get(int(transaction), ()))))
        for transaction, session, count, rows, changes in transactions
    ]


def report(sessions: Mapping[Xid, int | None], locks: Sequence[Locks]) -> Iterator[InDoubtBranch]:
    """The branches, with what is known of each. `sessions` has the session of each that still has one."""
    by_session = {one.session: one for one in locks if one.session}
    left = [xid for xid, session in sessions.items() if session is None]
    without_session = [one for one in locks if not one.session]
    sure = without_session[0] if len(left) == len(without_session) == 1 else None
    for xid, session in sessions.items():
        found = by_session.get(session) if session is not None else None
        holdings = tuple(_holdings(found or (sure if xid in left else None)))
        yield InDoubtBranch(xid, holdings=holdings[:MAX_HOLDINGS], omitted=max(len(holdings) - MAX_HOLDINGS, 0))


def _holdings(found: Locks | None) -> Iterator[Holding]:
    if found is None:
        return
    changed = f"{found.changes} change{'' if found.changes == 1 else 's'}"
    tables = f"{found.tables} table{'' if found.tables == 1 else 's'}"
    yield Holding(Relation.LOCKED, tables, "row", found.rows or None, changed)
    for name in found.names:
        yield Holding(Relation.LOCKED, name, "row")
