"""One segment of a FileLog: the layout of its octets, and how they are read.

A segment is a file of fixed size; integers are big-endian. It begins with a header of one block, 4,096 octets:

    0    magic        8   "xabrlog2": the last octet is the version of segments and records
    8    check        4   CRC-32 of the octets 0 to 7 and 12 to 4,095
    12   mark         8   random, another one each time the file is used anew
    20   generation   8   1 for the first segment of a log, and one more each time
    28   size         8   octets of the file
    36   log id       8   random, made with the log
    44   openings     4   how often the log was opened for writing
    48   node         1   octet for the length, and so many ASCII characters
    …    zeros
    84   identity     12  of the file, where the file system has one (`tm.log.log_folder`); zeros otherwise
    …    zeros

Frames follow, one behind the other:

    0    mark         8   the segment's
    8    offset       8   of this frame in the segment
    16   length       4   octets of the payload
    20   check        4   CRC-32 of the octets 0 to 19 and the payload
    24   payload          records as in `tm.log.records`; the last one says that the incarnation is whole, where the
                      log was closed

A header is valid if and only if magic, check and the file's size are right, and a frame if and only if mark,
offset and check are. A header with another version in its magic is another version's if its check is right (that of
version 1 covers the octets 12 to 4,095 only), and damaged otherwise. The first frame is the state of the log when the
segment was begun; header and first frame are forced before the file gets its name. Each further frame is written where
the one before it ends, and only after that one was forced. Therefore:

- A valid frame somewhere behind an octet that belongs to none proves that what stood there was forced: the
  segment is damaged. So is one whose header or first frame is not valid.
- Where no valid frame follows, what stands there is a write that was never forced, so no caller learned that it
  is durable: the log ends there. Octets of an earlier use of the file have another mark and are never frames.
- A frame that was forced and then spoiled before anything was written behind it looks the same. It can't be
  distinguished; that is why the log is closed with one more frame, and why opening it begins a new segment.
- A file whose identity is not the one in its header is a copy of the one that was written.

It is assumed, as by other logs of this kind, that writing a block anew does not harm those of its octets that
stay the same.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from xa import check_node

HEADER_SIZE: Final = 4096
FRAME_OVERHEAD: Final = 24

VERSION: Final = 2
_NAME: Final = b"xabrlog"
_MAGIC: Final = _NAME + b"%d" % VERSION
_HEADER: Final = struct.Struct(">8sQQ8sIB")
_HEADER_START: Final = 12
_NODE_AT: Final = 48
_IDENTITY_AT: Final = 84
IDENTITY_SIZE: Final = 12
_FRAME: Final = struct.Struct(">8sQI")
_CHECK: Final = struct.Struct(">I")


class SegmentOfOtherVersion(Exception):
    """The segment was written in another `version` of this layout."""

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version}")
        self.version = version


class SegmentDamaged(Exception):
    """The segment can't be read: `offset` is where, and the text says why."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a segment."""

    mark: bytes
    generation: int
    size: int
    log_id: bytes
    openings: int
    node: str
    identity: bytes = b""


@dataclass(frozen=True, slots=True)
class SegmentContents:
    """The contents of a segment: the payloads of its frames, and where the last of them ends."""

    header: Header
    payloads: tuple[bytes, ...]
    end: int


def encode_header(header: Header) -> bytes:
    """The block that contains `header`."""
    node = header.node.encode("ascii")
    fields = _HEADER.pack(header.mark, header.generation, header.size, header.log_id, header.openings, len(node))
    begin = (fields + node).ljust(_IDENTITY_AT - _HEADER_START, b"\0") + header.identity
    body = begin.ljust(HEADER_SIZE - _HEADER_START, b"\0")
    return _MAGIC + _check_of(_MAGIC, body) + body


def decode_header(octets: bytes) -> Header:
    """The header at the beginning of `octets`; SegmentDamaged when it is not valid, SegmentOfOtherVersion."""
    body = octets[_HEADER_START:HEADER_SIZE]
    if len(body) != HEADER_SIZE - _HEADER_START:
        raise SegmentDamaged(len(octets), "the file ends within its header")
    magic = octets[:8]
    if magic[:-1] != _NAME or not magic[-1:].isdigit():
        raise SegmentDamaged(0, f"it does not begin with {_MAGIC!r}")
    if octets[8:_HEADER_START] != _check_of(magic, body):
        raise SegmentDamaged(0, "the check of its header is wrong")
    if magic != _MAGIC:
        raise SegmentOfOtherVersion(int(magic[-1:]))

    mark, generation, size, log_id, openings, node_size = _HEADER.unpack_from(body)
    try:
        node = check_node(body[_HEADER.size : _HEADER.size + node_size].decode("ascii"))
    except ValueError as error:  # UnicodeDecodeError is one
        raise SegmentDamaged(_NODE_AT, f"the check of its header is right, but {error}") from None
    identity = octets[_IDENTITY_AT : _IDENTITY_AT + IDENTITY_SIZE]
    return Header(mark, generation, size, log_id, openings, node, identity if any(identity) else b"")


def _check_of(magic: bytes, body: bytes) -> bytes:
    covered = b"" if magic == _NAME + b"1" else magic
    return _CHECK.pack(zlib.crc32(body, zlib.crc32(covered)))


def encode_frame(mark: bytes, offset: int, payload: bytes) -> bytes:
    """The frame for `payload` at `offset`."""
    head = _FRAME.pack(mark, offset, len(payload))
    return b"".join((head, _CHECK.pack(zlib.crc32(payload, zlib.crc32(head))), payload))


def read_segment(octets: bytes) -> SegmentContents:
    """The contents of the segment whose file holds `octets`; SegmentDamaged as the module's docstring says,
    SegmentOfOtherVersion."""
    header = decode_header(octets)
    if header.size != len(octets):
        raise SegmentDamaged(len(octets), f"the file has {len(octets)} octets, and was made with {header.size}")
    payloads = []
    at = HEADER_SIZE
    while (payload := _payload(octets, at, header.mark)) is not None:
        payloads.append(payload)
        at += FRAME_OVERHEAD + len(payload)
    if not payloads:
        raise SegmentDamaged(at, "its first frame is not valid, though it was forced before the file got its name")
    later = _next_frame(octets, at, header.mark)
    if later is not None:
        raise SegmentDamaged(at, f"no frame is valid here, but one at {later}, which was written after this was forced")
    return SegmentContents(header, tuple(payloads), at)


def _payload(octets: bytes, at: int, mark: bytes) -> bytes | None:
    """The payload of the frame at `at`, or None when no valid frame begins there."""
    if octets[at : at + 8] != mark or at + FRAME_OVERHEAD > len(octets):
        return None
    _, offset, length = _FRAME.unpack_from(octets, at)
    end = at + FRAME_OVERHEAD + length
    if offset != at or end > len(octets):
        return None
    payload = octets[at + FRAME_OVERHEAD : end]
    (check,) = _CHECK.unpack_from(octets, at + _FRAME.size)
    return payload if check == zlib.crc32(payload, zlib.crc32(octets[at : at + _FRAME.size])) else None


def _next_frame(octets: bytes, at: int, mark: bytes) -> int | None:
    """Where behind `at` the first valid frame begins."""
    while (at := octets.find(mark, at + 1)) >= 0:
        if _payload(octets, at, mark) is not None:
            return at
    return None
