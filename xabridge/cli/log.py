"""`xabridge log` copies the decision log. What is in it is shown and resolved by `xabridge recover`."""

from __future__ import annotations

import sys
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tm.config import configuration_from
from tm.log import LogError
from tm.log.backup import back_up
from tm.log.factory import folder_of
from tm.resources import ConfigurationError
from xa.printable import escaped
from xabridge.cli.output import write_json
from xabridge.cli.recover import set_up_logging
from xabridge.exit_codes import Exit
from xabridge.operations.progress import Progress
from xabridge.text import paragraph, several

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from tm.config import Configuration
    from tm.log.backup import BackUp

SUMMARY: Final = "copy the decision log"
_EXITS: Final = """
exit codes: 0 done · 1 failed, there is no copy · 2 usage, configuration
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The actions and their flags."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = _EXITS
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "copy the decision log, also while the manager is at work with it"
    backing_up = actions.add_parser(
        "backup", help=summary, description=summary, epilog=_EXITS, formatter_class=RawDescriptionHelpFormatter
    )
    backing_up.add_argument(
        "destination", metavar="FOLDER", type=Path,
        help="the new folder, or the new file of a log in SQLite; it must not exist",
    )  # fmt: skip

    backing_up.add_argument(
        "--config", default="xabridge.toml", metavar="FILE", help="the configuration (default xabridge.toml)"
    )
    backing_up.add_argument("--json", action="store_true", help="print JSON")
    backing_up.add_argument("--verbose", action="store_true", help="log to stderr")


def run(arguments: Namespace) -> int:
    """Copies the log; the exit code."""
    set_up_logging(verbose=arguments.verbose)
    progress = Progress(sys.stderr, quiet=arguments.verbose)
    try:
        configuration = configuration_from(arguments.config)
        with progress.step("copying the decision log", 1):
            made = _copied(configuration, arguments.destination)
    except ConfigurationError as error:
        return _complain(error, Exit.USAGE)
    except LogError as error:
        return _complain(error, Exit.FAILED)
    except OSError as error:
        return _complain(f"{arguments.destination}: {error.strerror or error}", Exit.FAILED)
    _tell(made, arguments)
    return Exit.DONE


def _copied(configuration: Configuration, destination: Path) -> BackUp:
    if configuration.log is None:
        raise ConfigurationError("log: a resource decides: its decisions are backed up with its data")
    try:
        folder = folder_of(configuration.log)
        if folder is not None:
            return back_up(folder, destination)
        from tm.log.sql.backup import back_up_sql  # noqa: PLC0415 — loads SQLAlchemy, which a log of files does not need

        return back_up_sql(configuration.log, configuration.node, destination)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _tell(made: BackUp, arguments: Namespace) -> None:
    cut = [one.hex() for one in made.cut]
    destination = arguments.destination
    if arguments.json:
        write_json(
            {
                "destination": str(destination),
                "node": made.node,
                "log": made.log_id.hex(),
                "decisions": made.decisions,
                "heuristics": made.heuristics,
                "at_work": cut,
            }
        )
        return

    print(f"{destination}: log {made.log_id.hex()} of {made.node}, {several(made.decisions, 'decision')} in it")
    if cut:
        print(*paragraph(f"it presumes nothing about what incarnation {', '.join(cut)} does from now on"), sep="\n")


def _complain(said: object, code: Exit) -> Exit:
    sys.stderr.write(f"xabridge log: {escaped(str(said))}\n")
    return code
