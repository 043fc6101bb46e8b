"""Origins: who made a branch, where that was not an application's transaction manager but something built on one, a
pipeline say. What is installed beside `tm` tells it by an entry point of the group `xabridge.origins`: a function that
takes an xid and answers with an Origin, or None for what it did not make.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from xa import Xid

    Describe: TypeAlias = "Callable[[Xid], Origin | None]"

GROUP: Final = "xabridge.origins"


@dataclass(frozen=True, slots=True)
class Origin:
    """In words: what the transaction is, what the branch is of it, and the command that tells more."""

    transaction: str
    branch: str
    command: str


def installed() -> tuple[Describe, ...]:
    """The functions of everything that is installed."""
    return tuple(entry.load() for entry in entry_points(group=GROUP))


def origin_of(xid: Xid, known: Sequence[Describe]) -> Origin | None:
    """The first answer; None where nobody knows it."""
    return next((origin for describe in known if (origin := describe(xid)) is not None), None)
