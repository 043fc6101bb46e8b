"""Association: how one thread of control stands to one branch, in a resource manager instance; and ThreadRecord:
everything that the instance knows of one thread of control.

Where a resource manager registers dynamically, associations move by table 6-3, otherwise by table 6-2: the same idea
under other names. `Dialect` names the states and verbs that both have, so that code is written once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import ref

from xa.codes import Code
from xa.errors import xa_error
from xa.machine import RESULT_OF, IllegalTransition, Result, advance
from xa.state_tables import ASSOCIATION, REGISTRATION, RegistrationState
from xa.threads_of_control import ThreadOfControl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
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
        """Follows the table's row for `verb` answered with `code`.

        An error that has no row leaves the state as it is, but for XAER_NOTA: no association is left with a branch that
        is not there. XAER_PROTO: another thread that acts for the same thread of control was faster.
        """
        if code is Code.XA_OK:
            try:
                self.state = self.dialect.after[verb][self.state]
            except IllegalTransition as refused:
                raise xa_error(refused.code, str(refused), self.xid) from refused
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


class ThreadRecord(ref[ThreadOfControl], Generic[W]):
    """A switch's data about one thread of control, and a weak reference to that: `gone` is called when it has ended.

    `current` is the association that it is at work in, `suspended` those that it may resume; `late` is one that it has
    ended, and whose end the resource gets together with prepare. `lost`: it has got XAER_RMFAIL, and has to call
    `open`. `registration` is D3 while it works outside of any global transaction, else D0. `key` is the id of the
    thread of control, which can't be asked for it any more when it has ended.
    """

    __slots__ = ("current", "key", "late", "lost", "registration", "scans", "suspended")

    def __init__(self, control: ThreadOfControl, gone: Callable[[ThreadRecord[W]], object]) -> None:  # noqa: ARG002
        self.key = id(control)  # the reference is made by `ref.__new__`, and `ref.__init__` does nothing
        self.forget()

    def forget(self) -> None:
        """Drops all associations and the open scan."""
        self.current: Association[W] | None = None
        self.late: Association[W] | None = None
        self.suspended: dict[Xid, Association[W]] = {}
        self.scans: dict[str, Iterator[Any]] = {}
        self.lost = False
        self.registration = RegistrationState.D0

    def associations(self) -> list[Association[W]]:
        """Every association of the thread's."""
        held = [] if self.current is None else [self.current]
        if self.late is not None:
            held.append(self.late)
        return [*held, *self.suspended.values()] if self.suspended else held

    def works(self) -> Sequence[W]:
        """The driver's objects for them."""
        return [association.work for association in self.associations()]

    def drop(self, association: Association[W]) -> None:
        """Takes the association out of wherever it is."""
        if self.current is association:
            self.current = None
        elif self.late is association:
            self.late = None
        elif self.suspended.get(association.xid) is association:
            del self.suspended[association.xid]
