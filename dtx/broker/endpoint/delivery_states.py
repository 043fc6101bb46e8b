"""Custody: who decides what becomes of the message of a delivery, from its acquisition to its end, as a state table.

How far the delivery is transferred and settled is another machine, DELIVERY of `dtx.amqp.states`. What has no row is
refused, and changes nothing.
"""

from __future__ import annotations

from typing import Final

from xa import Code
from xa.machine import Machine, Member, Result, Row


class Custody(Member):
    """Who decides what becomes of a message at a consumer."""

    FREE = "the consumer decides, outside of transactions"
    HELD = "a transaction has acquired or retires it"
    DECIDED = "decided outside of transactions"
    ENDED = "settled, given back, aborted, or gone with its link"


class CustodyVerb(Member):
    """What happens to a message at a consumer."""

    HOLD = "a transaction acquires or retires it"
    REVERT = "its transaction is over, and leaves it to the consumer"
    DECIDE = "it gets an outcome outside of transactions"
    END = "it is settled, or comes back to its queue"


OK: Final = Result.OK
_S, _V = Custody, CustodyVerb
_ROWS: Final = (
    Row(_V.HOLD, OK, (_S.FREE,), _S.HELD, "transactions chapter, transactional work"),
    Row(_V.REVERT, OK, (_S.HELD,), _S.FREE, "transactions chapter, discharging"),
    Row(_V.REVERT, OK, (_S.ENDED,), _S.ENDED, "design: it ended first"),
    Row(_V.DECIDE, OK, (_S.FREE,), _S.DECIDED, "2.6.12"),
    Row(_V.END, OK, tuple(_S), _S.ENDED, "2.6.12"),
)
_LEGAL: Final = frozenset((state, row.verb) for row in _ROWS for state in row.states)
CUSTODY: Final = Machine(
    "custody",
    Custody,
    CustodyVerb,
    _S.FREE,
    _ROWS,
    {(state, verb): Code.XAER_PROTO for state in _S for verb in _V if (state, verb) not in _LEGAL},
)

FREE: Final = Custody.FREE
HELD: Final = Custody.HELD
DECIDED: Final = Custody.DECIDED
ENDED: Final = Custody.ENDED

HOLD: Final = CUSTODY.column(CustodyVerb.HOLD)
REVERT: Final = CUSTODY.column(CustodyVerb.REVERT)
DECIDE: Final = CUSTODY.column(CustodyVerb.DECIDE)
END: Final = CUSTODY.column(CustodyVerb.END)
