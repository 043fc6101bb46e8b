"""FrameFilter: which of a client's frames reach proton at all.

Proton takes a field of a wrong type for one that is left out, and its engine is only sound as long as the
peer keeps to the order of the specification: after an answer to a begin that was never sent, for one, it
uses a session that it has freed. A second begin on a channel, a handle attached twice and a transfer on a
link whose sender we are confuse its maps in the same way. So a frame is looked at here first. It is admitted
if and only if its performative is the list that the table FIELDS says, of at most MAX_PERFORMATIVE octets,
and it is legal for the sessions and links that the peer has.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import DecodeError, decode_from, skip
from dtx.protocol.performatives import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    OPEN,
    TRANSFER,
    FrameError,
)

MAX_PERFORMATIVE: Final = 8192
"""Octets of a performative, the payload of a transfer not counted: what is kept for each link and delivery."""
MAX_TAG: Final = 32
COUNTED: Final = {BEGIN: (2,), FLOW: (1, 6)}
"""Performative → its incoming-window and link-credit."""
MAX_COUNTED: Final = 2**31 - 1

_UINT: Final = frozenset({0x43, 0x52, 0x70})
_ULONG: Final = frozenset({0x44, 0x53, 0x80})
_USHORT: Final = frozenset({0x60})
_UBYTE: Final = frozenset({0x50})
_BOOLEAN: Final = frozenset({0x41, 0x42, 0x56})
_BINARY: Final = frozenset({0xA0, 0xB0})
_STRING: Final = frozenset({0xA1, 0xB1})
_SYMBOLS: Final = frozenset({0xA3, 0xB3, 0xE0, 0xF0})
_MAP: Final = frozenset({0xC1, 0xD1})
_DESCRIBED: Final = frozenset({0x00})

FIELDS: Final[dict[int, tuple[tuple[str, frozenset[int], bool], ...]]] = {
    OPEN: (
        ("container-id", _STRING, True),
        ("hostname", _STRING, False),
        ("max-frame-size", _UINT, False),
        ("channel-max", _USHORT, False),
        ("idle-time-out", _UINT, False),
        ("outgoing-locales", _SYMBOLS, False),
        ("incoming-locales", _SYMBOLS, False),
        ("offered-capabilities", _SYMBOLS, False),
        ("desired-capabilities", _SYMBOLS, False),
        ("properties", _MAP, False),
    ),
    BEGIN: (
        ("remote-channel", _USHORT, False),
        ("next-outgoing-id", _UINT, True),
        ("incoming-window", _UINT, True),
        ("outgoing-window", _UINT, True),
        ("handle-max", _UINT, False),
        ("offered-capabilities", _SYMBOLS, False),
        ("desired-capabilities", _SYMBOLS, False),
        ("properties", _MAP, False),
    ),
    ATTACH: (
        ("name", _STRING, True),
        ("handle", _UINT, True),
        ("role", _BOOLEAN, True),
        ("snd-settle-mode", _UBYTE, False),
        ("rcv-settle-mode", _UBYTE, False),
        ("source", _DESCRIBED, False),
        ("target", _DESCRIBED, False),
        ("unsettled", _MAP, False),
        ("incomplete-unsettled", _BOOLEAN, False),
        ("initial-delivery-count", _UINT, False),
        ("max-message-size", _ULONG, False),
        ("offered-capabilities", _SYMBOLS, False),
        ("desired-capabilities", _SYMBOLS, False),
        ("properties", _MAP, False),
    ),
    FLOW: (
        ("next-incoming-id", _UINT, False),
        ("incoming-window", _UINT, True),
        ("next-outgoing-id", _UINT, True),
        ("outgoing-window", _UINT, True),
        ("handle", _UINT, False),
        ("delivery-count", _UINT, False),
        ("link-credit", _UINT, False),
        ("available", _UINT, False),
        ("drain", _BOOLEAN, False),
        ("echo", _BOOLEAN, False),
        ("properties", _MAP, False),
    ),
    TRANSFER: (
        ("handle", _UINT, True),
        ("delivery-id", _UINT, False),
        ("delivery-tag", _BINARY, False),
        ("message-format", _UINT, False),
        ("settled", _BOOLEAN, False),
        ("more", _BOOLEAN, False),
        ("rcv-settle-mode", _UBYTE, False),
        ("state", _DESCRIBED, False),
        ("resume", _BOOLEAN, False),
        ("aborted", _BOOLEAN, False),
        ("batchable", _BOOLEAN, False),
    ),
    DISPOSITION: (
        ("role", _BOOLEAN, True),
        ("first", _UINT, True),
        ("last", _UINT, False),
        ("settled", _BOOLEAN, False),
        ("state", _DESCRIBED, False),
        ("batchable", _BOOLEAN, False),
    ),
    DETACH: (("handle", _UINT, True), ("closed", _BOOLEAN, False), ("error", _DESCRIBED, False)),
    END: (("error", _DESCRIBED, False),),
    CLOSE: (("error", _DESCRIBED, False),),
}
"""Performative → its fields: name, the constructors of its type, whether it is mandatory."""
_ALLOWED: Final = {
    code: tuple(kinds if mandatory else kinds | {0x40} for _, kinds, mandatory in rows) for code, rows in FIELDS.items()
}
_MANDATORY: Final = {code: sum(mandatory for *_, mandatory in rows) for code, rows in FIELDS.items()}
_WIDTHS: Final = bytes({0x4: 1, 0x5: 2, 0x6: 3, 0x7: 5, 0x8: 9}.get(constructor >> 4, 0) for constructor in range(256))
_LARGE: Final = re.compile(rb"\x70[\x80-\xff]", re.DOTALL)
_CONNECTING: Final = frozenset({OPEN, BEGIN, CLOSE})
_OFTEN: Final = frozenset({FLOW, TRANSFER, DISPOSITION})


class ConnectionState(Enum):
    """How far the peer's side of the connection is."""

    HEADER = "has not been opened"
    OPEN = "is open"
    CLOSED = "is closed"


class FrameFilter:
    """The sessions and links of one client, as its own frames make them. `sessions` is how many sessions there
    may be, `links` how many links in each, those counted that were refused and that the peer has not
    detached."""

    def __init__(self, sessions: int, links: int) -> None:
        self._sessions = sessions
        self._links = links
        self._state = ConnectionState.HEADER
        self._channels: dict[int, dict[int, bool]] = {}
        """Channel → handle → whether the peer is the link's receiver."""

    def admit(self, code: int, channel: int, data: bytes, start: int, stop: int) -> None:
        """Looks at a frame; `data[start:stop]` is what follows its descriptor. FrameError: it goes nowhere, and
        the connection is to be closed."""
        if self._state is not ConnectionState.OPEN and (code != OPEN or self._state is ConnectionState.CLOSED):
            raise FrameError(Condition.NOT_ALLOWED, f"a frame {code:#x} on a connection that {self._state.value}")
        starts = checked(code, data, start, stop)
        if code in _CONNECTING:
            self._connect(code, channel, data, starts)
            return
        handles = self._channels.get(channel)
        if handles is None:
            raise FrameError(Condition.NOT_ALLOWED, f"a frame {code:#x}, and channel {channel} has no session")
        if code == TRANSFER:
            receives = handles.get(_number(data, starts[0]))
            if receives is not False:
                raise _no_link(code, data, starts[0], receives=receives)
        elif code == FLOW:
            if len(starts) > 4 and data[starts[4]] != 0x40 and _number(data, starts[4]) not in handles:
                raise _no_link(code, data, starts[4])
        elif code == ATTACH:
            self._attach(handles, _number(data, starts[1]), receiver=decode_from(data, starts[2])[0])
        elif code == DETACH:
            if handles.pop(_number(data, starts[0]), None) is None:
                raise _no_link(code, data, starts[0])
        elif code == END:
            del self._channels[channel]

    def _attach(self, handles: dict[int, bool], handle: int, *, receiver: bool) -> None:
        if handle in handles:
            raise FrameError(Condition.HANDLE_IN_USE, f"the handle {handle} is in use")
        if len(handles) >= self._links:
            raise FrameError(Condition.RESOURCE_LIMIT, f"a session with {len(handles)} links, refused ones included")
        handles[handle] = receiver

    def _connect(self, code: int, channel: int, data: bytes, starts: list[int]) -> None:
        if code == CLOSE:
            self._state = ConnectionState.CLOSED
        elif code == OPEN:
            if self._state is ConnectionState.OPEN:
                raise FrameError(Condition.NOT_ALLOWED, "the connection is open already")
            self._state = ConnectionState.OPEN
        elif data[starts[0]] != 0x40:
            raise FrameError(Condition.INVALID_FIELD, "a begin that answers one, and none was sent")
        elif channel in self._channels:
            raise FrameError(Condition.NOT_ALLOWED, f"there is a session on channel {channel} already")
        elif channel >= self._sessions:
            raise FrameError(
                Condition.FRAMING_ERROR, f"a begin on channel {channel}; the last one is {self._sessions - 1}"
            )
        else:
            self._channels[channel] = {}


def countable(code: int, data: bytes, start: int, stop: int) -> bytes:
    """`data`, where the windows and the credit of an admitted begin or flow at `start` are at most MAX_COUNTED: proton
    counts them with a sign, and would take more for less than none."""
    if _LARGE.search(data, start, stop) is None:
        return data
    starts = checked(code, data, start, stop)
    for index in COUNTED[code]:
        if index < len(starts) and data[starts[index]] == 0x70 and _number(data, starts[index]) > MAX_COUNTED:
            at = starts[index] + 1
            data = data[:at] + MAX_COUNTED.to_bytes(4, "big") + data[at + 4 :]
    return data


def checked(code: int, data: bytes, start: int, stop: int) -> list[int]:
    """Where the fields of a performative begin. FrameError: it is none, or not what FIELDS says."""
    allowed = _ALLOWED.get(code)
    if allowed is None:
        raise FrameError(Condition.DECODE_ERROR, f"{code:#x} is no performative")
    at, end, count = _list(code, data, start, stop)
    if not _MANDATORY[code] <= count <= len(allowed):
        raise FrameError(Condition.DECODE_ERROR, f"performative {code:#x} with {count} fields")
    starts = []
    for index in range(count):
        constructor = data[at] if at < end else -1
        if constructor not in allowed[index]:
            raise _wrong(code, index, constructor)
        starts.append(at)
        width = _WIDTHS[constructor]
        at = at + width if width else _end(code, index, data, at, end)
    if at != end or (end != stop and code != TRANSFER):
        raise FrameError(
            Condition.DECODE_ERROR, f"performative {code:#x}: its list ends at {at}, its size says {end} of {stop}"
        )
    return starts


def _list(code: int, data: bytes, start: int, stop: int) -> tuple[int, int, int]:
    """Where the items of the performative's list begin and end, and how many there are."""
    constructor = data[start] if start < stop else -1
    if constructor == 0xC0 and stop - start > 2:
        at, end, count = start + 3, start + 2 + data[start + 1], data[start + 2]
    elif constructor == 0xD0 and stop - start > 8:
        size = int.from_bytes(data[start + 1 : start + 5], "big")
        at, end, count = start + 9, start + 5 + size, int.from_bytes(data[start + 5 : start + 9], "big")
    elif constructor == 0x45:
        return start + 1, start + 1, 0
    else:
        raise FrameError(Condition.DECODE_ERROR, f"performative {code:#x} is no list")
    if not at <= end <= stop:
        raise FrameError(Condition.DECODE_ERROR, f"performative {code:#x} is cut off")
    if end - start > MAX_PERFORMATIVE:
        told = f"performative {code:#x} has {end - start} octets; {MAX_PERFORMATIVE} are allowed"
        raise FrameError(Condition.FRAMING_ERROR, told)
    return at, end, count


def _end(code: int, index: int, data: bytes, at: int, end: int) -> int:
    """Where a field of a variable width ends. What comes rarely is read to its depth."""
    try:
        stop = skip(data, at, end) if code in _OFTEN else decode_from(data, at, end)[1]
    except DecodeError as error:
        raise FrameError(
            Condition.DECODE_ERROR, f"{FIELDS[code][index][0]} of performative {code:#x}: {error}"
        ) from error
    if code == TRANSFER and index == 2 and stop - at > MAX_TAG + 2:
        raise FrameError(Condition.INVALID_FIELD, f"a delivery-tag has at most {MAX_TAG} octets")
    return stop


def _number(data: bytes, at: int) -> int:
    """The uint at `at`, which was checked."""
    constructor = data[at]
    if constructor == 0x52:
        return data[at + 1]
    return 0 if constructor == 0x43 else int.from_bytes(data[at + 1 : at + 5], "big")


def _wrong(code: int, index: int, constructor: int) -> FrameError:
    name, _, mandatory = FIELDS[code][index]
    if constructor == 0x40 and mandatory:
        return FrameError(Condition.INVALID_FIELD, f"{name} of performative {code:#x} is mandatory")
    return FrameError(Condition.DECODE_ERROR, f"{name} of performative {code:#x} has a wrong type")


def _no_link(code: int, data: bytes, at: int, *, receives: bool | None = None) -> FrameError:
    handle = _number(data, at)
    if receives:
        return FrameError(Condition.NOT_ALLOWED, f"a transfer from the receiver of the link with handle {handle}")
    return FrameError(Condition.UNATTACHED_HANDLE, f"a frame {code:#x}, and there is no link with handle {handle}")
