"""These tests damage a segment or cut it off, and check which records can still be read and which are refused."""

from __future__ import annotations

import os
import random

import pytest

from tests.cases import each
from tm.log.segment import (
    HEADER_SIZE,
    Header,
    SegmentDamaged,
    encode_frame,
    encode_header,
    read_segment,
)

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
