"""Proton, the C library that speaks AMQP, as typed functions. No other module of rm_amqp uses it.

The library is driven without its Python classes, because they cost more than all the rest of a message. An `Engine` is
one connection with one session on it; the functions below it work on links and deliveries, which are pointers of the
library. Most of them are the library's own functions under another name, so that the types cost nothing.

Each engine is used by one thread at a time; engines share nothing. A pointer is valid for a time: a link until
`free_link`, a delivery until it is settled or its link is freed, an event until it is popped. Nothing checks that:
the holder of a pointer drops it at that moment.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, NewType

from cproton_ffi import ffi, lib  # type: ignore[import-not-found]

from dtx.amqp.decoding import DecodeError, decode
from dtx.amqp.encoding import encode
from dtx.amqp.values import Array, Symbol
from dtx.protocol.conditions import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dtx.amqp.values import Map

LinkPointer = NewType("LinkPointer", object)
"""A link; equal and hashed by its address."""
DeliveryPointer = NewType("DeliveryPointer", object)
"""A delivery; equal and hashed by its address."""
EventPointer = NewType("EventPointer", object)
"""An event, until it is popped."""
Collector = NewType("Collector", object)
"""The events of a connection, in their order."""
Pointer = Any
"""A pointer that stays inside of this module."""

NULL: Final = ffi.NULL
MAX_STATE: Final = 8192
"""Octets of a delivery state, an error's info or a set of capabilities that are looked at."""

CONNECTION_OPENED: Final[int] = lib.PN_CONNECTION_REMOTE_OPEN
CONNECTION_CLOSED: Final[int] = lib.PN_CONNECTION_REMOTE_CLOSE
SESSION_ENDED: Final[int] = lib.PN_SESSION_REMOTE_CLOSE
LINK_ATTACHED: Final[int] = lib.PN_LINK_REMOTE_OPEN
LINK_CLOSED: Final[int] = lib.PN_LINK_REMOTE_CLOSE
LINK_DETACHED: Final[int] = lib.PN_LINK_REMOTE_DETACH
TRANSPORT_FAILED: Final[int] = lib.PN_TRANSPORT_ERROR
DELIVERY: Final[int] = lib.PN_DELIVERY
"""A delivery came, or the peer's state of one changed."""

_allocate: Final = ffi.new_allocator(should_clear_after_alloc=False)


class Engine:
    """One connection, the client's side, with one session on it, and a second one where links are asked for apart."""

    def __init__(self, container: str, hostname: str, *, max_frame: int, idle_timeout_ms: int, window: int) -> None:
        self._connection: Pointer = lib.pn_connection()
        self._transport: Pointer = lib.pn_transport()
        self.collector: Collector = lib.pn_collector()
        """The events that have happened."""
        lib.pn_transport_set_max_frame(self._transport, max_frame)
        lib.pn_transport_set_idle_timeout(self._transport, idle_timeout_ms)
        lib.pn_connection_set_container(self._connection, container.encode("utf-8"))
        lib.pn_connection_set_hostname(self._connection, hostname.encode("utf-8"))
        lib.pn_connection_collect(self._connection, self.collector)
        lib.pn_transport_bind(self._transport, self._connection)

        lib.pn_connection_open(self._connection)
        self._session: Pointer = lib.pn_session(self._connection)
        lib.pn_session_set_incoming_capacity(self._session, window)
        lib.pn_session_open(self._session)
        self._window = window
        self._apart: Pointer | None = None
        self._buffer = _allocate("char[]", 65_536)
        self._size = 65_536
        self._finalizer = weakref.finalize(self, _free, self._connection, self._transport, self.collector)
        self._finalizer.atexit = False

    # -- octets
    def push(self, octets: bytes) -> bool:
        """Gives the transport what the peer sent; False when it takes no more."""
        taken = 0
        source = ffi.from_buffer(octets)
        while taken < len(octets):
            count = lib.pn_transport_push(self._transport, source + taken, len(octets) - taken)
            if count <= 0:
                return False
            taken += count
        return True

    def output(self) -> list[bytes]:
        """The octets that are to be sent, in pieces; they are taken out of the transport."""
        pieces: list[bytes] = []
        while (pending := lib.pn_transport_pending(self._transport)) > 0:
            if pending > self._size:
                self._size = pending
                self._buffer = _allocate("char[]", pending)
            count = lib.pn_transport_peek(self._transport, self._buffer, pending)
            if count <= 0:
                break
            pieces.append(ffi.buffer(self._buffer, count)[:])
            lib.pn_transport_pop(self._transport, count)
        return pieces

    def tick(self, now_ms: int) -> int:
        """Checks the idle time-outs; when it wants to be called again, 0 for never."""
        return int(lib.pn_transport_tick(self._transport, now_ms))

    def close(self) -> None:
        """Sends a close."""
        lib.pn_connection_close(self._connection)

    def error(self) -> str:
        """The transport's error; the empty string for none."""
        condition = lib.pn_transport_condition(self._transport)
        if not lib.pn_condition_is_set(condition):
            return ""
        name, description = lib.pn_condition_get_name(condition), lib.pn_condition_get_description(condition)
        return f"{_text(name)}: {_text(description)}"

    # -- what the peer says
    def peer(self) -> str:
        """The container id of the peer."""
        return _text(lib.pn_connection_remote_container(self._connection))

    def offered(self) -> tuple[str, ...]:
        """The capabilities that the peer offers on the connection."""
        return _symbols(lib.pn_connection_remote_offered_capabilities(self._connection))

    def close_error(self) -> Refusal | None:
        """The error with which the peer closed the connection; None for none."""
        return _refusal(lib.pn_connection_remote_condition(self._connection))

    def end_error(self) -> Refusal | None:
        """The error with which the peer ended the session; None for none."""
        return _refusal(lib.pn_session_remote_condition(self._session))

    # -- links
    def sender(self, name: str, *, apart: bool = False) -> LinkPointer:
        """A new sending link, which is not opened yet; with `apart` in a session beside the transactional one."""
        link: LinkPointer = lib.pn_sender(self._session_for(apart=apart), name.encode("ascii"))
        return link

    def receiver(self, name: str, *, apart: bool = False) -> LinkPointer:
        """A new receiving link, which is not opened yet; with `apart` in a session beside the transactional one."""
        link: LinkPointer = lib.pn_receiver(self._session_for(apart=apart), name.encode("ascii"))
        return link

    def _session_for(self, *, apart: bool) -> Pointer:
        if not apart:
            return self._session
        if self._apart is None:
            self._apart = lib.pn_session(self._connection)
            lib.pn_session_set_incoming_capacity(self._apart, self._window)
            lib.pn_session_open(self._apart)
        return self._apart


def _free(connection: Pointer, transport: Pointer, collector: Pointer) -> None:
    """Frees the memory of an engine that is not used any more."""
    lib.pn_transport_unbind(transport)
    lib.pn_collector_release(collector)
    lib.pn_decref(transport)
    lib.pn_connection_release(connection)
    lib.pn_decref(connection)
    lib.pn_collector_free(collector)


# --- events --------------------
next_event: Final[Callable[[Collector], EventPointer | None]] = lib.pn_collector_peek
"""The first event; false for none."""
pop_event: Final[Callable[[Collector], bool]] = lib.pn_collector_pop
kind_of_event: Final[Callable[[EventPointer], int]] = lib.pn_event_type
delivery_of_event: Final[Callable[[EventPointer], DeliveryPointer]] = lib.pn_event_delivery
link_of_delivery: Final[Callable[[DeliveryPointer], LinkPointer]] = lib.pn_delivery_link

# --- links --------------------
open_link: Final[Callable[[LinkPointer], None]] = lib.pn_link_open
close_link: Final[Callable[[LinkPointer], None]] = lib.pn_link_close
free_link: Final[Callable[[LinkPointer], None]] = lib.pn_link_free
link_of_event: Final[Callable[[EventPointer], LinkPointer]] = lib.pn_event_link
link_credit: Final[Callable[[LinkPointer], int]] = lib.pn_link_credit
"""Sender: how many messages the peer takes now. Receiver: how many may be on their way."""
link_queued: Final[Callable[[LinkPointer], int]] = lib.pn_link_queued
"""Sender: how many messages have not left yet."""
link_draining: Final[Callable[[LinkPointer], bool]] = lib.pn_link_draining
"""Receiver: whether the peer has yet to use up the credit, or to give it back."""
give_credit: Final[Callable[[LinkPointer, int], None]] = lib.pn_link_flow
drain_with_credit: Final[Callable[[LinkPointer, int], None]] = lib.pn_link_drain
current_delivery: Final[Callable[[LinkPointer], DeliveryPointer]] = lib.pn_link_current
advance_link: Final[Callable[[LinkPointer], bool]] = lib.pn_link_advance
"""Completes the current delivery; the next one is current."""
max_message_size: Final[Callable[[LinkPointer], int]] = lib.pn_link_remote_max_message_size
"""The largest message that the peer takes, 0 for no bound."""


def set_target(link: LinkPointer, address: str, capabilities: Sequence[str] = ()) -> None:
    """The node that a sender sends to."""
    target = lib.pn_link_target(link)
    lib.pn_terminus_set_address(target, address.encode("utf-8"))
    if capabilities:
        _put_symbols(lib.pn_terminus_capabilities(target), capabilities)


def set_coordinator_target(link: LinkPointer, capabilities: Sequence[str], outcomes: Sequence[str]) -> None:
    """A sender to the transaction coordinator, which asks for these capabilities, and understands these outcomes."""
    target = lib.pn_link_target(link)
    lib.pn_terminus_set_type(target, lib.PN_COORDINATOR)
    _put_symbols(lib.pn_terminus_capabilities(target), capabilities)
    source = lib.pn_link_source(link)
    lib.pn_terminus_set_type(source, lib.PN_SOURCE)
    _put_symbols(lib.pn_terminus_outcomes(source), outcomes)


def set_source(link: LinkPointer, address: str | None, capabilities: Sequence[str] = (), *, browse: bool) -> None:
    """The node that a receiver takes messages from, or with `browse` only reads. None: a node that the peer makes."""
    source = lib.pn_link_source(link)
    if address is None:
        lib.pn_terminus_set_type(source, lib.PN_SOURCE)
        lib.pn_terminus_set_dynamic(source, True)
    else:
        lib.pn_terminus_set_address(source, address.encode("utf-8"))
    if capabilities:
        _put_symbols(lib.pn_terminus_capabilities(source), capabilities)
    if browse:
        lib.pn_terminus_set_distribution_mode(source, lib.PN_DIST_MODE_COPY)


def ask_for_settled(link: LinkPointer) -> None:
    """A receiver asks the peer to send every message settled."""
    lib.pn_link_set_snd_settle_mode(link, lib.PN_SND_SETTLED)


def settle_second(link: LinkPointer) -> None:
    """A receiver says outcomes first, and settles a delivery when the peer has said that it carried one out."""
    lib.pn_link_set_rcv_settle_mode(link, lib.PN_RCV_SECOND)


def set_reply_address(link: LinkPointer, address: str, *, receiver: bool) -> None:
    """Names our end of a link: the target of a receiver, the source of a sender."""
    terminus = lib.pn_link_target(link) if receiver else lib.pn_link_source(link)
    lib.pn_terminus_set_address(terminus, address.encode("utf-8"))


def set_properties(link: LinkPointer, properties: Map) -> None:
    """The properties of our attach."""
    _put(lib.pn_link_properties(link), encode(properties))


def has_target(link: LinkPointer) -> bool:
    """Whether the peer's attach of a sender names a target; one that refuses the link names none."""
    return bool(lib.pn_terminus_get_type(lib.pn_link_remote_target(link)) != lib.PN_UNSPECIFIED)


def has_source(link: LinkPointer) -> bool:
    """Whether the peer's attach of a receiver names a source; one that refuses the link names none."""
    return bool(lib.pn_terminus_get_type(lib.pn_link_remote_source(link)) != lib.PN_UNSPECIFIED)


def source_address(link: LinkPointer) -> str:
    """The address in the peer's attach of a receiver; empty for none."""
    return _text(lib.pn_terminus_get_address(lib.pn_link_remote_source(link)))


def source_moves(link: LinkPointer) -> bool:
    """Whether the peer says that it gives messages away over a receiver, although it was asked for copies."""
    return bool(lib.pn_terminus_get_distribution_mode(lib.pn_link_remote_source(link)) == lib.PN_DIST_MODE_MOVE)


def _symbols(data: Any) -> tuple[str, ...]:
    """One symbol, or an array of them."""
    value = _value(data)
    items = value if isinstance(value, Array) else [value]
    return tuple(str(item) for item in items if type(item) is Symbol)


def target_capabilities(link: LinkPointer) -> tuple[str, ...]:
    """The capabilities of a sender's target, as the peer tells them."""
    return _symbols(lib.pn_terminus_capabilities(lib.pn_link_remote_target(link)))


def link_error(link: LinkPointer) -> Refusal | None:
    """The error with which the peer closed a link; None for none."""
    return _refusal(lib.pn_link_remote_condition(link))


# --- deliveries --------------------
settle: Final[Callable[[DeliveryPointer], None]] = lib.pn_delivery_settle
update: Final[Callable[[DeliveryPointer, int], None]] = lib.pn_delivery_update
"""Sets our state of a delivery to one without fields, by its code."""
is_settled: Final[Callable[[DeliveryPointer], bool]] = lib.pn_delivery_settled
is_aborted: Final[Callable[[DeliveryPointer], bool]] = lib.pn_delivery_aborted
is_partial: Final[Callable[[DeliveryPointer], bool]] = lib.pn_delivery_partial
pending_octets: Final[Callable[[DeliveryPointer], int]] = lib.pn_delivery_pending
remote_state: Final[Callable[[DeliveryPointer], int]] = lib.pn_delivery_remote_state
"""The code of the peer's state of a delivery, 0 for none."""


def receive(link: LinkPointer, size: int) -> bytes:
    """Takes `size` octets of the link's current delivery."""
    buffer = _allocate("char[]", size)
    count = lib.pn_link_recv(link, buffer, size)
    octets: bytes = ffi.buffer(buffer, max(count, 0))[:]
    return octets


def begin_message(
    link: LinkPointer, number: int, octets: bytes | memoryview, state: tuple[int, bytes] | None
) -> DeliveryPointer:
    """A new outgoing delivery, the link's current one until `advance_link`. Its tag is a number; its state is one of
    ours, its fields encoded."""
    tag = ffi.from_buffer(number.to_bytes(4, "big"))
    delivery: DeliveryPointer = lib.pn_delivery(link, {"size": 4, "start": tag})
    if state is not None:
        set_state(delivery, *state)
    lib.pn_link_send(link, ffi.from_buffer(octets), len(octets))
    return delivery


def append(link: LinkPointer, octets: memoryview) -> None:
    """Adds to the link's current delivery."""
    lib.pn_link_send(link, ffi.from_buffer(octets), len(octets))


def set_state(delivery: DeliveryPointer, code: int, fields: bytes) -> None:
    """Sets our state of a delivery to one that proton does not know; `fields` are encoded already."""
    data = lib.pn_disposition_data(lib.pn_delivery_local(delivery))
    lib.pn_data_clear(data)
    lib.pn_data_decode(data, ffi.from_buffer(fields), len(fields))
    lib.pn_delivery_update(delivery, code)


remote_disposition: Final[Callable[[DeliveryPointer], Pointer]] = lib.pn_delivery_remote
"""The peer's state of a delivery."""
fields_of: Final[Callable[[Pointer], Pointer]] = lib.pn_disposition_data
"""The fields of a state that proton does not know; see `encoded`."""


def remote_error(delivery: DeliveryPointer) -> Refusal | None:
    """The error with which the peer rejected a delivery; None for none."""
    return _refusal(lib.pn_disposition_condition(lib.pn_delivery_remote(delivery)))


# --- values --------------------
def _text(string: Pointer) -> str:
    """A C string; empty for NULL."""
    return "" if string == NULL else ffi.string(string).decode("utf-8", "replace")


def encoded(data: Pointer) -> bytes | None:
    """The one value of a pn_data, encoded; empty when there is none, None when it is too large to look at."""
    size = lib.pn_data_encoded_size(data)
    if not 0 <= size <= MAX_STATE:
        return None
    if not size:
        return b""
    buffer = _allocate("char[]", size)
    count = lib.pn_data_encode(data, buffer, size)
    return ffi.buffer(buffer, count)[:] if count >= 0 else None


def _put(data: Pointer, octets: bytes) -> None:
    """Makes an encoded value the one of a pn_data."""
    lib.pn_data_clear(data)
    lib.pn_data_decode(data, ffi.from_buffer(octets), len(octets))


def _value(data: Pointer) -> Any:
    """The one value of a pn_data; None for none, and for one that is too large or wrong."""
    octets = encoded(data)
    if not octets:
        return None
    try:
        return decode(octets)
    except DecodeError:
        return None


def _put_symbols(data: Pointer, names: Sequence[str]) -> None:
    """Sets a multiple field."""
    _put(data, encode(Array(map(Symbol, names))))


def _refusal(condition: Pointer) -> Refusal | None:
    """The error that the peer sent; None where it sent none."""
    if not lib.pn_condition_is_set(condition):
        return None
    info = _value(lib.pn_condition_info(condition))
    return Refusal.read(
        _text(lib.pn_condition_get_name(condition)),
        _text(lib.pn_condition_get_description(condition)),
        info if isinstance(info, dict) else None,
    )
