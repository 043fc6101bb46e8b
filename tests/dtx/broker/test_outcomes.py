"""Delivery states, as peers tell them and as the store keeps outcomes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtx.amqp.composites import WireError
from dtx.amqp.encoding import encode
from dtx.amqp.values import Described, Symbol, Uint, Ulong
from dtx.broker.queues.outcomes import (
    FAILED,
    GIVEN_BACK,
    MOST_REASONS,
    TAKEN,
    FailureReasons,
    Outcome,
    decode_outcomes,
    encode_outcomes,
    read_state,
    transactional_state,
)
from dtx.protocol.commands import MAX_TXN_ID
from tests.cases import each

ACCEPTED = b"\x00\x53\x24\x45"
TXN_IDS = st.binary(max_size=MAX_TXN_ID + 2)


PREFIXES = (b"\x00\x53\x34", b"\x00\x80\0\0\0\0\0\0\0\x34", b"\x00\xa3\x1damqp:transactional-state:list")


def wide(txn_id: bytes, rest: bytes, count: int) -> bytes:
    """A transactional-state as proton writes it: a list with long sizes."""
    items = b"\xa0" + bytes((len(txn_id),)) + txn_id + rest
    return PREFIXES[0] + b"\xd0" + (4 + len(items)).to_bytes(4, "big") + count.to_bytes(4, "big") + items


@each("prefix", PREFIXES)
@each("outcome", [None, ACCEPTED])
def test_every_form_is_read(prefix: bytes, outcome: bytes | None) -> None:
    expected = None if outcome is None else TAKEN
    ours = transactional_state(b"abc", outcome)
    assert read_state(ours) == (b"abc", expected)
    assert read_state(prefix + ours[3:]) == (b"abc", expected)
    assert read_state(wide(b"abc", outcome or b"", 2 if outcome else 1)) == (b"abc", expected)
    for state, outside in (
        (Described(Ulong(0x24), []), TAKEN),
        (Described(Ulong(0x27), [True, False]), FAILED),
        (Described(Symbol("amqp:released:list"), []), GIVEN_BACK),
        (Described(Ulong(0x23), [Uint(0), Ulong(0)]), None),
        (Described(Symbol("somebody:else"), []), None),
    ):
        assert read_state(encode(state)) == (None, outside)


@given(txn_id=TXN_IDS, rest=st.sampled_from([b"", ACCEPTED, b"\x00\x53\x26\x45", b"\x40", b"\x45"]))
def test_what_is_no_transactional_state_is_refused(txn_id: bytes, rest: bytes) -> None:
    octets = wide(txn_id, rest, 1 if not rest else 2)
    if len(txn_id) > MAX_TXN_ID or rest == b"\x45":
        with pytest.raises(WireError):
            read_state(octets)
    else:
        outcome = {ACCEPTED: TAKEN, b"\x00\x53\x26\x45": GIVEN_BACK}.get(rest)
        assert read_state(octets) == (txn_id, outcome)


def test_what_the_store_keeps_of_a_retired_message() -> None:
    """What stores wrote before there was an outcome of a rollback is read as it was meant: a delivery in vain."""
    before = b"\x00\x53\x24\x45"
    assert decode_outcomes(before) == (TAKEN, FAILED)
    assert encode_outcomes(TAKEN, FAILED) == before
    for outcomes in ((TAKEN, GIVEN_BACK), (FAILED, GIVEN_BACK), (FAILED, FAILED), (GIVEN_BACK, TAKEN)):
        assert decode_outcomes(encode_outcomes(*outcomes)) == outcomes


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        ({Symbol("x-opt-retry-reason"): "ValueError: no"}, "ValueError: no"),
        ({Symbol("x-opt-retry-reason"): "x" * 5000}, "x" * 2000),
        ({Symbol("x-opt-retry-reason"): Uint(7), Symbol("x-opt-other"): "x"}, ""),
        ({}, ""),
        (None, ""),
        ("no map", ""),
    ],
)
def test_the_reason_of_a_failure_is_read_and_not_kept(annotations: Any, reason: str) -> None:
    octets = encode(Described(Ulong(0x27), [True, False, annotations]))
    _, outcome = read_state(transactional_state(b"t", octets))
    assert outcome is not None
    assert (outcome.reason, outcome.failed) == (reason, True)
    assert outcome == FAILED
    assert outcome.encode() == FAILED.encode()


RELEASED, REJECTED = b"\x00\x53\x26\x45", b"\x00\x53\x25\x45"
APART: dict[Any, Any] = {Symbol("x-opt-retry-apart"): True, Symbol("x-opt-retry-reason"): "in company"}


@pytest.mark.parametrize(
    ("octets", "expected", "apart"),
    [
        (RELEASED, GIVEN_BACK, False),
        (encode(Described(Ulong(0x27), [True, False])), FAILED, False),
        (encode(Described(Ulong(0x27), [False, False, APART])), Outcome(0x27), True),
        (b"\x40", None, False),
    ],
)
def test_an_outcome_of_a_rollback_is_read(octets: bytes, expected: Outcome | None, apart: bool) -> None:
    txn_id, outcome = read_state(wide(b"t", ACCEPTED + octets, 3))
    assert (txn_id, outcome) == (b"t", TAKEN)
    assert outcome is not None
    assert outcome.rolled_back == expected
    if outcome.rolled_back is not None:
        assert outcome.rolled_back.apart is apart


@pytest.mark.parametrize(
    "rest",
    [
        ACCEPTED + ACCEPTED,  # nothing is taken by a rollback
        ACCEPTED + REJECTED,
        ACCEPTED + encode(Described(Ulong(0x27), [True, True])),
        b"\x40" + RELEASED,  # what a commit does is not said
    ],
)
def test_an_outcome_of_a_rollback_that_would_take_the_message_is_refused(rest: bytes) -> None:
    with pytest.raises(WireError, match="the outcome of a rollback"):
        read_state(wide(b"t", rest, 3))


def test_reasons_are_bounded() -> None:
    reasons = FailureReasons()
    for number in range(MOST_REASONS + 5):
        reasons.note(number, f"reason {number}")
    reasons.note(5, "again", "orders.py:17 in handle")
    assert reasons.of(5) == ("again", "orders.py:17 in handle")
    reasons.note(MOST_REASONS + 5, "the last")
    assert [reasons.of(number)[0] for number in (4, 5, 6, 7, MOST_REASONS + 5)] == [
        "",
        "again",
        "",
        "reason 7",
        "the last",
    ]
