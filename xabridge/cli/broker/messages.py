"""`xabridge broker messages`, `dead`, `read` and `audit`: looking into queues, and at what was changed."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from dtx.broker.access.accounts import ENDS_OLD
from dtx.broker.access.audit import SIGN_IN
from dtx.broker.access.permissions import fits as matches
from dtx.broker.management.operations import ANYTHING, OPERATIONS
from rm_amqp.message import Message
from xa.printable import escaped
from xabridge.cli.broker import tables
from xabridge.cli.broker.views import Found, fits, no_such_queue, shown
from xabridge.cli.output import write_json
from xabridge.exit_codes import Exit
from xabridge.text import json_value

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from rm_amqp.management import ManagementClient

OPERATIONS_OF: Final = {
    "close": ("close-connection",),
    "configure": ("configure-queue",),
    "create": ("create-queue",),
    "delete": ("delete-queue",),
    "drop": ("drop-branch",),
    "forbid": ("remove-permissions",),
    "pause": ("pause-queue",),
    "permit": ("set-permissions",),
    "resume": ("resume-queue",),
    "set-password": ("set-user", "revoke-old-password"),
}
"""What the audit log calls a command that it does not call by its name."""
KINDS: Final = (*OPERATIONS, SIGN_IN, ENDS_OLD, ANYTHING)
"""Everything that has entries there."""


def messages(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker messages QUEUE`."""

    def look() -> Found:
        found = management.pages("messages", key="position", queue=arguments.queue)
        return list(islice(found, arguments.most + 1))

    return _some(management, arguments, look, tables.messages)


def dead(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker dead [QUEUE…]`: dead letters in groups, of all queues or of some; with --all one by one."""
    if arguments.all:
        return _letters(management, arguments)
    wanted: list[str] = arguments.queue

    def look() -> Found:
        for name in wanted:
            if "*" not in name and not management.ask("queues", queue=name):
                raise no_such_queue(management, name)
        found = [
            one
            for one in management.pages("dead-letters", key="position")
            if not wanted or any(fits(one["queue"], pattern) for pattern in wanted)
        ]
        return sorted(found, key=lambda one: (-one["letters"], one["queue"], one["id"]))

    def lines(found: Sequence[dict[str, Any]], now_ms: int) -> list[str]:
        return tables.dead_groups(found, now_ms, arguments.most)

    return shown(management, arguments, look, lines)


def _letters(management: ManagementClient, arguments: Namespace) -> Exit:
    wanted: list[str] = arguments.queue

    def look() -> Found:
        found: Found = []
        left = {name for name in wanted if "*" not in name}
        for queue in management.pages("queues", key="name"):
            name = queue["name"]
            left.discard(name)
            for_dead_letters = queue["dead-letters"] or queue.get("for-dead-letters")
            if any(fits(name, pattern) for pattern in wanted) if wanted else for_dead_letters:
                letters = management.pages("messages", key="position", queue=name)
                found += ({"queue": name, **one} for one in islice(letters, arguments.most + 1 - len(found)))
        if left:
            raise no_such_queue(management, min(left))
        return found

    return _some(management, arguments, look, tables.dead)


def _some(
    management: ManagementClient,
    arguments: Namespace,
    look: Callable[[], Found],
    table: Callable[[Sequence[dict[str, Any]], int], list[str]],
) -> Exit:
    """Shows the first `--most` of what `look` finds, which may be one more, and says that there are more."""
    most: int = arguments.most

    def lines(found: Sequence[dict[str, Any]], now_ms: int) -> list[str]:
        more = ["there are more: --most N shows them"] if len(found) > most else []
        return table(found[:most], now_ms) + more

    return shown(management, arguments, lambda: look()[:most] if arguments.json else look(), lines)


def read(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker read QUEUE ID`: one message with its content."""
    answer = management.ask("read", queue=arguments.queue, id=arguments.id)
    octets: bytes = answer["octets"]
    message = Message.from_octets(octets)
    facts: dict[str, Any] = {
        "id": arguments.id,
        "queue": arguments.queue,
        "deliveries": answer["deliveries"],
        "properties": {
            name: value
            for name in ("id", "subject", "reply_to", "correlation_id", "content_type", "group_id")
            if (value := getattr(message, name, None)) is not None
        },
        "application_properties": dict(message.properties or {}),
        "annotations": dict(message.annotations or {}),
        "body": message.body,
        "octets": len(octets),
    }
    if arguments.json:
        write_json(json_value(facts))
        return Exit.DONE

    for group in ("properties", "application_properties", "annotations"):
        for name, value in facts[group].items():
            print(f"{escaped(str(name))}: {escaped(str(value))}")
    print()
    for line in str(facts["body"]).splitlines():
        print(escaped(line))
    return Exit.DONE


def audit(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker audit`: who has done what."""

    what: str = arguments.what
    wanted = OPERATIONS_OF.get(what, (what,))
    if not any(matches(pattern, kind) for pattern in wanted for kind in KINDS):
        known = ", ".join(sorted({*KINDS, *OPERATIONS_OF}))
        sys.stderr.write(f"xabridge broker audit: nothing that is recorded is called {escaped(what)}: it is {known}\n")

    def look() -> Found:
        pattern = wanted[0] if len(wanted) == 1 else "*"
        entries = management.pages("audit", key="id", who=arguments.who, what=pattern)
        if len(wanted) > 1:
            entries = (one for one in entries if one["what"] in wanted)
        return list(islice(entries, arguments.most))

    return shown(management, arguments, look, lambda found, _now_ms: tables.audit(found))
