"""Queues: all of them with search and paging, and one with its consumers, what holds its messages, and its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import RedirectResponse, Response

from xabridge.console.pages.requests import checked_form, chosen, link_of, of_each, page_of
from xabridge.console.view import PageView, address
from xabridge.operations.broker_changes import branch_word, posted_words, why_dead

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from xabridge.console.brokers import BrokerLink
    from xabridge.console.console import Console
    from xabridge.console.sessions import Session

PAGE: Final = 50
SEARCHED: Final = 5_000
"""Messages of a queue that a search looks at, from where the page begins."""
_ORDERS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "name": lambda one: one["name"],
    "depth": lambda one: -one["depth"],
    "in": lambda one: -one["rate-in"],
    "out": lambda one: -one["rate-out"],
    "oldest": lambda one: one["oldest"] or float("inf"),
}


async def queues(console: Console, request: Request, session: Session) -> PageView:
    """Every queue of one broker, or of all; `q` is a part of the name."""
    wanted, by = request.query_params.get("q", ""), request.query_params.get("by", "name")
    answers = await of_each(chosen(request, session), lambda link: link.queues())
    found = [
        (answer.broker, one)
        for answer in answers
        for one in answer.value or ()
        if one["lasting"] and wanted.lower() in one["name"].lower()
    ]
    order = _ORDERS.get(by, _ORDERS["name"])
    found.sort(key=lambda one: (order(one[1]), one[1]["name"], one[0]))

    number, pages = page_of(request, len(found), PAGE)
    context = {
        "title": "Queues",
        "rows": found[number * PAGE : (number + 1) * PAGE],
        "count": len(found),
        "pages": pages,
        "page": number,
        "q": wanted,
        "by": by if by in _ORDERS else "name",
        "only": request.query_params.get("broker", ""),
        "troubles": [answer for answer in answers if answer.value is None],
        "histories": console.histories,
        "span": max(console.histories.values(), key=lambda one: one.minutes).span,
        "may_create": [one.broker for one in await of_each(chosen(request, session), _may_manage) if one.value],
        "live": True,
    }
    return PageView("queues.html", context)


async def _may_manage(link: BrokerLink) -> bool:
    return (await link.rights()).manage


async def queue(console: Console, request: Request, session: Session) -> PageView:
    """One queue, with a page of its messages. Their content is not read."""
    link = link_of(request, session)
    name = request.query_params.get("name", "")
    queue = await link.queue(name)
    rights = await link.rights()
    links = await link.ask("links", address=name, count=100)

    messages, after, whole = await _messages(link, request, name)
    context = {
        "title": name,
        "queue": queue,
        "posted_words": posted_words,
        "branch_word": branch_word,
        "why_dead": why_dead,
        "rights": rights,
        "links": links,
        "messages": messages,
        "next": after,
        "whole": whole,
        "after": request.query_params.get("after", ""),
        "q": request.query_params.get("q", ""),
        "line": console.histories[link.name].of(name),
        "live": True,
    }
    return PageView("queue.html", context)


async def _messages(link: BrokerLink, request: Request, name: str) -> tuple[list[dict[str, Any]], str, bool]:
    """A page of messages, where the next one begins, and whether a search has seen the whole queue."""
    after, wanted = request.query_params.get("after", ""), request.query_params.get("q", "").lower()
    if not wanted:
        page = await link.ask("messages", queue=name, after=after, count=PAGE + 1)
        return page[:PAGE], page[PAGE - 1]["position"] if len(page) > PAGE else "", True

    found: list[dict[str, Any]] = []
    looked = 0
    while looked < SEARCHED:
        page = await link.ask("messages", queue=name, after=after, count=500)
        for one in page:
            looked += 1
            after = one["position"]
            if any(wanted in str(one[key] or "").lower() for key in ("id", "state", "from", "why", "error", "place")):
                found.append(one)
                if len(found) >= PAGE:
                    return found, after, False
        if len(page) < 500:
            return found, "", True
    return found, after, False


async def create(console: Console, request: Request, session: Session) -> Response:
    """A new queue."""
    link = link_of(request, session)
    fields = await checked_form(request, session)
    name = fields.get("name", "")
    await link.change("create-queue", queue=name)
    console.audit(session, "create-queue", broker=link.name, queue=name)
    session.flashes.append(("good", f"{name} is there."))
    return RedirectResponse(address(f"/b/{link.name}/queue", name=name), 303)
