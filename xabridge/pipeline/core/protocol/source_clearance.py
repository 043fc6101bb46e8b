"""Clearance of a source's brokers before a new try: no earlier try may take messages there any more, and what earlier
tries have taken is back in its queues. So messages of one queue are never read by two tries at the same time, and their
order stays.

1. Every try that was planned to read at a broker, and that is not known to be fenced there, is fenced: its late tasks
   can neither start nor prepare a branch. A try that is at work under the same decision is left alone.
2. What earlier tries have prepared is rolled back, unless it is decided (`xabridge.pipeline.core.protocol.recovery`).

A broker at which one of the two can't be done is waited for, or skipped where the source allows it. It is cleared
before it is read the next time, however many epochs have skipped it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from tm.log.sql.states import GtridState
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.protocol.recovery import DECIDED, resolve
from xabridge.pipeline.core.retry import is_outage, pauses, retried

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from xabridge.pipeline.core.protocol.ports import Ports
    from xabridge.pipeline.core.values import Source
    from xabridge.pipeline.core.xids import Incarnation

OVER: Final = DECIDED | {GtridState.ABORTED}


@dataclass(slots=True)
class ClearanceResult:
    """What clearance came to: brokers that are `away`, with the reason; resources where an earlier try may still hold
    messages (`unsure`); and which tries are fenced where."""

    away: dict[str, str] = field(default_factory=dict)
    unsure: frozenset[str] = frozenset()
    fenced: list[tuple[str, bytes]] = field(default_factory=list)


async def clear(
    ports: Ports,
    own: Incarnation,
    source: Source,
    keep: bytes | None,
    resources: Collection[str],
    outage_s: float,
    away: Mapping[str, str],
) -> ClearanceResult:
    """Clears the brokers of the source, but for those that are known to be `away`, with the reason. `keep` is the
    global transaction at work. PipelineError: a broker is away that is not skipped, or all of them are."""
    done = await _clear(ports, own, source, keep, resources, outage_s, away)
    for pause_s in pauses(outage_s):
        if len(done.away) < len(source.shards):
            return done
        await ports.pause(pause_s)
        done = await _clear(ports, own, source, keep, resources, outage_s, {})
    if len(done.away) == len(source.shards):
        raise PipelineError("; ".join(done.away.values()))
    return done


async def _clear(
    ports: Ports,
    own: Incarnation,
    source: Source,
    keep: bytes | None,
    resources: Collection[str],
    outage_s: float,
    away: Mapping[str, str],
) -> ClearanceResult:
    done = ClearanceResult({name: why for name, why in away.items() if name in source.resources})
    patience_s = 0.0 if source.skips else outage_s
    await _fence(ports, source, keep, patience_s, done)

    for pause_s in (*pauses(patience_s), None):
        swept = await resolve(ports, own, [name for name in resources if name not in done.away], keep)
        done.unsure = frozenset(swept.left_at | swept.unreachable.keys())
        needed = swept.unreachable.keys() | (swept.left_at if source.by_queue else set())
        missing = sorted(needed & set(source.resources))
        if source.skips:
            done.away |= {name: swept.unreachable.get(name, f"{name} still holds messages") for name in missing}
        if source.skips or not missing or not source.by_queue:
            return done
        if pause_s is None:
            raise PipelineError(
                f"{', '.join(missing)} may still hold messages of an earlier batch, which come before the next ones: "
                f"{'; '.join(swept.unreachable.values()) or 'they could not be rolled back yet'}"
            )
        await ports.pause(pause_s)
    return done


async def _fence(ports: Ports, source: Source, keep: bytes | None, patience_s: float, done: ClearanceResult) -> None:
    """Step 1. It changes no outcome: what an earlier try has decided has every branch prepared, and another try is
    never decided, because the log says so before it is fenced."""
    for resource, gtrid in await ports.ledger.unfenced():
        if resource not in source.resources or resource in done.away or gtrid == keep:
            continue
        entry = await ports.log.entry(gtrid)
        if entry is None or entry.state not in OVER:
            await ports.log.abort(gtrid)
        refused = await retried(ports, partial(ports.branches.fence, resource, gtrid), patience_s)
        if refused is None:
            done.fenced.append((resource, gtrid))
        elif source.skips and is_outage(refused):
            done.away[resource] = f"{resource} can't be reached: {refused.message}"
        elif is_outage(refused) or source.by_queue:
            raise PipelineError(f"{resource} can't be fenced against an earlier batch: {refused.message}")
