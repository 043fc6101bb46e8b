"""How one thread of control stands to one branch, in a resource manager instance.

Where a resource manager registers dynamically, associations move by table 6-3, otherwise by table 6-2: the same idea
under other names. `Dialect` names the states and verbs that both have, so that code is written once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from xa.codes import Code
from xa.machine import RESULT_OF, IllegalTransition, Result, advance
from xa.tables import ASSOCIATION, REGISTRATION

if TYPE_CHECKING:
    from enum import Enum

    from xa.machine import Column, Machine
    from xa.xid import Xid

W = TypeVar("W")


class Dialect:
    """The names that one of the two tables has for associations: three states, and the verbs that lead to them."""

    __slots__ = (
        "active",
        "after",
        "end",
        "end_fail",
        "lose",
        "machine",
        "none",
        "resume",
        "start",
        "suspend",
        "suspended",
    )

    def __init__(self, machine: Machine[Any, Any], states: tuple[str, str, str], starts: tuple[str, str]) -> None:
        self.machine = machine
        self.none: Enum
        self.active: Enum
        self.suspended: Enum
        self.none, self.active, self.suspended = (machine.states[name] for name in states)
        self.start, self.resume = (machine.verbs[name] for name in starts)
        self.suspend, self.end, self.end_fail, self.lose = (
            machine.verbs[name] for name in ("SUSPEND", "END", "END_FAIL", "LOSE")
        )
        self.after: dict[Enum, Column[Any]] = {verb: machine.column(verb) for verb in machine.verbs}


STATIC: Final = Dialect(ASSOCIATION, ("T0", "T1", "T2"), ("START", "RESUME"))
"""Table 6-2."""
DYNAMIC: Final = Dialect(REGISTRATION, ("D0", "D1", "D2"), ("REGISTER", "REGISTER_RESUME"))
"""Table 6-3."""


class Association(Generic[W]):
    """One association, and the driver's object for its work. It is made when the work has begun."""

    __slots__ = ("dialect", "state", "work", "xid")

    def __init__(self, xid: Xid, work: W, dialect: Dialect) -> None:
        self.xid = xid
        self.work = work
        self.dialect = dialect
        self.state: Enum = dialect.after[dialect.start][dialect.none]

    def move(self, verb: Enum, code: Code) -> None:
        """Follows the table's row for `verb` answered with `code`. What has no row leaves the state as it is, but for
        XAER_NOTA: no association is left with a branch that is not there."""
        if code is Code.XA_OK:
            self.state = self.dialect.after[verb][self.state]
            return
        if code is Code.XAER_NOTA:
            verb, result = self.dialect.lose, Result.OK
        elif code in RESULT_OF:
            result = RESULT_OF[code]
        else:
            return
        try:
            self.state = advance(self.dialect.machine, self.state, verb, result)
        except IllegalTransition:
            return
