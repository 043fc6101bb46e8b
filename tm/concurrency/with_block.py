"""WithBlock: tells whether a `with` block is still being executed, or was left without its `__exit__` having run.

An interruption may come when `__exit__` begins, before its first instruction. It leaves the block, and no code of the
context manager runs. So the frame has to tell: a block is being executed if and only if an exception that is raised at
the frame's present instruction would reach the block's own handler. The compiler notes the handler of each instruction
in the code object (the exception table).
"""

from __future__ import annotations

import opcode
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from types import CodeType, FrameType

_BEFORE_WITH: Final = opcode.opmap.get("BEFORE_WITH")
"""The instruction that enters a block. Interpreters without it (3.14) can't tell whether one was left."""
_CACHE: Final = opcode.opmap.get("CACHE", 0)
"""The code unit that follows an instruction that the interpreter specialises."""
_CODE_UNIT: Final = 2
_MOST_HANDLERS: Final = 100


class WithBlock:
    """The block that the caller of the function that makes this one enters now, or with its next instruction."""

    __slots__ = ("_at", "_frame")

    def __init__(self) -> None:
        self._frame: FrameType = sys._getframe(2)  # noqa: SLF001 — there is no other way to one's caller
        self._at = self._frame.f_lasti

    def was_left(self) -> bool:
        """Whether it is known that the block is not executed, nor going to be."""
        frame = self._frame
        code = frame.f_code
        entered_at = _entered_at(code.co_code, self._at)
        handler = None if entered_at is None else handler_at(code, entered_at + _CODE_UNIT)
        if handler is None:
            return False
        at: int | None = frame.f_lasti
        for _ in range(_MOST_HANDLERS):
            at = None if at is None else handler_at(code, at)
            if at is None:
                return True
            if at == handler:
                return False
        return False


def _entered_at(instructions: bytes, at: int) -> int | None:
    """Where the block is entered: at this instruction or, after a call, at the next. None: a function entered it, such
    as `ExitStack.enter_context`, so that its block is not known."""
    if instructions[at] == _BEFORE_WITH:
        return at
    at += _CODE_UNIT
    while at < len(instructions) and instructions[at] == _CACHE:
        at += _CODE_UNIT
    return at if at < len(instructions) and instructions[at] == _BEFORE_WITH else None


def handler_at(code: CodeType, offset: int) -> int | None:
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
