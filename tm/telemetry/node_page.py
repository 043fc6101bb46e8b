"""The page `/node` of a manager: what is under way, what the last transactions spent their time on, and how its
consumers do. JSON, for clients with the token; the console shows it.

    {"node", "pid", "version", "time", "trouble", "in_doubt",
     "waiting": 3,                                              transactions that wait for a message
     "live": [{"name", "age_s", "timeout_s", "state", "suspended", "resources", "steps"}],
     "last", "slowest": [{"name", "began_at", "took_s", "outcome", "reasons", "phases", "steps", "omitted"}],
     "consumers": [{"queue", "state", "workers", "busy", "counts", "rates", "trouble"}]}

A step is [resource, verb, seconds after the begin, seconds that it took, answer]. The phases are seconds: `work` until
the completion begins, then `prepare`, `decide`, `commit` or `rollback`, each from its first request to its last answer.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from tm.outcome import named
from xa.telemetry.endpoint import JSON, Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tm.consumer.consumer import Consumer
    from tm.global_transaction import GlobalTransaction
    from tm.telemetry.pages import ObservedManager
    from tm.telemetry.timelines import Step, Timeline, Timelines
    from xa.telemetry.endpoint import Page

VERSION: Final = version("xabridge")
"""Of this process, whatever is installed meanwhile."""
LIVE: Final = 500
"""The most live transactions that are shown, the oldest first."""
PHASES: Final = {
    "prepare": "prepare",
    "decision": "decide",
    "decide": "decide",
    "commit": "commit",
    "commit_one_phase": "commit",
    "rollback": "rollback",
}


def node_page(observed: ObservedManager, timelines: Timelines, clock: Callable[[], float]) -> Page:
    """The page. `clock` is the one of the manager's transactions."""

    async def page() -> Answer:
        return Answer(200, json.dumps(_content(observed, timelines, clock())).encode() + b"\n", JSON)

    return page


def phases(steps: Sequence[Step], took_s: float) -> dict[str, float]:
    """Where the time of a transaction went."""
    spans: dict[str, tuple[float, float]] = {}
    for step in steps:
        phase = PHASES.get(step.verb)
        if phase is not None:
            first, last = spans.get(phase, (step.after_s, 0.0))
            spans[phase] = min(first, step.after_s), max(last, step.after_s + step.took_s)
    work = min((first for first, _ in spans.values()), default=took_s)
    return {"work": work, **{phase: last - first for phase, (first, last) in spans.items()}}


def _content(observed: ObservedManager, timelines: Timelines, now: float) -> dict[str, Any]:
    manager = observed.manager
    live = manager.live
    working = sorted((one for one in live if not one.waits), key=lambda one: one.began_at)

    report = manager.last_report
    return {
        "node": manager.node,
        "pid": os.getpid(),
        "version": VERSION,
        "time": time.time(),
        "trouble": list(manager.trouble),
        "in_doubt": 0 if report is None else len(report.undone),
        "waiting": len(live) - len(working),
        "live": [_live(one, timelines, now) for one in working[:LIVE]],
        "last": [_completed(one) for one in timelines.last],
        "slowest": [_completed(one) for one in timelines.slowest],
        "consumers": _consumers(observed.consumers(), timelines),
    }


def _live(transaction: GlobalTransaction, timelines: Timelines, now: float) -> dict[str, Any]:
    return {
        "name": str(transaction),
        "age_s": max(now - transaction.began_at, 0.0),
        "timeout_s": transaction.timeout_s,
        "state": transaction.status.value,
        "suspended": transaction.suspended,
        "resources": list(transaction.resources),
        "steps": timelines.steps_of(transaction.gtrid),
    }


def _completed(timeline: Timeline) -> dict[str, Any]:
    return {
        "name": named(timeline.gtrid),
        "began_at": timeline.began_at,
        "took_s": timeline.took_s,
        "outcome": timeline.verdict.value if timeline.verdict is not None else "",
        "reasons": timeline.reasons,
        "phases": phases(timeline.steps, timeline.took_s),
        "steps": timeline.steps,
        "omitted": timeline.omitted,
    }


def _consumers(consumers: Iterable[Consumer], timelines: Timelines) -> list[dict[str, Any]]:
    found = []
    for consumer in sorted(consumers, key=lambda one: one.settings.queue):
        health = consumer.health()
        found.append(
            {
                "queue": consumer.settings.queue,
                "state": health.state.value,
                "workers": health.workers,
                "busy": health.busy,
                "counts": asdict(health.counts),
                "rates": timelines.rates(consumer.settings.queue),
                "trouble": list(health.trouble),
            }
        )
    return found
