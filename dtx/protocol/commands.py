"""The commands of a transaction controller: on the control link, and on the command channel.

On the control link the standard `declare` and `discharge`, where `global-id` is an XID composite or a
`start`, and `end` with what discharge lacks. On the command channel, request and response: `prepare`,
`commit`, `rollback`, `forget`, `recover`, `set-timeout`, `get-timeout` with the fields of AMQP 0-10 `dtx`,
and beyond it `complete` (an operator decides a prepared branch) and `fence`. A null xid means the branch
that the session runs.

The descriptors of our composites are symbols, `xabridge:NAME:list`. Each has a number as well (0x58414231, the domain,
in the upper 32 bits), which is taken everywhere, and sent where proton can send numbers only. docs/wire.md shows every
one in octets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, TypeVarTuple

from dtx.amqp import composites
from dtx.amqp.composites import (
    BINARY,
    BOOLEAN,
    DESCRIBED,
    FIELDS,
    SYMBOLS,
    UINT,
    Catalog,
    Kind,
    checked,
    converting,
    several,
    standard,
)
from dtx.amqp.decoding import MAX_DEPTH, skip
from dtx.amqp.values import Symbol, Ulong
from xa import NULL_XID, Xid

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.composites import Composite, Table

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
DOMAIN: Final = 0x58414231
"""The upper half of our numeric descriptors: "XAB1"."""
MAX_TXN_ID: Final = 32
MAX_PAGE: Final = 1000
MAX_PLACES: Final = 1_000_000
NULL_FORMAT: Final = 0xFFFF_FFFF
"""The format of the null XID, −1, as an uint."""


def composite(make: Callable[[*Ts], T], name: str, number: int, table: Table[*Ts]) -> Composite[T]:
    """A composite of this protocol: the dataclass `make` has an attribute for each field of the table."""
    symbol = Symbol(f"xabridge:{name}:list")
    return composites.composite(make, name, symbol, Ulong(DOMAIN << 32 | number), symbol, table)


@dataclass(frozen=True, slots=True)
class _XidFields:
    """The XID of AMQP 0-10 as a composite: format, global-id, branch-id."""

    format: int
    global_id: bytes
    branch_id: bytes = b""


@dataclass(frozen=True, slots=True)
class Start:
    """Associates the txn-id that is declared with a branch: a new one, one that exists (`join`), or the one
    whose association this control link has suspended (`resume`). `txn_id` names the txn-id to allocate, so
    that work can be sent with it before the answer is there; `timeout_s` sets the branch's timeout."""

    xid: Xid
    join: bool = False
    resume: bool = False
    txn_id: bytes | None = None
    timeout_s: int | None = None


@dataclass(frozen=True, slots=True)
class Declare:
    """Allocates a txn-id: for a local transaction, or with `start` for a branch of a global one."""

    start: Start | None = None


@dataclass(frozen=True, slots=True)
class Discharge:
    """The txn-id is no longer in use. Local: commits, or with `fail` rolls back. Global: ends the
    association, with `fail` making the branch rollback-only."""

    txn_id: bytes
    fail: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """Ends the association of a txn-id with a branch; with `suspend` it can be resumed, with `prepare` the
    branch is prepared in the same exchange (`keep`: as in Prepare)."""

    txn_id: bytes
    fail: bool = False
    suspend: bool = False
    prepare: bool = False
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Prepare:
    """Asks for the vote. With `keep` a branch that holds nothing is prepared durably as well, instead of a
    read-only vote that leaves nothing behind: its xid stays taken until it is committed or rolled back.

    Messages that were sent settled have no other way to get an outcome than `accepted`: of those that the branch
    retires, by their places from 0, `failed` ones are available again when it commits, with their delivery-count
    raised, and `released` ones without."""

    xid: Xid = NULL_XID
    keep: bool = False
    failed: tuple[int, ...] = ()
    released: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    """Commits a prepared branch, or with `one_phase` one that ended and was not prepared."""

    xid: Xid = NULL_XID
    one_phase: bool = False


@dataclass(frozen=True, slots=True)
class Rollback:
    """Rolls a branch back, prepared or not."""

    xid: Xid = NULL_XID


@dataclass(frozen=True, slots=True)
class Forget:
    """Lets a heuristically completed branch be forgotten."""

    xid: Xid


class RecoveredState(StrEnum):
    """The states of a branch that recover tells."""

    PREPARED = "prepared"
    HEURISTIC = "heuristic"


@dataclass(frozen=True, slots=True)
class Recover:
    """A page of the prepared and heuristically completed branches, in the order of their xids: the first
    `count` behind `after`, of those whose gtrid begins with `prefix` and whose state is one of `states`
    (none given: all). `details` says what each of them holds."""

    after: Xid = NULL_XID
    count: int = MAX_PAGE
    prefix: bytes = b""
    states: tuple[RecoveredState, ...] = ()
    details: bool = False


@dataclass(frozen=True, slots=True)
class SetTimeout:
    """From now on the branch may take `timeout_s` seconds until it is prepared; 0 is the resource's
    default."""

    timeout_s: int
    xid: Xid = NULL_XID


@dataclass(frozen=True, slots=True)
class GetTimeout:
    """Asks for the branch's timeout."""

    xid: Xid = NULL_XID


@dataclass(frozen=True, slots=True)
class Complete:
    """An operator completes a prepared branch: a heuristic decision, remembered until it is forgotten."""

    xid: Xid
    commit: bool


@dataclass(frozen=True, slots=True)
class Fence:
    """No branch of this global transaction can be started or prepared any more; those that are not prepared
    become rollback-only. With `lift` the fence goes."""

    format_id: int
    gtrid: bytes
    lift: bool = False


# --- kinds and tables -----------------------------------------
def _txn_id_check(value: bytes) -> str:
    return "" if len(value) <= MAX_TXN_ID else f"at most {MAX_TXN_ID} octets, not {len(value)}"


def _count_check(value: int) -> str:
    return "" if 1 <= value <= MAX_PAGE else f"between 1 and {MAX_PAGE}, not {value}"


PLACES: Final = several(UINT, MAX_PLACES)
TXN_ID: Final = checked(BINARY, _txn_id_check, "txn-id")
COUNT: Final = checked(UINT, _count_check)

XID_TYPE: Final = composite(
    _XidFields,
    "xid",
    0x01,
    FIELDS.mandatory("format", UINT).mandatory("global-id", BINARY).default("branch-id", BINARY, absent=b""),
)
_XIDS: Final = Catalog(XID_TYPE)


def _write_xid(xid: Xid) -> bytes:
    return XID_TYPE.encode(_XidFields(xid.format_id & 0xFFFF_FFFF, xid.gtrid, xid.bqual))


def _read_xid(octets: bytes, at: int, end: int, _depth: int) -> tuple[Xid, int]:
    stop = skip(octets, at - 1, end)
    return _xid_of(octets[at:stop]), stop


@lru_cache(maxsize=1024)
def _xid_of(octets: bytes) -> Xid:
    """The Xid in the octets behind the constructor of an XID composite. A branch's xid is read two or three times."""
    parts, _ = _XIDS.read(octets, 0, len(octets), MAX_DEPTH)
    return Xid(-1 if parts.format == NULL_FORMAT else int(parts.format), parts.global_id, parts.branch_id)


def _read_named_xid(octets: bytes, at: int, end: int, depth: int) -> tuple[Xid, int]:
    xid, at = _read_xid(octets, at, end, depth)
    if xid.is_null:
        raise ValueError("the null XID names no branch here")
    return xid, at


XID: Final = Kind("xid", {DESCRIBED: _read_xid}, _write_xid)
NAMED_XID: Final = Kind("xid", {DESCRIBED: _read_named_xid}, _write_xid)

START: Final = composite(
    Start,
    "start",
    0x02,
    FIELDS.mandatory("xid", NAMED_XID)
    .default("join", BOOLEAN, absent=False)
    .default("resume", BOOLEAN, absent=False)
    .optional("txn-id", TXN_ID)
    .optional("timeout", UINT),
)
_GLOBAL_IDS: Final[Catalog[_XidFields | Start]] = Catalog(XID_TYPE, START)


def _write_start(start: Start) -> bytes:
    return _write_xid(start.xid) if start == Start(start.xid) else START.encode(start)


def _read_start(octets: bytes, at: int, end: int, depth: int) -> tuple[Start, int]:
    found, stop = _GLOBAL_IDS.find(octets, at, end)
    if found is XID_TYPE:
        xid, at = _read_named_xid(octets, at, end, depth)
        return Start(xid), at
    start, at = START.read(octets, stop, end, depth)
    if start.join and start.resume:
        raise ValueError("join and resume exclude each other")
    return start, at


GLOBAL_ID: Final = Kind("global-id", {DESCRIBED: _read_start}, _write_start)


def _as_states(value: tuple[str, ...]) -> tuple[RecoveredState, ...]:
    return tuple(map(RecoveredState, value))


STATES: Final[Kind[tuple[RecoveredState, ...]]] = Kind("states", converting(SYMBOLS.readers, _as_states), SYMBOLS.write)

DECLARE: Final = standard(Declare, "declare", 0x31, FIELDS.optional("global-id", GLOBAL_ID))
DISCHARGE: Final = standard(
    Discharge,
    "discharge",
    0x32,
    FIELDS.mandatory("txn-id", TXN_ID).default("fail", BOOLEAN, absent=False),
)
END: Final = composite(
    End,
    "end",
    0x03,
    FIELDS.mandatory("txn-id", TXN_ID)
    .default("fail", BOOLEAN, absent=False)
    .default("suspend", BOOLEAN, absent=False)
    .default("prepare", BOOLEAN, absent=False)
    .default("keep", BOOLEAN, absent=False),
)
Control: TypeAlias = Declare | Discharge | End
CONTROL: Final[Catalog[Control]] = Catalog(DECLARE, DISCHARGE, END)
"""The commands that the body of a message on a control link may be."""

Coordination: TypeAlias = Prepare | Commit | Rollback | Forget | Recover | SetTimeout | GetTimeout | Complete | Fence
COORDINATION: Final[Catalog[Coordination]] = Catalog(
    composite(
        Prepare,
        "prepare",
        0x10,
        FIELDS.default("xid", XID, absent=NULL_XID)
        .default("keep", BOOLEAN, absent=False)
        .default("failed", PLACES, absent=())
        .default("released", PLACES, absent=()),
    ),
    composite(
        Commit, "commit", 0x11, FIELDS.default("xid", XID, absent=NULL_XID).default("one-phase", BOOLEAN, absent=False)
    ),
    composite(Rollback, "rollback", 0x12, FIELDS.default("xid", XID, absent=NULL_XID)),
    composite(Forget, "forget", 0x13, FIELDS.mandatory("xid", NAMED_XID)),
    composite(
        Recover,
        "recover",
        0x14,
        FIELDS.default("after", XID, absent=NULL_XID)
        .default("count", COUNT, absent=MAX_PAGE)
        .default("prefix", BINARY, absent=b"")
        .default("states", STATES, absent=())
        .default("details", BOOLEAN, absent=False),
    ),
    composite(SetTimeout, "set-timeout", 0x15, FIELDS.mandatory("timeout", UINT).default("xid", XID, absent=NULL_XID)),
    composite(GetTimeout, "get-timeout", 0x16, FIELDS.default("xid", XID, absent=NULL_XID)),
    composite(Complete, "complete", 0x17, FIELDS.mandatory("xid", NAMED_XID).mandatory("commit", BOOLEAN)),
    composite(
        Fence,
        "fence",
        0x18,
        FIELDS.mandatory("format", UINT).mandatory("global-id", BINARY).default("lift", BOOLEAN, absent=False),
    ),
)
"""The commands that the body of a request on the command channel may be."""
