"""Runs the processes of the peers: programs that get commands in lines, and answer in lines."""

from __future__ import annotations

import json
import subprocess
from typing import IO, TYPE_CHECKING, Any, Final

from xabridge.testing.broker import cpu_s
from xabridge.testing.process_lifetime import marked_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

STOP_TIMEOUT_S: Final = 30.0


class Program:
    """A process that talks to us in lines, over standard input and output. It ends with its standard input."""

    def __init__(
        self, name: str, command: Sequence[str], errors: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._errors = errors
        with errors.open("a") as stream:
            self._process = subprocess.Popen(  # noqa: S603 — our own command
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env={**marked_environment(), **(environment or {})},
                process_group=0,  # Ctrl+C is for us: we stop it
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, line: str) -> None:
        """A line to it."""
        stream = _opened(self._process.stdin)
        stream.write(f"{line}\n")
        stream.flush()

    def hear(self) -> str:
        """The next line from it."""
        line = _opened(self._process.stdout).readline()
        if not line:
            self.stop()
            raise RuntimeError(f"{self._name} ended: {self._errors.read_text()[-4000:]}")
        return line.strip()

    def expect(self, word: str) -> str:
        """The next line from it, which begins with the word; what follows there."""
        line = self.hear()
        if not line.startswith(word):
            self.stop()
            raise RuntimeError(f"expected {word!r}: {line!r}")
        return line.removeprefix(word).strip()

    def stop(self) -> None:
        """Ends it: at the end of its input, or with kill -9 if it does not."""
        _opened(self._process.stdin).close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _opened(self._process.stdout).close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _opened(stream: IO[str] | None) -> IO[str]:
    if stream is None:
        raise RuntimeError("the process has no pipes")
    return stream


def watched(program: Program, processes: Mapping[str, int], look: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """What the program says that it has measured, and the processor time of each process meanwhile, in seconds. `look`
    is called at the beginning and at the end."""
    program.expect("begin")
    look()
    before = {name: cpu_s(pid) for name, pid in processes.items()}
    program.expect("end")
    look()
    after = {name: cpu_s(pid) for name, pid in processes.items()}
    measured: dict[str, Any] = json.loads(program.hear())
    return {**measured, "cpu_s": {name: after[name] - before[name] for name in processes}}
