"""`xabridge broker messages`, `dead`, `read` and `audit`: looking into queues, and at what was changed."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from rm_amqp.message import Message
from xabridge.cli import as_json
from xabridge.cli.broker import tables
from xabridge.cli.broker.views import Found, shown
from xabridge.cli.exits import Exit
from xabridge.cli.text import printable

if TYPE_CHECKING:
    from argparse import Namespace

    from rm_amqp.management import ManagementClient


def messages(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker messages QUEUE`."""

    def look() -> Found:
        found = management.pages("messages", key="position", queue=arguments.queue)
        return list(islice(found, arguments.most))

    return shown(management, arguments, look, tables.messages)


def dead(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker dead [QUEUE…]`: dead letters, of all queues or of some."""
    wanted = set(arguments.queue)

    def look() -> Found:
        found: Found = []
        for queue in management.pages("queues", key="name"):
            if queue["name"] in wanted if wanted else queue["dead-letters"]:
                letters = management.pages("messages", key="position", queue=queue["name"])
                found += ({"queue": queue["name"], **one} for one in islice(letters, arguments.most - len(found)))
        return found

    return shown(management, arguments, look, tables.dead)


def read(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker read QUEUE ID`: one message with its content."""
    told = management.ask("read", queue=arguments.queue, id=arguments.id)
    octets: bytes = told["octets"]
    message = Message.from_octets(octets)
    facts: dict[str, Any] = {
        "id": arguments.id,
        "queue": arguments.queue,
        "deliveries": told["deliveries"],
        "properties": {
            name: value
            for name in ("id", "subject", "reply_to", "correlation_id", "content_type", "group_id")
            if (value := getattr(message, name, None)) is not None
        },
        "application_properties": dict(message.properties or {}),
        "body": message.body,
        "octets": len(octets),
    }
    if arguments.json:
        as_json.write(_plain(facts))
        return Exit.DONE
    for group in ("properties", "application_properties"):
        for name, value in facts[group].items():
            print(f"{printable(str(name))}: {printable(str(value))}")
    print()
    for line in str(facts["body"]).splitlines():
        print(printable(line))
    return Exit.DONE


def _plain(value: Any) -> Any:
    """What JSON can say of a value; the rest as text."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def audit(management: ManagementClient, arguments: Namespace) -> Exit:
    """`xabridge broker audit`: who has changed what."""

    def look() -> Found:
        return list(islice(management.pages("audit", key="id"), arguments.most))

    return shown(management, arguments, look, lambda found, _now_ms: tables.audit(found))
