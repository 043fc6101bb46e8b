"""OutcomeNotes: an optional capability of a resource manager. It gives a note of a prepared branch, by which it can
tell later what became of that branch, also to another process.

An instance offers it if and only if it has both methods. The transaction manager keeps the notes with the decision to
commit. It asks for the outcome where a branch of a decision is not there any more: usually it was committed before a
crash, but somebody may have rolled it back by hand.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from xa.resource_manager import ResourceManager

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xa.xid import Xid

MAX_NOTE: Final = 64
"""Octets of a note. It is part of every decision."""


class BranchOutcome(Enum):
    """What became of a branch that was prepared."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    PREPARED = "prepared"
    """Still, or it is being completed at this moment; whether `recover` lists it to this caller or not."""
    LOST = "lost"
    """The server has not come to it yet: it was restored from a copy that is older than the branch."""
    UNKNOWN = "unknown"


class OutcomeNotes(ResourceManager, Protocol):
    """A resource manager that offers it."""

    def outcome_note(self, xid: Xid, rmid: int) -> bytes:
        """The note of a branch that this instance has prepared (its vote was XA_OK), at most MAX_NOTE octets. It is
        given once. b"": there is none, so that the outcome can't be known later. It asks no server, and never
        raises."""
        ...

    def outcomes(self, notes: Sequence[bytes], rmid: int) -> Sequence[BranchOutcome]:
        """What became of the branches of these notes, one for each. Only what is certain is reported: UNKNOWN for a
        note of another server, for one that can't be read, and where the server does not remember. Codes that it may
        raise are those of `ResourceManager.recover`."""
        ...
