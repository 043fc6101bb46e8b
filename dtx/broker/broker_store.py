"""BrokerStore: the message store as the broker on an event loop uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dtx.store.contract import MessageStore

if TYPE_CHECKING:
    from collections.abc import Callable


class BrokerStore(MessageStore, Protocol):
    """A store as the broker uses it, turn by turn."""

    @property
    def waits(self) -> bool:
        """Whether it has something to write that this turn has not."""
        ...

    @property
    def busy(self) -> bool:
        """Whether its thread has batches, of which it will deliver the completion."""
        ...

    @property
    def may_tell(self) -> bool:
        """Whether what is known of the store may be told: no other process can have it now."""
        ...

    @property
    def full(self) -> bool:
        """Whether it takes only what frees space."""
        ...

    @property
    def octets(self) -> int | None:
        """Its size; None where nobody here knows."""
        ...

    forced: Callable[[float, int], None]
    """Told of every force, in the thread that does it, if set before `open`: how long it took, and how many batches it
    made durable."""

    def write(self) -> None:
        """Writes what was submitted in this turn."""
        ...

    def hand_over(self) -> None:
        """Gives its thread what was submitted, for the last time before `close`."""
        ...

    def maintain(self) -> None:
        """Called now and then, for work that may wait."""
        ...
