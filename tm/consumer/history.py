"""History: what is known of a message's failures: from the broker, which counts deliveries; from annotations of ours,
where the message was put off; and from what this process remembers.

A message that is put off is taken, and sent again for later, in one transaction. These message annotations go with it:

    x-opt-delivery-delay  how many milliseconds after the commit it may be delivered: for the broker, by its clock
    x-opt-retry-count     how often it was delivered in vain before it was sent again
    x-opt-retry-first     when it failed for the first time, milliseconds since 1970
    x-opt-retry-reason    what it failed with the last time
    x-opt-retry-queue     the queue for whose consumers this holds: a handler may send a message on as it came

A broker that can do it tells x-opt-retry-reason also of a message that has just failed, as a delivery annotation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tm.errors import RolledBack, TransactionError
from xa import Code, XaError
from xa.sql.errors import ErrorKind, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tm.consumer.settings import ConsumerSettings

WAIT: Final = "x-opt-delivery-delay"
COUNT: Final = "x-opt-retry-count"
FIRST: Final = "x-opt-retry-first"
REASON: Final = "x-opt-retry-reason"
QUEUE: Final = "x-opt-retry-queue"
CONFLICTS: Final = 10
"""So many conflicts of one message in a row are no failures of it, and are tried again at once."""
_CONFLICTS: Final = frozenset({ErrorKind.SERIALIZATION, ErrorKind.DEADLOCK})
_PASSING: Final = _CONFLICTS | {
    ErrorKind.LOST,
    ErrorKind.FAILED,
    ErrorKind.LOCKED,
    ErrorKind.CANCELLED,
    ErrorKind.EXHAUSTED,
    ErrorKind.UNAVAILABLE,
    ErrorKind.FULL,
}
"""The state of a database, and not of the message."""
_CONFLICT_CODES: Final = frozenset({Code.XA_RBDEADLOCK})


class History(NamedTuple):
    """What is known of a message when it is delivered."""

    deliveries: int
    """How often it was delivered in vain, but for conflicts that this process knows of."""
    is_final: bool = False
    """Whether no further attempt can help, or the time for attempts is over."""
    is_conflict: bool = False
    """Whether another transaction was in the way the last time: it is tried again at once."""


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


def is_new(message: Any) -> bool:
    """Whether a message has not failed yet. What is remembered of its id or its content is about an earlier one then:
    one that another process has handled, or put away, and that somebody has sent again."""
    return not getattr(message, "delivery_count", 0) and QUEUE not in (getattr(message, "annotations", None) or {})


def is_conflict(error: BaseException) -> bool:
    """Whether `error` says that a concurrent transaction was in the way (SQLSTATE 40001, 40P01, and what other
    databases have for these), so that the same work may succeed at once."""
    for one in _chain(error):
        if kind_of(one) in _CONFLICTS or (isinstance(one, XaError) and one.code in _CONFLICT_CODES):
            return True
        outcome = one.outcome if isinstance(one, RolledBack) else None
        if outcome is not None and any(_says_conflict(reason.said) for reason in outcome.reasons):
            return True
    return False


def _says_conflict(said: object) -> bool:
    return said in _CONFLICT_CODES or (isinstance(said, XaError) and is_conflict(said))


def is_final(error: BaseException, settings: ConsumerSettings) -> bool:
    """Whether the settings say that no further attempt helps after `error`. What the resources and the transaction
    manager raise, an outage or a refused commit, is always tried again, unless `dead_on` names it."""
    if isinstance(error, settings.dead_on):
        return True
    if not settings.retry_on or isinstance(error, settings.retry_on) or is_conflict(error):
        return False
    return not any(isinstance(one, TransactionError | XaError) or kind_of(one) in _PASSING for one in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    following: object = error
    while isinstance(following, BaseException) and following not in seen:
        seen.append(following)
        yield following
        following = getattr(following, "orig", None) or following.__cause__
