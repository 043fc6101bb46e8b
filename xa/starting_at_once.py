"""StartingAtOnce: a resource manager that knows whether `start` would have to wait, so that a task of an event loop
need not ask a worker thread to call it."""

from __future__ import annotations

from typing import Protocol

from xa.resource_manager import ResourceManager


class StartingAtOnce(ResourceManager, Protocol):
    """An optional capability of a resource manager: it has the method, or it has not. To call `start` in a thread that
    may wait is always as right."""

    def starts_at_once(self, rmid: int) -> bool:
        """Whether `start` of a new branch with TMNOWAIT, called now by the same thread of control, would return without
        waiting for its server or for another thread, as far as is known. It never raises.

        It is a forecast: another thread may take the last free connection meanwhile. Then `start` answers XA_RETRY, or
        makes a connection."""
        ...
