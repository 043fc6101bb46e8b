"""Connections: who is connected, from where, with what; and one with its links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xabridge.console.brokers import RequestRefused
from xabridge.console.pages.requests import chosen, link_of, of_each, page_of
from xabridge.console.view import PageView

if TYPE_CHECKING:
    from starlette.requests import Request

    from xabridge.console.brokers import BrokerLink
    from xabridge.console.console import Console
    from xabridge.console.sessions import Session

PAGE: Final = 50


async def connections(_console: Console, request: Request, session: Session) -> PageView:
    """All of them; `q` is a part of the user, the address, the container or the library."""
    wanted = request.query_params.get("q", "").lower()
    answers = await of_each(chosen(request, session), _all)
    rows = [
        (answer.broker, one)
        for answer in answers
        for one in answer.value or ()
        if any(wanted in str(one[key]).lower() for key in ("user", "peer", "container", "product", "number"))
    ]
    number, pages = page_of(request, len(rows), PAGE)

    context = {
        "title": "Connections",
        "rows": rows[number * PAGE : (number + 1) * PAGE],
        "count": len(rows),
        "page": number,
        "pages": pages,
        "q": request.query_params.get("q", ""),
        "only": request.query_params.get("broker", ""),
        "troubles": [answer for answer in answers if answer.value is None],
        "live": True,
    }
    return PageView("connections.html", context)


async def _all(link: BrokerLink) -> list[dict[str, Any]]:
    return await link.pages("connections", key="number")


async def connection(_console: Console, request: Request, session: Session) -> PageView:
    """One connection."""
    link = link_of(request, session)
    number = request.query_params.get("number", "")
    found = next((one for one in await _all(link) if one["number"] == number), None)
    if found is None:
        raise RequestRefused(f"there is no connection {number} any more")
    context = {
        "title": f"Connection {number}",
        "connection": found,
        "links": await link.ask("links", connection=number, count=200),
        "rights": await link.rights(),
    }
    return PageView("connection.html", context)
