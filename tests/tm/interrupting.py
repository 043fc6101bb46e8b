"""This module sends this process a signal at any instruction of our modules, whose handler raises, and checks what a
transaction comes to that is interrupted.

CPython looks for signals when a function begins, after each call and when a loop jumps back, and only in the main
thread. `Interruptions` counts those points in the frames of our packages, and sends the signal at the chosen ones.
"""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Collection
from functools import cache
from math import inf
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, Self

from tests.tm.shop import Shop
from tm.concurrency.with_block import handler_at

ROOT: Final = Path(__file__).parents[2]
OURS: Final = tuple(f"{ROOT / name}/" for name in ("tm", "xa", "rm_db", "rm_amqp", "dtx"))


class Run:
    """One transaction over fresh stores, which something interrupts; `where` says at which points."""

    def __init__(self, folder: Path, names: str, *, decider: bool, flags: int) -> None:
        self.shop = Shop(folder, names)
        if decider:
            self.shop.add_decider()
        self.shop.flags = dict.fromkeys(self.shop.stores, flags)

    @property
    def where(self) -> list[str]:
        raise NotImplementedError

    def check(self) -> object:
        """The context can be used again, and recovery has finished everything, alike everywhere: the value there."""
        tm, where = self.shop.tm, self.where
        with tm.begin() as again:
            self.shop.write(again, 2, key="again")
        assert set(self.shop.values("again").values()) == {2}, where
        tm.wait_for_completions()
        for _ in range(2):
            report = tm.recover()
        assert report.clean, (where, report)
        assert tm.current_or_none() is None, where
        self.shop.assert_nothing_left()
        (value,) = set(self.shop.values().values())
        return value


@cache
def _points(code: CodeType) -> frozenset[int]:
    """The offsets of the instructions before which CPython has looked for signals. What is raised behind a call is
    raised by the call; so the instruction behind it stands for it only where both have the same handler."""
    points = set()
    call: int | None = None
    for instruction in dis.get_instructions(code):
        name, at = instruction.opname, instruction.offset
        if name == "RESUME" or (call is not None and handler_at(code, call) == handler_at(code, at)):
            points.add(at)
        if name.startswith("JUMP_BACKWARD") and "NO_INTERRUPT" not in name:
            points.add(instruction.argval)
        call = at if name in {"CALL", "CALL_FUNCTION_EX", "CALL_KW"} else None
    return frozenset(points)


class Interruptions:
    """A context. `at` are the points, counted from 1, at which the thread that enters it is interrupted; `points` are
    the instructions that it has met, up to the last of these, `where` the places at which the signal was sent, and
    `raised` how often its handler raised."""

    def __init__(self, at: Collection[int] = ()) -> None:
        self.at = frozenset(at)
        self._last = max(self.at, default=inf)
        self.points: list[tuple[CodeType, int]] = []
        self.raised = 0
        self.where: list[str] = []
        self._before: Any = None
        self._traced: Any = sys.gettrace()
        """That of coverage, for instance, which goes on afterwards."""
        self._tracing_ended = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGUSR1, self._interrupt)
        sys.setprofile(self._go_on)
        sys.settrace(self._called)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sys.settrace(self._traced)
        sys.setprofile(None)
        if self._before is not None:
            signal.signal(signal.SIGUSR1, self._before)
            self._before = None

    def _interrupt(self, number: int, frame: object) -> None:
        self.raised += 1
        raise KeyboardInterrupt(number, frame)

    def _go_on(self, frame: FrameType, event: str, argument: Any) -> None:  # noqa: ARG002 — a profile function's
        """An exception in a trace function ends the tracing; the next call or return begins it again."""
        if self._tracing_ended:
            self._tracing_ended = False
            sys.settrace(self._called)
        if len(self.points) >= self._last:
            sys.settrace(None)
            sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG002 — a trace function's
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ARG002 — a trace function's
        if event == "opcode" and frame.f_lasti in _points(frame.f_code):
            self.points.append((frame.f_code, frame.f_lasti))
            if len(self.points) in self.at:
                code = frame.f_code
                self.where.append(f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_qualname}@{frame.f_lasti}")
                self._tracing_ended = True
                signal.raise_signal(
                    signal.SIGUSR1
                )  # the handler is called at once; only one that raises ends the tracing
                self._tracing_ended = False
        return self._stepped
