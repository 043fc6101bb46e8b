"""is_transient(): tells which errors mean that the same work may succeed in a new transaction.

A manager says so itself with RolledBack. A database says it already when a statement fails: a serialization failure, a
deadlock, a lock that could not be acquired in time (`xa.sql.errors`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tm.errors import RolledBack
from xa import BranchRolledBack
from xa.sql.errors import IN_THE_WAY, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_transient(error: BaseException) -> bool:
    """Whether `error`, or what it was made from, is one of these."""
    return any(isinstance(one, RolledBack | BranchRolledBack) or kind_of(one) in IN_THE_WAY for one in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    following: object = error
    while isinstance(following, BaseException) and following not in seen:
        seen.append(following)
        yield following
        following = getattr(following, "orig", None) or following.__cause__
