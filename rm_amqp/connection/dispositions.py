"""One disposition for the messages of a batch.

proton writes a disposition for each message that a branch takes, because it does not compare transactional states.
`join_dispositions` makes one of those that follow each other and say the same of deliveries with consecutive numbers,
so that the broker reads one for a batch. What comes before and behind them stays where it was.
"""

from __future__ import annotations

from typing import Final

from dtx.amqp.encoding import encode_uint
from dtx.amqp.performatives import DISPOSITION as CODE
from dtx.amqp.performatives import MAX_UINT

DISPOSITION: Final = bytes((0x00, 0x53, CODE, 0xC0))
"""A disposition begins like this, as a list of less than 256 octets."""
_MAX_REST: Final = 200
_HEADER: Final = 8
"""Octets before the performative of a frame."""


def join_dispositions(frames: bytes) -> bytes:
    """Whole frames, with fewer dispositions that say the same."""
    if frames.startswith(b"AMQP"):
        return frames
    pieces: list[bytes] = []
    run = at = 0
    while at < len(frames):
        stop = at + int.from_bytes(frames[at : at + 4], "big")
        found = _Disposition.read(frames, at, stop)
        if found is not None:
            stop = found.join(frames, stop)
            if found.is_joined:
                pieces += (frames[run:at], found.frame())
                run = stop
        at = stop
    pieces.append(frames[run:])
    return b"".join(pieces)


class _Disposition:
    """A disposition, with those behind it that it joined."""

    __slots__ = ("_before", "_first", "_last", "_rest")

    def __init__(self, before: bytes, first: int, last: int, rest: bytes) -> None:
        self._first = first
        self._last = last
        self._before = before
        """The channel, the number of fields, and the role."""
        self._rest = rest
        """The fields behind the numbers of the deliveries."""

    @classmethod
    def read(cls, frames: bytes, at: int, stop: int) -> _Disposition | None:
        """The one that stands there; None for another frame, and for one that is not written as proton writes it."""
        start = at + _HEADER
        if frames[at + 4] != 2 or not frames.startswith(DISPOSITION, start):
            return None
        if start + 5 + frames[start + 4] != stop or frames[start + 5] < 3:
            return None
        first, end = _number(frames, start + 7)
        if first < 0 or frames[end] != 0x40 or stop - end > _MAX_REST:
            return None
        return cls(frames[at + 6 : start] + frames[start + 5 : start + 7], first, first, frames[end + 1 : stop])

    @property
    def is_joined(self) -> bool:
        """Whether it stands for more than one."""
        return self._last != self._first

    def join(self, frames: bytes, at: int) -> int:
        """Takes in the frames from `at` on that say the same of the next deliveries; where the others begin."""
        while True:
            count, size = self._following(frames, at)
            if not count:
                return at
            self._last = (self._last + count) & MAX_UINT
            at += count * size

    def _following(self, frames: bytes, at: int) -> tuple[int, int]:
        """How many of the frames at `at` say the same of the next deliveries, as long as only the last octet of their
        numbers differs; and how large each of them is. They are compared together, because a batch has hundreds."""
        following = (self._last + 1) & MAX_UINT
        number = encode_uint(following)
        one = self._frame(number + b"\x40")
        if not frames.startswith(one, at):
            return 0, 0
        size = len(one)
        if not following:  # the number 0 has a constructor of its own
            return 1, size

        low = number[-1]
        room = min(256 - low, (len(frames) - at) // size)
        expected = bytearray(one * room)
        expected[size - len(self._rest) - 2 :: size] = bytes(range(low, low + room))
        count, over = 1, room + 1
        while over - count > 1:
            middle = (count + over) // 2
            if frames.startswith(expected[: middle * size], at):
                count = middle
            else:
                over = middle
        return count, size

    def frame(self) -> bytes:
        """One for all of them."""
        return self._frame(encode_uint(self._first) + encode_uint(self._last))

    def _frame(self, numbers: bytes) -> bytes:
        before, rest = self._before, self._rest
        size = len(before) - 2 + len(numbers) + len(rest)
        head = (_HEADER + len(DISPOSITION) + 1 + size).to_bytes(4, "big") + b"\x02\x00" + before[:2]
        return head + DISPOSITION + bytes((size,)) + before[2:] + numbers + rest


def _number(octets: bytes, at: int) -> tuple[int, int]:
    """An unsigned number, and where it ends; -1 for anything else."""
    constructor = octets[at]
    if constructor == 0x52:
        return octets[at + 1], at + 2
    if constructor == 0x43:
        return 0, at + 1
    if constructor == 0x70:
        return int.from_bytes(octets[at + 1 : at + 5], "big"), at + 5
    return -1, at
