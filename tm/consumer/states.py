"""The states of a consumer, as a table."""

from __future__ import annotations

from typing import Final

from xa import Code
from xa.machine import Machine, Member, Result, Row


class ConsumerState(Member):
    """The states of a consumer. A stopped consumer is not started again; the application makes a new one."""

    NEW = "new"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class ConsumerVerb(Member):
    """The events that move a consumer."""

    START = "start"
    STOP = "stop asked for, or a worker failed"
    END = "every worker has ended, or is not waited for any more"


_S = ConsumerState
_V = ConsumerVerb
_ROWS: Final = (
    Row(_V.START, Result.OK, (_S.NEW,), _S.RUNNING, "design"),
    Row(_V.STOP, Result.OK, (_S.RUNNING, _S.STOPPING), _S.STOPPING, "design: finish what runs, begin nothing"),
    Row(_V.STOP, Result.OK, (_S.NEW, _S.STOPPED), _S.STOPPED, "design"),
    Row(_V.END, Result.OK, (_S.STOPPING, _S.STOPPED), _S.STOPPED, "design: bounded by shutdown_s"),
)
_ROWED: Final = {(state, row.verb) for row in _ROWS for state in row.states}

CONSUMER: Final = Machine(
    "consumer",
    ConsumerState,
    ConsumerVerb,
    _S.NEW,
    _ROWS,
    {(state, verb): Code.XAER_PROTO for state in _S for verb in _V if (state, verb) not in _ROWED},
)
