"""History: what is known of a message's failures: from the broker, which counts deliveries; from annotations of ours,
where the message was put off; and from what this process remembers.

A message that is put off is taken, and sent again for later, in one transaction. These message annotations go with it:

    x-opt-delivery-delay  how many milliseconds after the commit it may be delivered: for the broker, by its clock
    x-opt-retry-count     how often it was delivered in vain before it was sent again
    x-opt-retry-first     when it failed for the first time, milliseconds since 1970
    x-opt-retry-reason    what it failed with the last time
    x-opt-retry-place     where in the code of its handler
    x-opt-retry-queue     the queue for whose consumers this holds: a handler may send a message on as it came

A broker that can do it tells of a message that was in a transaction that was rolled back, as delivery annotations:

    x-opt-retry-reason    what its own handler has failed with the last time
    x-opt-retry-apart     it was tried, and this did not count: it is to be handled alone

An attempt counts if it was the message's own, and it failed by it. It does not where a resource was down, another
transaction in the way, or another message in the same transaction: `fault_of` says which of these it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tm.errors import TransactionError
from tm.faults import CONFLICTS, OUTAGES, Fault, chain, fault_of
from xa import XaError
from xa.sql.errors import ErrorKind, kind_of

if TYPE_CHECKING:
    from tm.consumer.settings import ConsumerSettings

WAIT: Final = "x-opt-delivery-delay"
COUNT: Final = "x-opt-retry-count"
FIRST: Final = "x-opt-retry-first"
REASON: Final = "x-opt-retry-reason"
PLACE: Final = "x-opt-retry-place"
QUEUE: Final = "x-opt-retry-queue"
APART: Final = "x-opt-retry-apart"
UNTOLD: Final = 9
"""So many deliveries in vain make a dead letter of a message that no handler is known to have failed with. It was with
a process that was killed, or its transaction took too long: that may be its fault, or not. It is less than a broker's
limit of 10, the default, at which the broker would make a dead letter that does not say why."""
BREAKS: Final = 9
"""So often in a row a connection may break under a message alone, while every resource can be reached in between,
before it is the message's fault."""
_PASSING: Final = CONFLICTS | OUTAGES | {ErrorKind.FAILED, ErrorKind.CANCELLED}
"""The state of a database, and not of the message."""


class History(NamedTuple):
    """What is known of a message when it is delivered."""

    deliveries: int
    """How many attempts count: those of its own that failed, and those that failed for an unknown reason."""
    is_dead: bool = False
    """Whether no further attempt is made."""
    is_apart: bool = False
    """Whether it was tried before, so that it shares a transaction with no other message."""
    waits: bool = False
    """Whether it has failed since it was sent or put off, so that it waits before the next attempt."""


NEW: Final = History(0)
"""That of a message that has not been tried yet."""


def _annotation(message: Any, name: str, queue: str) -> Any:
    """An annotation of a message that was put off for the consumers of `queue`."""
    annotations = getattr(message, "annotations", None) or {}
    return annotations.get(name) if annotations.get(QUEUE) == queue else None


def retries_of(message: Any, queue: str) -> int:
    """How often a message was delivered in vain before it was put off."""
    waits = _annotation(message, COUNT, queue)
    return int(waits) if isinstance(waits, int) and waits > 0 else 0


def first_failure_ms(message: Any, queue: str) -> int | None:
    """When a message that was put off had failed for the first time."""
    first = _annotation(message, FIRST, queue)
    return int(first) if isinstance(first, int) else None


def reason_of(message: Any, queue: str) -> str | None:
    """The reason of a message's last failure, as reported to the broker; or before it was put off."""
    return _said(message, REASON, queue)


def place_said_of(message: Any, queue: str) -> str:
    """Where in the code it failed, as reported with that; "" where it was not."""
    return _said(message, PLACE, queue) or ""


def _said(message: Any, name: str, queue: str) -> str | None:
    said = (getattr(message, "instructions", None) or {}).get(name)
    if not isinstance(said, str):
        said = _annotation(message, name, queue)
    return str(said) if isinstance(said, str) else None


def forget_wait(message: Any, queue: str) -> None:
    """The wait of a message that was put off is over: sent on as it is, it must not wait again."""
    if _annotation(message, QUEUE, queue) is not None and isinstance(message.annotations, dict):
        message.annotations.pop(WAIT, None)


def is_apart(message: Any) -> bool:
    """Whether the broker says that a message was in a transaction that was rolled back, for whatever reason."""
    return bool(getattr(message, "delivery_count", 0)) or APART in (getattr(message, "instructions", None) or {})


def is_new(message: Any) -> bool:
    """Whether a message has not been tried yet. What is remembered of its id or its content is about an earlier one
    then: one that another process has handled, or put away, and that somebody has sent again."""
    return not is_apart(message) and QUEUE not in (getattr(message, "annotations", None) or {})


def is_final(error: BaseException, settings: ConsumerSettings) -> bool:
    """Whether the settings say that no further attempt helps after `error`. What the resources and the transaction
    manager raise, an outage or a refused commit, is always tried again, unless `dead_on` names it."""
    if isinstance(error, settings.dead_on):
        return True
    if not settings.retry_on or isinstance(error, settings.retry_on) or fault_of(error) is not Fault.MESSAGE:
        return False
    return not any(isinstance(one, TransactionError | XaError) or kind_of(one) in _PASSING for one in chain(error))
