"""Outcomes of deliveries: the terminal states of the messaging chapter, and the octets in which they are
kept.

An outcome is kept, in the store and in a transactional-state, as the described list that AMQP has for it:
`00 53 24 45` is accepted. For a message that a prepared branch retires, the store keeps the outcome of a commit and, if
and only if it is another one than `modified` with delivery-failed, the outcome of a rollback behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import DecodeError, decode, decode_from
from dtx.amqp.encoding import encode, encode_list
from dtx.amqp.values import Described, Symbol, Ulong
from dtx.protocol.commands import MAX_TXN_ID
from dtx.protocol.replies import ACCEPTED, MODIFIED, REJECTED, RELEASED, TRANSACTIONAL, error_octets

if TYPE_CHECKING:
    from dtx.amqp.values import Value
    from dtx.protocol.conditions import Refusal

_CODES: Final[dict[Value, int]] = {
    **{Ulong(code): code for code in (ACCEPTED, REJECTED, RELEASED, MODIFIED)},
    Symbol("amqp:accepted:list"): ACCEPTED,
    Symbol("amqp:rejected:list"): REJECTED,
    Symbol("amqp:released:list"): RELEASED,
    Symbol("amqp:modified:list"): MODIFIED,
}

OUTCOMES: Final = frozenset(str(name) for name in _CODES if type(name) is Symbol)
"""The outcomes that a delivery may have, by their names."""
_TRANSACTIONAL: Final[frozenset[Value]] = frozenset({Ulong(TRANSACTIONAL), Symbol("amqp:transactional-state:list")})
_TRANSACTIONAL_PREFIX: Final = b"\x00" + encode(Ulong(TRANSACTIONAL))

LOST_TIMES: Final = 2
"""A connection that is lost, or a consumer that says why it has failed, makes a dead letter only at so many times the
limit of deliveries: a consumer that gets the message before can say why it is one, and has a limit of its own; and a
process that is killed has mostly nothing to do with the message."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A terminal delivery state. `failed` and `undeliverable` are those of modified. `reason` is what the consumer says
    that the message has failed with, and `apart` that it is to be handled alone the next time; neither is kept with the
    outcome. `rolled_back` is the outcome in place of it where the transaction is rolled back, if the consumer says
    one."""

    code: int
    failed: bool = False
    undeliverable: bool = False
    reason: str = field(default="", compare=False)
    apart: bool = field(default=False, compare=False)
    rolled_back: Outcome | None = field(default=None, compare=False)
    place: str = field(default="", compare=False)
    """Where the consumer says that it has failed with `reason`."""
    error: str = field(default="", compare=False)
    """What a consumer says that it has rejected the message for."""
    lost: bool = field(default=False, compare=False)
    """Whether the connection was lost, so that it is not known whether the message has anything to do with it."""

    def exhausts(self, count: int, most: int) -> bool:
        """Whether it makes a dead letter of a message that was delivered `count` times in vain by now; `most` is the
        limit, 0 for none. An outcome that does not count makes none, however high the count is."""
        limit = most * (LOST_TIMES if self.lost or self.reason else 1)
        return self.failed and 0 < limit <= count

    def encode(self) -> bytes:
        """The octets, as the module's docstring says."""
        if self.code == MODIFIED:
            return encode(Described(Ulong(MODIFIED), [self.failed, self.undeliverable]))
        return b"\x00\x53" + bytes((self.code,)) + b"\x45"


TAKEN: Final = Outcome(ACCEPTED)
REFUSED: Final = Outcome(REJECTED)
GIVEN_BACK: Final = Outcome(RELEASED)
FAILED: Final = Outcome(MODIFIED, failed=True)
"""The outcome of a message whose delivery ended without one: another attempt, counted."""
LOST: Final = Outcome(MODIFIED, failed=True, lost=True)
"""The same of a message whose connection was lost before anything was said of it."""
TAKEN_OCTETS: Final = TAKEN.encode()
GIVEN_BACK_OCTETS: Final = GIVEN_BACK.encode()


def outcome_from(value: Value) -> Outcome | None:
    """The outcome that a delivery state is, None for one that is not terminal; WireError for what is none."""
    if value is None:
        return None
    if type(value) is not Described or type(value.value) is not list:
        raise WireError(Condition.INVALID_FIELD, "an outcome is a described list")

    code = _CODES.get(value.descriptor) if type(value.descriptor) in {Symbol, Ulong} else None
    if code is None:
        if value.descriptor in {Ulong(0x23), Symbol("amqp:received:list")}:
            return None
        raise WireError(Condition.NOT_IMPLEMENTED, "an outcome is accepted, rejected, released or modified")
    if code == ACCEPTED:
        return TAKEN
    if code == MODIFIED:
        failed, undeliverable, annotations = (*value.value, None, None, None)[:3]
        if not isinstance(failed, bool | None) or not isinstance(undeliverable, bool | None):
            raise WireError(Condition.INVALID_FIELD, "delivery-failed and undeliverable-here are booleans")
        reason = annotations.get(REASON) if type(annotations) is dict else None
        text = reason[:MOST_TEXT] if isinstance(reason, str) else ""
        apart = type(annotations) is dict and annotations.get(APART) is True
        place = annotations.get(PLACE) if type(annotations) is dict else None
        where = place[-MOST_TEXT:] if isinstance(place, str) else ""
        return Outcome(MODIFIED, failed is True, undeliverable is True, text, apart, place=where)
    return Outcome(code, error=_error_of(value.value)) if code == REJECTED and value.value else Outcome(code)


def _error_of(fields: list[Value]) -> str:
    """The description of the error that an outcome rejected has, or its condition; "" where it has none."""
    error = fields[0]
    if type(error) is not Described or type(error.value) is not list:
        return ""
    said = [str(one)[:MOST_TEXT] for one in error.value[:2] if isinstance(one, str) and one]
    return said[-1] if said else ""


def encode_outcomes(committed: Outcome, rolled_back: Outcome) -> bytes:
    """The octets that the store keeps of a message that a prepared branch retires, as the module's docstring says."""
    return committed.encode() + (b"" if rolled_back == FAILED else rolled_back.encode())


def decode_outcomes(octets: bytes) -> tuple[Outcome, Outcome]:
    """The outcomes of the message with a commit, and with a rollback."""
    value, end = decode_from(octets, 0)
    values = [value]
    if end < len(octets):
        values.append(decode(octets[end:]))
    committed, *others = map(outcome_from, values)
    if committed is None or None in others:
        raise ValueError(f"no outcome: {octets.hex()}")
    return committed, next((one for one in others if one is not None), FAILED)


def read_state(octets: bytes) -> tuple[bytes | None, Outcome | None]:
    """The txn-id of a delivery state, None for one that is not transactional, and its outcome, None for a state that is
    not terminal, or that is unknown here. WireError for what is no delivery state."""
    try:
        state = decode(octets)
    except DecodeError as error:
        raise WireError(Condition.DECODE_ERROR, f"delivery-state: {error}") from None
    if type(state) is not Described or type(state.value) is not list:
        raise WireError(Condition.INVALID_FIELD, "a delivery-state is a described list")
    descriptor = state.descriptor if type(state.descriptor) in {Symbol, Ulong} else None
    if descriptor not in _TRANSACTIONAL:
        return None, outcome_from(state) if descriptor in _CODES else None
    if not 1 <= len(state.value) <= 3:
        raise WireError(Condition.INVALID_FIELD, "a transactional-state has a txn-id and outcomes")

    txn_id = state.value[0]
    if type(txn_id) is not bytes or len(txn_id) > MAX_TXN_ID:
        raise WireError(Condition.INVALID_FIELD, f"a txn-id is binary, of at most {MAX_TXN_ID} octets")
    outcome, rolled_back = (outcome_from(value) for value in (*state.value[1:], None, None)[:2])
    if rolled_back is not None:
        if outcome is None or rolled_back.code not in {RELEASED, MODIFIED} or rolled_back.undeliverable:
            raise WireError(
                Condition.INVALID_FIELD, "the outcome of a rollback is released or modified, beside another"
            )
        outcome = replace(outcome, rolled_back=rolled_back)
    return txn_id, outcome


def transactional_state(txn_id: bytes, outcome: bytes | None = None) -> bytes:
    """A transactional-state, encoded; `outcome` is encoded already."""
    return _TRANSACTIONAL_PREFIX + encode_list([encode(txn_id)] if outcome is None else [encode(txn_id), outcome])


def rejected_state(refusal: Refusal) -> bytes:
    """The outcome rejected with the error that tells a refusal, encoded."""
    return b"\x00" + encode(Ulong(REJECTED)) + encode_list([error_octets(refusal)])


# -- reasons of failures
REASON: Final = Symbol("x-opt-retry-reason")
PLACE: Final = Symbol("x-opt-retry-place")
APART: Final = Symbol("x-opt-retry-apart")
"""The delivery annotation of a message that was in a transaction that was rolled back, or with a connection that was
lost, without a fault of its own that is known: its next consumer handles it alone."""
MOST_REASONS: Final = 1000
MOST_TEXT: Final = 2000
"""Characters of a reason that are kept."""


class FailureReasons:
    """What messages have failed with, by their numbers, as their consumers have said.

    A consumer says it with the outcome of a transaction that it then rolls back: the outcome has no effect, and the
    reason goes with the next deliveries of the message, as the delivery annotation `x-opt-retry-reason`, and so does
    the place in its code, `x-opt-retry-place`. It is kept in memory only, of the latest messages: a help for people, on
    which nothing depends.
    """

    def __init__(self) -> None:
        self._of: dict[int, tuple[str, str]] = {}

    def note(self, number: int, reason: str, place: str = "") -> None:
        """A message has failed with this, there."""
        self._of.pop(number, None)
        self._of[number] = (reason, place)
        if len(self._of) > MOST_REASONS:
            del self._of[next(iter(self._of))]

    def of(self, number: int) -> tuple[str, str]:
        """What a message has failed with the last time, and where; "" if that is not known."""
        return self._of.get(number, ("", ""))
