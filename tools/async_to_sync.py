"""Generates the synchronous twin of a module that is written for asyncio.

Some code for threads differs from the same code for asyncio in nothing but `async` and `await`. Such a pair is written
once, for asyncio, and this script makes the other module of it, as psycopg does with its own connections:

    python -m tools.async_to_sync            # writes the generated modules
    python -m tools.async_to_sync --check    # names those that are not up to date, and fails

It removes `async` and `await`, and replaces names by the table NAMES. Where the two have to differ, the source calls a
function that exists in two forms, and the table has both names.

A script, and not one implementation with two drivers, because both modules inherit from psycopg's classes, which exist
in these two forms: the same method has to be a `def` in one module and an `async def` in the other.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent

MODULES: Final = {
    "rm_db/sessions/psycopg_async_connection.py": "rm_db/sessions/psycopg_connection.py",
    "tm/propagation/coroutine.py": "tm/propagation/function.py",
}
"""Source → generated module."""

NAMES: Final = {
    "An asyncio": "A",
    "AsyncConnection": "Connection",
    "AsyncCursor": "Cursor",
    "AsyncIterator": "Iterator",
    "AsyncPipeline": "Pipeline",
    "AsyncSavepoint": "Savepoint",
    "AsyncTransaction": "Transaction",
    "PsycopgAsyncConnection": "PsycopgConnection",
    "PsycopgAsyncCursor": "PsycopgCursor",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "an asyncio": "a",
    "asynccontextmanager": "contextmanager",
    "ensure_begun_async": "ensure_begun",
    "from asyncio import sleep": "from time import sleep",
    "coroutine function": "function",
    "wrap_coroutine": "wrap_function",
}
"""Name, or words of a docstring, in the source → in the generated module."""

_HEADER: Final = "# Generated from {source}: edit that one, and run `python -m tools.async_to_sync`.\n"
_NAMES: Final = re.compile(r"\b(" + "|".join(map(re.escape, NAMES)) + r")\b")


def convert(source: Path) -> str:
    """The text of the synchronous twin of the module at `source`."""
    text = _NAMES.sub(lambda name: NAMES[name[0]], _without_async(source.read_text("utf-8")))
    text = _HEADER.format(source=source.relative_to(ROOT)) + text
    text = _ruff("check", "--select=F401,I,SIM117", "--fix-only", "--quiet", text=text)
    return _ruff("format", text=text)


def _without_async(text: str) -> str:
    """`text` without the keywords async and await."""
    lines = text.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(text).readline))):
        if token.type == tokenize.NAME and token.string in {"async", "await"}:
            (row, start), (_, end) = token.start, token.end
            lines[row - 1] = lines[row - 1][:start] + lines[row - 1][end:].lstrip(" ")
    return "".join(lines)


def _ruff(*arguments: str, text: str) -> str:
    command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename=generated.py", "-"]
    return subprocess.run(  # noqa: S603 — its own linter
        command, input=text, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


def main() -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a module is not up to date")
    check = parser.parse_args().check
    stale = 0
    for source, generated in MODULES.items():
        text, path = convert(ROOT / source), ROOT / generated
        if path.exists() and text == path.read_text("utf-8"):
            continue
        stale += 1
        if check:
            sys.stderr.write(f"{generated} is not what {source} makes: run python -m tools.async_to_sync\n")
        else:
            path.write_text(text, "utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
