"""The answers of a transactional resource.

On the control link an outcome: `declared`, `accepted`, `rejected` with an error, and for an end with prepare
`xa-result`. On the command channel a message: `xa-result`, `recovered`, `timeout`, or the standard `error`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from dtx.amqp.composites import (
    BOOLEAN,
    FIELDS,
    MAP,
    STRING,
    SYMBOL,
    TIMESTAMP,
    UINT,
    USHORT,
    Catalog,
    Kind,
    converting,
    nested,
    several,
    standard,
)
from dtx.amqp.encoding import encode, encode_symbol, encode_ushort
from dtx.amqp.values import Ushort
from dtx.protocol.commands import MAX_PAGE, NAMED_XID, TXN_ID, RecoveredState, composite
from dtx.protocol.conditions import CODE_OF, STATUS_OF, Refusal
from xa import Code, Xid  # noqa: TC001 — compiled dataclasses have the types of their fields

if TYPE_CHECKING:
    from dtx.amqp.values import Map

ACCEPTED: Final = 0x24
REJECTED: Final = 0x25
RELEASED: Final = 0x26
MODIFIED: Final = 0x27
DECLARED: Final = 0x33
TRANSACTIONAL: Final = 0x34

MAX_HOLDINGS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Declared:
    """The txn-id that was allocated."""

    txn_id: bytes


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a command: XA_OK, XA_RDONLY, XA_RB* or XA_HEUR*."""

    code: Code


@dataclass(frozen=True, slots=True)
class Holding:
    """The messages that a branch holds in one queue: messages it retires there, and messages it posts there."""

    queue: str
    retired: int
    posted: int


@dataclass(frozen=True, slots=True)
class Details:
    """A branch that recover found: its state, since when (ms since the epoch), whose it is, what it holds,
    and how it was completed where it was completed heuristically."""

    xid: Xid
    state: RecoveredState
    since_ms: int
    owner: str
    holdings: tuple[Holding, ...] = ()
    outcome: Code | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """A page: the xids in their order, details of each where they were asked for, and whether there are
    more."""

    in_doubt: tuple[Xid, ...]
    more: bool = False
    details: tuple[Details, ...] = ()


@dataclass(frozen=True, slots=True)
class Timeout:
    """A branch's timeout, in seconds."""

    timeout_s: int


# --- kinds and tables -----------------------------------------
def _as_code(value: int) -> Code:
    code = CODE_OF.get(value)
    if code is None:
        raise ValueError(f"{value} is not an xa-status")
    return code


def _write_code(code: Code) -> bytes:
    return encode_ushort(STATUS_OF[code])


def _as_found(value: str) -> RecoveredState:
    return RecoveredState(value)


STATUS: Final = Kind("xa-status", converting(USHORT.readers, _as_code), _write_code)
STATE: Final[Kind[RecoveredState]] = Kind("state", converting(SYMBOL.readers, _as_found), encode_symbol)

DECLARED_TYPE: Final = standard(Declared, "declared", DECLARED, FIELDS.mandatory("txn-id", TXN_ID))
RESULT: Final = composite(Result, "xa-result", 0x20, FIELDS.mandatory("status", STATUS))
HOLDING: Final = composite(
    Holding,
    "holding",
    0x22,
    FIELDS.mandatory("queue", STRING).mandatory("retired", UINT).mandatory("posted", UINT),
)
DETAILS: Final = composite(
    Details,
    "details",
    0x23,
    FIELDS.mandatory("xid", NAMED_XID)
    .mandatory("state", STATE)
    .mandatory("since", TIMESTAMP)
    .mandatory("owner", STRING)
    .default("holdings", several(nested(HOLDING), MAX_HOLDINGS), absent=())
    .optional("outcome", STATUS),
)
RECOVERED: Final = composite(
    Recovered,
    "recovered",
    0x21,
    FIELDS.mandatory("in-doubt", several(NAMED_XID, MAX_PAGE))
    .default("more", BOOLEAN, absent=False)
    .default("details", several(nested(DETAILS), MAX_PAGE), absent=()),
)
TIMEOUT: Final = composite(Timeout, "timeout", 0x24, FIELDS.mandatory("timeout", UINT))


@dataclass(frozen=True, slots=True)
class _ErrorFields:
    condition: str
    description: str = ""
    info: Map | None = None


_ERROR: Final = standard(
    _ErrorFields,
    "error",
    0x1D,
    FIELDS.mandatory("condition", SYMBOL).default("description", STRING, absent="").optional("info", MAP),
)
_REPLIES: Final[Catalog[Result | Recovered | Timeout | _ErrorFields]] = Catalog(RESULT, RECOVERED, TIMEOUT, _ERROR)

Reply: TypeAlias = Result | Recovered | Timeout | Refusal


def error_octets(refusal: Refusal) -> bytes:
    """The standard error that tells a refusal."""
    return _ERROR.encode(_ErrorFields(refusal.condition, refusal.description, refusal.info()))


def encode_reply(reply: Reply) -> bytes:
    """The value in the body of a response."""
    if isinstance(reply, Refusal):
        return error_octets(reply)
    return _result(reply) if type(reply) is Result else _REPLIES.encode(reply)


@lru_cache(maxsize=64)
def _result(reply: Result) -> bytes:
    return _REPLIES.encode(reply)


@lru_cache(maxsize=64)
def result_state(reply: Result) -> bytes:
    """A result as the outcome of a control message. Its descriptor is the number, because proton knows no others for
    delivery states."""
    return b"\x00" + encode(RESULT.code) + encode([Ushort(STATUS_OF[reply.code])])


def decode_reply(octets: bytes) -> Reply:
    """The meaning of the value in the body of a response; WireError for anything else."""
    reply = _REPLIES.decode(octets)
    if isinstance(reply, _ErrorFields):
        return Refusal.read(reply.condition, reply.description, reply.info)
    return reply
