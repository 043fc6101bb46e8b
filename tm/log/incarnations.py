"""The incarnations of a log: what it notes of its openings, and which of them it may presume about.

Who opens a log draws an incarnation of 8 random octets, and notes it before the first gtrid has it. That a gtrid has
no decision in this log says that it is rolled back only if every decision of its incarnation is here. That is so of
those noted here, with one exception: what was at work when this log was copied went on deciding where it was, and the
copy has nothing of that. So a copy has to know that it is one. `xabridge log backup` writes that into the copy
which it makes; a copy made by other means is known by the identity of its file, where the file system has one.

A restored copy that is older than an incarnation has not noted it, and leaves its branches alone.

The other way round, the data of a resource may be restored from an older copy than the log. Then a branch is prepared
there that was finished since, and whose decision was forgotten. So the log notes a floor for each incarnation: all of
its transactions below that sequence are over everywhere (`tm.sequences`). It is noted lazily. A floor that a crash
takes back protects less, and nothing else comes of it. The floor of an incarnation that has ended is `xa.gtrid.OVER`
once nothing of it is left (`tm.recovery.former`).

A copy of a log may also look like the original. So the log notes a ceiling for each incarnation: none of its
transactions has reached that sequence. It is noted durably before a transaction begins that reaches it. A branch of a
transaction at or above it was begun when this log was not there any more: it was decided, or not, in a newer one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from xa import Code
from xa.machine import Machine, Result, Row, advance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xa.gtrid import Incarnation

FIRST: Final = 1
"""The first sequence of an incarnation: a floor there says nothing, and is not noted."""
MOST: Final = 10_000
"""So many are kept, the newest ones. Otherwise a process that dies at every start would fill the log with them."""


class IncarnationState(Enum):
    """The knowledge of a log about an incarnation. A SqlLog stores the value."""

    UNKNOWN = "unknown"
    OPEN = "open"
    WHOLE = "whole"
    CUT = "cut"


class IncarnationVerb(Enum):
    """The events that move an incarnation."""

    NOTE = "noted at its opening"
    CLOSE = "closed"
    SUCCEED = "the log was opened again"
    COPY = "this copy was made"
    TRUST = "an operator says that this copy is the newest"


_S = IncarnationState
_V = IncarnationVerb
INCARNATION: Final = Machine(
    "incarnation in a decision log",
    IncarnationState,
    IncarnationVerb,
    IncarnationState.UNKNOWN,
    (
        Row(_V.NOTE, Result.OK, (_S.UNKNOWN,), _S.OPEN, "before its first gtrid"),
        Row(_V.CLOSE, Result.OK, (_S.OPEN,), _S.WHOLE, "it decides no more"),
        Row(_V.SUCCEED, Result.OK, (_S.OPEN, _S.WHOLE), _S.WHOLE, "one at a time has the log, so it decides no more"),
        Row(_V.SUCCEED, Result.OK, (_S.CUT,), _S.CUT, "what it decided elsewhere does not come here"),
        Row(_V.COPY, Result.OK, (_S.OPEN, _S.CUT), _S.CUT, "what it decides from then on is not in the copy"),
        Row(_V.COPY, Result.OK, (_S.WHOLE,), _S.WHOLE, "all of its decisions are in the copy"),
        Row(_V.TRUST, Result.OK, (_S.CUT,), _S.WHOLE, "then nothing of it is missing"),
    ),
    {
        **dict.fromkeys(((state, _V.NOTE) for state in _S if state is not _S.UNKNOWN), Code.XAER_DUPID),
        **dict.fromkeys(((_S.UNKNOWN, verb) for verb in _V if verb is not _V.NOTE), Code.XAER_NOTA),
        **dict.fromkeys(((state, _V.CLOSE) for state in (_S.WHOLE, _S.CUT)), Code.XAER_PROTO),
        **dict.fromkeys(((state, _V.TRUST) for state in (_S.OPEN, _S.WHOLE)), Code.XAER_PROTO),
    },
)


@dataclass(frozen=True, slots=True)
class Incarnations:
    """A log's knowledge at one moment: those `noted`, oldest first, and `floors` and `ceilings` of those that have
    one."""

    noted: Mapping[bytes, IncarnationState] = field(default_factory=lambda: MappingProxyType({}))
    floors: Mapping[bytes, int] = field(default_factory=lambda: MappingProxyType({}))
    ceilings: Mapping[bytes, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def cut(self) -> tuple[bytes, ...]:
        """Those about which a copy presumes nothing."""
        return tuple(incarnation for incarnation, standing in self.noted.items() if standing is IncarnationState.CUT)

    def why_not(self, incarnation: Incarnation) -> str | None:
        """Why the absence of a decision of this incarnation says nothing; None when it says that there is none, as far
        as its ceiling."""
        if isinstance(incarnation, int):
            return f"its incarnation is the counter {incarnation}, so a pipeline made it, which resolves it"

        standing = self.noted.get(incarnation, IncarnationState.UNKNOWN)
        if standing is IncarnationState.UNKNOWN:
            return (
                f"it was made by incarnation {incarnation.hex()}, which is not noted in this log: an old copy, which "
                "can't know what was decided since"
            )
        if standing is IncarnationState.CUT:
            return (
                f"it was made by incarnation {incarnation.hex()}, which was at work when this copy was made, "
                "and the copy can't know what was decided since. If it is the newest that there is: "
                f"xabridge recover run --newest {incarnation.hex()}"
            )
        return None


def succeeded(noted: Mapping[bytes, IncarnationState], *, copied: bool) -> dict[bytes, IncarnationState]:
    """What is known when a log is opened again that knew `noted`; `copied`: it is a copy of unknown origin."""
    verbs = (IncarnationVerb.COPY, IncarnationVerb.SUCCEED) if copied else (IncarnationVerb.SUCCEED,)
    known = dict(list(noted.items())[-MOST + 1 :])
    for verb in verbs:
        known = {one: advance(INCARNATION, standing, verb) for one, standing in known.items()}
    return known


def copy_of(noted: Mapping[bytes, IncarnationState]) -> dict[bytes, IncarnationState]:
    """What a copy knows that is made of a log that knows `noted`."""
    return {one: advance(INCARNATION, standing, IncarnationVerb.COPY) for one, standing in noted.items()}


def trusted(incarnations: Incarnations, incarnation: bytes) -> IncarnationState:
    """What is known of an incarnation of which an operator says that nothing is missing; ValueError where something
    never was, or this log can't know."""
    standing = incarnations.noted.get(incarnation, IncarnationState.UNKNOWN)
    if INCARNATION.refusal(standing, IncarnationVerb.TRUST) is not None:
        cut = ", ".join(one.hex() for one in incarnations.cut) or "none"
        raise ValueError(
            f"incarnation {incarnation.hex()} was not at work when this copy of the log was made (that was: {cut}): "
            "there is nothing to take its word for"
        )
    moved: IncarnationState = advance(INCARNATION, standing, IncarnationVerb.TRUST)
    return moved


def warning_of(place: object, incarnations: Incarnations, before: Mapping[bytes, IncarnationState]) -> str | None:
    """What to tell when a log is opened at `place` that has turned out to be a copy since it knew `before`."""
    new = [one for one in incarnations.cut if before.get(one) is not IncarnationState.CUT]
    if not new:
        return None
    names = ", ".join(one.hex() for one in new)
    return (
        f"{place}: this decision log is a copy, made while incarnation {names} was at work. What that decided since is "
        "not here, so its branches without a decision are left alone. If this copy is the newest that there is (it was "
        "moved to another disk after a crash, say), say so: xabridge recover run --newest "
        f"{new[-1].hex()}"
    )
