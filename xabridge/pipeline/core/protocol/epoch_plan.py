"""The plan of a micro-batch: what it reads, and under which global transaction.

Each try at an epoch is planned under a new global transaction, until one of them is decided. From then on the epoch is
replayed: its source branches, which stay prepared until Spark has logged the batch, are read again and yield the same
messages in the same order.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tm.log import Branch, Decision, LogStopped
from tm.log.sql.states import GtridState
from xa import XaError
from xa.machine import Result, advance
from xabridge.pipeline.core.epoch_states import EPOCH, EpochState, EpochVerb
from xabridge.pipeline.core.errors import BatchRefused, EpochGone, PipelineError
from xabridge.pipeline.core.protocol.isolation import Isolation
from xabridge.pipeline.core.protocol.recovery import DECIDED, SweepResult, carry_out, fence, resolve, scan, settle
from xabridge.pipeline.core.retry import retried
from xabridge.pipeline.core.values import OUTAGE_S
from xabridge.pipeline.core.xids import epoch_of, is_source, source_epoch, source_xid

if TYPE_CHECKING:
    from collections.abc import Collection

    from tm.log import LogError
    from tm.log.sql.gtrids import Entry
    from xa import Xid
    from xabridge.pipeline.core.ledger.rows import EpochRow, PipelineRow, PlannedEpochs
    from xabridge.pipeline.core.protocol.ports import Ports
    from xabridge.pipeline.core.xids import Incarnation

logger: Final = logging.getLogger("xabridge.pipeline")

OLDER: Final = (
    "the checkpoint is older than what was decided (a backup?). Restore the newest checkpoint. If it is lost, start "
    "with a new checkpoint and the option adopt"
)


def state_of(row: EpochRow | None, entry: Entry | None) -> EpochState:
    """The state of an epoch, by its row and by the log's entry of its global transaction."""
    if row is None:
        return EpochState.ALLOTTED
    if entry is None or entry.state in {GtridState.ACTIVE, GtridState.UNKNOWN}:
        return EpochState.DONE if row.logged else EpochState.ACTIVE
    if entry.state is GtridState.ABORTED:
        return EpochState.DONE if row.logged else EpochState.ABORTED
    if not row.logged:
        return EpochState.DECIDED
    return EpochState.DONE if entry.state is GtridState.DONE else EpochState.LOGGED


async def has_messages(ports: Ports, resource: str, queues: tuple[str, ...], outage_s: float) -> bool:
    """Whether one of the queues has a message. PipelineError: the resource can't be reached."""
    told = await retried(ports, partial(ports.branches.has_messages, resource, queues), outage_s)
    if isinstance(told, XaError):
        raise PipelineError(f"{resource} can't be read: {told.message}")
    return told


async def allotted(ports: Ports, epoch: int) -> PipelineRow:
    """The pipeline's row. PipelineError: the checkpoint names an epoch that this pipeline has never allotted."""
    row = await ports.ledger.row()
    if epoch > row.epoch:
        raise PipelineError(
            f"the checkpoint names epoch {epoch}, but the last epoch of pipeline {row.pipeline!r} is {row.epoch}: the "
            "checkpoint belongs to another decision log. Restore that log, or start with a new checkpoint"
        )
    return row


# --- what Spark has logged --------------------------------------------------------------------------------------------
async def logged(ports: Ports, upto: int, resources: Collection[str]) -> None:
    """Spark has logged every batch of its checkpoint up to this epoch, so that none of them is read again: finishes
    their source branches, and decides what no sink of ours has decided."""
    if upto:
        await allotted(ports, upto)
    rows = await ports.ledger.unlogged(upto)
    decisions: list[tuple[Decision, PlannedEpochs]] = []
    epochs: set[int] = set()
    for row in rows:
        if row.epoch in epochs:
            continue
        planned = await ports.ledger.planned(row.gtrid)
        entry = await ports.log.entry(row.gtrid)
        state = state_of(row, entry)
        if state is EpochState.ACTIVE:
            decision = await _decide_without_sink(ports, row.gtrid, planned, resources)
            state = EpochState.ABORTED if decision is None else EpochState.DECIDED
        else:
            decision = entry.decision if entry is not None else None
        advance(EPOCH, state, EpochVerb.LOG, Result.OK if decision is not None else Result.RB)
        if decision is not None:
            decisions.append((decision, planned))
        epochs |= {one.epoch for one in planned.epochs}
    if epochs:
        await ports.ledger.mark_logged(tuple(sorted(epochs)))
    for decision, planned in decisions:
        await carry_out(ports, decision, planned.as_logged(), resources)


async def _decide_without_sink(
    ports: Ports, gtrid: bytes, planned: PlannedEpochs, resources: Collection[str]
) -> Decision | None:
    """Decides a logged batch that nobody has decided. Where no sink of ours was planned for it, a sink of somebody else
    has its rows, and the sources are decided alone. Otherwise our sink gave up and the user's code went on all the
    same: then nothing of the batch has happened, and it is rolled back."""
    swept = SweepResult()
    if planned.sunk or not set(planned.sources) <= set(resources):
        found = await scan(ports, resources, swept)
        await settle(ports, gtrid, found.get(gtrid, ()), resources, swept)
        entry = await ports.log.entry(gtrid)
        return entry.decision if entry is not None else None
    prepared: list[Branch] = []
    for resource in planned.sources:
        told = await ports.branches.prepared(resource)
        if isinstance(told, XaError):
            raise PipelineError(f"can't ask {resource} which messages epoch {planned.epoch} took: {told.message}")
        ours = sorted((xid for xid in told if xid.gtrid == gtrid), key=lambda xid: xid.bqual)
        prepared += [Branch(resource, xid) for xid in ours]
    decision = Decision(gtrid, tuple(branch for branch in prepared if is_source(branch.xid)))
    refused = await ports.log.force(decision)
    if refused is not None:
        raise PipelineError(f"epoch {planned.epoch} can't be decided: {refused}") from refused
    await fence(ports, gtrid, planned.sources)
    others = [branch for branch in prepared if not is_source(branch.xid)]
    await settle(ports, gtrid, others, resources, swept)
    return decision


# --- the source -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Origin:
    """The reader: a query, and one of its sources. The query is empty for a job without streaming."""

    query: str = ""
    place: int = 0


async def check_newest(ports: Ports, origin: Origin, start: int, end: int | None = None) -> None:
    """EpochGone: the checkpoint is too old. It names `start` as the source's last epoch, and a later one is decided
    which is not `end`, the one that the checkpoint wants to read again."""
    if not origin.query:
        return
    rows = await ports.ledger.later(origin.query, origin.place, start)
    for row in rows:
        if row.epoch == end:
            continue
        entry = await ports.log.entry(row.gtrid)
        if row.logged or (entry is not None and entry.state in DECIDED):
            await ports.ledger.row()  # a driver that has lost the pipeline is told that instead
            raise _too_old(row.epoch, f"the last epoch of the checkpoint is {start}")


async def latest(
    ports: Ports, origin: Origin, start: int, resource: str, queues: tuple[str, ...], outage_s: float = OUTAGE_S
) -> int:
    """The epoch to read next; `start` when there is nothing to read. EpochGone: later ones are decided."""
    await check_newest(ports, origin, start)
    if not await has_messages(ports, resource, queues, outage_s):
        return start
    return await ports.ledger.allot()


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The input of an epoch: the branches of its partitions. Either they are read `again`, or they take `rows` messages
    in all, the first `aside` of which are set aside. `exact`: suspected messages are searched by their number, so that
    no other limit holds; they are no more than an earlier batch had."""

    xids: tuple[Xid, ...]
    rows: int = 0
    aside: int = 0
    again: bool = False
    exact: bool = False


async def plan(
    ports: Ports,
    own: Incarnation,
    origin: Origin,
    start: int,
    end: int,
    resource: str,
    partitions: int,
    rows: int,
    resources: Collection[str],
    outage_s: float = OUTAGE_S,
) -> ReadPlan:
    """Plans what the epoch reads, with at most so many partitions and rows. EpochGone: the epoch is finished, or later
    ones are decided.

    1. Planned twice for one micro-batch, an epoch gets the same plan.
    2. An epoch that is decided is replayed under its global transaction.
    3. The first source of a micro-batch begins a global transaction, and the others join it.
    """
    standing = await allotted(ports, end)
    await check_newest(ports, origin, start, end)
    row = await ports.ledger.epoch(end)
    if row is None and end <= standing.forgotten:
        raise _too_old(end, "it is forgotten")
    entry: Entry | None = None
    if row is not None:
        entry = await ports.log.entry(row.gtrid)
        if state_of(row, entry) is EpochState.ACTIVE:
            if row.gtrid == standing.gtrid and own.planned(row.gtrid):
                isolation = await _next_isolation(ports, row.gtrid, resources, SweepResult())
                return _read_plan(isolation, origin, end, partitions, rows)
            await ports.log.abort(row.gtrid)
            entry = await ports.log.entry(row.gtrid)
            await fence(ports, row.gtrid, resources)
    state = state_of(row, entry)
    if EPOCH.refusal(state, EpochVerb.PLAN) is not None:
        raise _too_old(end, "its messages do not exist any more")
    shared = await _shared_gtrid(ports, own, origin, standing)
    swept = await resolve(ports, own, resources, shared)
    if state is EpochState.DECIDED and row is not None and entry is not None and entry.decision is not None:
        if shared is not None:
            raise _not_one_batch(end)
        return ReadPlan(tuple(await _replayed_xids(ports, row, entry.decision, resource, outage_s)), again=True)
    if origin.query and standing.gtrid is not None and standing.again == own.incarnation:
        replayed = await ports.ledger.planned(standing.gtrid)
        if not replayed.logged:
            raise _not_one_batch(end)
    tries = row.tries + 1 if row is not None else 1
    gtrid = shared or own.gtrid(end, tries)
    isolation = await _next_isolation(ports, gtrid, resources, swept)
    await ports.ledger.plan(end, start, gtrid, tries, resource, origin.query, origin.place)
    if shared is None:
        await _begin(ports, gtrid)
    advance(EPOCH, state, EpochVerb.PLAN)
    return _read_plan(isolation, origin, end, partitions, rows)


def _read_plan(isolation: Isolation, origin: Origin, epoch: int, partitions: int, rows: int) -> ReadPlan:
    """The plan of a new try. While messages of one source are suspected, it is read in the order of its queue by one
    task, and the other sources are not read."""
    if isolation.suspects and isolation.place != origin.place:
        return ReadPlan(())
    share = isolation.share(rows)
    count = 1 if isolation.suspects else min(partitions, share)
    xids = tuple(source_xid(isolation.gtrid, epoch, index) for index in range(count))
    return ReadPlan(xids, share, isolation.aside, exact=bool(isolation.suspects))


async def _next_isolation(ports: Ports, gtrid: bytes, resources: Collection[str], swept: SweepResult) -> Isolation:
    """How the try `gtrid` is isolated, after what came of the last try. It is noted before the try is planned, so that
    the other sources of the query get the same answer.

    The search knows messages by their place in the queue only. While the last try may still hold some, others are at
    the head, and would be blamed for it; then the search begins anew.
    """
    before = await ports.ledger.isolation()
    if before is None:
        return Isolation(gtrid)
    if before.gtrid == gtrid:
        return before
    entry = await ports.log.entry(before.gtrid)
    decided = entry is not None and entry.state in DECIDED
    following = before.following(gtrid, decided=decided)
    if following.suspects and not (decided or await _is_over(ports, before.gtrid, resources)):
        swept.left += 1
    if following.suspects and (swept.left or swept.unreachable):
        logger.warning(
            "the search for messages that make batches fail starts again, because an earlier batch may still hold some"
        )
        following = Isolation(gtrid, place=before.place)
    if following.aside:
        logger.warning("the first %d waiting messages failed alone: the next batch sets them aside", following.aside)
    elif following.suspects > 1:
        logger.warning(
            "one of %d messages may make batches fail: the next batch reads half of them", following.suspects
        )
    elif following.suspects:
        logger.warning("the first waiting message may make batches fail: the next batch reads it alone")
    if following.suspects or before.suspects:
        await ports.ledger.set_isolation(following)
    return following


async def _is_over(ports: Ports, gtrid: bytes, resources: Collection[str]) -> bool:
    """Whether a try that is not decided holds nothing any more, because it is fenced at every resource."""
    fenced = [await ports.branches.fence(resource, gtrid) is None for resource in resources]
    return all(fenced)


async def _shared_gtrid(ports: Ports, own: Incarnation, origin: Origin, standing: PipelineRow) -> bytes | None:
    """The global transaction that another source of the same query has begun for this micro-batch. It is active; that
    of an earlier micro-batch is not active any more when the next one is planned."""
    gtrid = standing.gtrid
    if not origin.query or gtrid is None or not own.planned(gtrid):
        return None
    entry = await ports.log.entry(gtrid)
    planned = await ports.ledger.planned(gtrid)
    if entry is None or entry.state is not GtridState.ACTIVE or not planned.sources:
        return None
    others = all(row.query == origin.query and row.place != origin.place for row in planned.epochs)
    return gtrid if others else None


async def _begin(ports: Ports, gtrid: bytes) -> None:
    refused = await ports.log.begin(gtrid)
    if refused is not None:
        raise PipelineError(f"the log can't begin a global transaction: {refused}") from refused


async def _replayed_xids(ports: Ports, row: EpochRow, decision: Decision, resource: str, outage_s: float) -> list[Xid]:
    sources = [
        branch for branch in decision.branches if is_source(branch.xid) and source_epoch(branch.xid) == row.epoch
    ]
    elsewhere = {branch.resource for branch in sources} - {resource}
    if elsewhere:
        raise PipelineError(
            f"epoch {row.epoch} was read from {', '.join(sorted(elsewhere))}, and has to be read from there again "
            f"before the source is changed to {resource}"
        )
    told = await retried(ports, partial(ports.branches.prepared, resource), outage_s)
    if isinstance(told, XaError):
        raise PipelineError(f"can't ask {resource} which messages epoch {row.epoch} holds: {told.message}")
    if not {branch.xid for branch in sources} <= told:
        raise _too_old(row.epoch, "its messages do not exist any more")
    await ports.ledger.plan_replay(row.gtrid)
    return [branch.xid for branch in sources]


def _too_old(epoch: int, why: str) -> EpochGone:
    return EpochGone(f"epoch {epoch} was decided and finished, and {why}: {OLDER}")


def _not_one_batch(epoch: int) -> EpochGone:
    return EpochGone(
        f"epoch {epoch} does not belong to the same micro-batch as the epochs of the query's other sources: the "
        f"checkpoint has parts of different batches, so {OLDER}"
    )


# --- the sink ---------------------------------------------------------------------------------------------------------
async def plan_sink(ports: Ports, own: Incarnation, query: str, resources: Collection[str]) -> tuple[bytes, int, bool]:
    """Plans the sink of a query ("" for a job): its global transaction, the epoch, and whether that is decided."""
    standing = await ports.ledger.row()
    current = standing.gtrid
    entry: Entry | None = None
    if current is not None:
        entry = await ports.log.entry(current)
    active = entry is not None and entry.state is GtridState.ACTIVE
    await resolve(ports, own, resources, current if active and own.planned(current or b"") else None)
    if current is not None and entry is not None:
        if active and own.planned(current):
            planned = await ports.ledger.planned(current)
            if planned.epochs and all(row.query == query for row in planned.epochs):
                _check_sources(planned, resources)
                await check_one_gtrid(ports, own, query, current)
                await ports.ledger.mark_sink(current)
                return current, planned.epoch, False
        if active:
            await ports.log.abort(current)
        elif entry.state in DECIDED and standing.again == own.incarnation:
            return current, epoch_of(current), True
    await check_one_gtrid(ports, own, query, None)
    epoch = await ports.ledger.allot()
    gtrid = own.gtrid(epoch, 1)
    await ports.ledger.plan(epoch, 0, gtrid, 1, "", query, 0)
    await _begin(ports, gtrid)
    await ports.ledger.mark_sink(gtrid)
    return gtrid, epoch, False


async def check_one_gtrid(ports: Ports, own: Incarnation, query: str, gtrid: bytes | None) -> None:
    """BatchRefused: a source of the query was planned for this micro-batch under another global transaction than
    `gtrid`. What it took would not be decided together with what is written."""
    if not query:
        return
    waiting = await ports.ledger.waiting(query)
    astray = [row for row in waiting if row.gtrid != gtrid and own.planned(row.gtrid)]
    if astray:
        names = ", ".join(f"{row.epoch} ({row.source})" for row in astray[:3])
        raise BatchRefused(f"the sink's decision would not contain epoch {names}: the batch has to be run again")


def _check_sources(planned: PlannedEpochs, resources: Collection[str]) -> None:
    missing = [source for source in planned.sources if source not in resources]
    if missing:
        raise PipelineError(
            f"the query reads resource {missing[0]!r}, which the sink does not know. The sink needs it, because before "
            "the decision it asks there which messages were taken. Configure it for the sink as well, under the same "
            "name"
        )


def decision_error(what: str, error: LogError) -> PipelineError:
    """The error for a decision that the log did not accept."""
    if isinstance(error, LogStopped):
        return PipelineError(f"it is unknown whether {what} is decided, until the log can be reached: {error}")
    return BatchRefused(f"{what} can't be decided: {error}")
