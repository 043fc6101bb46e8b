"""This module gives tests the parser of the command line, so that they can look at commands without running them, and
what makes many commands in one process quick."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from xabridge.cli.main import make_parser


def parsed(argv: Sequence[str]) -> Any:
    """What `xabridge argv` would run with; SystemExit where it is no command."""
    return make_parser(whole=True).parse_args(argv)


@functools.cache
def installed(group: str) -> EntryPoints:
    """The commands and origins that are installed. To look for them in each package takes longer than most commands,
    and a process does it once."""
    return entry_points(group=group)
