"""`xabridge recover`: what is in doubt, and what an operator can do about it. docs/recover.md is its manual."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Final

from tm.config import configuration_from
from tm.log import LogError, LogLocked
from tm.resources import ConfigurationError
from xa.printable import escaped
from xa.telemetry.log_lines import TEXT, write_lines
from xabridge.cli.output import write_json
from xabridge.cli.recover_actions import act, end
from xabridge.cli.recover_views import list_transactions, show_transactions, watch_transactions
from xabridge.cli.tables import MOST
from xabridge.exit_codes import Exit
from xabridge.operations.branch_completion import HELD, OperatorAction
from xabridge.operations.progress import Progress
from xabridge.operations.recovery_pass import expectation, expected, one_pass, report_lines, troubles
from xabridge.operations.site import Site
from xabridge.operations.survey import IN_DOUBT, DecisionKnowledge
from xabridge.operations.survey_json import missing_value, report_value, survey_value
from xabridge.text import duration, paragraph, unreachable_lines

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from tm.log import DecisionLog
    from tm.recovery import Report
    from xabridge.operations.recovery_pass import PassPreview

SUMMARY: Final = "show and resolve transactions that are in doubt"
_EXITS: Final = """
exit codes: 0 done, nothing of this node in doubt · 1 failed · 2 usage, configuration · 3 in doubt
  4 something could not be reached · 5 refused, nothing done · 6 log in use, nothing done
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The actions and their flags."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = _EXITS
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, summary: str, run_action: Callable[[Site, Namespace, Progress], Exit]) -> ArgumentParser:
        added = actions.add_parser(
            name, help=summary, description=summary, epilog=_EXITS, formatter_class=RawDescriptionHelpFormatter
        )
        added.add_argument(
            "--config", default="xabridge.toml", metavar="FILE", help="the configuration (default xabridge.toml)"
        )
        added.add_argument("--json", action="store_true", help="print JSON")
        added.add_argument("--verbose", action="store_true", help="log to stderr")
        added.set_defaults(run_action=run_action)
        return added

    listing = action("list", "list every transaction in doubt", list_transactions)
    _add_filters(listing)
    _add_wide(listing)
    _add_all(listing)
    listing.add_argument("--names", action="store_true", help="print the names only, one per line")
    show = action("show", "show everything about a transaction", show_transactions)
    _add_names(show)
    watching = action("watch", "list again and again, until interrupted", watch_transactions)
    _add_filters(watching)
    _add_wide(watching)
    watching.add_argument("--interval", type=_duration, default=2.0, metavar="TIME", help="pause (default 2s)")
    running = action("run", "make one recovery pass and say what it did", _run_pass)
    running.add_argument("--dry-run", action="store_true", help="only show what would be done")
    _add_all(running)
    running.add_argument(
        "--newest", action="append", default=[], metavar="INCARNATION", type=_incarnation,
        help="take this copy of the log for the newest: it lacks no decision of this incarnation, which was at work "
        "when the copy was made (repeatable)",
    )  # fmt: skip
    for wanted, summary in (
        (OperatorAction.COMMIT, "commit branches in doubt"),
        (OperatorAction.ROLLBACK, "roll back branches in doubt"),
        (OperatorAction.FORGET, "forget branches that were completed by hand"),
    ):
        doing = action(wanted.value, summary, act)
        doing.set_defaults(act=wanted)
        doing.add_argument("xid", nargs="*", metavar="XID", help="as `recover list` shows it, or an xid; or say which:")
        _add_filters(doing)
        doing.add_argument(
            "--on", action="append", default=[], metavar="NAME", help="only the branch on this resource (repeatable)"
        )
        doing.add_argument("--heuristic", action="store_true", help="do it even if it may split the transaction")
        _add_consent(doing)
    ending = action("end", "end a decision that names a resource which does not exist any more", end)
    ending.add_argument("xid", metavar="XID", help="as `recover list` shows it, or an xid")
    ending.add_argument(
        "--gone", action="append", required=True, metavar="NAME",
        help="a resource that is not configured any more, and does not exist or was completed by hand (repeatable)",
    )  # fmt: skip
    _add_consent(ending)


def _add_all(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--all", action="store_true", help=f"list every transaction, also if there are more than {MOST}"
    )


def _add_consent(parser: ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")
    parser.add_argument("--yes", action="store_true", help="do it without asking")


def _add_names(parser: ArgumentParser) -> None:
    parser.add_argument("xid", nargs="+", metavar="XID", help="as `recover list` shows it, or an xid")


def _add_filters(parser: ArgumentParser) -> None:
    parser.add_argument("--node", action="append", default=[], metavar="NODE", help="only this node's (repeatable)")
    parser.add_argument("--rm", action="append", default=[], metavar="NAME", help="only on this resource (repeatable)")
    parser.add_argument(
        "--state", action="append", default=[], choices=sorted(state.value for state in IN_DOUBT),
        help="only in this state (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--decision", action="append", default=[], choices=sorted(known.value for known in DecisionKnowledge),
        help="only with this known of the decision (repeatable)",
    )  # fmt: skip
    parser.add_argument("--older-than", type=_duration, metavar="TIME", help="only for longer than this: 90s, 5m, 2h")
    parser.add_argument("--lost", action="store_true", help="only undecided ones of nodes whose logs are not here")


def _add_wide(parser: ArgumentParser) -> None:
    parser.add_argument("--wide", action="store_true", help="the wide table, whatever the terminal")


def _duration(text: str) -> float:
    try:
        return duration(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def _incarnation(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ArgumentTypeError(
            f"{text!r} is not an incarnation: give the 16 hexadecimal digits of the warning"
        ) from error


def run(arguments: Namespace) -> int:
    """Does what was asked for; the exit code."""
    progress = Progress(sys.stderr, quiet=arguments.verbose)
    try:
        configuration = configuration_from(arguments.config)
        set_up_logging(verbose=arguments.verbose, log_format=configuration.log_format)
        try:
            with Site(configuration, progress) as site:
                return int(arguments.run_action(site, arguments, progress))
        except ConfigurationError as error:
            raise ConfigurationError(f"{arguments.config}: {error}") from error
    except ConfigurationError as error:
        return complain(error, Exit.USAGE)
    except LogLocked as error:
        return complain(f"{error.held}. {HELD}", Exit.LOG_IN_USE)
    except LogError as error:
        return complain(error, Exit.INCOMPLETE)


def set_up_logging(*, verbose: bool, log_format: str = TEXT) -> None:
    """The command reports what goes on in its own words; the log lines of the library only on request."""
    library = logging.getLogger("xabridge")
    library.propagate = verbose
    if verbose:
        write_lines(log_format, logging.INFO)
    elif not library.handlers:
        library.addHandler(logging.NullHandler())


def complain(said: object, code: Exit) -> Exit:
    """Says on stderr what is wrong."""
    sys.stderr.write(f"xabridge recover: {escaped(str(said))}\n")
    return code


def _run_pass(site: Site, arguments: Namespace, progress: Progress) -> Exit:
    if arguments.dry_run:
        return _dry_run(expectation(site), as_text=not arguments.json, most=None if arguments.all else MOST)
    with site.holding_the_log() as log:
        try:
            for incarnation in arguments.newest:
                _trust(log, incarnation)
        except ValueError as error:
            return complain(error, Exit.REFUSED)
        with progress.step("recovering", 1):
            report = one_pass(site, log, progress)

    if arguments.json:
        write_json(report_value(report))
    else:
        for line in report_lines(report, None if arguments.all else MOST):
            print(line)
        for line in unreachable_lines(report.unreachable):
            print(*paragraph(line), sep="\n")
    return exit_code(report)


def _trust(log: DecisionLog | None, incarnation: bytes) -> None:
    """Takes the operator's word for a copy of a log. ValueError as in `DecisionLog.trust`."""
    if log is None:
        raise ConfigurationError("log: a resource decides, so there is no log whose copy could be the newest")
    log.trust(incarnation)


def _dry_run(what: PassPreview, *, as_text: bool, most: int | None) -> Exit:
    found = what.found
    if as_text:
        for line in (*expected(what, most), *troubles(found)):
            print(line)
    else:
        write_json(survey_value(found, found.transactions) | missing_value(what.missing))
    if not found.complete:
        return Exit.INCOMPLETE
    return Exit.IN_DOUBT if what.unsolved else Exit.DONE


def exit_code(report: Report) -> Exit:
    """The exit code for a script."""
    if report.unreachable:
        return Exit.INCOMPLETE
    return Exit.DONE if report.clean else Exit.IN_DOUBT
