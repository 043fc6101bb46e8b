"""The first page: does work flow, is anything stuck, is anything failing; and what to do about what is wrong."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from xa.telemetry.conditions import BRANCH_IN_DOUBT, OLD_S, Question
from xabridge.console.brokers import BrokerProblem, RequestRefused
from xabridge.console.pages.dead_letters import groups_of
from xabridge.console.pages.nodes import node_lines
from xabridge.console.pages.pipelines import batches_under_way, seen_by, views_of
from xabridge.console.pages.requests import of_each
from xabridge.console.pages.transactions import survey_for
from xabridge.console.problems import ProblemList
from xabridge.console.site_watch import key_of
from xabridge.console.view import PageView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from starlette.requests import Request

    from xabridge.console.brokers import BrokerLink
    from xabridge.console.console import Console
    from xabridge.console.pages.dead_letters import Groups
    from xabridge.console.pages.nodes import NodeLine
    from xabridge.console.pages.pipelines import PipelineView
    from xabridge.console.pages.requests import BrokerReply
    from xabridge.console.problems import Problems
    from xabridge.console.sessions import Session
    from xabridge.operations.survey import Survey, TransactionView

T = TypeVar("T")
QUEUES: Final = 5
DOUBTS: Final = 3
GROUPS: Final = 8
PIPELINES: Final = 12
PROBLEMS: Final = 20
VERSION: Final = version("xabridge")
"""Of the console."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What a broker tells of itself and its queues."""

    status: dict[str, Any]
    queues: list[dict[str, Any]]
    count: int
    depth: int
    rate_in: float
    rate_out: float
    conditions: dict[str, Any] | None
    """What it has found of its conditions; None: its version does not look for any."""
    ahead_s: float
    """By how much its clock is ahead of this machine's, give or take `uncertain_s`."""
    uncertain_s: float


@dataclass(frozen=True, slots=True)
class InDoubtFigure:
    """What is in doubt for longer than recovery takes, with how long each is, the longest first, as far as that is
    known. `young` are so many transactions that are most likely under way, and `batches` those of pipelines."""

    found: Survey | None
    stuck: tuple[TransactionView, ...] = ()
    ages_s: tuple[float | None, ...] = ()
    young: int = 0
    batches: int = 0
    why: str = ""


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
    doubt = _doubt(console, survey, pipelines.found)
    problems = _problems(flows, dead, doubt, nodes, pipelines, {link.name: link.health for link in console.nodes})

    context = {
        "title": "Overview",
        "problems": problems,
        "most_problems": PROBLEMS,
        "questions": list(Question),
        "flows": flows,
        "histories": console.histories,
        "nodes": nodes,
        "has_nodes": bool(console.nodes),
        "pipelines": pipelines,
        "has_pipelines": console.pipelines.configured,
        "doubt": doubt,
        "branches": sum(_branches_in_doubt(one.value) for one in flows if one.value is not None),
        "most_doubts": DOUBTS,
        "letters": letters[:GROUPS],
        "more_letters": max(len(letters) - GROUPS, 0),
        "dead": sum(answer.value.total for answer in dead if answer.value),
        "live": True,
    }
    return PageView("overview.html", context)


def _problems(
    flows: list[BrokerReply[Flow]],
    dead: list[BrokerReply[Groups]],
    doubt: InDoubtFigure,
    nodes: Listing[NodeLine],
    pipelines: Listing[PipelineView],
    health: Mapping[str, str],
) -> Problems:
    """`health` has the URLs at which nodes say how they are, as far as they are known."""
    found = ProblemList()
    for one in flows:
        if one.value is not None:
            found.add_broker(one.broker, one.value.conditions)
            found.add_clock(one.broker, one.value.ahead_s, one.value.uncertain_s)
        else:
            found.add_silent("broker", one.broker, one.trouble, "#flow", away=one.away)
    for letters in dead:
        if letters.value is None and not letters.away:
            found.unknown(f"broker {letters.broker}", letters.trouble, Question.FAILING)
    for node in nodes.found:
        if node.node is None:
            found.add_silent(
                "node", node.name, node.trouble, "/nodes", away=node.away, health=health.get(node.name, "")
            )

    found.add_nodes(nodes.found)
    found.add_pipelines(pipelines.found)
    found.add_doubts(doubt.stuck, doubt.ages_s)
    found.add_versions(_versions(flows, nodes))
    for what, why in (("the nodes", nodes.why), ("the pipelines", pipelines.why)):
        if why:
            found.unknown(what, why)
    if doubt.found is None:
        found.unknown("what is in doubt", doubt.why, Question.STUCK)
    else:
        found.add_unasked(doubt.found.unreachable, [one.broker for one in flows])
        if doubt.found.log_trouble is not None:
            found.unknown("the decision log", doubt.found.log_trouble, Question.STUCK)
    return found.put_together


def _versions(flows: list[BrokerReply[Flow]], nodes: Listing[NodeLine]) -> dict[str, str]:
    versions = {f"broker {one.broker}": str(one.value.status.get("version", "")) for one in flows if one.value}
    versions |= {f"node {one.name}": one.node.version for one in nodes.found if one.node is not None}
    return {**versions, "this console": VERSION}


def _branches_in_doubt(flow: Flow) -> int:
    """For longer than its broker's `in_doubt_s`."""
    found = flow.conditions["conditions"] if flow.conditions is not None else ()
    return sum(int(one["count"]) for one in found if one["name"] == BRANCH_IN_DOUBT.name)


async def _survey(console: Console, session: Session) -> Survey | BrokerProblem:
    try:
        return await survey_for(console, session)
    except BrokerProblem as trouble:
        return trouble


def _doubt(console: Console, survey: Survey | BrokerProblem, pipelines: list[PipelineView]) -> InDoubtFigure:
    if isinstance(survey, BrokerProblem):
        return InDoubtFigure(None, why=str(survey))
    batches = batches_under_way(pipelines)
    others = [view for view in survey.transactions if view.gtrid not in batches]
    seen_s = console.in_doubt_for([key_of(view) for view in others])
    ages_s = [_oldest_s(view) for view in others]
    stuck = [
        number
        for number, (view, known_s) in enumerate(zip(others, ages_s, strict=True))
        if view.against or (seen_s[key_of(view)] if known_s is None else known_s) >= OLD_S
    ]
    return InDoubtFigure(
        survey, tuple(others[number] for number in stuck), tuple(ages_s[number] for number in stuck),
        len(others) - len(stuck), len(survey.transactions) - len(others),
    )  # fmt: skip


async def _listed(asked: Awaitable[list[T]]) -> Listing[T]:
    try:
        return Listing(await asked)
    except BrokerProblem as trouble:
        return Listing(why=str(trouble))


async def _pipelines(console: Console, session: Session) -> list[PipelineView]:
    found = await seen_by(console, session)
    return await views_of(console, session, found[:PIPELINES])


def _oldest_s(view: TransactionView) -> float | None:
    """The time for which it has been in doubt; None if no resource tells it."""
    return max((branch.age_s for branch in view.in_doubt if branch.age_s is not None), default=None)


async def _flow(link: BrokerLink) -> Flow:
    asked_at = time.time()
    status = await link.ask("status")
    answered_at = time.time()
    queues = [one for one in await link.queues() if one["lasting"]]
    busy = sorted(queues, key=lambda one: (-(one["rate-in"] + one["rate-out"]), -one["depth"], one["name"]))
    shown = sorted(busy[:QUEUES], key=lambda one: one["name"])
    return Flow(
        status, shown, len(queues), sum(one["depth"] for one in queues), sum(one["rate-in"] for one in queues),
        sum(one["rate-out"] for one in queues), await _conditions(link),
        status["now"] / 1000 - (asked_at + answered_at) / 2, (answered_at - asked_at) / 2,
    )  # fmt: skip


async def _conditions(link: BrokerLink) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = await link.ask("conditions")
    except RequestRefused as refused:
        if refused.right:
            raise
        return None
    return found
