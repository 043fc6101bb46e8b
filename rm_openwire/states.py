"""Beginning: whether a broker has begun a branch, and whether that branch is ours, as a state table.

A ROLLBACK is sent only in the states of ROLLED_BACK: while it is not known whose the branch is, a rollback might undo
what another client has prepared. What has no row is refused, and changes nothing.
"""

from __future__ import annotations

from typing import Final

from xa import Code
from xa.machine import Machine, Member, Result, Row


class Beginning(Member):
    """Whether the broker has begun a branch, and whether that is ours."""

    UNSENT = "BEGIN is not sent, and the broker knows nothing"
    SENT = "BEGIN is sent"
    UNCERTAIN = "BEGIN is sent, and the branch is not known to be ours"
    OURS = "the broker has begun the branch, and it is ours"
    TAKEN = "the xid is that of another branch"


class BeginningVerb(Member):
    """What is learnt about the beginning of a branch."""

    SEND = "send BEGIN"
    AWAIT = "wait for the answer to BEGIN"
    CONFIRM = "the broker has begun it, and has no other branch of this xid in doubt"
    FIND_TAKEN = "the broker has another branch of this xid"
    DOUBT = "the broker refuses to prepare it, as it does with the branch of another client"


_B, _V = Beginning, BeginningVerb
_OK: Final = Result.OK
_ROWS: Final = (
    Row(_V.SEND, _OK, (_B.UNSENT, _B.SENT), _B.SENT, "design"),
    Row(_V.AWAIT, _OK, (_B.SENT, _B.UNCERTAIN), _B.UNCERTAIN, "design: lost while it waits, it is not known"),
    Row(_V.CONFIRM, _OK, (_B.UNCERTAIN,), _B.OURS, "design"),
    Row(_V.FIND_TAKEN, _OK, (_B.UNCERTAIN,), _B.TAKEN, "XAER_DUPID"),
    Row(_V.DOUBT, _OK, (_B.SENT, _B.UNCERTAIN, _B.OURS), _B.UNCERTAIN, "XAER_PROTO at prepare"),
)
_LEGAL: Final = frozenset((state, row.verb) for row in _ROWS for state in row.states)
BEGINNING: Final = Machine(
    "beginning of a branch",
    Beginning,
    BeginningVerb,
    _B.UNSENT,
    _ROWS,
    {(state, verb): Code.XAER_PROTO for state in _B for verb in _V if (state, verb) not in _LEGAL},
)

ROLLED_BACK: Final = frozenset({_B.SENT, _B.OURS})
"""Where a rollback is sent to the broker."""
