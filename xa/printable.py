"""Text that a peer chose, as it may stand in a log, on a terminal or in a message."""

from __future__ import annotations

from typing import Final

LONGEST: Final = 300


def printable(text: str, longest: int = LONGEST) -> str:
    """`text` on one line, without control characters, marks that change the direction of writing, or what can't be
    encoded: these are shown as escapes. At most so long."""
    if text.isascii() and text.isprintable() and len(text) <= longest:
        return text
    cut = text[: longest + 1]
    shown = "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in cut)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"
