"""Whether a `with` block is still being executed, or was left without a word to its context manager.

An interruption that comes when `__exit__` begins, before its first instruction, leaves the block all the same, and
no code of the context manager has heard of it. So a block is told by its frame: a block is being executed if and only
if an exception, raised at the instruction at which its frame is, would come to the block's own handler. The compiler
notes in the code object which handler that is, for each instruction (the exception table).
"""

from __future__ import annotations

import opcode
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import CodeType, FrameType

_BEFORE_WITH: Final = opcode.opmap.get("BEFORE_WITH")
"""The instruction that enters a block; interpreters without it (3.14) don't tell."""
_CODE_UNIT: Final = 2
_MOST_HANDLERS: Final = 100


class Block:
    """The block that is being entered by the caller of the function that makes this one."""

    __slots__ = ("_entered_at", "_frame")

    def __init__(self) -> None:
        frame = sys._getframe(2)  # noqa: SLF001 — there is no other way to one's caller
        self._frame: FrameType | None = frame
        self._entered_at = frame.f_lasti

    def forget(self) -> None:
        """The frame, and what it holds, is not needed any more."""
        self._frame = None

    def was_left(self) -> bool:
        """Whether it is known that the block is not executed any more."""
        frame = self._frame
        if frame is None:
            return False
        code = frame.f_code
        if code.co_code[self._entered_at] != _BEFORE_WITH:
            return False  # entered by a function, ExitStack say: where that block is nobody knows
        handler = _handler_at(code, self._entered_at + _CODE_UNIT)
        if handler is None:
            return False
        at: int | None = frame.f_lasti
        for _ in range(_MOST_HANDLERS):
            at = None if at is None else _handler_at(code, at)
            if at is None:
                return True
            if at == handler:
                return False
        return False


def _handler_at(code: CodeType, offset: int) -> int | None:
    """Where an exception goes that is raised by the instruction at `offset`."""
    for start, end, target in _exception_table(code):
        if start <= offset < end:
            return target
    return None


@lru_cache(maxsize=256)
def _exception_table(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    """(start, end, handler) in octets. The format is described in CPython's Objects/exception_handling_notes.txt."""
    octets = iter(code.co_exceptiontable)

    def number(first: int) -> int:
        value = first & 63
        while first & 64:
            first = next(octets)
            value = value << 6 | first & 63
        return value

    table = []
    for first in octets:
        start = number(first) * _CODE_UNIT
        length = number(next(octets)) * _CODE_UNIT
        target = number(next(octets)) * _CODE_UNIT
        number(next(octets))  # depth and lasti, which are of no interest
        table.append((start, start + length, target))
    return tuple(table)
