"""The first page: does work flow, is anything stuck, is anything failing."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from xabridge.console.brokers import BrokerProblem
from xabridge.console.pages.dead_letters import groups_of
from xabridge.console.pages.nodes import node_lines
from xabridge.console.pages.pipelines import batches_under_way, seen_by, views_of
from xabridge.console.pages.requests import of_each
from xabridge.console.pages.transactions import survey_for
from xabridge.console.view import PageView
from xabridge.operations.survey import DecisionKnowledge

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.requests import Request

    from xabridge.console.brokers import BrokerLink
    from xabridge.console.console import Console
    from xabridge.console.pages.pipelines import PipelineView
    from xabridge.console.sessions import Session
    from xabridge.operations.survey import Survey, TransactionView

T = TypeVar("T")
QUEUES: Final = 12
DOUBTS: Final = 3
GROUPS: Final = 8
PIPELINES: Final = 12
UNDER_WAY_S: Final = 10.0
"""What is in doubt for less is most likely a transaction that is under way."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What a broker tells of itself and its queues."""

    status: dict[str, Any]
    queues: list[dict[str, Any]]
    count: int
    depth: int
    rate_in: float
    rate_out: float


@dataclass(frozen=True, slots=True)
class InDoubtFigure:
    """What is in doubt. `batches`: so many transactions are batches of pipelines that are under way, and left out."""

    found: Survey | None
    transactions: tuple[TransactionView, ...] = ()
    batches: int = 0
    why: str = ""

    @property
    def waits(self) -> int:
        """Those whose decision is not known here."""
        return sum(view.decision in (DecisionKnowledge.UNKNOWN, DecisionKnowledge.ENDED) for view in self.transactions)

    @property
    def stuck(self) -> int:
        """Those that are most likely not just under way."""
        return sum(_oldest_s(view) >= UNDER_WAY_S for view in self.transactions)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """The nodes or the pipelines; `why` says why nothing is known of them."""

    found: list[T] = field(default_factory=list)
    why: str = ""


async def overview(console: Console, _request: Request, session: Session) -> PageView:
    """Asks everybody at once; one that is away costs the others nothing."""
    links = list(session.links.values())
    flows, dead, survey, nodes, pipelines = await asyncio.gather(
        of_each(links, _flow),
        of_each(links, lambda link: groups_of(link, most=GROUPS)),
        _survey(console, session),
        _listed(node_lines(console, session)),
        _listed(_pipelines(console, session)),
    )
    letters = [(answer.broker, group) for answer in dead for group in (answer.value.groups if answer.value else ())]
    letters.sort(key=lambda one: -one[1].count)

    context = {
        "title": "Overview",
        "flows": flows,
        "histories": console.histories,
        "nodes": nodes,
        "has_nodes": bool(console.nodes),
        "pipelines": pipelines,
        "has_pipelines": console.pipelines.configured,
        "doubt": _doubt(survey, pipelines.found),
        "most_doubts": DOUBTS,
        "letters": letters[:GROUPS],
        "more_letters": max(len(letters) - GROUPS, 0),
        "dead": sum(answer.value.total for answer in dead if answer.value),
        "silent": [answer.broker for answer in dead if answer.value is None],
        "live": True,
    }
    return PageView("overview.html", context)


async def _survey(console: Console, session: Session) -> Survey | BrokerProblem:
    try:
        return await survey_for(console, session)
    except BrokerProblem as trouble:
        return trouble


def _doubt(survey: Survey | BrokerProblem, pipelines: list[PipelineView]) -> InDoubtFigure:
    if isinstance(survey, BrokerProblem):
        return InDoubtFigure(None, why=str(survey))
    batches = batches_under_way(pipelines)
    others = tuple(view for view in survey.transactions if view.gtrid not in batches)
    return InDoubtFigure(survey, others, len(survey.transactions) - len(others))


async def _listed(asked: Awaitable[list[T]]) -> Listing[T]:
    try:
        return Listing(await asked)
    except BrokerProblem as trouble:
        return Listing(why=str(trouble))


async def _pipelines(console: Console, session: Session) -> list[PipelineView]:
    found = await seen_by(console, session)
    return await views_of(console, session, found[:PIPELINES])


def _oldest_s(view: TransactionView) -> float:
    """The time for which it has been in doubt; infinite if that is not known."""
    return max((math.inf if branch.age_s is None else branch.age_s for branch in view.in_doubt), default=0.0)


async def _flow(link: BrokerLink) -> Flow:
    status = await link.ask("status")
    queues = [one for one in await link.queues() if one["lasting"]]
    busy = sorted(queues, key=lambda one: (-(one["rate-in"] + one["rate-out"]), -one["depth"], one["name"]))
    shown = sorted(busy[:QUEUES], key=lambda one: one["name"])
    return Flow(
        status, shown, len(queues), sum(one["depth"] for one in queues), sum(one["rate-in"] for one in queues),
        sum(one["rate-out"] for one in queues),
    )  # fmt: skip
