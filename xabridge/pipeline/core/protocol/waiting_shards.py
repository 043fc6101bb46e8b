"""The shards of a source that have messages now, and those whose broker is away.

Patterns of queues are matched here, so that a new queue is read from the next epoch on. A broker that is away is waited
for, or skipped where the source allows it. At least one broker has to be there: a query that reads nothing would look
like one that has nothing to read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from xa import XaError
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.retry import is_outage, pauses, retried
from xabridge.pipeline.core.shards import Shard, is_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xabridge.pipeline.core.protocol.ports import Ports
    from xabridge.pipeline.core.values import Source

NONE: Final[Mapping[str, str]] = MappingProxyType({})
"""No broker."""


@dataclass(slots=True)
class WaitingShards:
    """The shards that have messages, and the reason for each broker that is away. A source that is read by queue has a
    shard for each queue."""

    shards: list[Shard] = field(default_factory=list)
    away: dict[str, str] = field(default_factory=dict)


async def look(ports: Ports, source: Source, outage_s: float, away: Mapping[str, str] = NONE) -> WaitingShards:
    """Looks at every broker of the source, but for those that are known to be `away`, with the reason.
    PipelineError: a broker can't be read that is not skipped, or all of them are away."""
    found = await _look(ports, source, outage_s, away)
    for pause_s in pauses(outage_s):
        if len(found.away) < len(source.shards):
            break
        await ports.pause(pause_s)
        found = await _look(ports, source, outage_s, NONE)
    return _some(source, found)


async def look_once(ports: Ports, source: Source, outage_s: float, away: Mapping[str, str]) -> WaitingShards:
    """Looks once at every broker but those that are `away`, each with its reason: they stay away."""
    return _some(source, await _look(ports, source, outage_s, away))


def _some(source: Source, found: WaitingShards) -> WaitingShards:
    if len(found.away) == len(source.shards):
        raise PipelineError("; ".join(found.away.values()))
    return found


async def _look(ports: Ports, source: Source, outage_s: float, away: Mapping[str, str]) -> WaitingShards:
    found = WaitingShards()
    for shard in source.shards:
        if shard.resource in away:
            found.away[shard.resource] = away[shard.resource]
            continue
        asking = partial(_waiting, ports, shard, by_queue=source.by_queue)
        waiting = await retried(ports, asking, 0.0 if source.skips else outage_s)
        if not isinstance(waiting, XaError):
            found.shards += waiting
            continue
        why = f"{shard.resource} can't be read: {waiting.message}"
        if not (source.skips and is_outage(waiting)):
            raise PipelineError(why)
        found.away[shard.resource] = why
    return found


async def _waiting(ports: Ports, shard: Shard, *, by_queue: bool) -> list[Shard] | XaError:
    """The shard, or each of its queues, if it has messages."""
    queues: dict[str, bool | None] = {queue: None for queue in shard.queues if not is_pattern(queue)}
    patterns = [queue for queue in shard.queues if is_pattern(queue)]
    if patterns:
        counts = await ports.branches.queues(shard.resource, patterns)
        if isinstance(counts, XaError):
            return counts
        queues = {**{queue: count > 0 for queue, count in counts.items()}, **queues}

    names = tuple(sorted(queues)) if patterns else shard.queues
    if by_queue:
        waiting: list[Shard] = []
        for queue in names:
            has = queues[queue]
            asked = await ports.branches.has_messages(shard.resource, (queue,)) if has is None else has
            if isinstance(asked, XaError):
                return asked
            waiting += [Shard(shard.resource, (queue,))] if asked else []
        return waiting
    if any(queues.values()):
        return [Shard(shard.resource, names)]
    named = tuple(queue for queue in names if queues[queue] is None)
    some = await ports.branches.has_messages(shard.resource, named) if named else False
    if isinstance(some, XaError):
        return some
    return [Shard(shard.resource, names)] if some else []


async def count_waiting(
    ports: Ports, source: Source, outage_s: float, away: Mapping[str, str] = NONE
) -> tuple[int, dict[str, str]]:
    """How many messages the source has to read now, and which brokers are away. PipelineError: as `look`."""
    found = await look(ports, source, outage_s, away)
    counted = 0
    for shard in found.shards:
        asking = partial(ports.branches.count_messages, shard.resource, shard.queues)
        count = await retried(ports, asking, 0.0 if source.skips else outage_s)
        if not isinstance(count, XaError):
            counted += count
            continue
        why = f"{shard.resource} can't be read: {count.message}"
        if not (source.skips and is_outage(count)):
            raise PipelineError(why)
        found.away[shard.resource] = why
    return counted, found.away
