"""The states of an epoch, as a table. The state follows from the ledger's row and the decision log's entry."""

from __future__ import annotations

from typing import Final

from xa import Code
from xa.machine import Machine, Member, Result, Row


class EpochState(Member):
    """The states of an epoch."""

    ALLOTTED = "allotted"
    ACTIVE = "active"
    ABORTED = "aborted"
    DECIDED = "decided"
    LOGGED = "logged"
    DONE = "done"


class EpochVerb(Member):
    """The events that move an epoch."""

    PLAN = "plan"
    DECIDE = "decide"
    ABORT = "abort"
    LOG = "Spark has logged it"
    FINISH = "every branch is finished"


_S = EpochState
_V = EpochVerb
_GONE: Final = (_S.LOGGED, _S.DONE)
EPOCH: Final = Machine(
    "epoch of a pipeline",
    EpochState,
    EpochVerb,
    EpochState.ALLOTTED,
    (
        Row(_V.PLAN, Result.OK, (_S.ALLOTTED, _S.ABORTED), _S.ACTIVE, "a new global transaction begins"),
        Row(_V.PLAN, Result.RDONLY, (_S.DECIDED,), _S.DECIDED, "what its source branches hold is read again"),
        Row(_V.DECIDE, Result.OK, (_S.ACTIVE,), _S.DECIDED, "the commit point"),
        *(
            Row(_V.DECIDE, Result.RDONLY, (state,), state, "decided before: this attempt is discarded")
            for state in (_S.DECIDED, *_GONE)
        ),
        Row(_V.ABORT, Result.OK, (_S.ALLOTTED, _S.ACTIVE, _S.ABORTED), _S.ABORTED, "presumed abort"),
        Row(_V.LOG, Result.OK, (_S.DECIDED, _S.LOGGED), _S.LOGGED, "from now on source branches are finished"),
        Row(_V.LOG, Result.RB, (_S.ALLOTTED, _S.ACTIVE, _S.ABORTED), _S.DONE, "its messages are back in their queues"),
        Row(_V.LOG, Result.RDONLY, (_S.DONE,), _S.DONE, "reported again"),
        Row(_V.FINISH, Result.OK, (_S.LOGGED, _S.DONE), _S.DONE, "lazy"),
    ),
    {
        **dict.fromkeys(((state, _V.PLAN) for state in (_S.ACTIVE, *_GONE)), Code.XAER_PROTO),
        (_S.ALLOTTED, _V.DECIDE): Code.XAER_NOTA,
        (_S.ABORTED, _V.DECIDE): Code.XA_RBROLLBACK,
        **dict.fromkeys(((state, _V.ABORT) for state in (_S.DECIDED, *_GONE)), Code.XAER_PROTO),
        **dict.fromkeys(((state, _V.FINISH) for state in _S if state not in _GONE), Code.XAER_PROTO),
    },
)
