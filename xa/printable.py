"""Text that a peer chose, as it may stand in a log, on a terminal or in a message."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 300


def escaped(text: str) -> str:
    """`text` with an escape for each control character, each mark that changes the direction of writing, and each
    character that can't be encoded: on a terminal, these would move the cursor, or hide. The result is on one line."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def printable(text: str, longest: int = LONGEST) -> str:
    """The same, at most so long."""
    shown = escaped(text[: longest + 1])
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
