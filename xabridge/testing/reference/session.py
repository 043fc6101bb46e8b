"""ReferenceSession: the native interface of the reference resource manager, for one thread of control."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xa.driver import SessionContext
    from xabridge.testing.reference.branch import Association
    from xabridge.testing.reference.driver import ReferenceDriver


class ReferenceSession:
    """A dictionary of committed values, written under the thread's branch. There is no commit here.

    Each operation belongs to the branch that the thread is associated with when it is called: XAER_PROTO when there
    is none, XA_RB* when the branch is rollback-only, XAER_RMFAIL when the connection was lost, KeyLocked when
    another branch has written the key. A resource manager that registers dynamically registers itself instead, and
    outside any global transaction an operation is committed at once.
    """

    __slots__ = ("_context", "_driver")

    def __init__(self, driver: ReferenceDriver, context: SessionContext[Association]) -> None:
        self._driver = driver
        self._context = context

    def read(self, key: str) -> Any:
        """The value that this branch wrote, else the committed one, else None."""
        return self._driver.work(self._context, lambda store, branch: store.read(key, branch))

    def write(self, key: str, value: Any) -> None:
        """Writes; visible to others after commit only, and locked until then."""
        self._driver.work(self._context, lambda store, branch: store.write(key, value, branch))

    def append(self, key: str, item: Any) -> None:
        """Writes the tuple at `key` with `item` behind it."""
        self._driver.work(
            self._context,
            lambda store, branch: store.write(key, (*(store.read(key, branch) or ()), item), branch),
        )
