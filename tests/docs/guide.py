"""This module reads a page of the documentation and executes its code blocks in prepared surroundings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_BLOCK: Final = re.compile(r"^```([a-z]*)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One block: `language` as the page says, `line` where its code begins."""

    page: str
    line: int
    language: str
    code: str

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Every page that people read."""
    top = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md")
    return [*(ROOT / name for name in top), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The page's code blocks, in their order."""
    text = page.read_text(encoding="utf-8")
    name = str(page.relative_to(ROOT))
    return [Block(name, text.count("\n", 0, found.start(3)) + 1, found[1], found[3]) for found in _BLOCK.finditer(text)]
