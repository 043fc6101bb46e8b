"""Frames of AMQP 1.0: cut out of what a peer sends, and made for what it is sent.

The stream begins with the header AMQP 0 1 0 0. A frame is size(4) doff(1) type(1) channel(2), an extended header up to
octet 4 × doff, a performative, and behind that of a transfer the payload. A frame without a performative is a sign of
life. At most one unfinished frame is kept, and its size is checked before more of it is taken.

The frames of every transaction (transfer and disposition) are put together without encoding them value by value.
What they write is what the tables in `dtx.amqp.performatives` write, and a test compares them.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition, ProtocolError, Scope
from dtx.amqp.decoding import MAX_DEPTH, DecodeError, skip
from dtx.amqp.performatives import MAX_PERFORMATIVE, PERFORMATIVES, Close, Detach, End, Error, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.performatives import Performative

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
MIN_MAX_FRAME_SIZE: Final = 512
FRAME_HEADER: Final = 8
SHORT_DESCRIPTION: Final = 256
"""Octets of the description of an error that is too long for the peer's frames."""
HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"

_FRAME: Final = struct.Struct(">IBBH")
_TRUE: Final = b"\x41"
_FALSE: Final = b"\x42"
_FLAGS: Final = (_FALSE, _TRUE)
_U32: Final = struct.Struct(">I")
_u32_at: Final[Callable[[bytes, int], tuple[int]]] = _U32.unpack_from
_SMALL: Final = tuple([b"\x43"] + [bytes((0x52, number)) for number in range(1, 256)])


def _fatal(condition: Condition, description: str) -> ProtocolError:
    return ProtocolError(Scope.CONNECTION, condition, description)


def _check_size(octets: bytes, start: int, stop: int) -> None:
    size = skip(octets, start, stop) - start
    if size > MAX_PERFORMATIVE:
        raise _fatal(Condition.RESOURCE_LIMIT, f"a performative of {size} octets; {MAX_PERFORMATIVE} are allowed")


class FrameReader:
    """The frames in the octets of one peer. `max_frame_size` is what our open says."""

    __slots__ = ("_at", "_data", "_limit", "octets", "started")

    def __init__(self, max_frame_size: int) -> None:
        if max_frame_size < MIN_MAX_FRAME_SIZE:
            raise ValueError(f"AMQP allows no maximum frame size below {MIN_MAX_FRAME_SIZE}: {max_frame_size}")
        self._limit = max_frame_size
        self._data = b""
        self._at = 0
        self.started = False
        """Whether the peer's header has come."""
        self.octets = 0
        """Octets of the last performative."""

    def feed(self, octets: bytes) -> None:
        """Adds what the peer sent."""
        self._data = self._data[self._at :] + octets if self._at < len(self._data) else octets
        self._at = 0

    @property
    def pending(self) -> int:
        """Octets that are not read yet."""
        return len(self._data) - self._at

    def header(self) -> bool:
        """Takes the header of the stream; False as long as it is not whole."""
        found = self._data[self._at : self._at + len(AMQP_HEADER)]
        if found != AMQP_HEADER[: len(found)]:
            raise _fatal(Condition.FRAMING_ERROR, f"expected the header of AMQP 1.0, not {found!r}")
        if len(found) < len(AMQP_HEADER):
            return False
        self._at += len(AMQP_HEADER)
        self.started = True
        return True

    def next(self) -> tuple[int, Performative | None, bytes] | None:
        """Channel, performative and payload of the next frame; None while there is no whole one. The performative of
        an empty frame is None."""
        data, at = self._data, self._at
        left = len(data) - at
        if left < 4:
            return None
        size = _u32_at(data, at)[0]
        if not FRAME_HEADER <= size <= self._limit:
            raise _fatal(Condition.FRAMING_ERROR, f"a frame of {size} octets; 8 to {self._limit} are allowed")
        if left < size:
            return None
        stop = at + size
        doff, kind = data[at + 4], data[at + 5]
        channel = data[at + 6] << 8 | data[at + 7]
        start = at + 4 * doff
        if kind != 0 or doff < 2 or start > stop:
            raise _fatal(Condition.FRAMING_ERROR, f"a frame of type {kind} with its body at {4 * doff}")

        self._at = stop
        if start == stop:
            return channel, None, b""
        if data[start] != 0:
            raise _fatal(Condition.DECODE_ERROR, "a frame without a performative")

        try:
            if stop - start > MAX_PERFORMATIVE:
                _check_size(data, start, stop)
            performative, end = PERFORMATIVES.read(data, start + 1, stop, MAX_DEPTH)
        except WireError as error:  # a descriptor that is none of a performative can't be decoded either
            unknown = error.condition is Condition.NOT_IMPLEMENTED
            raise _fatal(Condition.DECODE_ERROR if unknown else error.condition, str(error)) from None
        except DecodeError as cut_off:
            raise _fatal(Condition.DECODE_ERROR, str(cut_off)) from None
        self.octets = end - start
        if end == stop:
            return channel, performative, b""
        if type(performative) is not Transfer:
            raise _fatal(Condition.DECODE_ERROR, f"{stop - end} octets behind a performative")
        return channel, performative, data[end:stop]


# --- frames to send --------------------
def frame(channel: int, body: bytes) -> bytes:
    """A frame with this body."""
    return _FRAME.pack(FRAME_HEADER + len(body), 2, 0, channel) + body


def performative_frame(channel: int, performative: Performative) -> bytes:
    """A frame with a performative, however large."""
    return frame(channel, PERFORMATIVES.encode(performative))


def body_within(performative: Performative, room: int) -> bytes | None:
    """The body of a frame with a performative and nothing else; None where it takes more than `room` octets. An error
    that is too long is reported without its details."""
    body = PERFORMATIVES.encode(performative)
    if len(body) > room and isinstance(performative, (Detach, End, Close)) and performative.error is not None:
        error = performative.error
        shortened = error.description.encode()[:SHORT_DESCRIPTION].decode(errors="ignore")
        body = PERFORMATIVES.encode(replace(performative, error=Error(error.condition, shortened)))
    return body if len(body) <= room else None


def _uint(number: int) -> bytes:
    return _SMALL[number] if number < 256 else b"\x70" + _U32.pack(number)


def _described(code: int, count: int, items: bytes) -> bytes:
    size = len(items) + 1
    if size < 256:
        return bytes((0x00, 0x53, code, 0xC0, size, count)) + items
    return bytes((0x00, 0x53, code, 0xD0)) + _U32.pack(len(items) + 4) + _U32.pack(count) + items


def transfer_body(
    handle: int,
    delivery_id: int,
    tag: bytes,
    state: bytes | None,
    *,
    settled: bool,
    more: bool,
    message_format: int = 0,
) -> bytes:
    """The performative of the first transfer of a delivery; `state` is encoded already."""
    format_octets = b"\x43" if not message_format else _uint(message_format)
    tag_octets = bytes((len(tag),)) + tag
    items = b"".join((_uint(handle), _uint(delivery_id), b"\xa0", tag_octets, format_octets, _FLAGS[settled]))
    if state is not None:
        return _described(0x14, 8, items + _FLAGS[more] + b"\x40" + state)
    return _described(0x14, 6, items + _TRUE) if more else _described(0x14, 5, items)


def continuation_body(handle: int, *, more: bool, aborted: bool = False) -> bytes:
    """The performative of a further transfer of a delivery."""
    items = _uint(handle) + b"\x40\x40\x40\x40"
    if aborted:
        return _described(0x14, 10, items + _FALSE + b"\x40\x40\x40" + _TRUE)
    return _described(0x14, 6, items + _FLAGS[more])


def disposition_body(first: int, last: int, state: bytes | None, *, receiver: bool, settled: bool) -> bytes:
    """A disposition; `state` is encoded already."""
    items = _FLAGS[receiver] + _uint(first) + (b"\x40" if last == first else _uint(last)) + _FLAGS[settled]
    return _described(0x15, 4, items) if state is None else _described(0x15, 5, items + state)
