"""One disposition for the messages of a batch.

proton writes a disposition for each message that a branch takes, because it does not compare transactional states.
`join_dispositions` makes one of those that follow each other and say the same of deliveries with consecutive numbers,
so that the broker reads one for a batch. What comes before and behind them stays where it was.
"""

from __future__ import annotations

from typing import Final

from dtx.amqp.encoding import encode_uint
from dtx.amqp.performatives import DISPOSITION, MAX_UINT

_BEGIN: Final = bytes((0x00, 0x53, DISPOSITION, 0xC0))
"""A disposition begins like this, as a list of less than 256 octets."""
_MAX_REST: Final = 200
_HEADER: Final = 8
"""Octets before the performative of a frame."""


def join_dispositions(frames: bytes) -> bytes:
    """Whole frames, with fewer dispositions that say the same."""
    if frames.count(_BEGIN) < 2 or frames.startswith(b"AMQP"):
        return frames
    pieces: list[bytes] = []
    run = at = 0
    last: _Disposition | None = None
    while at < len(frames):
        stop = at + int.from_bytes(frames[at : at + 4], "big")
        if last is None or not last.joins(frames, at):
            if last is not None and last.is_joined:
                pieces += (frames[run : last.at], last.frame())
                run = at
            last = _Disposition.read(frames, at, stop)
        at = stop
    if last is not None and last.is_joined:
        pieces += (frames[run : last.at], last.frame())
        run = at
    pieces.append(frames[run:])
    return b"".join(pieces)


class _Disposition:
    """The disposition that begins at `at`, with those behind it that it joined."""

    __slots__ = ("_before", "_first", "_last", "_rest", "at")

    def __init__(self, at: int, before: bytes, first: int, last: int, rest: bytes) -> None:
        self.at = at
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
        if frames[at + 4] != 2 or not frames.startswith(_BEGIN, start):
            return None
        if start + 5 + frames[start + 4] != stop or frames[start + 5] < 3:
            return None
        first, end = _number(frames, start + 7)
        if first < 0 or frames[end] != 0x40 or stop - end > _MAX_REST:
            return None
        return cls(at, frames[at + 6 : start] + frames[start + 5 : start + 7], first, first, frames[end + 1 : stop])

    @property
    def is_joined(self) -> bool:
        """Whether it stands for more than one."""
        return self._last != self._first

    def joins(self, frames: bytes, at: int) -> bool:
        """Whether the frame at `at`, which is the next one, says the same of the next delivery. If so, this is both."""
        following = (self._last + 1) & MAX_UINT
        if not frames.startswith(self._frame(encode_uint(following) + b"\x40"), at):
            return False
        self._last = following
        return True

    def frame(self) -> bytes:
        """One for all of them."""
        return self._frame(encode_uint(self._first) + encode_uint(self._last))

    def _frame(self, numbers: bytes) -> bytes:
        before, rest = self._before, self._rest
        size = len(before) - 2 + len(numbers) + len(rest)
        head = (_HEADER + len(_BEGIN) + 1 + size).to_bytes(4, "big") + b"\x02\x00" + before[:2]
        return head + _BEGIN + bytes((size,)) + before[2:] + numbers + rest


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
