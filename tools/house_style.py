"""Checks of our own, for what ruff does not look at: `python -m tools.house_style`, which `make lint` runs.

1. Paragraphs: a function of more than `LONG` lines has a blank line between its thoughts.
2. Words that are no usual ones of databases and messaging. They do not become more: each package has a number, which
   who repairs some of them lowers.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[1]
LONG: Final = 15
BLOCK: Final = re.compile(rf"(?:^ +\S.*\n){{{LONG + 1}}}", re.MULTILINE)
WORD: Final = re.compile(r"(?<![a-z])(told|heard|mend(?:s|ed)?|nobody|whoever|what came of)(?![a-z])", re.IGNORECASE)
WORDS: Final = {
    "bench": 0,
    "dtx": 1,
    "rm_amqp": 0,
    "rm_db": 0,
    "rm_delta": 0,
    "rm_openwire": 0,
    "tests": 2142,
    "tm": 2,
    "tools": 6,
    "xa": 0,
    "xabridge": 11,
}
"""Package → how often such words stand in its files."""


def unbroken(source: str) -> Iterator[int]:
    """The lines at which long functions without a blank line begin. The docstring does not count, nor does a function
    that is a single expression, table or choice."""
    if BLOCK.search(source) is None:  # parsing takes time
        return
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue

        body = node.body if ast.get_docstring(node, clean=False) is None else node.body[1:]
        if len(body) == 1 and (isinstance(body[0], ast.If) or not hasattr(body[0], "body")):
            continue
        inside = lines[body[0].lineno - 1 : node.end_lineno] if body else []
        if len(inside) > LONG and all(line.strip() for line in inside):
            yield node.lineno


def main() -> int:
    """Prints what is wrong; 1 if anything is."""
    wrong = []
    for package, most in WORDS.items():
        words = 0
        for file in sorted((ROOT / package).rglob("*.py")):
            source, name = file.read_text(encoding="utf-8"), file.relative_to(ROOT)
            wrong += [f"{name}:{line}: a long function without a blank line" for line in unbroken(source)]
            words += len(WORD.findall(source))

        if words > most:
            wrong.append(f"{package}: {words} unusual words, more than {most} ({WORD.pattern}): see git diff")
        elif words < most:
            wrong.append(f"{package}: {words} unusual words, fewer than {most}: lower the number in {__file__}")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
