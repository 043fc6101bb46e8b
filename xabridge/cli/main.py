"""`xabridge`: finds the subcommands of the group `xabridge.commands` and runs the one that was asked for.

A subcommand is a module with SUMMARY, `add_arguments(parser)` and `run(arguments) -> exit code`. Only the one that runs
is imported: for the list of all of them, SUMMARY is read in the module's text.
"""

from __future__ import annotations

import argparse
import ast
import sys
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, cast

from xabridge.cli.output import guarded_output

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.metadata import EntryPoint

GROUP: Final = "xabridge.commands"
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


class Command(Protocol):
    """The names that a module of the group has to offer."""

    SUMMARY: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declares the subcommand's arguments."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Does the work; the exit code."""
        ...


class NotLoaded:
    """A command that can't be loaded. It gives the reason when a user calls it, and breaks no other command."""

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
    with guarded_output():
        parser = make_parser(given[0] if given else None)
        if not given:
            parser.print_help(sys.stderr)
            return EXIT_USAGE
        arguments = parser.parse_args(given)
        try:
            return int(arguments.run(arguments))
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED


class Parser(argparse.ArgumentParser):
    """A parser whose errors quote what was typed without the passwords in it."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._typed: list[str] = []

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]  # argparse has overloads
        self._typed = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if any(sign in one for one in self._typed for sign in ":@=/"):
            from xa.open_string import without_secrets  # noqa: PLC0415 — what is typed right, or a word, needs none of it

            message = without_secrets(message, self._typed)
        super().error(message)


def make_parser(wanted: str | None = None, *, whole: bool = False) -> argparse.ArgumentParser:
    """The parser of the subcommand `wanted`, or where that is none, of what every subcommand is called and does; with
    `whole` that of everything. What is not wanted is not loaded."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    parser = Parser(prog="xabridge", description="Distributed transactions over AMQP and databases.")
    parser.add_argument("--version", action="version", version=f"xabridge {version('xabridge')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in [wanted] if wanted in found else sorted(found):
        if name != wanted and not whole:
            subparsers.add_parser(name, help=summary_of(found[name]).replace("%", "%%"))
            continue

        try:
            command = cast("Command", found[name].load())
        except Exception as error:  # noqa: BLE001 — any plugin may fail; the other commands work
            command = NotLoaded(found[name], error)
        subparser = subparsers.add_parser(name, help=command.SUMMARY, description=command.SUMMARY)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


def summary_of(entry: EntryPoint) -> str:
    """A subcommand's SUMMARY, as its module's text says it."""
    try:
        for statement in ast.parse(_text_of(entry.module)).body:
            if isinstance(statement, ast.AnnAssign | ast.Assign) and isinstance(statement.value, ast.Constant):
                targets = [statement.target] if isinstance(statement, ast.AnnAssign) else statement.targets
                if any(isinstance(target, ast.Name) and target.id == "SUMMARY" for target in targets):
                    return str(statement.value.value)
    except (OSError, SyntaxError, ValueError) as error:
        return f"can't be read: {error}"
    return "has no description"


def _text_of(module: str) -> str:
    """The text of a module, of which nothing is imported: not even the packages that it is in. OSError: it has none."""
    package, *parts = module.split(".")
    spec = find_spec(package)
    if spec is not None and not parts and spec.origin is not None:
        return Path(spec.origin).read_text(encoding="utf-8")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(place, *parts)
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file.read_text(encoding="utf-8")
    raise OSError(f"there is no text of {module}")
