"""What the reference store remembers: branches with their pending writes, and the associations of threads with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xa.tables import ASSOCIATION, REGISTRATION, BranchState

if TYPE_CHECKING:
    from enum import Enum

    from xa.codes import Code
    from xa.control import ThreadOfControl
    from xa.machine import Machine
    from xa.reference.client import ReferenceClient
    from xa.xid import Xid


class Branch:
    """One branch. `reason` is the rollback code of a rollback-only branch, `outcome` the XA_HEUR* of a completed
    one; `migrating` are suspended associations that another thread of control may resume."""

    __slots__ = ("associations", "migrating", "outcome", "reason", "state", "writes", "xid")

    def __init__(self, xid: Xid) -> None:
        self.xid = xid
        self.state = BranchState.S0
        self.associations: list[Association] = []
        self.migrating: list[Association] = []
        self.writes: dict[str, Any] = {}
        self.reason: Code | None = None
        self.outcome: Code | None = None


class Dialect:
    """How a resource manager speaks of associations: by table 6-2, or by table 6-3 where it registers itself."""

    __slots__ = (
        "active",
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


STATIC = Dialect(ASSOCIATION, ("T0", "T1", "T2"), ("START", "RESUME"))
DYNAMIC = Dialect(REGISTRATION, ("D0", "D1", "D2"), ("REGISTER", "REGISTER_RESUME"))


class Association:
    """How one thread of control of one client stands to one branch. One whose thread or connection was lost is
    back in the state `none`; the client notices when it uses it next."""

    __slots__ = ("client", "control", "dialect", "state", "xid")

    def __init__(self, client: ReferenceClient, control: ThreadOfControl, xid: Xid, dialect: Dialect) -> None:
        self.client = client
        self.control = control
        self.xid = xid
        self.dialect = dialect
        self.state = dialect.none
