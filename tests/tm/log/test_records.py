"""These tests check that records survive encoding and decoding, and that octets which are no record are refused."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tm.log.samples import decision, heuristic
from tm.log import Branch, Decision, Heuristic
from tm.log.records import (
    End,
    HeuristicDropped,
    RecordError,
    branch_key,
    decode,
    decode_decision,
    decode_heuristic,
    encode_decision,
    encode_end,
    encode_heuristic,
    encode_heuristic_dropped,
)
from xa import HEURISTIC_CODES, Code, Xid

xids = st.builds(Xid, st.integers(0, 2**31 - 1), st.binary(min_size=1, max_size=64), st.binary(min_size=0, max_size=64))
branches = st.builds(Branch, st.text(max_size=63), xids)
decisions = st.builds(Decision, st.binary(min_size=1, max_size=64), st.lists(branches, max_size=5).map(tuple))
EXAMPLES = settings(max_examples=1000 if os.environ.get("XABRIDGE_LONG") == "all" else 15)
heuristics = st.builds(Heuristic, branches, st.sampled_from(sorted(HEURISTIC_CODES)))


@EXAMPLES
@given(decisions, heuristics, branches, st.binary(min_size=1, max_size=64))
def test_records_one_behind_the_other_come_back(
    decided: Decision, noted: Heuristic, dropped: Branch, ended: bytes
) -> None:
    octets = encode_decision(decided) + encode_end(ended) + encode_heuristic(noted) + encode_heuristic_dropped(dropped)
    assert list(decode(octets)) == [decided, End(ended), noted, HeuristicDropped(dropped)]
    assert decode_decision(encode_decision(decided)) == decided
    assert decode_heuristic(encode_heuristic(noted)) == noted


@EXAMPLES
@given(decisions, st.data())
def test_a_record_that_is_cut_off_is_none(decided: Decision, data: st.DataObject) -> None:
    octets = encode_decision(decided)
    with pytest.raises(RecordError):
        list(decode(octets[: data.draw(st.integers(1, len(octets) - 1))]))


@EXAMPLES
@given(st.binary(min_size=1, max_size=300))
def test_any_octets_are_records_or_refused(octets: bytes) -> None:
    try:
        list(decode(octets))
    except RecordError as error:
        assert "no record at octet" in str(error)  # noqa: PT017 — both ways are right


@EXAMPLES
@given(branches, branches)
def test_the_key_of_a_branch_is_its_own(one: Branch, other: Branch) -> None:
    assert (branch_key(one) == branch_key(other)) == (one == other)


def test_what_is_no_record_or_not_the_one_that_is_asked_for_is_refused() -> None:
    with pytest.raises(RecordError, match="kind 9 is unknown"):
        list(decode(encode_end(b"g") + b"\x09"))
    with pytest.raises(RecordError, match="not one decision"):
        decode_decision(encode_decision(decision(1)) * 2)
    with pytest.raises(RecordError, match="not one heuristic"):
        decode_heuristic(encode_decision(decision(1)))
    with pytest.raises(ValueError, match="XA_OK is not a heuristic outcome"):
        encode_heuristic(heuristic(1, Code.XA_OK))
