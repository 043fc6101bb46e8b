"""`xabridge broker` runs the embedded broker. With an action it asks a broker that runs, or has it do something."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError, RawDescriptionHelpFormatter
from typing import TYPE_CHECKING, Final, TypeAlias

from dtx.broker import command as server
from dtx.protocol.conditions import RefusedError
from xa import Code, XaError
from xa.printable import escaped
from xabridge.cli.broker import backup, changes, messages, views
from xabridge.console.command import missing, set_up_logging
from xabridge.exit_codes import Exit
from xabridge.text import duration

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from dtx.broker.broker import Broker
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
    parser.add_argument(
        "--console", type=_port, metavar="PORT", help="show this broker in a browser, at this port of this machine"
    )
    parser.allow_abbrev = False  # or an action's --user would be taken for one of --users and --user-from-env
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", title="manage a broker that runs", description="without an action, run one"
    )

    def action(name: str, summary: str, run_action: _Run) -> ArgumentParser:
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
    _add_messages(action)
    _add_changes(action)
    _add_users(action)
    settings = action("configuration", "show every setting, and where its value comes from", views.configuration)
    settings.add_argument("name", nargs="*", metavar="NAME", help="only these; * stands for any text")
    settings.add_argument("--changed", action="store_true", help="only what is not a default")
    _add_watch(settings)
    _add_watch(action("branches", "show branches: state, age, owner, and what each holds", views.branches))
    backup.add_arguments(actions.add_parser("backup", help=backup.SUMMARY, description=backup.SUMMARY))


def _add_messages(action: _Action) -> None:
    for name, summary, run_action, queue in (
        ("messages", "show the messages of a queue, without their content", messages.messages, None),
        ("dead", "show dead letters in groups: why, where it was raised, since when", messages.dead, "*"),
    ):
        added = action(name, summary, run_action)
        added.add_argument("queue", nargs=queue, metavar="QUEUE", help="the queue")

        if name == "dead":
            added.add_argument("--all", action="store_true", help="each letter, not the groups")
        _add_most(added, 50)
        _add_watch(added)
    reading = action("read", "show the content of a message", messages.read)
    reading.add_argument("queue", metavar="QUEUE", help="the queue")
    reading.add_argument("id", metavar="ID", help="as `messages` shows it")

    log = action("audit", "show who has done what, was refused, and signed in", messages.audit)
    log.add_argument("--who", default="*", metavar="USER", help="only this user; * stands for any text")
    log.add_argument(
        "--what", default="*", metavar="WHAT", help="only this command, operation, or sign-in; * stands for any text"
    )
    _add_most(log, 50)
    _add_watch(log)


def _add_most(parser: ArgumentParser, default: int) -> None:
    shown = "all of them" if not default else str(default)
    parser.add_argument("--most", type=_count, default=default, metavar="N", help=f"at most so many (default {shown})")


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) >= 65_536:
        raise ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r} is not a number of messages")
    return int(text)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def _add_changes(action: _Action) -> None:
    def change(name: str, summary: str, run_action: _Run, argument: str, argument_help: str) -> ArgumentParser:
        added = action(name, summary, run_action)
        added.add_argument(argument.lower(), metavar=argument, help=argument_help)
        added.add_argument("--dry-run", action="store_true", help="only say what would be done")
        added.add_argument("--yes", action="store_true", help="do it without asking")
        return added

    for name, summary in (
        ("move", "move messages to another queue"),
        ("copy", "copy messages to another queue"),
        ("retry", "move dead letters back to where they came from"),
        ("purge", "delete messages"),
    ):
        added = change(name, summary, changes.change_messages, "QUEUE", "the queue that they are in")
        if name in {"move", "copy"}:
            added.add_argument("to", metavar="TO", help="the queue that they come to")
        if name == "retry":
            added.add_argument("--to", default="", metavar="QUEUE", help="where those go whose origin is not known")
        which = added.add_mutually_exclusive_group()
        which.add_argument("--id", action="append", default=[], metavar="ID", help="only this message (repeatable)")
        which.add_argument("--group", metavar="ID", help="only this group of dead letters, as `dead` shows it")
        _add_most(added, 0)
    change("create", "create a queue", changes.create, "QUEUE", "its name")
    deleting = change("delete", "delete a queue", changes.delete, "QUEUE", "its name")
    deleting.add_argument("--force", action="store_true", help="also with messages and consumers")
    configuring = change("configure", "change settings of a queue", changes.configure, "QUEUE", "its name")
    for name, summary in changes.SETTINGS.items():
        configuring.add_argument(f"--{name.replace('_', '-')}", type=_number, metavar="N", help=summary)
    configuring.add_argument(
        "--when-full", choices=("refuse", "dead-letter"), help="what happens to a message that is too much"
    )
    for name, operation, summary, argument, argument_help in (
        ("pause", "pause-queue", "give no messages of a queue to consumers", "QUEUE", "its name"),
        ("resume", "resume-queue", "give messages of a queue to consumers again", "QUEUE", "its name"),
        ("close", "close-connection", "close a connection", "CONNECTION", "its number, as `connections` shows it"),
        ("drop", "drop-branch", "roll back a branch that is not prepared", "XID", "its xid, as `branches` shows it"),
    ):
        change(name, summary, changes.change_as_named(operation), argument, argument_help)


def _add_users(action: _Action) -> None:
    _add_watch(action("users", "show users and permissions, and where they come from", views.users))
    for name, summary, run_action in (
        ("set-password", "add a user, or change the password (asked for, or read from stdin)", changes.set_password),
        ("remove-user", "remove a user, and close the user's connections", changes.change_as_named("remove-user")),
        ("permit", "say what a user may do, in place of all that the user may do now", changes.permit),
        ("forbid", "remove the permissions of a user", changes.change_as_named("remove-permissions")),
    ):
        added = action(name, summary, run_action)
        added.add_argument("user", metavar="USER", help="the name; for permissions also * (everybody) or anonymous")
        added.add_argument("--dry-run", action="store_true", help="only say what would be done")
        added.add_argument("--yes", action="store_true", help="do it without asking")

        if name == "set-password":
            old = added.add_mutually_exclusive_group()
            old.add_argument(
                "--keep-old", type=_interval, metavar="TIME", help="the old one is valid for so long, as 24h"
            )
            old.add_argument(
                "--revoke-now", action="store_true", help="set none: end the old one, and the connections made with it"
            )
        if name == "permit":
            for what in ("consume", "produce", "create"):
                added.add_argument(
                    f"--{what}",
                    action="append",
                    default=[],
                    metavar="ADDRESS",
                    help="there; * is any text (repeatable)",
                )
            added.add_argument("--coordinate", choices=("none", "own", "all"), default="none", help="which branches")
            for flag in ("view", "manage", "read-payload"):
                added.add_argument(f"--{flag}", action="store_true", help=f"the permission {flag.replace('-', '_')}")


def _add_watch(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--watch", type=_interval, nargs="?", const=2.0, metavar="TIME", help="again and again (default every 2s)"
    )


_Run: TypeAlias = "Callable[[ManagementClient, Namespace], Exit]"
_Action: TypeAlias = "Callable[[str, str, _Run], ArgumentParser]"


def _interval(text: str) -> float:
    try:
        return duration(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


def run(arguments: Namespace) -> int:
    """Runs the broker, or carries out an action; the exit code."""
    if arguments.action is None:
        return server.run(arguments) if arguments.console is None else _with_console(arguments)
    if arguments.action == "backup":
        return int(backup.run(arguments))
    from rm_amqp.management import ManagementClient  # noqa: PLC0415 — the broker itself needs no client

    url = arguments.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL
    try:
        with ManagementClient(url) as management:
            return int(arguments.run_action(management, arguments))
    except views.NoSuchQueue as error:
        return _complain(arguments, str(error), Exit.FAILED)
    except RefusedError as error:
        return _complain(arguments, error.refusal.description or str(error.refusal.condition), Exit.REFUSED)
    except XaError as error:
        return _complain(arguments, error.message, _EXIT_OF.get(error.code, Exit.FAILED))


def _with_console(arguments: Namespace) -> int:
    """Runs the broker, with the console in the same process."""
    try:
        from xabridge.console.server import EmbeddedConsole  # noqa: PLC0415 — of the extra `console`
    except ModuleNotFoundError as error:
        sys.stderr.write(f"xabridge broker --console: {missing(error)}\n")
        return int(Exit.USAGE)
    try:
        beside = EmbeddedConsole(arguments.console)
    except OSError as error:
        sys.stderr.write(f"xabridge broker --console {arguments.console}: {error.strerror or error}\n")
        return int(Exit.FAILED)

    def listening(broker: Broker) -> None:
        if not broker.config.listen:
            sys.stderr.write("xabridge broker --console: the broker listens with TLS only: run `xabridge console`\n")
            return
        set_up_logging(verbose=arguments.verbose)
        sys.stdout.write(f"xabridge broker: console at {beside.listening(broker)}\n")
        sys.stdout.flush()

    with beside:
        return server.run(arguments, listening)


_EXIT_OF: Final = {Code.XAER_INVAL: Exit.USAGE, Code.XAER_RMFAIL: Exit.INCOMPLETE, Code.XAER_RMERR: Exit.REFUSED}


def _complain(arguments: Namespace, said: str, code: Exit) -> int:
    sys.stderr.write(f"xabridge broker {arguments.action}: {escaped(said)}\n")
    return int(code)
