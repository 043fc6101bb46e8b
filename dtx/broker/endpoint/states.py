"""The state tables of the broker's end of a connection: whether it serves its peer, what ends a link, and who decides
what becomes of the message of a delivery, from its acquisition to its end (custody).

How far connection, link and delivery are in AMQP are other machines, in `dtx.amqp.states`. What has no row is refused,
and changes nothing.
"""

from __future__ import annotations

from typing import Final

from dtx.amqp.states import refusals
from xa.machine import Machine, Member, Result, Row

OK: Final = Result.OK


# --- connection --------------------
class ServiceState(Member):
    """Whether a peer is served."""

    SERVED = "what the peer sends is carried out"
    CLOSING = "either side has closed it, and nothing more of the peer is carried out"
    CLOSED = "gone"


class ServiceVerb(Member):
    """What ends the service of a peer."""

    CLOSE = "the peer closes it, or the broker does with an error"
    LOSE = "everything is sent after a close, or the transport is lost"


_SERVICE_ROWS: Final = (
    Row(ServiceVerb.CLOSE, OK, (ServiceState.SERVED, ServiceState.CLOSING), ServiceState.CLOSING, "2.4.3"),
    Row(ServiceVerb.LOSE, OK, (ServiceState.SERVED, ServiceState.CLOSING), ServiceState.CLOSED, "2.4.3"),
)
SERVICE: Final = Machine(
    "service",
    ServiceState,
    ServiceVerb,
    ServiceState.SERVED,
    _SERVICE_ROWS,
    refusals(ServiceState, ServiceVerb, _SERVICE_ROWS),
)

SERVED: Final = ServiceState.SERVED
CLOSING: Final = ServiceState.CLOSING
CLOSED: Final = ServiceState.CLOSED


# --- link --------------------
class AttachmentState(Member):
    """Whether a link is attached, and if not, what ended it: that decides what becomes of its deliveries."""

    ATTACHED = "attached"
    SUSPENDED = "detached by the peer and not closed, so that what it was sent is its to decide until the session ends"
    CLOSED = "closed by the peer without an error, or because the broker shuts down"
    FAILED = "closed with an error, by either side"
    LOST = "lost with its session or connection, without a word of the peer about it"


class AttachmentVerb(Member):
    """What ends a link."""

    DETACH = "detach without closing"
    CLOSE = "close in order"
    FAIL = "close with an error"
    LOSE = "lose the session or connection"


_HAS_DELIVERIES: Final = (AttachmentState.ATTACHED, AttachmentState.SUSPENDED)
_ATTACHMENT_ROWS: Final = (
    Row(AttachmentVerb.DETACH, OK, (AttachmentState.ATTACHED,), AttachmentState.SUSPENDED, "2.7.6"),
    Row(AttachmentVerb.CLOSE, OK, _HAS_DELIVERIES, AttachmentState.CLOSED, "2.6.6"),
    Row(AttachmentVerb.FAIL, OK, _HAS_DELIVERIES, AttachmentState.FAILED, "2.6.5"),
    Row(AttachmentVerb.LOSE, OK, _HAS_DELIVERIES, AttachmentState.LOST, "2.6.4"),
)
ATTACHMENT: Final = Machine(
    "attachment",
    AttachmentState,
    AttachmentVerb,
    AttachmentState.ATTACHED,
    _ATTACHMENT_ROWS,
    refusals(AttachmentState, AttachmentVerb, _ATTACHMENT_ROWS),
)

ATTACHED: Final = AttachmentState.ATTACHED
SUSPENDED: Final = AttachmentState.SUSPENDED


# --- the message of a delivery --------------------
class CustodyState(Member):
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


_S, _V = CustodyState, CustodyVerb
_ROWS: Final = (
    Row(_V.HOLD, OK, (_S.FREE,), _S.HELD, "transactions chapter, transactional work"),
    Row(_V.REVERT, OK, (_S.HELD,), _S.FREE, "transactions chapter, discharging"),
    Row(_V.REVERT, OK, (_S.ENDED,), _S.ENDED, "design: it ended first"),
    Row(_V.DECIDE, OK, (_S.FREE,), _S.DECIDED, "2.6.12"),
    Row(_V.END, OK, tuple(_S), _S.ENDED, "2.6.12"),
)
CUSTODY: Final = Machine("custody", CustodyState, CustodyVerb, _S.FREE, _ROWS, refusals(_S, _V, _ROWS))

FREE: Final = CustodyState.FREE
HELD: Final = CustodyState.HELD
DECIDED: Final = CustodyState.DECIDED
ENDED: Final = CustodyState.ENDED

HOLD: Final = CUSTODY.column(CustodyVerb.HOLD)
REVERT: Final = CUSTODY.column(CustodyVerb.REVERT)
DECIDE: Final = CUSTODY.column(CustodyVerb.DECIDE)
END: Final = CUSTODY.column(CustodyVerb.END)
