"""These tests damage the octets of records and segments or cut them off, and check what can still be read and what is
refused."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import each
from tests.tm.log.samples import decision, heuristic
from tm.log import Branch, Decision, Heuristic
from tm.log.decider_record import decode_branches, encode_branches
from tm.log.records import (
    DecisionEnded,
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
from tm.log.segment import (
    HEADER_SIZE,
    Header,
    SegmentDamaged,
    encode_frame,
    encode_header,
    read_segment,
)
from xa import HEURISTIC_CODES, Code, Xid
from xa.outcome_notes import MAX_NOTE

SIZE = HEADER_SIZE + 1024
HEADER = Header(b"markmark", 7, SIZE, b"loglogid", 3, "orders-1")
PAYLOADS = (b"the state", b"", b"first decision", b"second one", b"x" * 200)
OLDER = Header(b"earliest", 6, SIZE, b"loglogid", 3, "orders-1")


def segment(payloads: tuple[bytes, ...] = PAYLOADS, *, recycled: bool = True) -> tuple[bytes, list[int]]:
    """A segment in a file that was in use before, and where its frames begin and the last one ends."""
    octets = bytearray(segment((b"old" * 9,) * 19, recycled=False)[0] if recycled else bytes(SIZE))
    octets[:HEADER_SIZE] = encode_header(HEADER if recycled else OLDER)
    mark = HEADER.mark if recycled else OLDER.mark
    starts = [HEADER_SIZE]
    for payload in payloads:
        frame = encode_frame(mark, starts[-1], payload)
        octets[starts[-1] : starts[-1] + len(frame)] = frame
        starts.append(starts[-1] + len(frame))
    assert len(octets) == SIZE
    return bytes(octets), starts


OCTETS, STARTS = segment()


def test_it_is_read_back() -> None:
    contents = read_segment(OCTETS)
    assert contents.header == HEADER
    assert contents.payloads == PAYLOADS
    assert contents.end == STARTS[-1]


def test_a_file_cut_off_anywhere_is_damaged() -> None:
    for size in range(SIZE):
        with pytest.raises(SegmentDamaged) as caught:
            read_segment(OCTETS[:size])
        assert caught.value.offset <= size


def test_a_write_that_never_came_is_the_end_of_the_log() -> None:
    """Cut at every octet, with zeros or the file's earlier contents behind: whole frames before it are told."""
    before, _ = segment(())
    for rest in (before, bytes(SIZE)):
        for cut in range(STARTS[1], SIZE):
            contents = read_segment(OCTETS[:cut] + rest[cut:])
            told = sum(end <= cut for end in STARTS[1:])
            assert contents.payloads == PAYLOADS[:told] or OCTETS[:cut] + rest[cut:] == OCTETS


def test_header_and_first_frame_were_forced_so_a_part_of_them_is_damage() -> None:
    for cut in range(STARTS[1] - 1):
        with pytest.raises(SegmentDamaged):
            read_segment(OCTETS[:cut] + bytes(SIZE - cut))


@each("bit", range(8) if os.environ.get("XABRIDGE_LONG") == "all" else (0, 3, 7))
def test_a_flipped_bit_is_found_or_harmless(bit: int) -> None:
    """At every octet: in the header or in a frame with another behind it, it is damage, at the right place; in
    the last frame it makes that frame the end of the log; behind it, it changes nothing."""
    for at in range(SIZE):
        flipped = bytearray(OCTETS)
        flipped[at] ^= 1 << bit
        octets = bytes(flipped)
        if at >= STARTS[-1]:
            assert read_segment(octets).payloads == PAYLOADS
        elif at >= STARTS[-2]:
            assert read_segment(octets).payloads == PAYLOADS[:-1]
        else:
            with pytest.raises(SegmentDamaged) as caught:
                read_segment(octets)
            frame = max((start for start in STARTS if start <= at), default=0)
            assert caught.value.offset == frame


def test_sectors_of_one_write_may_come_in_any_order() -> None:
    """The last write is long and torn in every way that sectors allow: it is the end of the log, not damage."""
    rng = random.Random(20)
    payload = rng.randbytes(900)
    before, starts = segment(PAYLOADS[:1])
    frame = encode_frame(HEADER.mark, starts[-1], payload)
    whole = before[: starts[-1]] + frame + before[starts[-1] + len(frame) :]
    sectors = range(starts[-1] // 64, -(-(starts[-1] + len(frame)) // 64))
    for _ in range(500):
        octets = bytearray(before)
        arrived = [sector for sector in sectors if rng.random() < 0.8]
        for sector in arrived:
            octets[sector * 64 : sector * 64 + 64] = whole[sector * 64 : sector * 64 + 64]
        assert read_segment(bytes(octets)).payloads == ((PAYLOADS[0], payload) if octets == whole else PAYLOADS[:1])


def test_a_frame_at_another_place_is_none() -> None:
    """A write that a disk put elsewhere does not count as a later frame, nor as the next one."""
    octets, starts = segment(PAYLOADS[:2])
    moved = bytearray(octets)
    frame = encode_frame(HEADER.mark, starts[-1], b"elsewhere")
    moved[starts[-1] + 40 : starts[-1] + 40 + len(frame)] = frame
    assert read_segment(bytes(moved)).payloads == PAYLOADS[:2]


def test_another_file_is_not_taken_for_a_segment() -> None:
    with pytest.raises(SegmentDamaged, match="does not begin with"):
        read_segment(b"something else" * 500)


# --- records -------------------------------------------------------------------------------------------------------
xids = st.builds(Xid, st.integers(0, 2**31 - 1), st.binary(min_size=1, max_size=64), st.binary(min_size=0, max_size=64))
branches = st.builds(Branch, st.text(max_size=63), xids)
noted_branches = st.builds(Branch, st.text(max_size=63), xids, st.binary(max_size=MAX_NOTE))
decisions = st.builds(Decision, st.binary(min_size=1, max_size=64), st.lists(noted_branches, max_size=5).map(tuple))
EXAMPLES = settings(max_examples=1000 if os.environ.get("XABRIDGE_LONG") == "all" else 15)
heuristics = st.builds(Heuristic, branches, st.sampled_from(sorted(HEURISTIC_CODES)))


@EXAMPLES
@given(decisions, heuristics, branches, st.binary(min_size=1, max_size=64))
def test_records_one_behind_the_other_come_back(
    decided: Decision, noted: Heuristic, dropped: Branch, ended: bytes
) -> None:
    octets = encode_decision(decided) + encode_end(ended) + encode_heuristic(noted) + encode_heuristic_dropped(dropped)
    assert list(decode(octets)) == [decided, DecisionEnded(ended), noted, HeuristicDropped(dropped)]
    back = decode_decision(encode_decision(decided))
    assert back == decided
    assert [branch.note for branch in back.branches] == [branch.note for branch in decided.branches]
    recorded = decode_branches(encode_branches(decided.branches))
    assert [(branch, branch.note) for branch in recorded] == [(branch, branch.note) for branch in decided.branches]
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
    with pytest.raises(RecordError, match="kind 10 is unknown"):
        list(decode(encode_end(b"g") + b"\x0a"))
    with pytest.raises(RecordError, match="not one decision"):
        decode_decision(encode_decision(decision(1)) * 2)
    with pytest.raises(RecordError, match="not one heuristic"):
        decode_heuristic(encode_decision(decision(1)))
    with pytest.raises(ValueError, match="XA_OK is not a heuristic outcome"):
        encode_heuristic(heuristic(1, Code.XA_OK))
