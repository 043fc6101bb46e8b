"""Engine: proton's connection, transport and collector, driven without its Python objects.

A broker touches every delivery; proton's wrappers cost more there than everything else together. This
module is the only one that calls the library beneath them. The rules that keep its pointers safe: a link is
used until `free_link`, a session until `free_session`, a delivery until it is settled here or its link is
freed, and nothing after `Engine.free`. Who holds pointers drops them at these moments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cproton_ffi import ffi, lib  # type: ignore[import-not-found]

from dtx.amqp.decoding import DecodeError, decode
from dtx.amqp.encoding import encode
from dtx.amqp.values import Array, Symbol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dtx.protocol.conditions import Refusal

Pointer = Any
"""A pointer of the library; equal and hashed by address."""

LIB: Final = lib
NULL: Final = ffi.NULL
MAX_STATE: Final = 8192
"""Octets of a delivery state, a set of capabilities or a filter that are looked at."""

_scratch: Final = ffi.new("char[]", MAX_STATE)
_scratch_view: Final = ffi.buffer(_scratch)


class Engine:
    """One connection, the server's side. Once it is freed it takes nothing and has nothing to say."""

    def __init__(self, container: str, *, max_frame: int, channel_max: int, idle_timeout_ms: int) -> None:
        self.connection: Pointer = lib.pn_connection()
        self._transport = lib.pn_transport()
        self._collector = lib.pn_collector()
        lib.pn_transport_set_server(self._transport)
        lib.pn_transport_set_max_frame(self._transport, max_frame)
        lib.pn_transport_set_channel_max(self._transport, channel_max)
        lib.pn_transport_set_idle_timeout(self._transport, idle_timeout_ms)
        lib.pn_connection_set_container(self.connection, container.encode("utf-8"))
        lib.pn_connection_collect(self.connection, self._collector)
        lib.pn_transport_bind(self._transport, self.connection)
        self._buffer = ffi.new("char[]", 65_536)
        self._size = 65_536
        self._freed = False
        self.finished = False
        """Whether nothing will ever be sent any more; as of the last `output`."""

    def push(self, octets: bytes) -> bool:
        """Gives the transport what the peer sent; False when it takes no more."""
        if self._freed:
            return False
        taken = 0
        source = ffi.from_buffer(octets)
        while taken < len(octets):
            count = lib.pn_transport_push(self._transport, source + taken, len(octets) - taken)
            if count <= 0:
                return False
            taken += count
        return True

    def events(self) -> Iterator[tuple[int, Pointer]]:
        """What happened, and to which connection, session, link or delivery. Events that are made while one
        is handled come as well."""
        peek, pop, kind = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
        collector = self._collector
        while not self._freed:
            event = peek(collector)
            if event == NULL:
                return
            yield kind(event), event
            if not self._freed:
                pop(collector)

    def output(self) -> bytes:
        """What is to be sent; it is taken out of the transport. When there is nothing, `finished` says whether there
        ever will be."""
        pending = -1 if self._freed else lib.pn_transport_pending(self._transport)
        if pending <= 0:
            self.finished = pending < 0
            return b""
        if pending > self._size:
            self._size = pending
            self._buffer = ffi.new("char[]", pending)
        count = lib.pn_transport_peek(self._transport, self._buffer, pending)
        if count <= 0:
            return b""
        octets: bytes = ffi.buffer(self._buffer, count)[:]
        lib.pn_transport_pop(self._transport, count)
        return octets

    def tick(self, now_ms: int) -> int:
        """Looks after idle time-outs; when it wants to be called again, 0 for never."""
        return 0 if self._freed else int(lib.pn_transport_tick(self._transport, now_ms))

    def close(self, refusal: Refusal | None) -> None:
        """Closes the connection, with an error where there is one."""
        if self._freed:
            return
        if refusal is not None:
            set_condition(lib.pn_connection_condition(self.connection), refusal)
            if lib.pn_connection_state(self.connection) & lib.PN_REMOTE_UNINIT:
                # a close of the connection waits for the peer's open; an error of the transport does not
                set_condition(lib.pn_transport_condition(self._transport), refusal)
                lib.pn_transport_close_tail(self._transport)
        lib.pn_connection_open(self.connection)
        lib.pn_connection_close(self.connection)

    def error(self) -> str:
        """What the transport says is wrong, the empty string for nothing."""
        if self._freed:
            return ""
        condition = lib.pn_transport_condition(self._transport)
        if not lib.pn_condition_is_set(condition):
            return ""
        name, told = lib.pn_condition_get_name(condition), lib.pn_condition_get_description(condition)
        return f"{text(name)}: {text(told)}"

    def free(self) -> None:
        """Nothing of the engine is used after this."""
        if not self._freed:
            self._freed = True
            lib.pn_transport_unbind(self._transport)
            lib.pn_collector_release(self._collector)
            lib.pn_decref(self._transport)
            lib.pn_connection_release(self.connection)
            lib.pn_decref(self.connection)
            lib.pn_collector_free(self._collector)


def text(string: Pointer) -> str:
    """A C string; empty for NULL."""
    return "" if string == NULL else ffi.string(string).decode("utf-8", "replace")


# --- values --------------------
def octets_of(data: Pointer) -> bytes | None:
    """The one value of a pn_data, encoded; empty when there is none, None when it is too large to look at."""
    count = lib.pn_data_encode(data, _scratch, MAX_STATE)
    return _scratch_view[:count] if count >= 0 else None


def put(data: Pointer, octets: bytes) -> None:
    """Makes an encoded value the one of a pn_data."""
    lib.pn_data_clear(data)
    lib.pn_data_decode(data, ffi.from_buffer(octets), len(octets))


def symbols(data: Pointer) -> tuple[str, ...]:
    """The symbols in a multiple field; () for anything else."""
    octets = octets_of(data)
    if not octets:
        return ()
    try:
        value = decode(octets)
    except DecodeError:
        return ()
    items = value if isinstance(value, Array) else [value]
    return tuple(str(item) for item in items if type(item) is Symbol)


def put_symbols(data: Pointer, names: tuple[str, ...]) -> None:
    """Sets a multiple field."""
    put(data, encode(Array(map(Symbol, names))))


def set_condition(condition: Pointer, refusal: Refusal) -> None:
    """Fills in an error."""
    lib.pn_condition_set_name(condition, refusal.condition.encode("ascii"))
    lib.pn_condition_set_description(condition, refusal.description.encode("utf-8"))
    put(lib.pn_condition_info(condition), encode(refusal.info()))


# --- deliveries --------------------
def receive(link: Pointer, size: int) -> bytes:
    """Takes `size` octets of the link's current delivery."""
    if size <= MAX_STATE:
        count = lib.pn_link_recv(link, _scratch, size)
        octets: bytes = _scratch_view[: max(count, 0)]
        return octets
    buffer = ffi.new("char[]", size)
    count = lib.pn_link_recv(link, buffer, size)
    return bytes(ffi.buffer(buffer, max(count, 0))[:])


def open_delivery(link: Pointer, tag: bytes) -> Pointer:
    """A new outgoing delivery, the link's current one."""
    source = ffi.from_buffer(tag)
    return lib.pn_delivery(link, {"size": len(tag), "start": source})


def send(link: Pointer, octets: bytes) -> None:
    """Adds to the link's current delivery."""
    lib.pn_link_send(link, ffi.from_buffer(octets), len(octets))


def set_state(delivery: Pointer, code: int, fields: bytes | None = None) -> None:
    """Sets our state of a delivery; `fields` are those of a state that proton does not know, encoded."""
    if fields is not None:
        put(lib.pn_disposition_data(lib.pn_delivery_local(delivery)), fields)
    lib.pn_delivery_update(delivery, code)


def reject(delivery: Pointer, code: int, refusal: Refusal) -> None:
    """Sets our state of a delivery to rejected, with an error."""
    set_condition(lib.pn_disposition_condition(lib.pn_delivery_local(delivery)), refusal)
    lib.pn_delivery_update(delivery, code)


def remote_state(delivery: Pointer) -> bytes | None:
    """The fields of the peer's state of a delivery, where proton does not know it; encoded."""
    return octets_of(lib.pn_disposition_data(lib.pn_delivery_remote(delivery)))
