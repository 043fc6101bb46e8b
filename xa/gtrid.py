"""Gtrid: what the gtrids that we generate say about whose they are and where their decision lives.

Layout of the octets, all integers big-endian:

    node          1–32 octets, ASCII letters, digits, "." "_" "-" (readable, and first, so that a
                  prefix filter finds a node's transactions)
    0x00          end of the node
    log id        8 octets, random, made when the decision log was made
    incarnation   8 octets, random, drawn and noted by each transaction manager before its first gtrid
    sequence      8 octets: counts within the incarnation

An incarnation is random because a count would be repeated by a log that was restored from an older copy. Pipelines,
whose log fences them by a counter, have that counter here, in 4 octets. The length tells the two apart.

Octets are a Gtrid's if and only if they have exactly such a length and layout; together with FORMAT_ID in the
Xid that marks them as ours. At most 32 + 1 + 8 + 8 + 8 = 57 octets, within the 64 of an Xid.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from xa.xid import Xid

FORMAT_ID: Final = 0x58414231
"""The format id of xids that this product generates: "XAB1"."""

LOG_ID_SIZE: Final = 8
INCARNATION_SIZE: Final = 8
_COUNTER: Final = struct.Struct(">I")
_SEQUENCE: Final = struct.Struct(">Q")
OVER: Final = 2**63 - 1
"""As a floor: no transaction of an incarnation is left anywhere. It is as far as a column of a database can count."""
_SHOWN: Final = 3
"""Octets of an incarnation that are shown to people."""
_NODE: Final = re.compile(r"[A-Za-z0-9._-]{1,32}", re.ASCII)

Incarnation: TypeAlias = bytes | int
"""INCARNATION_SIZE random octets of a manager, or the counter of a pipeline."""


def check_node(node: str) -> str:
    """`node`, if it can be a node id; ValueError says what a node id is otherwise."""
    if _NODE.fullmatch(node) is None:
        raise ValueError(f"node id {node!r}: expected 1 to 32 of the ASCII letters, digits and . _ -")
    return node


@dataclass(frozen=True, slots=True)
class Gtrid:
    """A global transaction of ours: node, decision log, incarnation and sequence."""

    node: str
    log_id: bytes
    incarnation: Incarnation
    sequence: int

    def __post_init__(self) -> None:
        check_node(self.node)
        if len(self.log_id) != LOG_ID_SIZE:
            raise ValueError(f"log id has {len(self.log_id)} octets, expected {LOG_ID_SIZE}")
        if isinstance(self.incarnation, bytes):
            if len(self.incarnation) != INCARNATION_SIZE:
                raise ValueError(f"incarnation has {len(self.incarnation)} octets, expected {INCARNATION_SIZE}")
        elif not 0 <= self.incarnation < 2**32:
            raise ValueError(f"incarnation {self.incarnation} does not fit 32 bits")
        if not 0 <= self.sequence < 2**64:
            raise ValueError(f"sequence {self.sequence} does not fit 64 bits")

    def encode(self) -> bytes:
        """The octets, as in the module's docstring."""
        return incarnation_prefix(self.node, self.log_id, self.incarnation) + _SEQUENCE.pack(self.sequence)

    @classmethod
    def decode(cls, octets: bytes) -> Gtrid:
        """The Gtrid in `octets`; ValueError for octets that are none."""
        node, separator, tail = octets.partition(b"\0")
        log_id, incarnation, sequence = tail[:LOG_ID_SIZE], tail[LOG_ID_SIZE : -_SEQUENCE.size], tail[-_SEQUENCE.size :]
        if not separator or len(incarnation) not in (INCARNATION_SIZE, _COUNTER.size):
            raise ValueError(f"not a gtrid of ours: {octets.hex()}")
        try:
            return cls(node.decode("ascii"), log_id, _incarnation(incarnation), *_SEQUENCE.unpack(sequence))
        except ValueError as error:
            raise ValueError(f"not a gtrid of ours: {octets.hex()} ({error})") from error

    @classmethod
    def of(cls, xid: Xid) -> Gtrid | None:
        """The Gtrid in `xid`, or None if another product made the xid."""
        if xid.format_id != FORMAT_ID:
            return None
        try:
            return cls.decode(xid.gtrid)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.node}·{incarnation_name(self.incarnation)}·{self.sequence}"


def incarnation_name(incarnation: Incarnation) -> str:
    """An incarnation as people read it, in the names of transactions: its first octets in hexadecimal, or the
    counter."""
    return incarnation[:_SHOWN].hex() if isinstance(incarnation, bytes) else str(incarnation)


def node_prefix(node: str) -> bytes:
    """The beginning of every gtrid of `node`."""
    return check_node(node).encode("ascii") + b"\0"


def log_prefix(node: str, log_id: bytes) -> bytes:
    """The beginning of every gtrid of `node` whose decision lives in the log `log_id`."""
    return node_prefix(node) + log_id


def incarnation_prefix(node: str, log_id: bytes, incarnation: Incarnation) -> bytes:
    """The beginning of every gtrid of one incarnation; the sequence follows."""
    octets = incarnation if isinstance(incarnation, bytes) else _COUNTER.pack(incarnation)
    return log_prefix(node, log_id) + octets


def _incarnation(octets: bytes) -> Incarnation:
    return octets if len(octets) == INCARNATION_SIZE else int.from_bytes(octets, "big")
