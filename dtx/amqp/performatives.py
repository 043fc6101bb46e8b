"""The performatives of AMQP's transport, and the composites in them, as tables (part 2 and 3 of the specification).

`PERFORMATIVES` reads any of them from the body of a frame. A delivery state stays as the octets that it is: an endpoint
passes it on, and the layer that understands its states (`dtx.amqp.states`, the transactions of `dtx.protocol`) reads it
there. Everything that an endpoint keeps is bounded by MAX_PERFORMATIVE and MAX_TAG.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from dtx.amqp.composites import (
    BINARY,
    BOOLEAN,
    DESCRIBED,
    FIELDS,
    MAP,
    STRING,
    SYMBOL,
    SYMBOLS,
    UBYTE,
    UINT,
    ULONG,
    USHORT,
    Catalog,
    Kind,
    Table,
    checked,
    nested,
    standard,
)
from dtx.amqp.decoding import skip

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVarTuple

    from dtx.amqp.values import Map

    Ts = TypeVarTuple("Ts")


OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18

MAX_PERFORMATIVE: Final = 8192
"""Octets of a performative, the payload of a transfer not counted."""
MAX_TAG: Final = 32
MAX_UINT: Final = 2**32 - 1
MAX_USHORT: Final = 2**16 - 1

SENDER_UNSETTLED: Final = 0
SENDER_SETTLED: Final = 1
SENDER_MIXED: Final = 2
RECEIVER_FIRST: Final = 0
RECEIVER_SECOND: Final = 1


@dataclass(slots=True)
class Error:
    """Why something was ended."""

    condition: str
    description: str = ""
    info: Map | None = None


@dataclass(slots=True)
class Source:
    """The terminus from which messages come. `filters` has the filters by their names."""

    address: str | None = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: Map | None = None
    distribution_mode: str | None = None
    filters: Map | None = None
    default_outcome: bytes | None = None
    outcomes: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


@dataclass(slots=True)
class Target:
    """The terminus to which messages go."""

    address: str | None = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: Map | None = None
    capabilities: tuple[str, ...] = ()


@dataclass(slots=True)
class Coordinator:
    """A target that is a resource's transaction coordinator."""

    capabilities: tuple[str, ...] = ()


@dataclass(slots=True)
class Open:
    """Negotiates the parameters of a connection."""

    container_id: str
    hostname: str | None = None
    max_frame_size: int = MAX_UINT
    channel_max: int = MAX_USHORT
    idle_timeout_ms: int | None = None
    outgoing_locales: tuple[str, ...] = ()
    incoming_locales: tuple[str, ...] = ()
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: Map | None = None


@dataclass(slots=True)
class Begin:
    """Begins a session on a channel."""

    remote_channel: int | None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int = MAX_UINT
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: Map | None = None


@dataclass(slots=True)
class Attach:
    """Attaches a link to a session."""

    name: str
    handle: int
    receiver: bool
    """The role of the end that sent the attach."""
    snd_settle_mode: int = SENDER_MIXED
    rcv_settle_mode: int = RECEIVER_FIRST
    source: Source | None = None
    target: Target | Coordinator | None = None
    unsettled: Map | None = None
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int = 0
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: Map | None = None


@dataclass(slots=True)
class Flow:
    """Tells the state of a session's windows, and with a handle that of a link's credit."""

    next_incoming_id: int | None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: Map | None = None


@dataclass(slots=True)
class Transfer:
    """A delivery, or a part of one."""

    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool = False
    rcv_settle_mode: int | None = None
    state: bytes | None = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


@dataclass(slots=True)
class Disposition:
    """Tells the state of deliveries."""

    receiver: bool
    """The role of the end that sent the disposition."""
    first: int
    last: int | None = None
    settled: bool = False
    state: bytes | None = None
    batchable: bool = False


@dataclass(slots=True)
class Detach:
    """Detaches a link from its session; `closed` ends the link for good."""

    handle: int
    closed: bool = False
    error: Error | None = None


@dataclass(slots=True)
class End:
    """Ends a session."""

    error: Error | None = None


@dataclass(slots=True)
class Close:
    """Closes a connection."""

    error: Error | None = None


# --- kinds --------------------
def _raw(octets: bytes, at: int, end: int, _depth: int) -> tuple[bytes, int]:
    stop = skip(octets, at - 1, end)
    return octets[at - 1 : stop], stop


def _at_most(limit: int, what: str) -> Callable[[int], str]:
    return lambda value: "" if value <= limit else f"{what} is at most {limit}, not {value}"


def _tag_check(value: bytes) -> str:
    return "" if len(value) <= MAX_TAG else f"a delivery-tag has at most {MAX_TAG} octets"


TAG: Final = checked(BINARY, _tag_check)
SENDER_MODE: Final = checked(UBYTE, _at_most(2, "snd-settle-mode"))
RECEIVER_MODE: Final = checked(UBYTE, _at_most(1, "rcv-settle-mode"))
STATE: Final[Kind[bytes]] = Kind("delivery-state", {DESCRIBED: _raw}, bytes)
"""A delivery state, encoded."""

ERROR_TYPE: Final = standard(
    Error,
    "error",
    0x1D,
    FIELDS.mandatory("condition", SYMBOL).default("description", STRING, absent="").optional("info", MAP),
)
ERROR: Final = nested(ERROR_TYPE)
SOURCE_TYPE: Final = standard(
    Source,
    "source",
    0x28,
    FIELDS.optional("address", STRING)
    .default("durable", UINT, absent=0)
    .default("expiry-policy", SYMBOL, absent="session-end")
    .default("timeout", UINT, absent=0)
    .default("dynamic", BOOLEAN, absent=False)
    .optional("dynamic-node-properties", MAP)
    .optional("distribution-mode", SYMBOL)
    .optional("filter", MAP)
    .optional("default-outcome", STATE)
    .default("outcomes", SYMBOLS, absent=())
    .default("capabilities", SYMBOLS, absent=()),
)
TARGET_TYPE: Final = standard(
    Target,
    "target",
    0x29,
    FIELDS.optional("address", STRING)
    .default("durable", UINT, absent=0)
    .default("expiry-policy", SYMBOL, absent="session-end")
    .default("timeout", UINT, absent=0)
    .default("dynamic", BOOLEAN, absent=False)
    .optional("dynamic-node-properties", MAP)
    .default("capabilities", SYMBOLS, absent=()),
)
COORDINATOR_TYPE: Final = standard(Coordinator, "coordinator", 0x30, FIELDS.default("capabilities", SYMBOLS, absent=()))
_TARGETS: Final[Catalog[Target | Coordinator]] = Catalog(TARGET_TYPE, COORDINATOR_TYPE)
TARGET: Final = Kind("target", {DESCRIBED: _TARGETS.read}, _TARGETS.encode)


def _with_capabilities(table: Table[*Ts]) -> Table[*Ts, tuple[str, ...], tuple[str, ...], Map | None]:
    """The table with the three fields behind it in which an open, a begin and an attach end."""
    return (
        table.default("offered-capabilities", SYMBOLS, absent=())
        .default("desired-capabilities", SYMBOLS, absent=())
        .optional("properties", MAP)
    )


# --- tables --------------------
OPEN_TYPE: Final = standard(
    Open,
    "open",
    OPEN,
    _with_capabilities(
        FIELDS.mandatory("container-id", STRING)
        .optional("hostname", STRING)
        .default("max-frame-size", UINT, absent=MAX_UINT)
        .default("channel-max", USHORT, absent=MAX_USHORT)
        .optional("idle-time-out", UINT)
        .default("outgoing-locales", SYMBOLS, absent=())
        .default("incoming-locales", SYMBOLS, absent=())
    ),
)
BEGIN_TYPE: Final = standard(
    Begin,
    "begin",
    BEGIN,
    _with_capabilities(
        FIELDS.optional("remote-channel", USHORT)
        .mandatory("next-outgoing-id", UINT)
        .mandatory("incoming-window", UINT)
        .mandatory("outgoing-window", UINT)
        .default("handle-max", UINT, absent=MAX_UINT)
    ),
)
ATTACH_TYPE: Final = standard(
    Attach,
    "attach",
    ATTACH,
    _with_capabilities(
        FIELDS.mandatory("name", STRING)
        .mandatory("handle", UINT)
        .mandatory("role", BOOLEAN)
        .default("snd-settle-mode", SENDER_MODE, absent=SENDER_MIXED)
        .default("rcv-settle-mode", RECEIVER_MODE, absent=RECEIVER_FIRST)
        .optional("source", nested(SOURCE_TYPE))
        .optional("target", TARGET)
        .optional("unsettled", MAP)
        .default("incomplete-unsettled", BOOLEAN, absent=False)
        .optional("initial-delivery-count", UINT)
        .default("max-message-size", ULONG, absent=0)
    ),
)
FLOW_TYPE: Final = standard(
    Flow,
    "flow",
    FLOW,
    FIELDS.optional("next-incoming-id", UINT)
    .mandatory("incoming-window", UINT)
    .mandatory("next-outgoing-id", UINT)
    .mandatory("outgoing-window", UINT)
    .optional("handle", UINT)
    .optional("delivery-count", UINT)
    .optional("link-credit", UINT)
    .optional("available", UINT)
    .default("drain", BOOLEAN, absent=False)
    .default("echo", BOOLEAN, absent=False)
    .optional("properties", MAP),
)
TRANSFER_TYPE: Final = standard(
    Transfer,
    "transfer",
    TRANSFER,
    FIELDS.mandatory("handle", UINT)
    .optional("delivery-id", UINT)
    .optional("delivery-tag", TAG)
    .optional("message-format", UINT)
    .optional("settled", BOOLEAN)
    .default("more", BOOLEAN, absent=False)
    .optional("rcv-settle-mode", RECEIVER_MODE)
    .optional("state", STATE)
    .default("resume", BOOLEAN, absent=False)
    .default("aborted", BOOLEAN, absent=False)
    .default("batchable", BOOLEAN, absent=False),
)
DISPOSITION_TYPE: Final = standard(
    Disposition,
    "disposition",
    DISPOSITION,
    FIELDS.mandatory("role", BOOLEAN)
    .mandatory("first", UINT)
    .optional("last", UINT)
    .default("settled", BOOLEAN, absent=False)
    .optional("state", STATE)
    .default("batchable", BOOLEAN, absent=False),
)
DETACH_TYPE: Final = standard(
    Detach,
    "detach",
    DETACH,
    FIELDS.mandatory("handle", UINT).default("closed", BOOLEAN, absent=False).optional("error", ERROR),
)
END_TYPE: Final = standard(End, "end", END, FIELDS.optional("error", ERROR))
CLOSE_TYPE: Final = standard(Close, "close", CLOSE, FIELDS.optional("error", ERROR))

Performative: TypeAlias = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close
PERFORMATIVES: Final[Catalog[Performative]] = Catalog(
    OPEN_TYPE,
    BEGIN_TYPE,
    ATTACH_TYPE,
    FLOW_TYPE,
    TRANSFER_TYPE,
    DISPOSITION_TYPE,
    DETACH_TYPE,
    END_TYPE,
    CLOSE_TYPE,
)
"""What the body of a frame may begin with."""
