"""HoldingsReporting: an optional capability of a resource manager, for operators. It tells of each branch in doubt what
the branch holds, since when, and whose it is.

An instance offers it if and only if it has the method; where it has not, `recover` at least lists the xids. Nothing
here changes anything, and no decision of the transaction manager depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from xa.codes import Code
    from xa.xid import Xid

MAX_HOLDINGS: Final = 100
"""How many places are listed for one branch. The rest is counted."""


class Relation(Enum):
    """How a branch stands to what it holds at a place. The value is the word between the two: "1 message from
    orders", "1 message to invoices", "3 rows locked in public.orders"."""

    FROM = "from"
    TO = "to"
    LOCKED = "locked in"


@dataclass(frozen=True, slots=True)
class Holding:
    """A branch's holdings at one place of its resource manager.

    `place` is named as the resource manager's own tools name it (a queue, a schema and table), `unit` is one of what is
    held, in the singular ("message", "row", "key", "lock"). `count` is None where the resource manager knows that there
    is something and not how much (PostgreSQL and the rows of a table). `note` is for readers who know the resource
    manager: the mode of a lock, say.
    """

    relation: Relation
    place: str
    unit: str
    count: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class InDoubtBranch:
    """A branch that `recover` lists too.

    `age_s`: for how long it has been prepared, or completed, by the resource manager's own clock; None where it does
    not know. `owner`: the identity under which it was made there (a role, an authenticated user), "" where there is
    none. `outcome`: None for a prepared branch; of one that was completed heuristically the XA_HEUR* that tells how.
    A prepared branch has `holdings`, a completed one may have none; `omitted` places beyond `MAX_HOLDINGS` are left
    out.
    """

    xid: Xid
    age_s: float | None = None
    owner: str = ""
    outcome: Code | None = None
    holdings: tuple[Holding, ...] = ()
    omitted: int = 0


@runtime_checkable
class HoldingsReporting(Protocol):
    """A resource manager that offers it."""

    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        """The next page, of at most `count`, of a scan over the same branches as `recover` would list.

        Flags, pages, errors and the thread that a scan belongs to are as in `ResourceManager.recover`. The scan is
        independent of a scan by `recover`. By the time the caller reads this, a branch may hold something else, or be
        gone.
        """
        ...
