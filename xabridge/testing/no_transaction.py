"""NoTransaction: the registrar of an application without a transaction manager. A resource manager that registers
itself (TMREGISTER) does all work outside of any transaction then, so that its session is an ordinary client of the
broker.

    rm = AmqpResource(NoTransaction(), TMREGISTER)
"""

from __future__ import annotations

from xa import NULL_XID, AxCode, Xid


class NoTransaction:
    """A `xa.Registrar` that has no transaction in any thread of control."""

    def ax_reg(self, rmid: int, flags: int = 0) -> tuple[AxCode, Xid]:
        del rmid, flags
        return AxCode.TM_OK, NULL_XID

    def ax_unreg(self, rmid: int, flags: int = 0) -> AxCode:
        del rmid, flags
        return AxCode.TM_OK
