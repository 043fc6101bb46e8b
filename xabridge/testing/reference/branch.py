"""What the reference store remembers: branches with their pending writes, and associations of threads with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xa.tables import ASSOCIATION, REGISTRATION, BranchState

if TYPE_CHECKING:
    from enum import Enum

    from xa.codes import Code
    from xa.control import ThreadOfControl
    from xa.machine import Column, Machine
    from xa.xid import Xid
    from xabridge.testing.reference.client import ReferenceClient


BRANCH_NONE: Final = BranchState.S0


class Branch:
    """One branch; one that is in S0 is not, or no longer, the store's.

    `reason` is the rollback code of a branch that can only be rolled back, `outcome` the XA_HEUR* of a completed
    one, `asked` the client that has an asynchronous operation on it outstanding, `since` when it was prepared or
    completed, by the store's clock."""

    __slots__ = ("asked", "associations", "outcome", "reason", "since", "state", "writes", "xid")

    def __init__(self, xid: Xid) -> None:
        self.xid = xid
        self.state = BRANCH_NONE
        self.associations: list[Association] = []
        self.writes: dict[str, Any] | None = None
        self.reason: Code | None = None
        self.outcome: Code | None = None
        self.asked: ReferenceClient | None = None
        self.since = 0.0


class Dialect:
    """How a resource manager speaks of associations: by table 6-2, or 6-3 where it registers itself."""

    __slots__ = (
        "active",
        "after",
        "end",
        "end_fail",
        "lose",
        "machine",
        "none",
        "resume",
        "start",
        "suspend",
        "suspended",
    )

    def __init__(self, machine: Machine[Any, Any], states: tuple[str, str, str], starts: tuple[str, str]) -> None:
        self.machine = machine
        self.none: Enum
        self.active: Enum
        self.suspended: Enum
        self.none, self.active, self.suspended = (machine.states[name] for name in states)
        self.start, self.resume = (machine.verbs[name] for name in starts)
        self.suspend, self.end, self.end_fail, self.lose = (
            machine.verbs[name] for name in ("SUSPEND", "END", "END_FAIL", "LOSE")
        )
        self.after: dict[Enum, Column[Any]] = {verb: machine.column(verb) for verb in machine.verbs}


STATIC: Final = Dialect(ASSOCIATION, ("T0", "T1", "T2"), ("START", "RESUME"))
DYNAMIC: Final = Dialect(REGISTRATION, ("D0", "D1", "D2"), ("REGISTER", "REGISTER_RESUME"))


class Association:
    """How one thread of control of one client stands to one branch. One whose thread or connection was lost is
    back in the state `none`; the client notices when it uses it next."""

    __slots__ = ("branch", "client", "control", "dialect", "state")

    def __init__(self, client: ReferenceClient, control: ThreadOfControl, branch: Branch, dialect: Dialect) -> None:
        self.client = client
        self.control = control
        self.branch = branch
        self.dialect = dialect
        self.state = dialect.none
