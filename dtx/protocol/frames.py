"""The AMQP bytes in front of proton's transport: sees what proton hides, and adds what proton can't say.

The stream begins with the header AMQP 0 1 0 0. A frame is size(4) doff(1) type(1) channel(2), an extended
header up to octet 4 × doff, and a performative: a described list with a descriptor of 0x10 (open) to 0x18
(close), encoded as 00 53 code by everybody we know of; wider integers and symbols may stand for it.

`IncomingFrames` cuts what a peer sends into segments, so that a frame which proton shows only in part (a flow
with properties, a transfer that continues a delivery), or whose handle proton doesn't tell (begin, attach,
detach, end), is pushed alone and can be matched with the events of that push. All else passes in one piece.
`OutgoingFrames` adds properties to the flows of links, a default outcome to the source of a receiver's attach, and
otherwise changes nothing.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from dtx.protocol.decoding import DecodeError, decode_from
from dtx.protocol.encoding import encode, encode_list
from dtx.protocol.frame_filter import COUNTED, countable
from dtx.protocol.performatives import (
    ATTACH,
    BEGIN,
    CODES,
    DECODE_ERROR,
    DETACH,
    ECHO,
    END,
    FLOW,
    FRAMING_ERROR,
    TRANSFER,
    AttachSeen,
    ContinuationSeen,
    DetachSeen,
    EndSeen,
    Fields,
    FlowSeen,
    FrameError,
    Seen,
    decoded,
)
from dtx.protocol.values import Described, Symbol, Uint, Ulong

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dtx.protocol.frame_filter import FrameFilter

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
MIN_MAX_FRAME_SIZE: Final = 512
MAX_PROPERTIES: Final = 256
ATTACH_FIELDS: Final = 14
SOURCE: Final = 5
"""The field of an attach that is its source, and of that the one that is its default outcome."""
DEFAULT_OUTCOME: Final = 8

_FRAME: Final = struct.Struct(">IBBH")
_PERFORMATIVE: Final = b"\x00\x53"
"""How the descriptor of a performative begins in every frame that proton and its like send."""
_USUAL: Final = b"\x02\x00"
"""Header without an extension, and type, of the same."""
_SMALLEST: Final = _FRAME.size + 4
"""Octets of the smallest frame with a performative: 00 53 code, and an empty list."""
_SMALL_WIDTHS: Final = bytes(
    {0x4: 1, 0x5: 2, 0x6: 3, 0x7: 5, 0x8: 9, 0x9: 17}.get(constructor >> 4, 0) for constructor in range(256)
)
"""Constructor → octets of the value with it; 0 where they vary."""
_NOT_TRUE: Final = frozenset({0x40, 0x42})
_HANDLES: Final = frozenset({BEGIN, ATTACH, DETACH, END})
"""What makes and ends sessions and links."""


Segment: TypeAlias = tuple[bytes, Seen | None]
"""Bytes for proton; where `Seen` is not None they are that one frame."""


class _Splitter:
    """Cuts a stream into its header and whole frames. No more than one unfinished frame is kept back."""

    def __init__(self, max_frame_size: int) -> None:
        if max_frame_size < MIN_MAX_FRAME_SIZE:
            raise ValueError(f"AMQP allows no maximum frame size below {MIN_MAX_FRAME_SIZE}: {max_frame_size}")
        self._limit = max_frame_size
        self._kept = bytearray()
        self._wanted = 0
        self._started = False

    @property
    def kept(self) -> int:
        """Octets of an unfinished frame that wait for the rest of it."""
        return len(self._kept)

    def _ready(self, data: bytes) -> bytes:
        """What was kept and `data`, when that makes at least one whole frame; else nothing."""
        if self._kept:
            self._kept += data
            if len(self._kept) < self._wanted:
                return b""
            data = bytes(self._kept)
            self._kept.clear()
        return data

    def _header_end(self, data: bytes) -> int:
        """Where the frames begin in the first octets of the stream; 0 while its header is not complete."""
        if self._started:
            return 0
        if data[: len(AMQP_HEADER)] != AMQP_HEADER[: len(data)]:
            raise FrameError(FRAMING_ERROR, f"expected the header of AMQP 1.0, not {data[:8]!r}")
        self._started = len(data) >= len(AMQP_HEADER)
        return len(AMQP_HEADER) if self._started else 0

    def _keep(self, data: bytes, position: int) -> None:
        """Keeps the unfinished frame at `position`; its size is checked before more of it is taken."""
        self._kept += memoryview(data)[position:]
        self._wanted = 4
        if self._started and len(self._kept) >= 4:
            self._wanted = int.from_bytes(self._kept[:4], "big")
            if not _FRAME.size <= self._wanted <= self._limit:
                raise self._wrong_size(self._wanted)

    def _wrong_size(self, size: int) -> FrameError:
        return FrameError(FRAMING_ERROR, f"a frame of {size} octets; 8 to {self._limit} are allowed")


def _unusual(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Code and begin of the fields of a frame with an extended header, a long descriptor, or no body."""
    doff, kind = data[position + 4], data[position + 5]
    start = position + 4 * doff
    if kind != 0 or doff < 2 or start > stop:
        raise FrameError(FRAMING_ERROR, f"a frame of type {kind} with its body at {4 * doff}")
    if start == stop:
        return 0, stop
    if data[start] != 0:
        raise FrameError(DECODE_ERROR, "a frame without a performative")
    try:
        descriptor, start = decode_from(data, start + 1, stop)
    except DecodeError as error:
        raise FrameError(DECODE_ERROR, f"a frame without a performative: {error}") from error
    if isinstance(descriptor, Symbol):
        return CODES.get(descriptor, 0), start
    return (descriptor, start) if type(descriptor) is Ulong else (0, start)


def _has_more(data: bytes, position: int, stop: int) -> bool:
    """Whether the fields of a transfer may say `more`; asked of every message. What looks odd may."""
    constructor = data[position]
    if constructor == 0xC0 and stop - position > 2:
        count = data[position + 2]
        position += 3
    elif constructor == 0xD0 and stop - position > 8:
        count = int.from_bytes(data[position + 5 : position + 9], "big")
        position += 9
    else:
        return True
    if count < 6:
        return False
    for _ in range(5):  # handle, delivery-id, delivery-tag, message-format, settled
        if stop - position < 2:
            return True
        width = _SMALL_WIDTHS[data[position]]
        if width:
            position += width
        elif data[position] == 0xA0:
            position += 2 + data[position + 1]
        else:
            return True
    return position >= stop or data[position] not in _NOT_TRUE


def _has_field(index: int, data: bytes, position: int, stop: int) -> bool:
    """Whether the list at `position` may have a field `index`. What looks odd may."""
    return stop - position < 3 or data[position] != 0xC0 or data[position + 2] > index


class IncomingFrames(_Splitter):
    """The frames that a peer sends. `max_frame_size` is what our open frame says; a server gives the `frame_filter`
    that decides which frames go on.

    After a FrameError the connection is to be closed with its condition, and nothing more to be fed; what was
    fed in that call must not reach proton.
    """

    def __init__(self, max_frame_size: int, frame_filter: FrameFilter | None = None) -> None:
        super().__init__(max_frame_size)
        self._filter = frame_filter
        self._partial: set[tuple[int, int]] = set()
        self._with_properties: set[tuple[int, int]] = set()

    def feed(self, data: bytes) -> list[Segment]:
        """The segments that `data` completes, in order."""
        data = self._ready(data)
        run, position, end = 0, self._header_end(data), len(data)
        segments: list[Segment] = []
        while self._started and end - position >= _FRAME.size:
            size, _doff, _kind, channel = _FRAME.unpack_from(data, position)
            if not _FRAME.size <= size <= self._limit:
                raise self._wrong_size(size)
            stop = position + size
            if stop > end:
                break
            code, start = self._performative(data, position, stop)
            if code == TRANSFER:
                wanted = bool(self._partial) or _has_more(data, start, stop)
            elif code == FLOW:
                wanted = bool(self._with_properties) or _has_field(ECHO, data, start, stop)
            else:
                wanted = code in _HANDLES
            if code in COUNTED and self._filter is not None:
                data = countable(code, data, start, stop)
            seen = self._look(code, channel, data, start, stop) if wanted else None
            if seen is not None:
                if run < position:
                    segments.append((data[run:position], None))
                segments.append((data[position:stop], seen))
                run = stop
            position = stop
        if run < position:
            segments.append((data[run:position] if run or position < end else data, None))
        if position < end:
            self._keep(data, position)
        return segments

    def _performative(self, data: bytes, position: int, stop: int) -> tuple[int, int]:
        """Code and begin of the fields of a frame that may go on."""
        start = position + _FRAME.size
        if (
            data[start : start + 2] == _PERFORMATIVE
            and data[position + 4 : position + 6] == _USUAL
            and stop - position >= _SMALLEST
        ):
            code = data[start + 2]
            start += 3
        else:
            code, start = _unusual(data, position, stop)
            if stop == position + 4 * data[position + 4]:  # an empty frame: a sign of life
                return code, start
        if self._filter is not None:
            channel = data[position + 6] << 8 | data[position + 7]
            self._filter.admit(code, channel, data, start, stop)
        return code, start

    def _look(self, code: int, channel: int, data: bytes, start: int, stop: int) -> Seen | None:
        """What the frame says that proton does not; None where proton tells all of it."""
        seen = decoded(code, channel, data, start, stop)
        match seen:
            case ContinuationSeen(handle=handle, more=more, aborted=aborted):
                continues = (channel, handle) in self._partial
                if more and not aborted:
                    self._partial.add((channel, handle))
                else:
                    self._partial.discard((channel, handle))
                return seen if continues else None
            case FlowSeen(handle=handle, properties=properties, echo=echo):
                had_some = (channel, handle) in self._with_properties
                if properties:
                    self._with_properties.add((channel, handle))
                else:
                    self._with_properties.discard((channel, handle))
                return seen if properties or had_some or echo else None
            case AttachSeen(handle=handle) | DetachSeen(handle=handle):
                self._partial.discard((channel, handle))
                self._with_properties.discard((channel, handle))
            case EndSeen():
                for keys in (self._partial, self._with_properties):
                    keys.difference_update([key for key in keys if key[0] == channel])
        return seen


class OutgoingFrames(_Splitter):
    """The frames that our own proton sends. Link names are unique per direction within a connection, as AMQP
    demands."""

    def __init__(self) -> None:
        super().__init__(2**32 - 1)
        self._links: dict[tuple[int, int], tuple[str, bool]] = {}
        self._properties: dict[tuple[str, bool], bytes] = {}
        self._echoes: dict[tuple[str, bool], tuple[int, int]] = {}
        self._default_outcomes: dict[str, Described] = {}

    def echo(self, name: str, *, receiver: bool, delivery_count: int, credit: int) -> None:
        """The next flow of a session (without a link) tells the state of our endpoint `name` in it. The
        caller has proton send one: a session whose incoming capacity is set does so."""
        self._echoes[name, receiver] = (delivery_count, credit)

    def set_properties(self, name: str, properties: Mapping[str, bytes], *, receiver: bool) -> None:
        """From now on, every flow of our endpoint `name` (a receiver or a sender) has these properties, which
        are symbols with binary values, such as txn-id; with an empty mapping none. A flow that proton has
        not written yet counts as later."""
        if not properties:
            self._properties.pop((name, receiver), None)
            return
        octets = encode({Symbol(key): value for key, value in properties.items()})
        if len(octets) > MAX_PROPERTIES:
            raise ValueError(f"properties of {len(octets)} octets; a flow takes at most {MAX_PROPERTIES}")
        self._properties[name, receiver] = octets

    def set_default_outcome(self, name: str, outcome: Described) -> None:
        """The attach of our receiver `name`, which is not written yet, gives its source this default outcome."""
        self._default_outcomes[name] = outcome

    def feed(self, data: bytes) -> bytes:
        """The octets to be sent for `data`."""
        data = self._ready(data)
        run, position, end = 0, self._header_end(data), len(data)
        pieces: list[bytes] = []
        while self._started and end - position >= _FRAME.size:
            size, doff, _kind, channel = _FRAME.unpack_from(data, position)
            stop = position + size
            if stop > end:
                break
            start = position + 4 * doff
            code = data[start + 2] if stop - start > 3 else 0
            if code in _HANDLES or (code == FLOW and (self._properties or self._echoes)):
                flow = self._rewritten(code, channel, data, start, stop)
                if flow is not None:
                    pieces += (data[run:position], flow)
                    run = stop
            position = stop
        if position < end:
            self._keep(data, position)
        if not pieces:
            return data if position == end else data[:position]
        pieces.append(data[run:position])
        return b"".join(pieces)

    def _rewritten(self, code: int, channel: int, data: bytes, start: int, stop: int) -> bytes | None:
        """The frame with what proton can't say; None where it stays as it is."""
        seen = decoded(code, channel, data, start + 3, stop)
        match seen:
            case AttachSeen(handle=handle, name=name, receiver=receiver):
                self._links[channel, handle] = name, receiver
                outcome = self._default_outcomes.pop(name, None) if receiver else None
                if outcome is not None:
                    return _attach_frame(channel, Fields(data, start + 3, stop), outcome)
            case DetachSeen(handle=handle):
                self._gone(channel, handle)
            case EndSeen():
                for key in [key for key in self._links if key[0] == channel]:
                    self._gone(*key)
            case FlowSeen(handle=handle):
                link = self._links.get((channel, handle))
                properties = self._properties.get(link) if link is not None else None
                if properties is not None:
                    return _flow_frame(channel, [*Fields(data, start + 3, stop).octets(10), properties])
            case None if code == FLOW and self._echoes:
                return self._echoed(channel, Fields(data, start + 3, stop).octets(4))
        return None

    def _echoed(self, channel: int, session: list[bytes]) -> bytes | None:
        """Flows of the links of this session that are to be echoed."""
        frames = b""
        for (at, handle), link in self._links.items():
            state = self._echoes.pop(link, None) if at == channel else None
            if state is not None:
                count, credit = state
                numbers = map(encode, (Uint(handle), Uint(count & 0xFFFF_FFFF), Uint(credit)))
                rest = [b"\x40"] * 3 + [self._properties.get(link, b"\x40")]  # available, drain, echo, properties
                frames += _flow_frame(channel, [*session, *numbers, *rest])
        return frames or None

    def _gone(self, channel: int, handle: int) -> None:
        link = self._links.pop((channel, handle), None)
        if link is not None:
            self._properties.pop(link, None)
            self._echoes.pop(link, None)


def _flow_frame(channel: int, items: list[bytes]) -> bytes:
    return _frame(channel, FLOW, items)


def _attach_frame(channel: int, given: Fields, outcome: Described) -> bytes:
    """The attach of a receiver whose source has this default outcome."""
    items = given.octets(ATTACH_FIELDS)
    source = given.mandatory(SOURCE, Described)
    terminus: list[Any] = [*source.value, *[None] * (DEFAULT_OUTCOME + 1 - len(source.value))]
    terminus[DEFAULT_OUTCOME] = outcome
    items[SOURCE] = encode(Described(source.descriptor, terminus))
    while items[-1] == b"\x40":
        items.pop()
    return _frame(channel, ATTACH, items)


def _frame(channel: int, code: int, items: list[bytes]) -> bytes:
    performative = b"\x00\x53" + bytes((code,)) + encode_list(items)
    return _FRAME.pack(_FRAME.size + len(performative), 2, 0, channel) + performative
