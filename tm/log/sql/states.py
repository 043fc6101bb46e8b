"""The states of a gtrid in a SqlLog, as a table; the conditions of the SQL statements come from it."""

from __future__ import annotations

from enum import Enum
from typing import Final

from xa import Code
from xa.machine import Machine, Result, Row


class GtridState(Enum):
    """The states of a gtrid in the log. The value is stored; UNKNOWN is never stored."""

    UNKNOWN = "unknown"
    ACTIVE = "active"
    COMMITTED = "committed"
    ABORTED = "aborted"
    DONE = "done"


class GtridVerb(Enum):
    """The events that move a gtrid."""

    BEGIN = "begin"
    DECIDE = "decide to commit"
    ABORT = "abort"
    END = "every branch is finished"
    PURGE = "garbage collection"


_S = GtridState
_V = GtridVerb
GTRID: Final = Machine(
    "gtrid in a SqlLog",
    GtridState,
    GtridVerb,
    GtridState.UNKNOWN,
    (
        Row(
            _V.BEGIN,
            Result.OK,
            (_S.UNKNOWN,),
            _S.ACTIVE,
            "pipelines begin explicitly; the manager writes nothing for begin",
        ),
        Row(_V.DECIDE, Result.OK, (_S.UNKNOWN, _S.ACTIVE), _S.COMMITTED, "the commit point"),
        Row(_V.ABORT, Result.OK, (_S.UNKNOWN, _S.ACTIVE), _S.ABORTED, "the tombstone: it can't be decided any more"),
        Row(_V.END, Result.OK, (_S.COMMITTED,), _S.DONE, "lazy"),
        Row(_V.PURGE, Result.OK, (_S.ABORTED, _S.DONE), _S.UNKNOWN, "nothing of it is on its way any more"),
    ),
    {
        **dict.fromkeys(((state, _V.BEGIN) for state in _S if state is not _S.UNKNOWN), Code.XAER_DUPID),
        **dict.fromkeys(((state, _V.DECIDE) for state in (_S.COMMITTED, _S.DONE)), Code.XAER_PROTO),
        (_S.ABORTED, _V.DECIDE): Code.XA_RBROLLBACK,
        **dict.fromkeys(((state, _V.ABORT) for state in (_S.COMMITTED, _S.ABORTED, _S.DONE)), Code.XAER_PROTO),
        (_S.UNKNOWN, _V.END): Code.XAER_NOTA,
        **dict.fromkeys(((state, _V.END) for state in (_S.ACTIVE, _S.ABORTED, _S.DONE)), Code.XAER_PROTO),
        (_S.UNKNOWN, _V.PURGE): Code.XAER_NOTA,
        **dict.fromkeys(((state, _V.PURGE) for state in (_S.ACTIVE, _S.COMMITTED)), Code.XAER_PROTO),
    },
)


def sources(verb: GtridVerb) -> list[str]:
    """The stored states in which `verb` is legal."""
    return [
        state.value for state in GtridState if state is not GtridState.UNKNOWN and GTRID.refusal(state, verb) is None
    ]


def target(verb: GtridVerb) -> str:
    """The stored state that `verb` leads to."""
    (state,) = {after for _, moved, _, after, _ in GTRID.transitions() if moved is verb}
    return str(state.value)
