"""History: what is known of a message's failures: from the broker, which counts deliveries; from annotations of ours,
where the message was put off; and from what this process remembers.

A message that is put off is taken, and sent again for later, in one transaction. These message annotations go with it:

    x-opt-delivery-delay  how many milliseconds after the commit it may be delivered: for the broker, by its clock
    x-opt-retry-count     how often it was delivered in vain before it was sent again
    x-opt-retry-first     when it failed for the first time, milliseconds since 1970
    x-opt-retry-reason    what it failed with the last time
    x-opt-retry-queue     the queue for whose consumers this holds: a handler may send a message on as it came

A broker that can do it tells of a message that was in a transaction that was rolled back, as delivery annotations:

    x-opt-retry-reason    what its own handler has failed with the last time
    x-opt-retry-apart     it was tried, and this did not count: it is to be handled alone

An attempt counts if it was the message's own, and it failed by it. It does not where a resource was down, another
transaction in the way, or another message in the same transaction: `fault_of` says which of these it was.
"""

from __future__ import annotations

import sqlite3
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tm.errors import HeuristicOutcomeError, ManagerUnusable, OutcomeUnknown, RolledBack, TransactionError
from xa import ROLLBACK_CODES, Code, XaError
from xa.sql.errors import IN_THE_WAY, ErrorKind, kind_of, mariadb_number, sqlstate_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tm.consumer.settings import ConsumerSettings

WAIT: Final = "x-opt-delivery-delay"
COUNT: Final = "x-opt-retry-count"
FIRST: Final = "x-opt-retry-first"
REASON: Final = "x-opt-retry-reason"
QUEUE: Final = "x-opt-retry-queue"
APART: Final = "x-opt-retry-apart"
UNTOLD: Final = 9
"""So many deliveries in vain make a dead letter of a message that no handler is known to have failed with. It was with
a process that was killed, or its transaction took too long: that may be its fault, or not. It is less than a broker's
limit of 10, the default, at which the broker would make a dead letter that does not say why."""
BREAKS: Final = 9
"""So often in a row a connection may break under a message alone, while every resource can be reached in between,
before it is the message's fault."""
_CONFLICTS: Final = IN_THE_WAY
_OUTAGES: Final = frozenset(
    {ErrorKind.LOST, ErrorKind.UNAVAILABLE, ErrorKind.EXHAUSTED, ErrorKind.FULL},
)
_PASSING: Final = _CONFLICTS | _OUTAGES | {ErrorKind.FAILED, ErrorKind.CANCELLED}
"""The state of a database, and not of the message."""
_CONFLICT_CODES: Final = frozenset({Code.XA_RBDEADLOCK, Code.XA_RBTRANSIENT})
_OUTAGE_CODES: Final = frozenset({Code.XAER_RMFAIL, Code.XA_RBCOMMFAIL, Code.XA_RETRY})
_FAULT_CODES: Final = frozenset({Code.XA_RBINTEGRITY, Code.XA_RBPROTO, Code.XAER_RMERR, Code.XAER_PROTO})
_AFTER_AN_ERROR: Final = "25P02"
"""The SQLSTATE of a statement behind one that has failed, which the handler has not passed on."""
_WITHOUT_CODE: Final = frozenset({"OperationalError", "InterfaceError"})
"""The classes of a driver's errors which, without a code of the server, say that it could not be reached."""


class Fault(Enum):
    """Whose fault it is that a message was not handled."""

    MESSAGE = "its handler has raised, or what it has done can't be committed"
    CONFLICT = "another transaction was in the way"
    OUTAGE = "a resource or the log could not be reached"
    UNTOLD = "its transaction took too long, or was rolled back for a reason that is not known"

    @property
    def is_excused(self) -> bool:
        """Whether the attempt does not count."""
        return self in (Fault.CONFLICT, Fault.OUTAGE)


class History(NamedTuple):
    """What is known of a message when it is delivered."""

    deliveries: int
    """How many attempts count: those of its own that failed, and those of which nobody can say what they failed
    with."""
    is_dead: bool = False
    """Whether no further attempt is made."""
    is_apart: bool = False
    """Whether it was tried before, so that it shares a transaction with no other message."""
    waits: bool = False
    """Whether it has failed since it was sent or put off, so that it waits before the next attempt."""


def _told(message: Any, name: str, queue: str) -> Any:
    """An annotation of a message that was put off for the consumers of `queue`."""
    annotations = getattr(message, "annotations", None) or {}
    return annotations.get(name) if annotations.get(QUEUE) == queue else None


def retries_of(message: Any, queue: str) -> int:
    """How often a message was delivered in vain before it was put off."""
    told = _told(message, COUNT, queue)
    return int(told) if isinstance(told, int) and told > 0 else 0


def first_failure_ms(message: Any, queue: str) -> int | None:
    """When a message that was put off had failed for the first time."""
    told = _told(message, FIRST, queue)
    return int(told) if isinstance(told, int) else None


def reason_of(message: Any, queue: str) -> str | None:
    """What a message has failed with the last time, as the broker was told; or before it was put off."""
    told = (getattr(message, "instructions", None) or {}).get(REASON)
    if not isinstance(told, str):
        told = _told(message, REASON, queue)
    return str(told) if isinstance(told, str) else None


def forget_wait(message: Any, queue: str) -> None:
    """The wait of a message that was put off is over: sent on as it is, it must not wait again."""
    if _told(message, QUEUE, queue) is not None and isinstance(message.annotations, dict):
        message.annotations.pop(WAIT, None)


def is_apart(message: Any) -> bool:
    """Whether the broker says that a message was in a transaction that was rolled back, for whatever reason."""
    return bool(getattr(message, "delivery_count", 0)) or APART in (getattr(message, "instructions", None) or {})


def is_new(message: Any) -> bool:
    """Whether a message has not been tried yet. What is remembered of its id or its content is about an earlier one
    then: one that another process has handled, or put away, and that somebody has sent again."""
    return not is_apart(message) and QUEUE not in (getattr(message, "annotations", None) or {})


def fault_of(error: BaseException) -> Fault:
    """Whose fault it is that an attempt has come to `error`."""
    faults = [_fault_of_one(one) for one in _chain(error, context=True)]
    for fault in (Fault.CONFLICT, Fault.OUTAGE, Fault.UNTOLD):
        if fault in faults:
            return fault
    return Fault.MESSAGE


def _fault_of_one(error: BaseException) -> Fault:
    if isinstance(error, RolledBack) and error.outcome is not None:
        faults = [_fault_of_reason(reason.said) for reason in error.outcome.reasons]
        return next((fault for fault in Fault if fault in faults and fault is not Fault.MESSAGE), Fault.MESSAGE)
    if isinstance(error, OutcomeUnknown | ManagerUnusable):
        return Fault.OUTAGE
    if isinstance(error, HeuristicOutcomeError):
        return Fault.UNTOLD
    if isinstance(error, XaError):
        return _fault_of_code(error.code, Fault.UNTOLD if error.code in ROLLBACK_CODES else Fault.MESSAGE)
    if sqlstate_of(error) == _AFTER_AN_ERROR:
        return Fault.UNTOLD
    kind = kind_of(error)
    if kind in _CONFLICTS:
        return Fault.CONFLICT
    return Fault.OUTAGE if kind in _OUTAGES or (kind is ErrorKind.UNTOLD and _is_lost(error)) else Fault.MESSAGE


def _fault_of_reason(said: object) -> Fault:
    """The same of why a commit was refused. What the application has marked is its own fault; what a resource manager
    gives no reason for is not known to be."""
    if isinstance(said, Code):
        return _fault_of_code(said, Fault.UNTOLD)
    if isinstance(said, XaError):
        found = _fault_of_code(said.code, Fault.UNTOLD)
        return (
            found
            if found.is_excused
            else next((fault for one in _chain(said) if (fault := _fault_of_one(one)).is_excused), found)
        )
    return Fault.UNTOLD if isinstance(said, TimeoutError) else Fault.MESSAGE


def _fault_of_code(code: Code | None, otherwise: Fault) -> Fault:
    if code in _CONFLICT_CODES:
        return Fault.CONFLICT
    if code in _OUTAGE_CODES:
        return Fault.OUTAGE
    return Fault.MESSAGE if code in _FAULT_CODES else otherwise


def is_broken(error: BaseException) -> bool:
    """Whether a connection broke, or could not be made, and no server has said why. It may be an outage; or the message
    makes a statement that is too long, or ends the server's process, or names a server that is not there."""
    return any(
        kind is ErrorKind.LOST if mariadb_number(one) else kind is ErrorKind.UNTOLD and _is_lost(one)
        for one in _chain(error, context=True)
        if (kind := kind_of(one)) in (ErrorKind.LOST, ErrorKind.UNTOLD)
    )


def _is_lost(error: BaseException) -> bool:
    original = getattr(error, "orig", None) or error
    return type(original).__name__ in _WITHOUT_CODE and not isinstance(original, sqlite3.Error)


def is_final(error: BaseException, settings: ConsumerSettings) -> bool:
    """Whether the settings say that no further attempt helps after `error`. What the resources and the transaction
    manager raise, an outage or a refused commit, is always tried again, unless `dead_on` names it."""
    if isinstance(error, settings.dead_on):
        return True
    if not settings.retry_on or isinstance(error, settings.retry_on) or fault_of(error) is not Fault.MESSAGE:
        return False
    return not any(isinstance(one, TransactionError | XaError) or kind_of(one) in _PASSING for one in _chain(error))


def _chain(error: BaseException, *, context: bool = False) -> Iterator[BaseException]:
    """The error and what it was made from; with `context` also what was being handled when it was raised."""
    seen: list[BaseException] = []
    following: object = error
    while isinstance(following, BaseException) and following not in seen:
        seen.append(following)
        yield following
        cause = following.__cause__
        if context and cause is None and not following.__suppress_context__:
            cause = following.__context__
        following = getattr(following, "orig", None) or cause
