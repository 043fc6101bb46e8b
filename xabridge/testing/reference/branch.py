"""The records of the reference store: branches with their pending writes, and associations of threads with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from xa.tables import BranchState

if TYPE_CHECKING:
    from weakref import ref

    from xa.association import Dialect
    from xa.codes import Code
    from xa.threads_of_control import ThreadOfControl
    from xa.xid import Xid
    from xabridge.testing.reference.driver import ReferenceDriver


Control: TypeAlias = "ref[ThreadOfControl]"
"""A thread of control, which is not kept alive; to be compared by identity."""

BRANCH_NONE: Final = BranchState.S0


class Branch:
    """One branch; one that is in S0 is not, or no longer, the store's.

    `reason` is the rollback code of a branch that can only be rolled back, `outcome` the XA_HEUR* of a completed
    one, `since` when it was prepared or completed, by the store's clock."""

    __slots__ = ("associations", "outcome", "reason", "since", "state", "writes", "xid")

    def __init__(self, xid: Xid) -> None:
        self.xid = xid
        self.state = BRANCH_NONE
        self.associations: list[Association] = []
        self.writes: dict[str, Any] | None = None
        self.reason: Code | None = None
        self.outcome: Code | None = None
        self.since = 0.0


class Association:
    """How one thread of control of one client stands to one branch. One that has ended is in the state `none`, and is
    `lost` where its thread or connection was lost; the client notices when it uses it next."""

    __slots__ = ("branch", "client", "control", "dialect", "lost", "state")

    def __init__(self, client: ReferenceDriver, control: Control, branch: Branch, dialect: Dialect) -> None:
        self.client = client
        self.control = control
        self.branch = branch
        self.dialect = dialect
        self.state = dialect.none
        self.lost = False
