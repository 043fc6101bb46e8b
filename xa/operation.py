"""Operation: a verb that was called with TMASYNC, from the call until `complete` has returned its result."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from xa.errors import XaError

if TYPE_CHECKING:
    from xa.association import Association, Thread
    from xa.codes import Code
    from xa.driver import Pending
    from xa.xid import Xid

W = TypeVar("W")


@dataclass(slots=True, eq=False)
class Operation(Generic[W]):
    """An asynchronous operation whose result `complete` has not returned: state A1 of table 6-5. Its answer is
    `pending`, or is here already as `code` and `error`."""

    thread: Thread[W]
    verb: str
    xid: Xid | None
    pending: Pending | None = None
    late: Association[W] | None = None
    """The association that ends with it, where its answer is `pending`."""
    code: Code | None = None
    error: XaError | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the one thread that waits for the answer."""

    @property
    def ready(self) -> bool:
        """Whether the answer is there without waiting."""
        if self.code is not None or self.pending is None:
            return True
        if not self.lock.acquire(blocking=False):
            return False
        try:
            return self.pending.ready()
        finally:
            self.lock.release()

    def answer(self) -> Code:
        """Its result, waiting for it where it is not there yet."""
        with self.lock:
            code = self.code
            if code is None and self.pending is not None:
                try:
                    code = self.pending.result()
                except XaError as error:
                    code, self.error = error.code, error
                self.code = code
        assert code is not None  # noqa: S101 — it has either from the beginning
        return code
