"""The output of the command: a pipe whose reader has gone, and a disk that is full, end it with a message and an exit
code, and not with a traceback.

    with guarded_output():
        …                                          # print as always; OutputLost, which is a SystemExit, goes through

A command is stopped where it prints, as any program is by SIGPIPE.
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import NoReturn, TextIO

EXIT_PIPE: Final = 141
"""What a shell reports of a program that SIGPIPE has ended."""
EXIT_LOST: Final = 1


class OutputLost(SystemExit):
    """What the command says can't be written. `code` is the exit code."""

    def __init__(self, error: OSError) -> None:
        super().__init__(EXIT_PIPE if isinstance(error, BrokenPipeError) else EXIT_LOST)
        self.error = error


class _Output:
    """A stream that raises OutputLost where the stream below raises OSError."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._lose(error)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> NoReturn:
        raise OutputLost(error) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def write_json(value: object, *, lines: bool = False) -> None:
    """Prints `value`; with `lines` in one line, for readers of a stream."""
    json.dump(value, sys.stdout, ensure_ascii=False, indent=None if lines else 2)
    sys.stdout.write("\n")
    sys.stdout.flush()


def asks_for_yes(what: str) -> bool:
    """Asks at the terminal whether to do what can't be undone; the answer."""
    sys.stderr.write(f"{what}? This can't be undone. Type yes: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip() == "yes"


@contextmanager
def guarded_output() -> Iterator[None]:
    """A context in which stdout raises OutputLost. At its end everything is written, or stderr says why not."""
    stream = sys.stdout
    if stream is None:  # the shell has closed it: there is no reader
        stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 — until the process ends
    for one in (stream, sys.stderr):
        if isinstance(one, io.TextIOWrapper):
            one.reconfigure(errors="replace")  # a name that the terminal can't show keeps nothing from being shown

    sys.stdout = guarded = _Output(stream)  # it has what a stream has
    try:
        try:
            yield
        finally:
            guarded.flush()
    except OutputLost as lost:
        with suppress(OSError, ValueError, AttributeError), Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())  # the interpreter writes what is left when it ends
        if lost.code != EXIT_PIPE:
            with suppress(OSError):
                sys.stderr.write(f"xabridge: what the command says can't be written: {lost.error.strerror}\n")
        raise
    finally:
        sys.stdout = stream
