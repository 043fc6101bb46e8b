"""BreakingOff: a resource manager whose connections can be broken while a thread waits for them."""

from __future__ import annotations

from typing import Protocol

from xa.resource_manager import ResourceManager


class BreakingOff(ResourceManager, Protocol):
    """An optional capability of a resource manager: it has the method, or it has not."""

    def break_off(self) -> None:
        """Breaks every connection at once, as a network does that fails: whatever is being asked over one of them comes
        to XAER_RMFAIL, and the next `open` connects anew. Called by any thread, at any moment, while others are inside
        of a verb; it waits for none of them."""
        ...
