"""What goes wrong with a table, and is not a matter of one verb."""

from __future__ import annotations


class TableRefused(Exception):
    """The table is not there, or rows can't be appended to it here. The message says why, and what to do."""


class RowsRefused(Exception):
    """The rows don't fit the table. The message names the column."""
