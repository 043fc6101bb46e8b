"""What goes wrong with a table, and is not a matter of one verb."""

from __future__ import annotations

import re
from typing import Final

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class TableRefused(Exception):
    """The table is not there, or rows can't be appended to it here. The message says why, and what to do."""


class TableUnreadable(TableRefused):
    """The table can't be read now, for instance because another writer is cleaning its log up. Nothing was done: it is
    safe to try again."""


class RowsRefused(Exception):
    """The rows don't fit the table. The message names the column."""


class ForkedProcess(Exception):
    """This process can't use the library for Delta tables, because it was forked. The message says what to do."""


def plain(error: Exception) -> str:
    """What a library's error says, on one line and without colours of a terminal."""
    return " ".join(_COLOUR.sub("", str(error)).split())
