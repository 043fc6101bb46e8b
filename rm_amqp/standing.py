"""Standing: how one thread of control stands to a resource manager instance, and the operations that it waits for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from xa import NULL_XID
from xa.tables import RegistrationState

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.association import Association
    from rm_amqp.command import Command, Request
    from rm_amqp.line import Line
    from rm_amqp.links import Answer
    from rm_amqp.pool import Seat
    from xa import Code, XaError, Xid

MAX_OUTSTANDING: Final = 4096
"""Asynchronous operations that one instance may have outstanding."""


@dataclass(slots=True)
class Scan:
    """A recovery scan: where it is, whether it has come to its end, and whether it asks for what branches hold."""

    after: Xid = NULL_XID
    over: bool = False
    details: bool = False


@dataclass(slots=True, eq=False)
class Standing:
    """What is known of a thread of control. It has a channel (`seat`) as long as it has an association."""

    seat: Seat | None = None
    current: Association | None = None
    late: Association | None = None
    """One that it has ended, and whose end the broker hears with prepare."""
    suspended: dict[Xid, Association] = field(default_factory=dict)
    scan: Scan | None = None
    report: Scan | None = None
    lost: bool = False
    """It heard XAER_RMFAIL, and has to call open."""
    outside: RegistrationState = RegistrationState.D0
    """Where it works outside of any transaction: the table 6-3."""

    @property
    def associated(self) -> bool:
        """Whether it needs its channel."""
        return self.current is not None or self.late is not None or bool(self.suspended)


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A request on the command channel."""

    command: Command
    line: Line
    request: Request


@dataclass(frozen=True, slots=True, eq=False)
class Vote:
    """An end with prepare that was sent over a channel."""

    seat: Seat
    association: Association
    answer: Answer


@dataclass(slots=True, eq=False)
class Operation:
    """An asynchronous operation, from its start until `complete` has told of it: what came of it, or the request that
    is on its way."""

    standing: Standing
    verb: str
    xid: Xid | None
    asked: Asked | None = None
    vote: Vote | None = None
    code: Code | None = None
    error: XaError | None = None
    deadline: float = 0.0
    then: Callable[[], None] | None = None
