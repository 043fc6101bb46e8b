"""Nodes: what is under way there, where the time of the last transactions went, and how their consumers do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from xabridge.cli.text import took
from xabridge.console.app import View
from xabridge.console.brokers import Trouble
from xabridge.console.drawing.timeline import PHASES, timeline
from xabridge.console.pages.asking import Answer

if TYPE_CHECKING:
    from starlette.requests import Request

    from xabridge.console.app import Console
    from xabridge.console.nodes import Node, NodeLink
    from xabridge.console.sessions import Session

SHOWN: Final = 20
LIVE: Final = 20


async def nodes(console: Console, request: Request, session: Session) -> View:
    """All configured nodes. Who may look at the first broker may see them."""
    if console.nodes:
        await next(iter(session.links.values())).rights()
    wanted = request.query_params.get("show", "")
    answers = await asyncio.gather(*(_answer(link) for link in console.nodes))
    context = {
        "title": "Nodes",
        "answers": answers,
        "show": wanted if wanted == "last" else "slowest",
        "shown": SHOWN,
        "most_live": LIVE,
        "phases": PHASES,
        "timeline": timeline,
        "took": took,
        "live": bool(console.nodes),
    }
    return View("nodes.html", context)


async def _answer(link: NodeLink) -> Answer[Node]:
    try:
        return Answer(link.name, await link.look())
    except Trouble as trouble:
        return Answer(link.name, None, str(trouble))
