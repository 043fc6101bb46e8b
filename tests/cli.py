"""This module gives tests the parser of the command line, so that they can look at commands without running them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xabridge.cli.main import make_parser

if TYPE_CHECKING:
    from collections.abc import Sequence


def parsed(argv: Sequence[str]) -> Any:
    """What `xabridge argv` would run with; SystemExit where it is no command."""
    return make_parser(whole=True).parse_args(argv)
