"""`xabridge broker queues`, `connections`, `links`, `branches`, `users` and `configuration`: looking, which changes
nothing."""

from __future__ import annotations

import shutil
import sys
import time
from datetime import datetime
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from xabridge.cli.broker import tables
from xabridge.cli.output import write_json
from xabridge.exit_codes import Exit
from xabridge.text import several

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from rm_amqp.management import ManagementClient

Found: TypeAlias = "list[dict[str, Any]]"

LEAST_PAUSE_S: Final = 0.05
SUGGESTED: Final = 3
LIKE: Final = 0.6
"""Names that are suggested in place of a wrong one, and how like it they are at least."""
_CLEAR: Final = "\x1b[H\x1b[J"


def queues(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker queues`."""

    def look() -> Found:
        found: Found = list(management.pages("queues", key="name"))
        wanted: list[str] = arguments.name
        chosen = [one for one in found if any(fits(one["name"], pattern) for pattern in wanted)]
        if wanted and not chosen and arguments.watch is None:
            raise no_such_queue(management, wanted[0])
        return chosen if wanted else [one for one in found if one["lasting"]]

    return shown(management, arguments, look, tables.queues)


def no_such_queue(management: ManagementClient, name: str) -> NoSuchQueue:
    """The error about a queue that is not there, with the names that are like its own."""
    names = [str(one["name"]) for one in management.pages("queues", key="name")]
    folded = {one.casefold(): one for one in names}
    close = [folded[one] for one in get_close_matches(name.casefold(), folded, SUGGESTED, LIKE)]
    like = f"; did you mean {' or '.join(close)}?" if close else ""
    return NoSuchQueue(f"there is no queue {name!r}{like}")


class NoSuchQueue(Exception):
    """A queue that was named is not there. The message says which are like it."""


def fits(name: str, pattern: str) -> bool:
    """Whether a name is one that `pattern` names, in which only * is special."""
    return fnmatchcase(name, pattern.replace("[", "[[]").replace("?", "[?]"))


def connections(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker connections`."""

    def look() -> Found:
        found: Found = list(management.pages("connections", key="number"))
        return [one for one in found if arguments.user is None or one["user"] == arguments.user]

    return shown(management, arguments, look, tables.connections)


def links(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker links`."""

    def look() -> Found:
        return list(management.pages("links", key="id", address=arguments.queue, connection=arguments.connection))

    return shown(management, arguments, look, lambda found, _now_ms: tables.links(found))


def branches(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker branches`."""
    return shown(management, arguments, lambda: list(management.pages("branches", key="xid")), tables.branches)


def users(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker users`."""
    return shown(
        management, arguments, lambda: list(management.pages("users", key="name")), lambda found, _: tables.users(found)
    )  # fmt: skip


def configuration(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker configuration`."""

    def look() -> Found:
        found = management.pages("configuration", key="name")
        return [
            one
            for one in found
            if (not arguments.name or any(fits(one["name"], pattern) for pattern in arguments.name))
            and not (arguments.changed and one["from"] == "default")
        ]

    return shown(management, arguments, look, lambda found, _now_ms: tables.configuration(found))


def fitted(lines: list[str], height: int) -> list[str]:
    """The first lines, which fit a terminal, so that the head of the table stays in sight."""
    if len(lines) < height:
        return lines
    room = max(height - 2, 1)
    return [*lines[:room], f"and {several(len(lines) - room, 'line')} more"]


def shown(
    management: ManagementClient,
    arguments: Namespace,
    look: Callable[[], Found],
    table: Callable[[Sequence[dict[str, Any]], int], list[str]],
) -> Exit:
    """Prints what `look` finds, once, or with --watch until it is interrupted."""
    interval: float | None = arguments.watch
    try:
        while True:
            now_ms, found = int(management.ask("status")["now"]), look()
            if arguments.json:
                write_json(found, lines=interval is not None)
            else:
                lines = table(found, now_ms)
                if interval is not None:
                    clock = datetime.now().astimezone().strftime("%H:%M:%S")
                    lines = [f"{clock}, every {interval:g} s, Ctrl-C ends it", "", *lines]
                start = ""
                if interval is not None and sys.stdout.isatty():
                    start, lines = _CLEAR, fitted(lines, shutil.get_terminal_size().lines)
                sys.stdout.write(start + "\n".join(lines) + "\n")
                sys.stdout.flush()

            if interval is None:
                return Exit.DONE
            time.sleep(max(interval, LEAST_PAUSE_S))
    except KeyboardInterrupt:
        if interval is None:
            raise
        return Exit.DONE
