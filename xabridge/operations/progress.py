"""Progress of a command on stderr: one line that is written over, and only where a person looks at it."""

from __future__ import annotations

import io
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

from xa.printable import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S: Final = 0.3
"""Steps that take less time are not shown."""
_ERASE: Final = "\r\x1b[K"


class Progress:
    """Writes to `stream` if it is a terminal and not `quiet`."""

    def __init__(self, stream: TextIO, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._shown = stream.isatty() and not quiet
        self._clock = clock

    @contextmanager
    def step(self, what: str, of: int) -> Iterator[Callable[[str], None]]:
        """A piece of work of `of` parts; the block calls what it is given with a word for each part that is done."""
        began = self._clock()
        done = 0

        def tell(part: str) -> None:
            nonlocal done
            done += 1
            if self._shown and self._clock() - began >= PATIENCE_S:
                self._write(f"{what}: {done} of {of}, {escaped(part)}")

        if self._shown and of == 1:
            self._write(f"{what} …")
        try:
            yield tell
        finally:
            if self._shown:
                self._stream.write(_ERASE)
                self._stream.flush()

    def note(self, text: str) -> None:
        """Shows the present step where the total is not known."""
        if self._shown:
            self._write(text)

    def _write(self, text: str) -> None:
        self._stream.write(f"{_ERASE}{text[:78]}")
        self._stream.flush()


def silent() -> Progress:
    """The progress of what no one watches."""
    return Progress(io.StringIO(), quiet=True)
