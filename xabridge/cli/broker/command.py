"""`xabridge broker` runs the embedded broker. With an action it asks a broker that runs, or has it do something."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Final

from dtx.broker import command as server
from dtx.protocol.conditions import RefusedError
from xa import Code, XaError
from xabridge.cli.broker import views
from xabridge.cli.exits import Exit
from xabridge.cli.text import duration, printable

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from rm_amqp.management import ManagementClient

SUMMARY: Final = "run the embedded AMQP 1.0 broker, or manage one that runs"
URL_VARIABLE: Final = "XABRIDGE_BROKER"
DEFAULT_URL: Final = "amqp://127.0.0.1:5672"
_EXITS: Final = """
exit codes: 0 done · 1 failed · 2 usage · 4 the broker could not be reached
  5 refused, nothing was done
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The broker's own flags, and the actions."""
    server.add_arguments(parser)
    parser.allow_abbrev = False  # or an action's --user would be taken for one of --users and --user-from-env
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", title="manage a broker that runs", description="without an action, run one"
    )

    def action(name: str, summary: str, run_action: Callable[[ManagementClient, Namespace], Exit]) -> ArgumentParser:
        added: ArgumentParser = actions.add_parser(
            name, help=summary, description=summary, epilog=_EXITS, formatter_class=RawDescriptionHelpFormatter
        )
        added.add_argument(
            "--url", default=None, metavar="URL", help=f"the broker (default ${URL_VARIABLE}, or {DEFAULT_URL})"
        )
        added.add_argument("--json", action="store_true", help="print JSON")
        added.set_defaults(run_action=run_action)
        return added

    queues = action("queues", "show queues: depth, age, rates, and which branches hold messages", views.queues)
    queues.add_argument("name", nargs="*", metavar="QUEUE", help="only these; * stands for any text")
    _add_watch(queues)
    connections = action("connections", "show connections: who, from where, since when, rates", views.connections)
    connections.add_argument("--user", metavar="USER", help="only those of this user")
    _add_watch(connections)
    links = action("links", "show links: who consumes from a queue, or sends to it", views.links)
    links.add_argument("--queue", metavar="QUEUE", default="", help="only those of this queue")
    links.add_argument("--connection", metavar="NUMBER", default="", help="only those of this connection")
    _add_watch(links)
    _add_watch(action("branches", "show branches: state, age, owner, and what each holds", views.branches))


def _add_watch(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--watch", type=_interval, nargs="?", const=2.0, metavar="TIME", help="again and again (default every 2s)"
    )


def _interval(text: str) -> float:
    try:
        return duration(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def run(arguments: Namespace) -> int:
    """Runs the broker, or carries out an action; the exit code."""
    if arguments.action is None:
        return server.run(arguments)
    from rm_amqp.management import ManagementClient  # noqa: PLC0415 — the broker itself needs no client

    url = arguments.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    try:
        with ManagementClient(url) as management:
            return int(arguments.run_action(management, arguments))
    except RefusedError as error:
        return _complain(arguments, error.refusal.description or str(error.refusal.condition), Exit.REFUSED)
    except XaError as error:
        return _complain(arguments, error.message, _EXIT_OF.get(error.code, Exit.FAILED))


_EXIT_OF: Final = {Code.XAER_INVAL: Exit.USAGE, Code.XAER_RMFAIL: Exit.INCOMPLETE, Code.XAER_RMERR: Exit.REFUSED}


def _complain(arguments: Namespace, said: str, code: Exit) -> int:
    sys.stderr.write(f"xabridge broker {arguments.action}: {printable(said)}\n")
    return int(code)
