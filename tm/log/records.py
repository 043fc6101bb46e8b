"""The records of a decision log as octets; FileLog and SqlLog keep the same.

A record is one octet for its kind and a body; integers are big-endian, texts UTF-8, and a "short" is one octet
for the length and so many octets:

    1 DECISION            short gtrid, branch count (2), and for each branch
                          short resource, format id (4), short gtrid, short bqual, short note;
                          a branch's gtrid of length 0 stands for the decision's
    2 END                 short gtrid
    3 HEURISTIC           XA code (1), short resource, format id (4), short gtrid, short bqual, short reason
    4 HEURISTIC DROPPED   short resource, format id (4), short gtrid, short bqual
    5 INCARNATION         what is known of it (1): 1 open, 2 whole, 3 cut; the incarnation (8)
    7 FLOOR               the incarnation (8), the sequence (8) below which its transactions are over
    8 CEILING             the incarnation (8), the sequence (8) that its transactions do not reach
    9 CARRIED OUT         short resource, milliseconds since 1970 (8): a decision that was made then has been carried
                          out on this resource manager; the latest one of it

The last four are FileLog's own. The version of these records is that of what holds them: of a FileLog's segment
(`tm.log.segment`), of a SqlLog's tables (`tm.log.sql.tables`).

Octets are records if and only if they divide into such records without a rest. Whether they are what was once
written is for the frame around them to tell.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tm.log.contract import Branch, Decision, Heuristic
from tm.log.incarnations import IncarnationState
from xa import HEURISTIC_CODES, Code, Xid
from xa.gtrid import INCARNATION_SIZE
from xa.outcome_notes import MAX_NOTE

if TYPE_CHECKING:
    from collections.abc import Iterator

DECISION: Final = 1
END: Final = 2
HEURISTIC: Final = 3
HEURISTIC_DROPPED: Final = 4
INCARNATION: Final = 5
FLOOR: Final = 7
CEILING: Final = 8
CARRIED_OUT: Final = 9

MAX_RESOURCE: Final = 255
"""Octets of a resource manager's name."""
MAX_BRANCHES: Final = 0xFFFF
MAX_WHY: Final = 255
"""Octets of the reason of a heuristic outcome that are kept."""

_NO_NOTE: Final = b"\0"
_FORMAT_ID: Final = struct.Struct(">I")
_COUNT: Final = struct.Struct(">H")
_SEQUENCE: Final = struct.Struct(">Q")
_STANDINGS: Final = {IncarnationState.OPEN: 1, IncarnationState.WHOLE: 2, IncarnationState.CUT: 3}
_STANDING_OF: Final = {number: standing for standing, number in _STANDINGS.items()}


class RecordError(ValueError):
    """Octets that are no records."""


@dataclass(frozen=True, slots=True)
class DecisionEnded:
    """Every branch of `gtrid` is finished."""

    gtrid: bytes


@dataclass(frozen=True, slots=True)
class HeuristicDropped:
    """The heuristic outcome of `branch` is no longer of interest."""

    branch: Branch


@dataclass(frozen=True, slots=True)
class IncarnationNoted:
    """What is known of an incarnation from now on."""

    incarnation: bytes
    standing: IncarnationState


@dataclass(frozen=True, slots=True)
class Floor:
    """The transactions of an incarnation below a sequence are over."""

    incarnation: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class Ceiling:
    """No transaction of an incarnation reaches a sequence."""

    incarnation: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """A decision of this time has been carried out on a resource."""

    resource: str
    at_ms: int


Record = Decision | DecisionEnded | Heuristic | HeuristicDropped | IncarnationNoted | Floor | Ceiling | CarriedOut


def encode_decision(decision: Decision) -> bytes:
    """The DECISION record; ValueError for what can't be one."""
    gtrid, branches = decision.gtrid, decision.branches
    if not 1 <= len(gtrid) <= 64 or len(branches) > MAX_BRANCHES:
        raise ValueError(f"a decision has a gtrid of 1 to 64 octets and at most {MAX_BRANCHES} branches: {decision}")
    parts = [bytes((DECISION, len(gtrid))), gtrid, _COUNT.pack(len(branches))]
    for branch in branches:
        xid = branch.xid
        if xid.gtrid == gtrid:
            parts.append(_own_branch(branch.resource, xid.format_id, xid.bqual))
        else:
            parts.append(_branch(branch.resource, xid, xid.gtrid))
        parts.append(_note(branch) if branch.note else _NO_NOTE)
    return b"".join(parts)


def encode_end(gtrid: bytes) -> bytes:
    """The END record."""
    return bytes((END, len(gtrid))) + gtrid


def encode_heuristic(heuristic: Heuristic) -> bytes:
    """The HEURISTIC record; ValueError for what can't be one."""
    if heuristic.code not in HEURISTIC_CODES:
        raise ValueError(f"{heuristic.code.name} is not a heuristic outcome")
    why = heuristic.why.encode()[:MAX_WHY].decode(errors="ignore").encode()
    return bytes((HEURISTIC, heuristic.code)) + branch_key(heuristic.branch) + bytes((len(why),)) + why


def encode_heuristic_dropped(branch: Branch) -> bytes:
    """The HEURISTIC DROPPED record."""
    return bytes((HEURISTIC_DROPPED,)) + branch_key(branch)


def encode_noted(incarnation: bytes, standing: IncarnationState) -> bytes:
    """The INCARNATION record."""
    return bytes((INCARNATION, _STANDINGS[standing])) + incarnation


def encode_floor(incarnation: bytes, sequence: int) -> bytes:
    """The FLOOR record."""
    return bytes((FLOOR,)) + incarnation + _SEQUENCE.pack(sequence)


def encode_ceiling(incarnation: bytes, sequence: int) -> bytes:
    """The CEILING record."""
    return bytes((CEILING,)) + incarnation + _SEQUENCE.pack(sequence)


def encode_carried_out(resource: str, at_ms: int) -> bytes:
    """The CARRIED OUT record."""
    name = resource.encode()
    return bytes((CARRIED_OUT, len(name))) + name + _SEQUENCE.pack(at_ms)


def branch_key(branch: Branch) -> bytes:
    """A branch with its whole xid, as octets that tell it from every other."""
    return _branch(branch.resource, branch.xid, branch.xid.gtrid)


def noted_branch(branch: Branch) -> bytes:
    """A branch with its whole xid and its note, for `decode_noted_branch`."""
    return branch_key(branch) + _note(branch)


def _note(branch: Branch) -> bytes:
    note = branch.note
    if len(note) > MAX_NOTE:
        raise ValueError(f"the note of {branch.xid} on {branch.resource} has more than {MAX_NOTE} octets")
    return b"%c%b" % (len(note), note)


def _branch(resource: str, xid: Xid, gtrid: bytes) -> bytes:
    if xid.is_null:
        raise ValueError(f"the null xid names no branch (resource manager {resource})")
    return _fields(resource, xid.format_id, gtrid, xid.bqual)


@lru_cache(maxsize=1024)
def _own_branch(resource: str, format_id: int, bqual: bytes) -> bytes:
    """A branch whose gtrid is the decision's: the same octets for every transaction of a resource."""
    return _fields(resource, format_id, b"", bqual)


def _fields(resource: str, format_id: int, gtrid: bytes, bqual: bytes) -> bytes:
    name = resource.encode()
    if len(name) > MAX_RESOURCE:
        raise ValueError(f"the name of resource manager {resource!r} has more than {MAX_RESOURCE} octets")
    return b"%c%b%b%c%b%c%b" % (
        len(name),
        name,
        _FORMAT_ID.pack(format_id),
        len(gtrid),
        gtrid,
        len(bqual),
        bqual,
    )


def decode(octets: bytes) -> Iterator[Record]:
    """The records in `octets`; RecordError for octets that are none."""
    at = 0
    while at < len(octets):
        try:
            record, at = _record(octets, at)
        except (ValueError, IndexError, struct.error) as error:
            raise RecordError(f"no record at octet {at}: {error}") from error
        yield record


def decode_decision(octets: bytes) -> Decision:
    """The one DECISION record in `octets`; RecordError for anything else."""
    records = list(decode(octets))
    if len(records) != 1 or not isinstance(records[0], Decision):
        raise RecordError("not one decision")
    return records[0]


def decode_heuristic(octets: bytes) -> Heuristic:
    """The one HEURISTIC record in `octets`; RecordError for anything else."""
    records = list(decode(octets))
    if len(records) != 1 or not isinstance(records[0], Heuristic):
        raise RecordError("not one heuristic outcome")
    return records[0]


def _record(octets: bytes, at: int) -> tuple[Record, int]:
    kind = octets[at]
    if kind == DECISION:
        return _decision(octets, at + 1)

    if kind == END:
        gtrid, at = _short(octets, at + 1)
        return DecisionEnded(gtrid), at
    if kind == HEURISTIC:
        code = Code(octets[at + 1])
        branch, at = decode_branch(octets, at + 2)
        why, at = _short(octets, at)
        return Heuristic(branch, code, why.decode()), at
    if kind == HEURISTIC_DROPPED:
        branch, at = decode_branch(octets, at + 1)
        return HeuristicDropped(branch), at
    if kind == INCARNATION:
        end = at + 2 + INCARNATION_SIZE
        if end > len(octets):
            raise ValueError("it is cut off")
        standing = _STANDING_OF.get(octets[at + 1])
        if standing is None:
            raise ValueError(f"{octets[at + 1]} is no state of an incarnation")
        return IncarnationNoted(octets[at + 2 : end], standing), end
    if kind in (FLOOR, CEILING):
        end = at + 1 + INCARNATION_SIZE
        (sequence,) = _SEQUENCE.unpack_from(octets, end)
        record = Floor if kind == FLOOR else Ceiling
        return record(octets[at + 1 : end], sequence), end + _SEQUENCE.size
    if kind == CARRIED_OUT:
        name, at = _short(octets, at + 1)
        (at_ms,) = _SEQUENCE.unpack_from(octets, at)
        return CarriedOut(name.decode(), at_ms), at + _SEQUENCE.size
    raise ValueError(f"kind {kind} is unknown")


def _decision(octets: bytes, at: int) -> tuple[Decision, int]:
    gtrid, at = _short(octets, at)
    (count,) = _COUNT.unpack_from(octets, at)
    at += _COUNT.size
    branches = []
    for _ in range(count):
        branch, at = decode_noted_branch(octets, at, gtrid)
        branches.append(branch)
    return Decision(gtrid, tuple(branches)), at


def decode_noted_branch(octets: bytes, at: int, default_gtrid: bytes = b"") -> tuple[Branch, int]:
    """The branch, with its note, that begins at `at`, and where the note ends; errors are those of `decode_branch`."""
    branch, at = decode_branch(octets, at, default_gtrid)
    note, at = _short(octets, at)
    if len(note) > MAX_NOTE:
        raise ValueError(f"a note of {len(note)} octets")
    return Branch(branch.resource, branch.xid, note), at


def decode_branch(octets: bytes, at: int, default_gtrid: bytes = b"") -> tuple[Branch, int]:
    """The branch that begins at `at`, and where it ends; a gtrid of length 0 stands for `default_gtrid`. ValueError,
    IndexError, struct.error: there is none."""
    name, at = _short(octets, at)
    (format_id,) = _FORMAT_ID.unpack_from(octets, at)
    gtrid, at = _short(octets, at + _FORMAT_ID.size)
    bqual, at = _short(octets, at)
    return Branch(name.decode(), Xid(format_id, gtrid or default_gtrid, bqual)), at


def _short(octets: bytes, at: int) -> tuple[bytes, int]:
    end = at + 1 + octets[at]
    if end > len(octets):
        raise ValueError("it is cut off")
    return octets[at + 1 : end], end
