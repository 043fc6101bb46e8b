"""Conditions, XA codes and statuses of the wire: one table that both sides read.

`xa-status` is an ushort. 0 to 7 are those of AMQP 0-10 `dtx`. Every other code of X/Open has a number that is
made from its own: 0x100 + code for answers and rollbacks (XA_RETRY 0x104, XA_RBCOMMFAIL 0x165), 0x8000 −
code for errors (XAER_NOTA 0x8004). A carried out command, or the outcome of a branch, is sent as a result; a
refusal is sent as an error with the condition of the table (a finer one if the cause is known), and `xa-status`
in its info map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition
from dtx.amqp.values import Symbol, Ushort
from xa import Code, Xid
from xa.printable import printable
from xa.secrets import masked

if TYPE_CHECKING:
    from dtx.amqp.values import Map


@dataclass(frozen=True, slots=True)
class Row:
    """One code: its number on the wire, and the condition of a refusal with it (None: it is answered as a result)."""

    code: Code
    status: int
    condition: Condition | None


def _row(code: Code, condition: Condition | None) -> Row:
    return Row(code, 0x8000 - code if code < 0 else 0x100 + code, condition)


TABLE: Final = (
    Row(Code.XA_OK, 0, None),
    Row(Code.XA_RBROLLBACK, 1, Condition.ROLLBACK),
    Row(Code.XA_RBTIMEOUT, 2, Condition.TIMEOUT),
    Row(Code.XA_HEURHAZ, 3, None),
    Row(Code.XA_HEURCOM, 4, None),
    Row(Code.XA_HEURRB, 5, None),
    Row(Code.XA_HEURMIX, 6, None),
    Row(Code.XA_RDONLY, 7, None),
    _row(Code.XA_RETRY, Condition.RESOURCE_LIMIT),
    _row(Code.XA_NOMIGRATE, None),
    _row(Code.XA_RBCOMMFAIL, Condition.ROLLBACK),
    _row(Code.XA_RBDEADLOCK, Condition.ROLLBACK),
    _row(Code.XA_RBINTEGRITY, Condition.ROLLBACK),
    _row(Code.XA_RBOTHER, Condition.ROLLBACK),
    _row(Code.XA_RBPROTO, Condition.ROLLBACK),
    _row(Code.XA_RBTRANSIENT, Condition.ROLLBACK),
    _row(Code.XAER_ASYNC, Condition.ILLEGAL_STATE),
    _row(Code.XAER_RMERR, Condition.INTERNAL_ERROR),
    _row(Code.XAER_NOTA, Condition.NOT_FOUND),
    _row(Code.XAER_INVAL, Condition.INVALID_FIELD),
    _row(Code.XAER_PROTO, Condition.ILLEGAL_STATE),
    _row(Code.XAER_RMFAIL, Condition.CONNECTION_FORCED),
    _row(Code.XAER_DUPID, Condition.NOT_ALLOWED),
    _row(Code.XAER_OUTSIDE, Condition.ILLEGAL_STATE),
)
STATUS_OF: Final = {row.code: row.status for row in TABLE}
CODE_OF: Final = {row.status: row.code for row in TABLE}
CONDITION_OF: Final = {row.code: row.condition for row in TABLE}

CODE_OF_CONDITION: Final[dict[str, Code]] = {
    Condition.ROLLBACK: Code.XA_RBROLLBACK,
    Condition.TIMEOUT: Code.XA_RBTIMEOUT,
    Condition.UNKNOWN_ID: Code.XAER_NOTA,
    Condition.NOT_FOUND: Code.XAER_NOTA,
    Condition.ILLEGAL_STATE: Code.XAER_PROTO,
    Condition.NOT_ALLOWED: Code.XAER_PROTO,
    Condition.INVALID_FIELD: Code.XAER_INVAL,
    Condition.DECODE_ERROR: Code.XAER_INVAL,
    Condition.NOT_IMPLEMENTED: Code.XAER_INVAL,
    Condition.RESOURCE_LIMIT: Code.XA_RETRY,
}
"""Condition → code where an error has no `xa-status` (a broker that is not ours); XAER_RMERR for the rest."""

STATUS_KEY: Final = "xa-status"
XID_KEY: Final = "xid"
TAG_KEY: Final = "delivery-tag"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was refused. `code` is what an XA routine answers for it, `xid` the branch it is
    about, and `delivery_tag` the tag of the message for which a link is detached."""

    condition: str
    description: str
    code: Code
    xid: Xid | None = None
    delivery_tag: bytes | None = None

    @property
    def rollback_code(self) -> Code:
        """The code of a transaction that can't be committed because of this: XA_RBTRANSIENT where there was no room."""
        return Code.XA_RBTRANSIENT if self.code is Code.XA_RETRY else Code.XA_RBOTHER

    def info(self) -> Map:
        """The error's info map: the status, the xid in its text form, and the delivery-tag."""
        info: Map = {Symbol(STATUS_KEY): Ushort(STATUS_OF[self.code])}
        if self.xid is not None:
            info[Symbol(XID_KEY)] = str(self.xid)
        if self.delivery_tag is not None:
            info[Symbol(TAG_KEY)] = self.delivery_tag
        return info

    @classmethod
    def read(cls, condition: str, description: str | None, info: Map | None) -> Refusal:
        """The refusal in the parts of an error, also in one of a broker that knows nothing of this
        protocol."""
        fields = info or {}
        status = fields.get(STATUS_KEY)
        code = CODE_OF.get(status) if isinstance(status, int) else None
        try:
            xid = Xid.parse(str(fields[XID_KEY])) if XID_KEY in fields else None
        except ValueError:
            xid = None
        if code is None:
            code = CODE_OF_CONDITION.get(condition, Code.XAER_RMERR)
        return cls(printable(masked(condition)), printable(masked(description or "")), code, xid)


class RefusedError(Exception):
    """Something was asked for that is refused, and had no effect beyond what the message says."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.refusal = refusal


def refused(code: Code, description: str, xid: Xid | None = None, condition: Condition | None = None) -> RefusedError:
    """The exception that refuses with `code`; its condition is the table's where none is given."""
    chosen = condition or CONDITION_OF[code] or Condition.INTERNAL_ERROR
    return RefusedError(Refusal(chosen, description, code, xid))
