"""is_transient(): tells which errors mean that the same work may succeed in a new transaction.

A manager says so itself with RolledBack. A database says it already when a statement fails: a serialization failure, a
deadlock, a lock that could not be acquired in time. Errors of database drivers are recognised by their SQLSTATE or
number, because this package imports no driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tm.errors import RolledBack
from xa import BranchRolledBack

if TYPE_CHECKING:
    from collections.abc import Iterator

_SQLSTATES: Final = ("40", "55P03")
"""The class of transaction rollbacks; lock not available."""
_NUMBERS: Final = frozenset({1213, 1205, 1020})
"""MariaDB and MySQL: deadlock, lock wait timeout, record changed since the snapshot."""
_SQLITE: Final = frozenset({5, 6})
"""SQLITE_BUSY and SQLITE_LOCKED, without what says more in the upper bits."""
_SQLITE_PRIMARY: Final = 0xFF


def is_transient(error: BaseException) -> bool:
    """Whether `error`, or an error that caused it, is one of these."""
    return any(
        isinstance(one, RolledBack | BranchRolledBack)
        or _text(one).startswith(_SQLSTATES)
        or _first(one) in _NUMBERS
        or getattr(one, "sqlite_errorcode", 0) & _SQLITE_PRIMARY in _SQLITE
        for one in _chain(error)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    following: object = error
    while isinstance(following, BaseException) and following not in seen:
        seen.append(following)
        yield following
        following = getattr(following, "orig", None) or following.__cause__


def _text(error: BaseException) -> str:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return state if isinstance(state, str) else ""


def _first(error: BaseException) -> int:
    """The number that drivers of MariaDB and MySQL put first."""
    first = next(iter(error.args), 0)
    is_theirs = isinstance(first, int) and type(error).__module__.partition(".")[0] not in ("builtins", "")
    return int(first) if is_theirs else 0
