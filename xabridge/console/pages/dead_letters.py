"""Dead letters by reason and origin; and, where somebody asks for it, by the exception and its place.

The broker knows why it has put a message away. What a consumer has put away carries the exception in its annotations,
which are content: they are read on request only, with the permission for it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from xabridge.console.brokers import BrokerProblem
from xabridge.console.pages.messages import reason_of
from xabridge.console.pages.requests import checked_form, chosen, link_of, of_each
from xabridge.console.view import PageView

if TYPE_CHECKING:
    from starlette.requests import Request

    from xabridge.console.brokers import BrokerLink
    from xabridge.console.console import Console
    from xabridge.console.sessions import Session

SENT_THERE: Final = "sent there by a consumer, which notes why in the message"
LOOKED_AT: Final = 500
"""Of each queue, for the groups."""
QUEUES: Final = 20
READ: Final = 50
"""Dead letters whose reasons are read at once."""


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters of one queue with the same reason and origin. `since`: of the latest."""

    queue: str
    origin: str
    why: str
    count: int
    latest: float | None
    more: bool = False
    """The queue has more dead letters than were looked at, so there may be more of these."""

    @property
    def said(self) -> str:
        """The reason, for people."""
        return self.why or SENT_THERE


@dataclass(frozen=True, slots=True)
class Groups:
    """Of one broker. `total` is how many dead letters there are, `looked_at` how many of them are in groups."""

    groups: tuple[DeadLetterGroup, ...]
    total: int
    looked_at: int
    queues: tuple[dict[str, Any], ...]


async def groups_of(link: BrokerLink, most: int = 1000, only: str = "") -> Groups:
    """The groups, largest first. No content is read."""
    queues = [
        one
        for one in await link.queues()
        if (one["name"] == only if only else one["depth"] and (one["dead-letters"] or one["for-dead-letters"]))
    ]
    queues.sort(key=lambda one: (-one["depth"], one["name"]))
    groups: list[DeadLetterGroup] = []
    looked = 0

    for one in queues[:QUEUES]:
        try:
            letters = await link.ask("messages", queue=one["name"], count=LOOKED_AT)
        except BrokerProblem:
            continue  # it was deleted meanwhile, say
        looked += len(letters)
        groups += _grouped(one["name"], letters, more=one["depth"] > len(letters) >= LOOKED_AT)
    groups.sort(key=lambda group: (-group.count, group.queue, group.why))
    return Groups(tuple(groups[:most]), sum(one["depth"] for one in queues), looked, tuple(queues))


def _grouped(queue: str, letters: list[dict[str, Any]], *, more: bool) -> list[DeadLetterGroup]:
    counts: Counter[tuple[str, str]] = Counter()
    latest: dict[tuple[str, str], float | None] = {}
    for letter in letters:
        key = (letter["from"] or "", letter["why"] or "")
        counts[key] += 1
        latest[key] = letter["since"]
    return [
        DeadLetterGroup(queue, origin, why, count, latest[origin, why], more) for (origin, why), count in counts.items()
    ]


async def dead_letters(_console: Console, request: Request, session: Session) -> PageView:
    """All groups."""
    only = request.query_params.get("queue", "")
    answers = await of_each(chosen(request, session), lambda link: groups_of(link, only=only))
    return PageView("dead.html", {"title": "Dead letters", "answers": answers, "read": None, "only": only})


async def reasons(console: Console, request: Request, session: Session) -> PageView:
    """Reads the first of a queue's dead letters, and groups them by exception and place."""
    link = link_of(request, session)
    fields = await checked_form(request, session)
    queue = fields.get("queue", "")
    letters = await link.ask("messages", queue=queue, count=READ)
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], list[str]] = {}
    for letter in letters:
        try:
            message = await link.ask("read", queue=queue, id=letter["id"])
        except BrokerProblem as trouble:
            if getattr(trouble, "right", False):
                raise
            continue
        reason = reason_of(message["octets"])
        counts[reason] += 1
        first.setdefault(reason, []).append(letter["id"])

    console.audit(session, "read", broker=link.name, queue=queue, messages=sum(counts.values()))
    read = {
        "broker": link.name,
        "queue": queue,
        "groups": [(reason, place, count, first[reason, place]) for (reason, place), count in counts.most_common()],
        "count": sum(counts.values()),
    }
    answers = await of_each([link], lambda one: groups_of(one, only=queue))
    return PageView("dead.html", {"title": "Dead letters", "answers": answers, "read": read, "only": queue})
