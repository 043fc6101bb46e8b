"""The record that a decider keeps with a decision: the branches, as octets.

Layout, integers big-endian:

    version    1 octet, 1
    count      2 octets
    per branch:
      name     1 octet length, then the resource's name in UTF-8
      xid      4 octets format id, 1 octet gtrid length, gtrid, 1 octet bqual length, bqual
    crc32      4 octets over all before

Octets are a record if and only if they have this layout, end with the checksum, and every xid is valid.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

from tm.log import Branch
from xa import Xid

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION: Final = 1
_HEAD: Final = struct.Struct(">BH")
_CRC: Final = struct.Struct(">I")


def encode_branches(branches: Sequence[Branch]) -> bytes:
    """The record for `branches`."""
    parts = [_HEAD.pack(VERSION, len(branches))]
    for branch in branches:
        name = branch.resource.encode()
        xid = branch.xid
        parts += (
            bytes((len(name),)), name,
            struct.pack(">iB", xid.format_id, len(xid.gtrid)), xid.gtrid,
            bytes((len(xid.bqual),)), xid.bqual,
        )  # fmt: skip
    body = b"".join(parts)
    return body + _CRC.pack(zlib.crc32(body))


def decode_branches(record: bytes) -> tuple[Branch, ...]:
    """The branches in `record`; ValueError when it is none."""
    if len(record) < _HEAD.size + _CRC.size:
        raise ValueError(f"a decision record has at least {_HEAD.size + _CRC.size} octets, this has {len(record)}")
    body = record[: -_CRC.size]
    if zlib.crc32(body) != _CRC.unpack(record[-_CRC.size :])[0]:
        raise ValueError("the checksum of the decision record does not match")
    version, count = _HEAD.unpack_from(body)
    if version != VERSION:
        raise ValueError(f"the decision record has version {version}, known is {VERSION}")
    branches = []
    at = _HEAD.size
    for _ in range(count):
        name, at = _field(body, at)
        (format_id,) = struct.unpack_from(">i", body, at)
        gtrid, at = _field(body, at + 4)
        bqual, at = _field(body, at)
        branches.append(Branch(name.decode(), Xid(format_id, gtrid, bqual)))
    if at != len(body):
        raise ValueError(f"{len(body) - at} octets too many in the decision record")
    return tuple(branches)


def _field(body: bytes, at: int) -> tuple[bytes, int]:
    end = at + 1 + body[at]
    if end > len(body):
        raise ValueError("the decision record ends inside a field")
    return body[at + 1 : end], end
