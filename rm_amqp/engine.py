"""Engine: the client's side of proton's connection, transport and collector, driven without its Python objects.

Each connection has an engine of its own, which one thread uses at a time; there is no state between engines. The
rules that keep its pointers safe: a link is used until it is freed, a delivery until it is settled or its link is
freed. Its memory goes with the engine. Who holds pointers drops them at these moments.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from cproton_ffi import ffi, lib  # type: ignore[import-not-found]

from dtx.protocol.conditions import Refusal
from dtx.protocol.decoding import DecodeError, decode
from dtx.protocol.encoding import encode
from dtx.protocol.values import Array, Symbol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Pointer = Any
"""A pointer of the library; equal and hashed by address."""

LIB: Final = lib
NULL: Final = ffi.NULL
MAX_STATE: Final = 8192
"""Octets of a delivery state, an error's info or a set of capabilities that are looked at."""

_EVENTS: Final = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type, lib.pn_event_delivery
_allocate: Final = ffi.new_allocator(should_clear_after_alloc=False)


class Engine:
    """One connection, the client's side, with one session on it."""

    def __init__(self, container: str, hostname: str, *, max_frame: int, idle_timeout_ms: int, window: int) -> None:
        self.connection: Pointer = lib.pn_connection()
        self._transport = lib.pn_transport()
        self._collector = lib.pn_collector()
        lib.pn_transport_set_max_frame(self._transport, max_frame)
        lib.pn_transport_set_idle_timeout(self._transport, idle_timeout_ms)
        lib.pn_connection_set_container(self.connection, container.encode("utf-8"))
        lib.pn_connection_set_hostname(self.connection, hostname.encode("utf-8"))
        lib.pn_connection_collect(self.connection, self._collector)
        lib.pn_transport_bind(self._transport, self.connection)
        lib.pn_connection_open(self.connection)
        self.session: Pointer = lib.pn_session(self.connection)
        lib.pn_session_set_incoming_capacity(self.session, window)
        lib.pn_session_open(self.session)
        self._buffer = _allocate("char[]", 65_536)
        self._size = 65_536
        self._finalizer = weakref.finalize(self, _free, self.connection, self._transport, self._collector)
        self._finalizer.atexit = False

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

    def handle(self, deliver: Callable[[Pointer], None], handlers: Mapping[int, Callable[[Pointer], None]]) -> None:
        """Calls `deliver` with each delivery that something happened to, and the handler of each other event, where
        it has one; also for events that are made meanwhile."""
        peek, pop, kind_of, delivery_of = _EVENTS
        collector, delivers = self._collector, lib.PN_DELIVERY
        while event := peek(collector):
            kind = kind_of(event)
            if kind == delivers:
                deliver(delivery_of(event))
            else:
                handler = handlers.get(kind)
                if handler is not None:
                    handler(event)
            pop(collector)

    def output(self) -> bytes:
        """What is to be sent; it is taken out of the transport."""
        pending = lib.pn_transport_pending(self._transport)
        if pending <= 0:
            return b""
        if pending > self._size:
            self._size = pending
            self._buffer = _allocate("char[]", pending)
        count = lib.pn_transport_peek(self._transport, self._buffer, pending)
        if count <= 0:
            return b""
        octets: bytes = ffi.buffer(self._buffer, count)[:]
        lib.pn_transport_pop(self._transport, count)
        return octets

    def tick(self, now_ms: int) -> int:
        """Looks after idle time-outs; when it wants to be called again, 0 for never."""
        return int(lib.pn_transport_tick(self._transport, now_ms))

    def close(self) -> None:
        """Says goodbye."""
        lib.pn_connection_close(self.connection)

    def error(self) -> str:
        """What the transport says is wrong, the empty string for nothing."""
        condition = lib.pn_transport_condition(self._transport)
        if not lib.pn_condition_is_set(condition):
            return ""
        name, told = lib.pn_condition_get_name(condition), lib.pn_condition_get_description(condition)
        return f"{text(name)}: {text(told)}"


def _free(connection: Pointer, transport: Pointer, collector: Pointer) -> None:
    """Nobody has the engine any more."""
    lib.pn_transport_unbind(transport)
    lib.pn_collector_release(collector)
    lib.pn_decref(transport)
    lib.pn_connection_release(connection)
    lib.pn_decref(connection)
    lib.pn_collector_free(collector)


def text(string: Pointer) -> str:
    """A C string; empty for NULL."""
    return "" if string == NULL else ffi.string(string).decode("utf-8", "replace")


# --- values --------------------
def octets_of(data: Pointer) -> bytes | None:
    """The one value of a pn_data, encoded; empty when there is none, None when it is too large to look at."""
    size = lib.pn_data_encoded_size(data)
    if not 0 <= size <= MAX_STATE:
        return None
    if not size:
        return b""
    buffer = _allocate("char[]", size)
    count = lib.pn_data_encode(data, buffer, size)
    return ffi.buffer(buffer, count)[:] if count >= 0 else None


def put(data: Pointer, octets: bytes) -> None:
    """Makes an encoded value the one of a pn_data."""
    lib.pn_data_clear(data)
    lib.pn_data_decode(data, ffi.from_buffer(octets), len(octets))


def value_of(data: Pointer) -> Any:
    """The one value of a pn_data; None for none, and for one that is too large or wrong."""
    octets = octets_of(data)
    if not octets:
        return None
    try:
        return decode(octets)
    except DecodeError:
        return None


def symbols(data: Pointer) -> tuple[str, ...]:
    """The symbols in a multiple field; () for anything else."""
    value = value_of(data)
    items = value if isinstance(value, Array) else [value]
    return tuple(str(item) for item in items if type(item) is Symbol)


def put_symbols(data: Pointer, names: Sequence[str]) -> None:
    """Sets a multiple field."""
    put(data, encode(Array(map(Symbol, names))))


def read_condition(condition: Pointer) -> Refusal | None:
    """The error that the peer told; None where it told none."""
    if not lib.pn_condition_is_set(condition):
        return None
    info = value_of(lib.pn_condition_info(condition))
    return Refusal.read(
        text(lib.pn_condition_get_name(condition)),
        text(lib.pn_condition_get_description(condition)),
        info if isinstance(info, dict) else None,
    )


# --- links and deliveries --------------------
def set_address(terminus: Pointer, address: str) -> None:
    """Names the node of a terminus."""
    lib.pn_terminus_set_address(terminus, address.encode("utf-8"))


def receive(link: Pointer, size: int) -> bytes:
    """Takes `size` octets of the link's current delivery."""
    buffer = _allocate("char[]", size)
    count = lib.pn_link_recv(link, buffer, size)
    octets: bytes = ffi.buffer(buffer, max(count, 0))[:]
    return octets


def open_delivery(link: Pointer, tag: bytes) -> Pointer:
    """A new outgoing delivery, the link's current one."""
    source = ffi.from_buffer(tag)
    return lib.pn_delivery(link, {"size": len(tag), "start": source})


def send(link: Pointer, octets: bytes | memoryview) -> None:
    """Adds to the link's current delivery."""
    lib.pn_link_send(link, ffi.from_buffer(octets), len(octets))


def set_state(delivery: Pointer, code: int, fields: bytes) -> None:
    """Sets our state of a delivery to one that proton does not know; `fields` are encoded already."""
    put(lib.pn_disposition_data(lib.pn_delivery_local(delivery)), fields)
    lib.pn_delivery_update(delivery, code)


def remote_fields(delivery: Pointer) -> bytes | None:
    """The fields of the peer's state of a delivery, where proton does not know it; encoded."""
    return octets_of(lib.pn_disposition_data(lib.pn_delivery_remote(delivery)))


def remote_error(delivery: Pointer) -> Refusal | None:
    """The error in the peer's rejection of a delivery."""
    return read_condition(lib.pn_disposition_condition(lib.pn_delivery_remote(delivery)))
