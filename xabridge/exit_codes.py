"""Exit codes of `recover` and `doctor`. They are documented in docs/recover.md, and scripts depend on them."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The results of a command. If several apply, the highest is returned."""

    DONE = 0
    """Done; nothing that was asked about is in doubt."""
    FAILED = 1
    """Something that was asked for could not be done, or a check failed."""
    USAGE = 2
    """The arguments or the configuration are no good."""
    IN_DOUBT = 3
    """Something is in doubt, or was left so."""
    INCOMPLETE = 4
    """A resource manager, or the log, could not be reached: the answer is not the whole one."""
    REFUSED = 5
    """Nothing was done: it was not confirmed, needs --heuristic, or can't be done as asked."""
    LOG_IN_USE = 6
    """Nothing was done: another process holds the decision log."""
