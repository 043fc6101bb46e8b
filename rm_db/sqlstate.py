"""SQLSTATE → XA code, in one table for each kind of call.

A state is looked up as a whole, then by its class (its first two characters), and then as "", the table's default. The
states are those of PostgreSQL's appendix A; each table says what they mean at its call.
"""

from __future__ import annotations

from typing import Final

from xa import Code
from xa.sql.errors import ErrorKind, kind_of_sqlstate

UNDEFINED_OBJECT: Final = "42704"
INSUFFICIENT_PRIVILEGE: Final = "42501"
OBJECT_IN_USE: Final = "55006"
UNIQUE_VIOLATION: Final = "23505"
FEATURE_NOT_SUPPORTED: Final = "0A000"
OUT_OF_MEMORY: Final = "53200"
DUPLICATE_OBJECT: Final = "42710"

ROLLED_BACK: Final[dict[str, Code]] = {
    "23": Code.XA_RBINTEGRITY,
    "25P02": Code.XA_RBROLLBACK,  # in failed transaction
    "25P03": Code.XA_RBTIMEOUT,  # idle in transaction for too long
    "25P04": Code.XA_RBTIMEOUT,  # transaction_timeout
    "40": Code.XA_RBROLLBACK,
    "40001": Code.XA_RBTRANSIENT,  # serialization failure
    "40002": Code.XA_RBINTEGRITY,
    "40P01": Code.XA_RBDEADLOCK,
    "42710": Code.XA_RBPROTO,  # the gid exists
    "44": Code.XA_RBINTEGRITY,  # check option of a view
    "53": Code.XA_RBTRANSIENT,  # no more room, memory, connections or prepared transactions
    "55006": Code.XA_RBTRANSIENT,
    "55P03": Code.XA_RBTRANSIENT,  # lock not available: lock_timeout or NOWAIT
    "57014": Code.XA_RBTIMEOUT,  # statement_timeout, or cancelled
    "57": Code.XA_RBCOMMFAIL,
    "08": Code.XA_RBCOMMFAIL,
    "": Code.XA_RBOTHER,
}
"""Why work was rolled back: an unprepared branch failed in a statement, at the vote, or at its commit."""

COMMIT_PREPARED: Final[dict[str, Code]] = {
    UNDEFINED_OBJECT: Code.XAER_NOTA,
    FEATURE_NOT_SUPPORTED: Code.XAER_INVAL,  # the gid is another database's: no later try helps
    "": Code.XA_RETRY,
}
"""COMMIT PREPARED failed: whatever the reason, the branch stays prepared."""

ROLLBACK_PREPARED: Final[dict[str, Code]] = {
    UNDEFINED_OBJECT: Code.XAER_NOTA,
    "": Code.XA_RETRY,
}
"""ROLLBACK PREPARED failed: whatever the reason, the branch stays prepared, and the message says why."""


def lookup(table: dict[str, Code], sqlstate: str) -> Code:
    """The code for `sqlstate` in one of the tables above."""
    return table.get(sqlstate) or table.get(sqlstate[:2]) or table[""]


def is_lost(sqlstate: str | None) -> bool:
    """Whether an error with this state, or with none, means that the connection is gone."""
    return sqlstate is None or kind_of_sqlstate(sqlstate) is ErrorKind.LOST
