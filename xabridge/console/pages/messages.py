"""One message: what the broker knows of it, and its content once somebody has asked for that.

The content is read by a form, so that no link, prefetch or reload opens it, and each reading is in the audit line.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.decoding import DecodeError
from dtx.broker.management.messages import MAX_READ
from rm_amqp.message import Message
from xabridge.console.brokers import RequestRefused
from xabridge.console.pages.requests import checked_form, link_of
from xabridge.console.view import PageView
from xabridge.operations.broker_changes import why_dead
from xabridge.text import json_value

if TYPE_CHECKING:
    from starlette.requests import Request

    from xabridge.console.brokers import BrokerLink
    from xabridge.console.console import Console
    from xabridge.console.sessions import Session

PROPERTIES: Final = ("id", "subject", "address", "reply_to", "correlation_id", "content_type", "group_id", "user_id")
MOST: Final = 20_000
"""Characters of a body that are shown."""


async def message(_console: Console, request: Request, session: Session) -> PageView:
    """The message without its content."""
    link = link_of(request, session)
    return await _shown(link, request.query_params.get("queue", ""), request.query_params.get("id", ""), None)


async def read(console: Console, request: Request, session: Session) -> PageView:
    """The message with its content."""
    link = link_of(request, session)
    fields = await checked_form(request, session)
    queue, number = fields.get("queue", ""), fields.get("id", "")
    message = await link.ask("read", queue=queue, id=number)
    console.audit(session, "read", broker=link.name, queue=queue, id=number)
    return await _shown(link, queue, number, message["octets"])


async def _shown(link: BrokerLink, queue: str, number: str, content: bytes | None) -> PageView:
    found = await link.ask("messages", queue=queue, ids=number)
    if not found:
        raise RequestRefused(f"there is no message {number} in {queue} any more: somebody has taken it, or moved it")
    found_queue = await link.queue(queue)
    context = {
        "title": f"Message {number}",
        "queue": queue,
        "dead_letters": found_queue["for-dead-letters"] or found_queue["dead-letters"],
        "message": found[0],
        "why_dead": why_dead,
        "too_large": found[0]["octets"] > MAX_READ,
        "content": None if content is None else content_of(content),
        "rights": await link.rights(),
    }
    return PageView("message.html", context)


def content_of(octets: bytes) -> dict[str, Any]:
    """The sections of a message, for people."""
    try:
        made = Message.from_octets(octets)
    except (DecodeError, ValueError) as error:
        return {"trouble": f"This is not a message of AMQP 1.0: {error}", "body": octets.hex()[:MOST], "groups": []}

    properties = {name: value for name in PROPERTIES if (value := getattr(made, name, None)) not in {None, "", b""}}
    groups = [
        ("Properties", properties),
        ("Application properties", dict(made.properties or {})),
        ("Annotations", dict(made.annotations or {})),
    ]
    body = made.body
    shown = body if isinstance(body, str) else json.dumps(json_value(body), ensure_ascii=False, indent=2)
    return {
        "trouble": "",
        "groups": [(title, {str(key): str(value) for key, value in group.items()}) for title, group in groups if group],
        "body": shown[:MOST],
        "cut": max(len(shown) - MOST, 0),
        "kind": type(body).__name__,
    }
