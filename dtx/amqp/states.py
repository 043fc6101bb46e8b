"""The state tables of an AMQP 1.0 endpoint: connection, session, link and delivery.

The specification names the states of connections (2.4.6), sessions (2.5.5) and links (2.6.3 to 2.6.6). Deliveries are
ours, and so is FAILED, for a caller who sends what it owes the peer before the error. "Send" is what this endpoint
does, "receive" what the peer does. What has no row is an error of the end that did it: of the peer
(`dtx.amqp.conditions.ProtocolError`), or of our caller.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from xa import Code
from xa.machine import Machine, Member, Result, Row

if TYPE_CHECKING:
    from enum import Enum

    S = TypeVar("S", bound=Enum)
    V = TypeVar("V", bound=Enum)

OK = Result.OK


def refusals(states: type[S], verbs: type[V], rows: tuple[Row[S, V], ...]) -> dict[tuple[S, V], Code]:
    """Refuses every pair of state and verb that has no row."""
    legal = {(state, row.verb) for row in rows for state in row.states}
    return {(state, verb): Code.XAER_PROTO for state in states for verb in verbs if (state, verb) not in legal}


# --- connection --------------------
class ConnectionState(Member):
    """How far a connection is. A state names the last frames of both sides; PIPE means that a side has sent
    more than the other one has answered."""

    START = "nothing was exchanged"
    HDR_RCVD = "the peer's header is here"
    HDR_SENT = "our header is sent"
    HDR_EXCH = "both headers are exchanged"
    OPEN_PIPE = "our open is sent ahead of the peer's header"
    OC_PIPE = "our open and close are sent ahead of the peer's header"
    OPEN_RCVD = "the peer's open is here"
    OPEN_SENT = "our open is sent"
    CLOSE_PIPE = "our open and close are sent"
    OPENED = "open"
    FAILED = "nothing of the peer is read any more, and our close with the error is not sent"
    CLOSE_RCVD = "the peer's close is here"
    CLOSE_SENT = "our close is sent"
    DISCARDING = "our close with an error is sent, and everything but the peer's close is ignored"
    END = "closed by both sides, or lost"


class ConnectionVerb(Member):
    """What moves a connection."""

    SEND_HEADER = "send the header"
    RECEIVE_HEADER = "receive the header"
    SEND_OPEN = "send open"
    RECEIVE_OPEN = "receive open"
    SEND_CLOSE = "send close"
    SEND_ERROR = "send close with an error"
    RECEIVE_CLOSE = "receive close"
    RECEIVE_OTHER = "receive a frame of a session"
    FAIL = "fail, because of what the peer did, or at the caller's wish"
    LOSE = "lose the transport"


_C, _CV = ConnectionState, ConnectionVerb
_CONNECTION_ROWS: Final = (
    Row(_CV.SEND_HEADER, OK, (_C.START,), _C.HDR_SENT, "2.4.6"),
    Row(_CV.SEND_HEADER, OK, (_C.HDR_RCVD,), _C.HDR_EXCH, "2.4.6"),
    Row(_CV.RECEIVE_HEADER, OK, (_C.START,), _C.HDR_RCVD, "2.4.6"),
    Row(_CV.RECEIVE_HEADER, OK, (_C.HDR_SENT,), _C.HDR_EXCH, "2.4.6"),
    Row(_CV.RECEIVE_HEADER, OK, (_C.OPEN_PIPE,), _C.OPEN_SENT, "2.4.6"),
    Row(_CV.RECEIVE_HEADER, OK, (_C.OC_PIPE,), _C.CLOSE_PIPE, "2.4.6"),
    Row(_CV.SEND_OPEN, OK, (_C.HDR_SENT,), _C.OPEN_PIPE, "2.4.6"),
    Row(_CV.SEND_OPEN, OK, (_C.HDR_EXCH,), _C.OPEN_SENT, "2.4.6"),
    Row(_CV.SEND_OPEN, OK, (_C.OPEN_RCVD,), _C.OPENED, "2.4.6"),
    Row(_CV.RECEIVE_OPEN, OK, (_C.HDR_EXCH,), _C.OPEN_RCVD, "2.4.6"),
    Row(_CV.RECEIVE_OPEN, OK, (_C.OPEN_SENT,), _C.OPENED, "2.4.6"),
    Row(_CV.RECEIVE_OPEN, OK, (_C.CLOSE_PIPE,), _C.CLOSE_SENT, "2.4.6"),
    Row(_CV.RECEIVE_OPEN, OK, (_C.DISCARDING,), _C.DISCARDING, "2.4.6"),
    Row(_CV.SEND_CLOSE, OK, (_C.OPEN_PIPE,), _C.OC_PIPE, "2.4.6"),
    Row(_CV.SEND_CLOSE, OK, (_C.OPEN_SENT,), _C.CLOSE_PIPE, "2.4.6"),
    Row(_CV.SEND_CLOSE, OK, (_C.OPENED,), _C.CLOSE_SENT, "2.4.6"),
    Row(_CV.SEND_CLOSE, OK, (_C.CLOSE_RCVD, _C.FAILED), _C.END, "2.4.6"),
    Row(_CV.SEND_ERROR, OK, (_C.OPEN_PIPE,), _C.OC_PIPE, "2.4.6"),
    Row(_CV.SEND_ERROR, OK, (_C.OPEN_SENT, _C.OPENED), _C.DISCARDING, "2.4.6"),
    Row(_CV.SEND_ERROR, OK, (_C.CLOSE_RCVD, _C.FAILED), _C.END, "2.4.6"),
    Row(_CV.RECEIVE_CLOSE, OK, (_C.OPENED,), _C.CLOSE_RCVD, "2.4.6"),
    Row(_CV.RECEIVE_CLOSE, OK, (_C.CLOSE_SENT, _C.DISCARDING), _C.END, "2.4.6"),
    Row(_CV.RECEIVE_OTHER, OK, (_C.OPENED,), _C.OPENED, "2.4.5"),
    Row(_CV.RECEIVE_OTHER, OK, (_C.CLOSE_SENT,), _C.CLOSE_SENT, "2.4.3"),
    Row(_CV.RECEIVE_OTHER, OK, (_C.DISCARDING,), _C.DISCARDING, "2.4.3"),
    Row(_CV.FAIL, OK, (_C.OPENED,), _C.FAILED, "design: what is owed goes before the error"),
    Row(_CV.LOSE, OK, tuple(_C), _C.END, "2.4.6"),
)
CONNECTION: Final = Machine(
    "connection",
    ConnectionState,
    ConnectionVerb,
    _C.START,
    _CONNECTION_ROWS,
    refusals(ConnectionState, ConnectionVerb, _CONNECTION_ROWS),
)


# --- session --------------------
class SessionState(Member):
    """How far a session is."""

    UNMAPPED = "not begun"
    BEGIN_SENT = "our begin is sent"
    BEGIN_RCVD = "the peer's begin is here"
    MAPPED = "begun by both sides"
    FAILED = "everything but the peer's end is ignored, and our end with the error is not sent"
    END_SENT = "our end is sent"
    END_RCVD = "the peer's end is here"
    END_EARLY = "the peer's begin and end are here, and our begin is not sent"
    DISCARDING = "our end with an error is sent, and everything but the peer's end is ignored"
    ENDED = "ended by both sides, or gone with its connection"


class SessionVerb(Member):
    """What moves a session."""

    SEND_BEGIN = "send begin"
    RECEIVE_BEGIN = "receive begin"
    SEND_END = "send end"
    SEND_ERROR = "send end with an error"
    RECEIVE_END = "receive end"
    RECEIVE_OTHER = "receive a frame of the session"
    FAIL = "fail, because of what the peer did"
    LOSE = "lose the connection"


_S, _SV = SessionState, SessionVerb
_SESSION_ROWS: Final = (
    Row(_SV.SEND_BEGIN, OK, (_S.UNMAPPED,), _S.BEGIN_SENT, "2.5.5"),
    Row(_SV.SEND_BEGIN, OK, (_S.BEGIN_RCVD,), _S.MAPPED, "2.5.5"),
    Row(_SV.SEND_BEGIN, OK, (_S.END_EARLY,), _S.END_RCVD, "2.5.5"),
    Row(_SV.RECEIVE_BEGIN, OK, (_S.UNMAPPED,), _S.BEGIN_RCVD, "2.5.5"),
    Row(_SV.RECEIVE_BEGIN, OK, (_S.BEGIN_SENT,), _S.MAPPED, "2.5.5"),
    Row(_SV.SEND_END, OK, (_S.MAPPED, _S.FAILED), _S.END_SENT, "2.5.5"),
    Row(_SV.SEND_END, OK, (_S.END_RCVD,), _S.ENDED, "2.5.5"),
    Row(_SV.SEND_ERROR, OK, (_S.MAPPED, _S.FAILED), _S.DISCARDING, "2.5.5"),
    Row(_SV.SEND_ERROR, OK, (_S.END_RCVD,), _S.ENDED, "2.5.5"),
    Row(_SV.RECEIVE_END, OK, (_S.MAPPED, _S.FAILED), _S.END_RCVD, "2.5.5"),
    Row(_SV.RECEIVE_END, OK, (_S.BEGIN_RCVD,), _S.END_EARLY, "2.5.5"),
    Row(_SV.RECEIVE_END, OK, (_S.END_SENT, _S.DISCARDING), _S.ENDED, "2.5.5"),
    Row(_SV.RECEIVE_OTHER, OK, (_S.MAPPED,), _S.MAPPED, "2.5.5"),
    Row(_SV.RECEIVE_OTHER, OK, (_S.END_SENT,), _S.END_SENT, "2.5.4"),
    Row(_SV.RECEIVE_OTHER, OK, (_S.DISCARDING,), _S.DISCARDING, "2.5.4"),
    Row(_SV.RECEIVE_OTHER, OK, (_S.FAILED,), _S.FAILED, "2.5.4"),
    Row(_SV.FAIL, OK, (_S.MAPPED,), _S.FAILED, "design: what is owed goes before the error"),
    Row(_SV.LOSE, OK, tuple(_S), _S.ENDED, "2.5.5"),
)
SESSION: Final = Machine(
    "session", SessionState, SessionVerb, _S.UNMAPPED, _SESSION_ROWS, refusals(_S, _SV, _SESSION_ROWS)
)


# --- link --------------------
class LinkState(Member):
    """How far a link is."""

    DETACHED = "not attached"
    ATTACH_SENT = "our attach is sent"
    ATTACH_RCVD = "the peer's attach is here"
    ATTACHED = "attached by both sides"
    FAILED = "everything but the peer's detach is ignored, and our detach with the error is not sent"
    DETACH_SENT = "our detach is sent, and everything but the peer's detach is ignored"
    DETACH_RCVD = "the peer's detach is here"
    GONE = "detached by both sides, or gone with its session"


class LinkVerb(Member):
    """What moves a link."""

    SEND_ATTACH = "send attach"
    RECEIVE_ATTACH = "receive attach"
    SEND_DETACH = "send detach"
    RECEIVE_DETACH = "receive detach"
    RECEIVE_OTHER = "receive a frame of the link"
    FAIL = "fail, because of what the peer did"
    LOSE = "lose the session"


_L, _LV = LinkState, LinkVerb
_LINK_ROWS: Final = (
    Row(_LV.SEND_ATTACH, OK, (_L.DETACHED,), _L.ATTACH_SENT, "2.6.3"),
    Row(_LV.SEND_ATTACH, OK, (_L.ATTACH_RCVD,), _L.ATTACHED, "2.6.3"),
    Row(_LV.RECEIVE_ATTACH, OK, (_L.DETACHED,), _L.ATTACH_RCVD, "2.6.3"),
    Row(_LV.RECEIVE_ATTACH, OK, (_L.ATTACH_SENT,), _L.ATTACHED, "2.6.3"),
    Row(_LV.RECEIVE_ATTACH, OK, (_L.DETACH_SENT,), _L.DETACH_SENT, "2.6.3"),
    Row(_LV.SEND_DETACH, OK, (_L.ATTACH_SENT, _L.ATTACHED, _L.FAILED), _L.DETACH_SENT, "2.6.6"),
    Row(_LV.SEND_DETACH, OK, (_L.DETACH_RCVD,), _L.GONE, "2.6.6"),
    Row(_LV.RECEIVE_DETACH, OK, (_L.ATTACHED, _L.FAILED), _L.DETACH_RCVD, "2.6.6"),
    Row(_LV.RECEIVE_DETACH, OK, (_L.DETACH_SENT,), _L.GONE, "2.6.6"),
    Row(_LV.RECEIVE_OTHER, OK, (_L.ATTACH_RCVD,), _L.ATTACH_RCVD, "design: an answer may wait for the store"),
    Row(_LV.RECEIVE_OTHER, OK, (_L.ATTACHED,), _L.ATTACHED, "2.6.7"),
    Row(_LV.RECEIVE_OTHER, OK, (_L.DETACH_SENT,), _L.DETACH_SENT, "2.6.5"),
    Row(_LV.RECEIVE_OTHER, OK, (_L.FAILED,), _L.FAILED, "2.6.5"),
    Row(_LV.FAIL, OK, (_L.ATTACHED,), _L.FAILED, "design: what is owed goes before the error"),
    Row(_LV.LOSE, OK, tuple(_L), _L.GONE, "2.6.4"),
)
LINK: Final = Machine("link", LinkState, LinkVerb, _L.DETACHED, _LINK_ROWS, refusals(_L, _LV, _LINK_ROWS))


# --- delivery --------------------
class DeliveryState(Member):
    """How far a delivery is, at either end of a link."""

    WAITING = "to be sent when the peer's window is open"
    PARTIAL = "a part was transferred, and more is to come"
    UNSETTLED = "transferred, and neither end has settled it"
    SETTLED_THERE = "the peer has settled it"
    SETTLED = "settled here, or aborted, or gone with its link"


class DeliveryVerb(Member):
    """What moves a delivery."""

    TRANSFER_PART = "transfer a part"
    TRANSFER = "transfer the last part"
    TRANSFER_SETTLED = "transfer the last part, settled"
    ABORT = "abort"
    SETTLE = "settle"
    RECEIVE_SETTLED = "receive that the peer has settled"
    LOSE = "lose the link"


_D, _DV = DeliveryState, DeliveryVerb
_DELIVERY_ROWS: Final = (
    Row(_DV.TRANSFER_PART, OK, (_D.WAITING, _D.PARTIAL), _D.PARTIAL, "2.6.14"),
    Row(_DV.TRANSFER, OK, (_D.WAITING, _D.PARTIAL), _D.UNSETTLED, "2.6.12"),
    Row(_DV.TRANSFER_SETTLED, OK, (_D.WAITING, _D.PARTIAL), _D.SETTLED, "2.6.12"),
    Row(_DV.ABORT, OK, (_D.WAITING, _D.PARTIAL), _D.SETTLED, "2.7.5"),
    Row(_DV.SETTLE, OK, (_D.UNSETTLED, _D.SETTLED_THERE), _D.SETTLED, "2.6.12"),
    Row(_DV.RECEIVE_SETTLED, OK, (_D.UNSETTLED, _D.SETTLED_THERE), _D.SETTLED_THERE, "2.6.12"),
    Row(_DV.RECEIVE_SETTLED, OK, (_D.PARTIAL,), _D.PARTIAL, "2.6.12"),
    Row(_DV.LOSE, OK, tuple(_D), _D.SETTLED, "2.6.12"),
)
DELIVERY: Final = Machine(
    "delivery", DeliveryState, DeliveryVerb, _D.WAITING, _DELIVERY_ROWS, refusals(_D, _DV, _DELIVERY_ROWS)
)
