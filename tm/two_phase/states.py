"""The states of a global transaction, as a table.

A branch and an association have tables of their own (`xa.state_tables`). IN_DOUBT is the state for what this process
can't find out now: recovery ends it, in this process or in another.
"""

from __future__ import annotations

from typing import Final

from xa import Code
from xa.machine import Machine, Member, Result, Row


class GlobalState(Member):
    """The states of a global transaction."""

    ACTIVE = "active"
    MARKED = "marked rollback-only"
    SUSPENDED = "suspended"
    SUSPENDED_MARKED = "suspended, and marked rollback-only"
    PREPARING = "preparing"
    COMMITTING = "committing"
    ROLLING_BACK = "rolling back"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    HEURISTIC = "heuristically completed"
    IN_DOUBT = "in doubt"


class GlobalVerb(Member):
    """The events that move a global transaction."""

    MARK = "set rollback-only"
    SUSPEND = "suspend"
    RESUME = "resume"
    COMMIT = "commit asked for"
    ROLLBACK = "rollback asked for"
    REFUSE = "a branch refused, or the log took no decision"
    DECIDE = "the decision is durable"
    NO_WORK = "every branch was read-only"
    ONE_PHASE = "the only branch committed"
    LOSE = "the only branch, the decider or the log left its outcome unknown"
    FINISH = "every branch got the decision"
    LEAVE = "a branch could not be reached with the decision to commit"
    DAMAGE = "a branch was completed otherwise"


_S = GlobalState
_V = GlobalVerb
_OK = Result.OK
_FINAL: Final = (_S.COMMITTED, _S.ROLLED_BACK, _S.HEURISTIC, _S.IN_DOUBT)
_SUSPENDED: Final = (_S.SUSPENDED, _S.SUSPENDED_MARKED)
_ROWS: Final = (
    Row(_V.MARK, _OK, (_S.ACTIVE, _S.MARKED), _S.MARKED, "design"),
    Row(
        _V.MARK,
        _OK,
        _SUSPENDED,
        _S.SUSPENDED_MARKED,
        "design: by a callback that has suspended it, and failed",
    ),
    Row(_V.SUSPEND, _OK, (_S.ACTIVE,), _S.SUSPENDED, "design"),
    Row(_V.SUSPEND, _OK, (_S.MARKED,), _S.SUSPENDED_MARKED, "design"),
    Row(_V.RESUME, _OK, (_S.SUSPENDED,), _S.ACTIVE, "design"),
    Row(_V.RESUME, _OK, (_S.SUSPENDED_MARKED,), _S.MARKED, "design"),
    Row(_V.COMMIT, _OK, (_S.ACTIVE,), _S.PREPARING, "design"),
    Row(_V.COMMIT, _OK, (_S.MARKED,), _S.ROLLING_BACK, "design: rollback-only is rolled back"),
    Row(_V.ROLLBACK, _OK, (_S.ACTIVE, _S.MARKED, *_SUSPENDED), _S.ROLLING_BACK, "design"),
    Row(_V.REFUSE, _OK, (_S.PREPARING,), _S.ROLLING_BACK, "presumed abort: nothing is logged"),
    Row(_V.DECIDE, _OK, (_S.PREPARING,), _S.COMMITTING, "the commit point"),
    Row(_V.NO_WORK, _OK, (_S.PREPARING,), _S.COMMITTED, "read-only optimisation"),
    Row(_V.ONE_PHASE, _OK, (_S.PREPARING,), _S.COMMITTED, "one-phase optimisation"),
    Row(_V.LOSE, _OK, (_S.PREPARING,), _S.IN_DOUBT, "an unknown outcome is its own verdict"),
    Row(_V.FINISH, _OK, (_S.COMMITTING,), _S.COMMITTED, "phase two"),
    Row(_V.FINISH, _OK, (_S.ROLLING_BACK,), _S.ROLLED_BACK, "unreachable branches are presumed rolled back"),
    Row(_V.LEAVE, _OK, (_S.COMMITTING,), _S.IN_DOUBT, "recovery commits the remaining branches"),
    Row(_V.DAMAGE, _OK, (_S.PREPARING, _S.COMMITTING, _S.ROLLING_BACK), _S.HEURISTIC, "heuristic outcomes"),
)
_ROWED: Final = {(state, row.verb) for row in _ROWS for state in row.states}

GLOBAL: Final = Machine(
    "global transaction",
    GlobalState,
    GlobalVerb,
    _S.ACTIVE,
    _ROWS,
    {(state, verb): Code.XAER_PROTO for state in _S for verb in _V if (state, verb) not in _ROWED},
)

SUSPENDED: Final = frozenset(_SUSPENDED)
"""The states of a transaction that is suspended: it can be resumed, or rolled back."""
UNDECIDED: Final = SUSPENDED | {_S.ACTIVE, _S.MARKED}
"""The states in which neither commit nor rollback has begun."""
FINAL: Final = frozenset(_FINAL)
"""States that this process does not leave."""
