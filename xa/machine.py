"""Machine: a state machine as data. Rows say which (state, verb, result) leads to which state; for every other pair of
state and verb a table of refusals has the code to answer.

A new state comes from `advance` and from nowhere else (or from a `Column` of the table, where one verb is looked up all
the time). Where the table has no row, that is the error, and the state stays as it was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from xa.codes import HEURISTIC_CODES, ROLLBACK_CODES, Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

S = TypeVar("S", bound=Enum)
V = TypeVar("V", bound=Enum)


class Member(Enum):
    """A member of a table. Hashed by identity, in C: tables are looked up for every verb."""

    __hash__ = object.__hash__


class Result(Member):
    """The results that the tables of the XA specification tell apart."""

    OK = "XA_OK"
    RDONLY = "XA_RDONLY"
    RB = "XA_RB*"
    HEUR = "XA_HEUR*"
    RETRY = "XA_RETRY"
    RMERR = "XAER_RMERR"
    RMFAIL = "XAER_RMFAIL"


RESULT_OF: Final[dict[Code, Result]] = {
    Code.XA_OK: Result.OK,
    Code.XA_NOMIGRATE: Result.OK,
    Code.XA_RDONLY: Result.RDONLY,
    Code.XA_RETRY: Result.RETRY,
    Code.XAER_RMERR: Result.RMERR,
    Code.XAER_RMFAIL: Result.RMFAIL,
    **dict.fromkeys(ROLLBACK_CODES, Result.RB),
    **dict.fromkeys(HEURISTIC_CODES, Result.HEUR),
}
"""Code → the result class of the tables; codes that leave every state as it was are missing."""


@dataclass(frozen=True, slots=True)
class Row(Generic[S, V]):
    """One entry: in each state of `states`, `verb` with `result` leads to `target`; `source` says who says so."""

    verb: V
    result: Result
    states: tuple[S, ...]
    target: S
    source: str


class Column(dict[S, S]):
    """The effect of one verb with one result: `column[state]` is the state after it, and IllegalTransition where the
    table has no row, as `advance` raises it. Looked up in C."""

    __slots__ = ("_machine", "_result", "_verb")

    def __init__(self, machine: Machine[S, Any], verb: Enum, result: Result, entries: Iterable[tuple[S, S]]) -> None:
        super().__init__(entries)
        self._machine = machine
        self._verb = verb
        self._result = result

    def __missing__(self, state: S) -> S:
        raise self._machine.illegal(state, self._verb, self._result)


@dataclass(frozen=True, slots=True)
class Machine(Generic[S, V]):
    """A named table. `refusals` gives the code for each (state, verb) that has no row; together with the rows
    it covers every pair."""

    name: str
    states: type[S]
    verbs: type[V]
    initial: S
    rows: tuple[Row[S, V], ...]
    refusals: dict[tuple[S, V], Code]
    _next: dict[tuple[S, V, Result], S] = field(init=False, repr=False)
    _legal: frozenset[tuple[S, V]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        table: dict[tuple[S, V, Result], S] = {}
        for row in self.rows:
            for state in row.states:
                if (state, row.verb, row.result) in table:
                    raise ValueError(f"{self.name}: two rows for {state}, {row.verb}, {row.result}")
                table[state, row.verb, row.result] = row.target
        legal = frozenset((state, verb) for state, verb, _ in table)
        pairs = frozenset((state, verb) for state in self.states for verb in self.verbs)
        if self.refusals.keys() & legal or self.refusals.keys() | legal != pairs:
            raise ValueError(f"{self.name}: rows and refusals do not divide the pairs of state and verb")
        object.__setattr__(self, "_next", table)
        object.__setattr__(self, "_legal", legal)

    def refusal(self, state: S, verb: V) -> Code | None:
        """The code that refuses `verb` in `state`, or None when the verb is legal there."""
        return None if (state, verb) in self._legal else self.refusals[state, verb]

    def column(self, verb: V, result: Result = Result.OK) -> Column[S]:
        """The transitions of `verb` with `result`."""
        return Column(
            self, verb, result, ((state, to) for (state, v, r), to in self._next.items() if v is verb and r is result)
        )

    def illegal(self, state: S, verb: V, result: Result) -> IllegalTransition:
        """The error for what has no row."""
        return IllegalTransition(self.name, state, verb, result, self.refusal(state, verb) or Code.XAER_PROTO)

    def transitions(self) -> Iterator[tuple[S, V, Result, S, str]]:
        """Every entry: state, verb, result, next state, source."""
        for row in self.rows:
            for state in row.states:
                yield state, row.verb, row.result, row.target, row.source


class IllegalTransition(Exception):
    """The table has no row for this state, verb and result. `code` refuses the verb where no result of it
    is legal in the state, and is XAER_PROTO where only this result is not."""

    def __init__(self, machine: str, state: Enum, verb: Enum, result: Result, code: Code) -> None:
        super().__init__(f"{machine}: {verb.value} → {result.value} is not possible in state {state.value}")
        self.machine = machine
        self.state = state
        self.verb = verb
        self.result = result
        self.code = code


def advance(machine: Machine[S, V], state: S, verb: V, result: Result = Result.OK) -> S:
    """The state after `verb` answered `result` in `state`; IllegalTransition when the table has no such row."""
    target = machine._next.get((state, verb, result))  # noqa: SLF001 — this function is the machine's reader
    if target is None:
        raise machine.illegal(state, verb, result)
    return target
