"""Frames and segments.

A frame is a head of 12 octets (flags, type, size of the whole frame, 0, track, channel, four times 0) and its content.
One or more frames are a segment; one or more segments are a control or a command: of a message transfer there are a
command, a header and a body. A segment's frames follow each other within their channel.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from rm_amqp.amqp010.values import WireError

if TYPE_CHECKING:
    from collections.abc import Iterator

PROTOCOL: Final = b"AMQP\x01\x01\x00\x0a"
HEAD: Final = struct.Struct(">BBHBBHI")
MIN_FRAME: Final = 4096
MAX_FRAME: Final = 65_535
MAX_ASSEMBLY: Final = 256 << 20
"""The most octets that a command with its message may have."""
MAX_CONTROL: Final = 1 << 20
"""The most octets that a control may have, and what comes before the connection is open."""
FIRST_SEGMENT, LAST_SEGMENT, FIRST_FRAME, LAST_FRAME = 8, 4, 2, 1


class Segment(IntEnum):
    """The types of segments."""

    CONTROL = 0
    COMMAND = 1
    HEADER = 2
    BODY = 3


@dataclass(frozen=True, slots=True)
class Assembly:
    """All segments of a control or a command."""

    channel: int
    method: bytes
    is_command: bool
    header: bytes = b""
    body: bytes = b""


@dataclass(slots=True)
class _Partial:
    """The segments of a channel and track that are not complete."""

    pieces: dict[Segment, list[bytes]] = field(default_factory=dict)
    size: int = 0
    current: Segment | None = None
    """The segment of which frames are missing."""


class FrameReader:
    """Octets of the network in, whole controls and commands out."""

    def __init__(self) -> None:
        self.longest = MAX_CONTROL
        """Octets of a command. MAX_ASSEMBLY, once the connection is open."""
        self._octets = b""
        self._partial: dict[tuple[int, int], _Partial] = {}

    def feed(self, octets: bytes) -> Iterator[Assembly]:
        """Takes octets; yields what is complete now. WireError: they are no frames."""
        octets = self._octets + octets
        self._octets = b""
        at = 0
        while len(octets) - at >= HEAD.size:
            flags, kind, size, _, track, channel, _ = HEAD.unpack_from(octets, at)
            if size < HEAD.size:
                raise WireError(f"a frame of {size} octets is shorter than its head")
            if flags & 0xF0 or kind > Segment.BODY or track & 0x0F > 1:
                raise WireError(f"a frame with flags {flags:#04x}, type {kind} and track {track}")
            if len(octets) - at < size:
                break

            content = octets[at + HEAD.size : at + size]
            at += size
            assembly = self._frame(flags, kind, track & 0x0F, channel, content)
            if assembly is not None:
                yield assembly
        self._octets = octets[at:]

    def _frame(self, flags: int, kind: int, track: int, channel: int, content: bytes) -> Assembly | None:
        segment = Segment(kind)
        if flags & FIRST_SEGMENT and flags & FIRST_FRAME:
            if (channel, track) in self._partial:
                raise WireError("a command begins before the one before it ended")
            if segment not in {Segment.CONTROL, Segment.COMMAND}:
                raise WireError(f"a {segment.name.lower()} without a command")
            partial = self._partial[channel, track] = _Partial()
        elif (channel, track) in self._partial:
            partial = self._partial[channel, track]
        else:
            raise WireError("a frame goes on with what has not begun")

        if (partial.current is None) != bool(flags & FIRST_FRAME):
            raise WireError("frames of segments are mixed")
        if partial.current not in {None, segment} or (flags & FIRST_FRAME and segment in partial.pieces):
            raise WireError("segments are mixed")
        partial.size += len(content)
        longest = MAX_CONTROL if Segment.CONTROL in partial.pieces else self.longest
        if partial.size > longest:
            raise WireError(f"a control or a message of more than {longest} octets")
        partial.pieces.setdefault(segment, []).append(content)
        partial.current = None if flags & LAST_FRAME else segment
        if not (flags & LAST_FRAME and flags & LAST_SEGMENT):
            return None
        del self._partial[channel, track]
        return _assembled(channel, {kind: b"".join(pieces) for kind, pieces in partial.pieces.items()})


def _assembled(channel: int, segments: dict[Segment, bytes]) -> Assembly:
    is_command = Segment.COMMAND in segments
    method = segments.get(Segment.COMMAND) if is_command else segments.get(Segment.CONTROL)
    if method is None or (not is_command and len(segments) > 1):
        raise WireError("a control has one segment")
    return Assembly(channel, method, is_command, segments.get(Segment.HEADER, b""), segments.get(Segment.BODY, b""))


def write_segments(channel: int, max_frame: int, segments: list[tuple[Segment, bytes]]) -> bytes:
    """The frames of a control or a command."""
    track = 0 if segments[0][0] is Segment.CONTROL else 1
    room = max_frame - HEAD.size
    pieces: list[bytes] = []
    for number, (segment, octets) in enumerate(segments):
        of_segment = (FIRST_SEGMENT if not number else 0) | (LAST_SEGMENT if number == len(segments) - 1 else 0)
        for at in range(0, max(len(octets), 1), room):
            content = octets[at : at + room]
            flags = of_segment | (FIRST_FRAME if not at else 0) | (LAST_FRAME if at + room >= len(octets) else 0)
            pieces.append(HEAD.pack(flags, segment, HEAD.size + len(content), 0, track, channel, 0))
            pieces.append(content)
    return b"".join(pieces)
