"""The states of a resource, as a table: whether it can be used, and what opening and closing it changes.

Beside it each thread of control may have lost its own connection. That is no state of the resource: other threads use
it.
"""

from __future__ import annotations

from typing import Final

from xa import Code
from xa.machine import Machine, Member, Result, Row


class ResourceState(Member):
    """Whether a resource can be used."""

    NEW = "not opened yet"
    OPEN = "open"
    DOWN = "could not be opened"
    CLOSED = "closed"


class ResourceVerb(Member):
    """The events that move a resource."""

    OPENED = "it was opened"
    FAILED = "opening it failed"
    CLOSE = "close"


_S, _V, _OK = ResourceState, ResourceVerb, Result.OK
_ROWS: Final = (
    Row(_V.OPENED, _OK, (_S.NEW, _S.OPEN, _S.DOWN), _S.OPEN, "design: in OPEN for a thread that lost its connection"),
    Row(_V.FAILED, _OK, (_S.NEW, _S.OPEN, _S.DOWN), _S.DOWN, "design: for every thread, until the back-off has passed"),
    Row(_V.CLOSE, _OK, tuple(_S), _S.CLOSED, "design: for good"),
    Row(_V.OPENED, _OK, (_S.CLOSED,), _S.CLOSED, "design: it was closed while it was being opened"),
    Row(_V.FAILED, _OK, (_S.CLOSED,), _S.CLOSED, "design: it was closed while it was being opened"),
)
_ROWED: Final = {(state, row.verb) for row in _ROWS for state in row.states}

RESOURCE: Final = Machine(
    "resource",
    ResourceState,
    ResourceVerb,
    _S.NEW,
    _ROWS,
    {(state, verb): Code.XAER_PROTO for state in _S for verb in _V if (state, verb) not in _ROWED},
)
