"""BranchSession: SQLAlchemy's ORM session inside a branch's transaction.

It has a module of its own because SQLAlchemy's ORM takes a tenth of a second to load, and only applications that use it
need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session as OrmSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_db.sessions.connection import BranchConnection


class BranchSession(OrmSession):
    """An ORM session in the middle of a branch's transaction."""

    def __init__(self, connection: BranchConnection) -> None:
        super().__init__(bind=connection, join_transaction_mode="rollback_only")
        self._branch = connection

    def begin(self, nested: bool = False) -> Any:
        """A savepoint with `nested`; refused without."""
        if not nested:
            self._branch.refuse("begin()")
        with self._branch.hold():
            return super().begin(nested=True)

    def flush(self, objects: Sequence[Any] | None = None) -> None:
        """Holds the connection from its first statement to its last, because SQLAlchemy would roll the whole
        transaction back if a statement in the middle were refused."""
        with self._branch.hold():
            super().flush(objects)

    def commit(self) -> None:
        self._branch.refuse("commit()")

    def rollback(self) -> None:
        self._branch.refuse("rollback()")

    def close(self) -> None:
        self._branch.refuse("close()")

    def invalidate(self) -> None:
        self._branch.refuse("invalidate()")
