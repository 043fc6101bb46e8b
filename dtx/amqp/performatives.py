"""The performatives of AMQP's transport, and the composites in them, as tables (part 2 and 3 of the specification).

`PERFORMATIVES` reads any of them from the body of a frame. A delivery state stays as the octets that it is: an endpoint
passes it on, and whoever understands its states (`dtx.amqp.states`, the transactions of `dtx.protocol`) reads it there.
Everything that an endpoint keeps is bounded by MAX_PERFORMATIVE and MAX_TAG.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.composites import (
    DESCRIBED,
    SYMBOLS,
    Catalog,
    Field,
    Kind,
    nested,
    plain,
    standard,
)
from dtx.amqp.decoding import skip
from dtx.amqp.values import Symbol, Ubyte, Uint, Ulong, Ushort

if TYPE_CHECKING:
    from collections.abc import Callable


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
    info: dict[Any, Any] | None = None


@dataclass(slots=True)
class Source:
    """The terminus from which messages come. `filters` has the filters by their names."""

    address: str | None = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[Any, Any] | None = None
    distribution_mode: str | None = None
    filters: dict[Any, Any] | None = None
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
    dynamic_node_properties: dict[Any, Any] | None = None
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
    properties: dict[Any, Any] | None = None


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
    properties: dict[Any, Any] | None = None


@dataclass(slots=True)
class Attach:
    """Attaches a link to a session."""

    name: str
    handle: int
    receiver: bool
    """The role of whoever sent the attach."""
    snd_settle_mode: int = SENDER_MIXED
    rcv_settle_mode: int = RECEIVER_FIRST
    source: Source | None = None
    target: Target | Coordinator | None = None
    unsettled: dict[Any, Any] | None = None
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int = 0
    offered_capabilities: tuple[str, ...] = ()
    desired_capabilities: tuple[str, ...] = ()
    properties: dict[Any, Any] | None = None


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
    properties: dict[Any, Any] | None = None


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
    """The role of whoever sent the disposition."""
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


def _at_most(limit: int, what: str) -> Callable[[Any], str]:
    return lambda value: "" if value <= limit else f"{what} is at most {limit}, not {value}"


def _tag_check(value: bytes) -> str:
    return "" if len(value) <= MAX_TAG else f"a delivery-tag has at most {MAX_TAG} octets"


BOOLEAN: Final = plain("boolean", bool)
USHORT: Final = plain("ushort", Ushort)
UINT: Final = plain("uint", Uint)
ULONG: Final = plain("ulong", Ulong)
STRING: Final = plain("string", str)
SYMBOL: Final = plain("symbol", Symbol)
MAP: Final = plain("map", dict)
TAG: Final = plain("binary", bytes, _tag_check)
STATE: Final = Kind("delivery-state", {DESCRIBED: _raw}, bytes)
"""A delivery state, encoded."""

ERROR_TYPE: Final = standard(
    Error,
    "error",
    0x1D,
    (Field("condition", SYMBOL, mandatory=True), Field("description", STRING, absent=""), Field("info", MAP)),
)
ERROR: Final = nested(ERROR_TYPE)
SOURCE_TYPE: Final = standard(
    Source,
    "source",
    0x28,
    (
        Field("address", STRING),
        Field("durable", UINT, absent=0),
        Field("expiry-policy", SYMBOL, absent="session-end"),
        Field("timeout", UINT, absent=0),
        Field("dynamic", BOOLEAN, absent=False),
        Field("dynamic-node-properties", MAP),
        Field("distribution-mode", SYMBOL),
        Field("filter", MAP),
        Field("default-outcome", STATE),
        Field("outcomes", SYMBOLS, absent=()),
        Field("capabilities", SYMBOLS, absent=()),
    ),
)
TARGET_TYPE: Final = standard(
    Target,
    "target",
    0x29,
    (
        Field("address", STRING),
        Field("durable", UINT, absent=0),
        Field("expiry-policy", SYMBOL, absent="session-end"),
        Field("timeout", UINT, absent=0),
        Field("dynamic", BOOLEAN, absent=False),
        Field("dynamic-node-properties", MAP),
        Field("capabilities", SYMBOLS, absent=()),
    ),
)
COORDINATOR_TYPE: Final = standard(Coordinator, "coordinator", 0x30, (Field("capabilities", SYMBOLS, absent=()),))
_TARGETS: Final = Catalog(TARGET_TYPE, COORDINATOR_TYPE)
_CAPABILITIES: Final = (
    Field("offered-capabilities", SYMBOLS, absent=()),
    Field("desired-capabilities", SYMBOLS, absent=()),
    Field("properties", MAP),
)
_ERROR_FIELD: Final = Field("error", ERROR)

# --- tables --------------------
OPEN_TYPE: Final = standard(
    Open,
    "open",
    OPEN,
    (
        Field("container-id", STRING, mandatory=True),
        Field("hostname", STRING),
        Field("max-frame-size", UINT, absent=MAX_UINT),
        Field("channel-max", USHORT, absent=MAX_USHORT),
        Field("idle-time-out", UINT),
        Field("outgoing-locales", SYMBOLS, absent=()),
        Field("incoming-locales", SYMBOLS, absent=()),
        *_CAPABILITIES,
    ),
)
BEGIN_TYPE: Final = standard(
    Begin,
    "begin",
    BEGIN,
    (
        Field("remote-channel", USHORT),
        Field("next-outgoing-id", UINT, mandatory=True),
        Field("incoming-window", UINT, mandatory=True),
        Field("outgoing-window", UINT, mandatory=True),
        Field("handle-max", UINT, absent=MAX_UINT),
        *_CAPABILITIES,
    ),
)
ATTACH_TYPE: Final = standard(
    Attach,
    "attach",
    ATTACH,
    (
        Field("name", STRING, mandatory=True),
        Field("handle", UINT, mandatory=True),
        Field("role", BOOLEAN, mandatory=True),
        Field("snd-settle-mode", plain("ubyte", Ubyte, _at_most(2, "snd-settle-mode")), absent=SENDER_MIXED),
        Field("rcv-settle-mode", plain("ubyte", Ubyte, _at_most(1, "rcv-settle-mode")), absent=RECEIVER_FIRST),
        Field("source", nested(SOURCE_TYPE)),
        Field("target", Kind("target", {DESCRIBED: _TARGETS.read}, _TARGETS.encode)),
        Field("unsettled", MAP),
        Field("incomplete-unsettled", BOOLEAN, absent=False),
        Field("initial-delivery-count", UINT),
        Field("max-message-size", ULONG, absent=0),
        *_CAPABILITIES,
    ),
)
FLOW_TYPE: Final = standard(
    Flow,
    "flow",
    FLOW,
    (
        Field("next-incoming-id", UINT),
        Field("incoming-window", UINT, mandatory=True),
        Field("next-outgoing-id", UINT, mandatory=True),
        Field("outgoing-window", UINT, mandatory=True),
        Field("handle", UINT),
        Field("delivery-count", UINT),
        Field("link-credit", UINT),
        Field("available", UINT),
        Field("drain", BOOLEAN, absent=False),
        Field("echo", BOOLEAN, absent=False),
        Field("properties", MAP),
    ),
)
TRANSFER_TYPE: Final = standard(
    Transfer,
    "transfer",
    TRANSFER,
    (
        Field("handle", UINT, mandatory=True),
        Field("delivery-id", UINT),
        Field("delivery-tag", TAG),
        Field("message-format", UINT),
        Field("settled", BOOLEAN),
        Field("more", BOOLEAN, absent=False),
        Field("rcv-settle-mode", plain("ubyte", Ubyte, _at_most(1, "rcv-settle-mode"))),
        Field("state", STATE),
        Field("resume", BOOLEAN, absent=False),
        Field("aborted", BOOLEAN, absent=False),
        Field("batchable", BOOLEAN, absent=False),
    ),
)
DISPOSITION_TYPE: Final = standard(
    Disposition,
    "disposition",
    DISPOSITION,
    (
        Field("role", BOOLEAN, mandatory=True),
        Field("first", UINT, mandatory=True),
        Field("last", UINT),
        Field("settled", BOOLEAN, absent=False),
        Field("state", STATE),
        Field("batchable", BOOLEAN, absent=False),
    ),
)
DETACH_TYPE: Final = standard(
    Detach,
    "detach",
    DETACH,
    (Field("handle", UINT, mandatory=True), Field("closed", BOOLEAN, absent=False), _ERROR_FIELD),
)
END_TYPE: Final = standard(End, "end", END, (_ERROR_FIELD,))
CLOSE_TYPE: Final = standard(Close, "close", CLOSE, (_ERROR_FIELD,))

PERFORMATIVES: Final = Catalog(
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
Performative = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close
