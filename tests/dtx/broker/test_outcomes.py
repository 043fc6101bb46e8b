"""These tests check that the fast reader of the usual transactional states reads the same as the general one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtx.broker.queues.outcomes import (
    FAILED,
    GIVEN_BACK,
    TAKEN,
    Outcome,
    decode_outcomes,
    encode_outcomes,
    outcome_from,
    read_transactional_state,
    transactional_state,
)
from dtx.protocol.commands import MAX_TXN_ID
from dtx.protocol.composites import WireError
from dtx.protocol.decoding import DecodeError, decode
from dtx.protocol.encoding import encode
from dtx.protocol.values import Described, Ulong

ACCEPTED = b"\x00\x53\x24\x45"
TXN_IDS = st.binary(max_size=MAX_TXN_ID + 2)


def wide(txn_id: bytes, rest: bytes, count: int) -> bytes:
    """The fields as proton writes them: a list with long sizes."""
    items = b"\xa0" + bytes((len(txn_id),)) + txn_id + rest
    return b"\xd0" + (4 + len(items)).to_bytes(4, "big") + count.to_bytes(4, "big") + items


def at_length(octets: bytes) -> tuple[bytes, Outcome | None] | None:
    """What the fields say, read value by value; None where they are no transactional-state."""
    try:
        items = decode(octets)
        if type(items) is not list or not 1 <= len(items) <= 2:
            return None
        if type(items[0]) is not bytes or len(items[0]) > MAX_TXN_ID:
            return None
        return items[0], outcome_from(items[1] if len(items) == 2 else None)
    except (DecodeError, WireError):
        return None


def read(octets: bytes) -> tuple[bytes, Outcome | None] | None:
    try:
        return read_transactional_state(octets)
    except WireError:
        return None


@given(
    txn_id=TXN_IDS,
    rest=st.sampled_from([b"", ACCEPTED, b"\x00\x53\x26\x45", b"\x40", b"\x45"]),
    count=st.integers(0, 3),
)
def test_every_way_to_write_it_is_read_the_same(txn_id: bytes, rest: bytes, count: int) -> None:
    octets = wide(txn_id, rest, count)
    assert read(octets) == at_length(octets)


@given(octets=st.binary(max_size=40))
def test_rubbish_is_read_the_same(octets: bytes) -> None:
    for prefix in (b"", b"\xd0", b"\xd0\0\0\0\x0a\0\0\0\x01\xa0", wide(b"abc", ACCEPTED, 2)):
        assert read(prefix + octets) == at_length(prefix + octets)
        assert read(prefix[: len(octets)]) == at_length(prefix[: len(octets)])


@pytest.mark.parametrize("outcome", [None, ACCEPTED])
def test_our_own_are_read(outcome: bytes | None) -> None:
    expected = None if outcome is None else TAKEN
    assert read_transactional_state(transactional_state(b"abc", outcome)) == (b"abc", expected)
    assert read_transactional_state(wide(b"abc", outcome or b"", 2 if outcome else 1)) == (b"abc", expected)
    assert encode(Described(Ulong(0x24), [])) == ACCEPTED


def test_what_the_store_keeps_of_a_retired_message() -> None:
    """What stores wrote before there was an outcome of a rollback is read as it was meant: a delivery in vain."""
    before = b"\x00\x53\x24\x45"
    assert decode_outcomes(before) == (TAKEN, FAILED)
    assert encode_outcomes(TAKEN, FAILED) == before
    for outcomes in ((TAKEN, GIVEN_BACK), (FAILED, GIVEN_BACK), (FAILED, FAILED), (GIVEN_BACK, TAKEN)):
        assert decode_outcomes(encode_outcomes(*outcomes)) == outcomes
