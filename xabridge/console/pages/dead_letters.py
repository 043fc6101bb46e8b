"""Dead letters in groups: why, where it was raised, and from which queue they came. The broker keeps that of each
letter, and counts them all, so that no content is read for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from xabridge.console.brokers import PAGE
from xabridge.console.pages.requests import chosen, of_each
from xabridge.console.view import PageView
from xabridge.operations.broker_changes import why_dead

if TYPE_CHECKING:
    from starlette.requests import Request

    from xabridge.console.brokers import BrokerLink
    from xabridge.console.console import Console
    from xabridge.console.sessions import Session

PAGES: Final = 10
"""Pages of groups that are asked for: with PAGE groups each."""
QUEUES: Final = 100
"""Queues of dead letters on the page, those with most letters."""


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one queue that are alike: `said` is why they are ones, `details` where it was raised and where
    they come from. `latest`: when the last one came; `first` is the id of that letter."""

    queue: str
    group_id: str
    said: str
    details: tuple[str, ...]
    count: int
    latest: float | None
    first: str


@dataclass(frozen=True, slots=True)
class Groups:
    """Of one broker. `total` is how many dead letters there are; `rest`, how many of these are in groups that are not
    shown."""

    groups: tuple[DeadLetterGroup, ...]
    total: int
    rest: int
    queues: tuple[dict[str, Any], ...]


async def groups_of(link: BrokerLink, most: int = 1000, only: str = "") -> Groups:
    """The largest `most` groups. No content is read."""
    queues = [one for one in await link.queues() if (one["name"] == only if only else one["dead-letters"])]
    queues.sort(key=lambda one: (-one["dead-letters"], one["name"]))
    total = sum(one["dead-letters"] for one in queues)
    found: list[dict[str, Any]] = []
    while total and len(found) < PAGES * PAGE:
        page = await link.ask(
            "dead-letters",
            after=found[-1]["position"] if found else "",
            count=PAGE,
            **({"queue": only} if only else {}),
        )
        found += page
        if len(page) < PAGE:
            break

    found.sort(key=lambda one: (-one["letters"], one["position"]))
    groups = tuple(map(_group, found[:most]))
    rest = max(total - sum(group.count for group in groups), 0)
    return Groups(groups, total, rest, tuple(queues[:QUEUES]))


def _group(one: dict[str, Any]) -> DeadLetterGroup:
    said, *details = why_dead(one)
    return DeadLetterGroup(
        one["queue"], one["id"], said, tuple(details), int(one["letters"]), one["since"], one["latest"]
    )


async def dead_letters(_console: Console, request: Request, session: Session) -> PageView:
    """All groups."""
    only = request.query_params.get("queue", "")
    answers = await of_each(chosen(request, session), lambda link: groups_of(link, only=only))
    return PageView("dead.html", {"title": "Dead letters", "answers": answers, "only": only})
