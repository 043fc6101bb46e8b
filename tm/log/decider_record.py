"""The record that a decider keeps with a decision: the branches, as octets.

Layout, integers big-endian:

    version    1 octet, 2
    count      2 octets
    branches   each as in the records of a decision log (`tm.log.records`), with its whole xid and its note
    crc32      4 octets over all before

Octets are a record if and only if they have this layout, end with the checksum, and every xid is valid.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

from tm.log.records import decode_noted_branch, noted_branch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tm.log import Branch

VERSION: Final = 2
_HEAD: Final = struct.Struct(">BH")
_CRC: Final = struct.Struct(">I")


def encode_branches(branches: Sequence[Branch]) -> bytes:
    """The record for `branches`."""
    body = _HEAD.pack(VERSION, len(branches)) + b"".join(map(noted_branch, branches))
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
        try:
            branch, at = decode_noted_branch(body, at)
        except (IndexError, struct.error):
            raise ValueError("the decision record ends inside a branch") from None
        branches.append(branch)
    if at != len(body):
        raise ValueError(f"{len(body) - at} octets too many in the decision record")
    return tuple(branches)
