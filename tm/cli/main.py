"""`xabridge`: finds the subcommands of the group `xabridge.commands` and runs the one that was asked for.

A subcommand is a module with SUMMARY, `add_arguments(parser)` and `run(arguments) -> exit code`.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from importlib.metadata import EntryPoint, entry_points, version
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUP: Final = "xabridge.commands"
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


class Command(Protocol):
    """What a module of the group has to offer."""

    SUMMARY: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the subcommand's arguments."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Does the work; the exit code."""
        ...


class NotLoaded:
    """A command that can't be loaded. It says why where it is asked for, and breaks no other."""

    def __init__(self, entry: EntryPoint, error: Exception) -> None:
        maker = entry.dist.name if entry.dist is not None else "an unknown package"
        why = f"can't be loaded from {entry.value} of {maker}: {type(error).__name__}: {error}"
        self.SUMMARY = why.replace("%", "%%")  # argparse formats it
        self._why = f"xabridge {entry.name}: {why}"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    def run(self, _arguments: argparse.Namespace) -> int:
        print(self._why, file=sys.stderr)
        return EXIT_USAGE


def main(argv: Sequence[str] | None = None) -> int:
    """The console script."""
    given = sys.argv[1:] if argv is None else list(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a name that the terminal can't show keeps nothing from being shown
    parser = make_parser(given[0] if given else None)
    if not given:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    arguments = parser.parse_args(given)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def make_parser(wanted: str | None = None) -> argparse.ArgumentParser:
    """The parser of everything; where `wanted` is a subcommand only that one is loaded, which is faster."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    parser = argparse.ArgumentParser(prog="xabridge", description="Distributed transactions over AMQP and databases.")
    parser.add_argument("--version", action="version", version=f"xabridge {version('xabridge')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in [wanted] if wanted in found else sorted(found):
        try:
            command = cast("Command", found[name].load())
        except Exception as error:  # noqa: BLE001 — a plugin of anybody's, and it costs nobody else anything
            command = NotLoaded(found[name], error)
        subparser = subparsers.add_parser(name, help=command.SUMMARY, description=command.SUMMARY)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser
