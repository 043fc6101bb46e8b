"""Nodes: what is under way there, where the time of the last transactions went, and how their consumers do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from xabridge.console.brokers import BrokerProblem
from xabridge.console.charts import PHASES, timeline
from xabridge.console.pages.requests import BrokerReply, check_may_look
from xabridge.console.view import PageView
from xabridge.text import took

if TYPE_CHECKING:
    from starlette.requests import Request

    from xabridge.console.console import Console
    from xabridge.console.nodes import Node, NodeLink
    from xabridge.console.sessions import Session

SHOWN: Final = 20
LIVE: Final = 20


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node in a line. Rates are those of the last minute, and of all its consumers together; `node` is None if it is
    away, and `trouble` says why."""

    name: str
    node: Node | None
    trouble: str
    away: bool = False
    """Whether it is known that it can't be reached."""

    @property
    def handled(self) -> float:
        """Messages per second whose transactions were committed."""
        return self._rate("handled")

    @property
    def failed(self) -> float:
        """Messages per second that were rolled back, and come again."""
        return self._rate("failed")

    @property
    def oldest_s(self) -> float | None:
        """The age of the oldest transaction that is under way."""
        return max((one.age_s for one in self.node.live), default=None) if self.node is not None else None

    @property
    def stuck(self) -> tuple[str, ...]:
        """What keeps the node, or one of its consumers, from its work."""
        if self.node is None:
            return ()
        return (*self.node.trouble, *(why for one in self.node.consumers for why in one.trouble))

    def _rate(self, outcome: str) -> float:
        return sum(one.rates.get(outcome, 0.0) for one in self.node.consumers) if self.node is not None else 0.0


async def nodes(console: Console, request: Request, session: Session) -> PageView:
    """All configured nodes. Who may look at the first broker may see them."""
    wanted = request.query_params.get("show", "")
    answers = await _answers(console, session)
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
    return PageView("nodes.html", context)


async def node_lines(console: Console, session: Session) -> list[NodeLine]:
    """Each node in a line, for who may see them. Refused: this user may not."""
    return [NodeLine(one.broker, one.value, one.trouble, one.away) for one in await _answers(console, session)]


async def _answers(console: Console, session: Session) -> list[BrokerReply[Node]]:
    if console.nodes:
        await check_may_look(session)
    return list(await asyncio.gather(*(_answer(link) for link in console.nodes)))


async def _answer(link: NodeLink) -> BrokerReply[Node]:
    try:
        return BrokerReply(link.name, await link.look())
    except BrokerProblem as trouble:
        return BrokerReply.failed(link.name, trouble)
