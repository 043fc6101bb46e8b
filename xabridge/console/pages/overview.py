"""The first page: does work flow, is anything stuck, is anything failing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from xabridge.cli.survey import Known
from xabridge.console.app import View
from xabridge.console.brokers import Trouble
from xabridge.console.pages.asking import of_each
from xabridge.console.pages.dead_letters import groups_of
from xabridge.console.pages.transactions import survey_for

if TYPE_CHECKING:
    from starlette.requests import Request

    from xabridge.cli.survey import TransactionView
    from xabridge.console.app import Console
    from xabridge.console.brokers import BrokerLink
    from xabridge.console.sessions import Session

QUEUES: Final = 12
DOUBTS: Final = 3
GROUPS: Final = 8
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


async def overview(console: Console, _request: Request, session: Session) -> View:
    """Asks every broker at once; one that is away costs the others nothing."""
    links = list(session.links.values())
    flows = await of_each(links, _flow)
    dead = await of_each(links, lambda link: groups_of(link, most=GROUPS))
    try:
        found = await survey_for(console, session)
        doubt: dict[str, Any] = {"found": found, "views": found.transactions[:DOUBTS], "why": ""}
        doubt["waits"] = sum(view.decision in (Known.UNKNOWN, Known.ENDED) for view in found.transactions)
        doubt["stuck"] = sum(_oldest_s(view) >= UNDER_WAY_S for view in found.transactions)
    except Trouble as trouble:
        doubt = {"found": None, "views": (), "why": str(trouble), "waits": 0, "stuck": 0}
    letters = [(answer.broker, group) for answer in dead for group in (answer.told.groups if answer.told else ())]
    letters.sort(key=lambda one: -one[1].count)
    context = {
        "title": "Overview",
        "flows": flows,
        "histories": console.histories,
        "doubt": doubt,
        "letters": letters[:GROUPS],
        "more_letters": max(len(letters) - GROUPS, 0),
        "dead": sum(answer.told.total for answer in dead if answer.told),
        "silent": [answer.broker for answer in dead if answer.told is None],
        "live": True,
    }
    return View("overview.html", context)


def _oldest_s(view: TransactionView) -> float:
    """For how long it has been in doubt; for ever, if that is not known."""
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
