"""Pipelines: which query has each, its last batches and where their time went, what waits for it, what it left over."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from xa.open_string import OpenString
from xabridge.console.brokers import BrokerProblem, RequestRefused
from xabridge.console.pages.requests import check_may_look
from xabridge.console.view import PageView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.requests import Request

    from xabridge.console.brokers import BrokerLink
    from xabridge.console.console import Console
    from xabridge.console.sessions import Session
    from xabridge.pipeline.core.ledger.status import EpochStatus, PipelineStatus

MOST: Final = 50
"""Pipelines of a page."""
DECIDED: Final = frozenset({"committed", "done"})
LOOKS: Final = {"work": "work", "log": "decide", "finish": "commit"}
"""The colours of the phases, which are those of a node's transactions."""
BAR: Final = 240


@dataclass(frozen=True, slots=True)
class Lag:
    """What waits in a queue that a pipeline reads, as its broker reports; `report` is None if it does not, and
    `trouble` says why."""

    resource: str
    queue: str
    broker: str
    report: dict[str, Any] | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class EpochLine:
    """An epoch as it is shown. `bars` are phase, place and width in a picture that is BAR wide."""

    epoch: EpochStatus
    name: str
    branches: str
    bars: tuple[tuple[str, float, float], ...]
    phases: dict[str, float]


@dataclass(frozen=True, slots=True)
class PipelineView:
    """A pipeline as it is shown. `alive`: whether its driver lives, None if that is unknown here."""

    status: PipelineStatus
    alive: bool | None
    driver: str
    lags: tuple[Lag, ...]
    lines: tuple[EpochLine, ...]
    mean: dict[str, float]
    averaged: str
    """Of which epochs that is the average."""
    sentences: tuple[str, ...]
    orphans: tuple[tuple[str, str], ...]
    skipped: tuple[str, ...]
    """Which epochs did not read a broker, and why."""

    @property
    def last(self) -> EpochStatus | None:
        """The epoch that was planned last."""
        return max(self.status.epochs, key=lambda one: (one.epoch, one.changed_at), default=None)

    @property
    def decided(self) -> int | None:
        """The last epoch that is decided."""
        return max((one.epoch for one in self.status.epochs if one.state in DECIDED), default=None)

    @property
    def logged(self) -> int | None:
        """The last epoch that Spark is known to have logged."""
        return max((one.epoch for one in self.status.epochs if one.logged), default=None)

    @property
    def waiting(self) -> int | None:
        """The messages that wait for it; None if that is not known."""
        counts = [lag.report["depth"] for lag in self.lags if lag.report is not None]
        return sum(counts) if counts else None

    @property
    def oldest(self) -> float | None:
        """Since when the oldest of them waits, in milliseconds."""
        times = [lag.report["oldest"] for lag in self.lags if lag.report is not None and lag.report["depth"]]
        return min((one for one in times if one is not None), default=None)

    @property
    def stands(self) -> bool:
        """Whether messages wait and its driver is gone."""
        return self.alive is False and bool(self.waiting)


async def pipelines(console: Console, _request: Request, session: Session) -> PageView:
    """All of them. Who may look at the first broker may see them."""
    try:
        found, trouble = await seen_by(console, session), ""
    except RequestRefused:
        raise
    except BrokerProblem as why:
        found, trouble = (), str(why)

    context = {
        "title": "Pipelines",
        "configured": console.pipelines.configured,
        "trouble": trouble,
        "count": len(found),
        "views": await views_of(console, session, found[:MOST]),
        "bar": BAR,
        "looks": LOOKS,
        "live": console.pipelines.configured,
    }
    return PageView("pipelines.html", context)


async def seen_by(console: Console, session: Session) -> tuple[PipelineStatus, ...]:
    """The pipelines, for who may see them. RequestRefused: this user may not. BrokerProblem: nothing is known of
    them."""
    if console.pipelines.configured:
        await check_may_look(session)
    return await console.pipelines.look()


async def views_of(console: Console, session: Session, found: Iterable[PipelineStatus]) -> list[PipelineView]:
    """What is shown of each; the brokers are asked what waits, over this session's connections."""
    return list(await asyncio.gather(*(_view(console, session, one) for one in found)))


async def _view(console: Console, session: Session, status: PipelineStatus) -> PipelineView:
    from xabridge.pipeline import status_command as words  # noqa: PLC0415 — as above
    from xabridge.pipeline.core.process_ids import is_alive  # noqa: PLC0415 — as above
    from xabridge.text import gtrid_name  # noqa: PLC0415 — a console without pipelines loads none of this

    alive = is_alive(status.driver) if status.driver else None
    prepared = words.prepared_branches(status)
    shown = status.epochs
    longest_s = max((sum(one.phases.values()) for one in shown), default=0.0)
    return PipelineView(
        status,
        alive,
        words.LIVES[alive] if status.driver else "",
        await _lags(console, session, status),
        tuple(
            EpochLine(
                one,
                gtrid_name(one.gtrid),
                words.branch_counts(prepared.get(one.gtrid, {})),
                _bars(one, longest_s),
                one.phases,
            )
            for one in shown
        ),
        words.mean_phases(status),
        words.averaged(status),
        tuple(words.summary(status)),
        tuple((gtrid_name(gtrid), words.branch_counts(branches)) for gtrid, branches in words.orphans(status).items()),
        tuple(words.skipped(status, len(shown))),
    )


def _bars(epoch: EpochStatus, longest_s: float) -> tuple[tuple[str, float, float], ...]:
    scale, at = BAR / max(longest_s, 1e-9), 0.0
    bars = []
    for phase, seconds in epoch.phases.items():
        bars.append((phase, round(at, 1), round(max(seconds * scale, 1.5), 1)))
        at += seconds * scale
    return tuple(bars)


def batches_under_way(found: Iterable[PipelineView]) -> frozenset[bytes]:
    """The global transactions of batches whose driver is not known to be gone: that they are in doubt is their way."""
    return frozenset(
        epoch.gtrid
        for view in found
        if view.alive is not False
        for epoch in view.status.epochs
        if epoch.state in {"active", "committed"}
    )


# -- what waits
async def _lags(console: Console, session: Session, status: PipelineStatus) -> tuple[Lag, ...]:
    """What waits in the queues that its query reads. The ledger has them as `broker: orders, payments`; `; ` stands
    between those of several brokers."""
    found: dict[tuple[str, str], Lag] = {}
    for shard in (shard for source, _ in status.sources for shard in source.split("; ")):
        resource, _, names = shard.partition(": ")
        link = _link_to(console, session, resource)
        known: dict[str, dict[str, Any]] = {}
        trouble = f"this console has no broker that is resource {resource}"
        if link is not None:
            try:
                known = {one["name"]: one for one in await link.queues()}
                trouble = "there is no such queue"
            except BrokerProblem as why:
                trouble = str(why)

        for queue in _queues(names, known):
            broker = link.name if link is not None else ""
            found[resource, queue] = Lag(resource, queue, broker, known.get(queue), "" if queue in known else trouble)
    return tuple(found.values())


def _queues(names: str, known: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The queues that a source names. A pattern stands for all that it reads, or for itself if there is none."""
    from xabridge.pipeline.core.shards import is_pattern, matches_queue  # noqa: PLC0415 — only if there are pipelines

    found: list[str] = []
    for name in [names] if names in known else names.split(", "):
        matching = sorted(one for one, queue in known.items() if matches_queue(name, queue)) if is_pattern(name) else []
        found += matching or [name]
    return found


def _link_to(console: Console, session: Session, resource: str) -> BrokerLink | None:
    """The session's connection to the broker that a resource is: the one of its name, or of its address."""
    if resource in session.links:
        return session.links[resource]
    watched = console.settings.pipelines
    urls = dict(watched.resources) if watched is not None else {}
    place = _place(urls.get(resource, ""))
    return next((link for link in session.links.values() if place and _place(link.broker.url) == place), None)


def _place(url: str) -> str:
    try:
        return OpenString.parse(url).place
    except ValueError:
        return ""
