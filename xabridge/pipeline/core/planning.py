"""Planning: what a micro-batch reads, and under which global transaction. Generators without I/O.

An epoch is planned under a new global transaction until one is decided. From then on its source branches, which stay
prepared until Spark has logged the batch, are read again: the same messages in the same order.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tm.effects import Force
from tm.log import Branch, Decision, LogStopped
from tm.log.sql.states import GtridState
from xa import XaError
from xa.machine import Result, advance
from xabridge.pipeline.core.effects import (
    Abort,
    Allot,
    Begin,
    FindEpoch,
    FindIsolation,
    FindLater,
    FindPlanned,
    FindUnlogged,
    FindWaiting,
    HasMessages,
    Isolate,
    Log,
    Look,
    Plan,
    PlanAgain,
    Scan,
    Sink,
    Standing,
)
from xabridge.pipeline.core.errors import BatchRefused, EpochGone, PipelineError
from xabridge.pipeline.core.finishing import DECIDED, Swept, carry_out, fence, resolve, scan, settle
from xabridge.pipeline.core.isolation import Isolation
from xabridge.pipeline.core.naming import epoch_of, is_source, source_epoch, source_xid
from xabridge.pipeline.core.outages import patiently
from xabridge.pipeline.core.states import EPOCH, EpochState, EpochVerb
from xabridge.pipeline.core.values import OUTAGE_S

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tm.log import LogError
    from tm.log.sql.gtrids import Entry
    from xa import Xid
    from xabridge.pipeline.core.finishing import Steps
    from xabridge.pipeline.core.ledger import EpochRow, PipelineRow, Planned
    from xabridge.pipeline.core.naming import Own

logger: Final = logging.getLogger("xabridge.pipeline")

OLDER: Final = (
    "the checkpoint is older than what was decided (a backup?). Bring the newest checkpoint back; where there is none, "
    "start with a new checkpoint, and adopt the pipeline with it"
)


def state_of(row: EpochRow | None, entry: Entry | None) -> EpochState:
    """Where an epoch stands, by its row and the log's entry of its global transaction."""
    if row is None:
        return EpochState.ALLOTTED
    if entry is None or entry.state in {GtridState.ACTIVE, GtridState.UNKNOWN}:
        return EpochState.DONE if row.logged else EpochState.ACTIVE
    if entry.state is GtridState.ABORTED:
        return EpochState.DONE if row.logged else EpochState.ABORTED
    if not row.logged:
        return EpochState.DECIDED
    return EpochState.DONE if entry.state is GtridState.DONE else EpochState.LOGGED


def has_messages(resource: str, queues: tuple[str, ...], outage_s: float) -> Steps[bool]:
    """Whether there is something to read. PipelineError: the resource can't be reached."""
    told: bool | XaError = yield from patiently(HasMessages(resource, queues), outage_s)
    if isinstance(told, XaError):
        raise PipelineError(f"{resource} can't be read: {told.message}")
    return told


def allotted(epoch: int) -> Steps[PipelineRow]:
    """The pipeline's row. PipelineError: it never gave the epoch that a checkpoint names."""
    row: PipelineRow = yield Standing()
    if epoch > row.epoch:
        raise PipelineError(
            f"the checkpoint names epoch {epoch}, and pipeline {row.pipeline!r} has given {row.epoch} so far: the "
            "checkpoint belongs to another decision log. Bring that log back, or start with a new checkpoint"
        )
    return row


# --- what Spark has logged --------------------------------------------------------------------------------------------
def logged(upto: int, resources: Collection[str]) -> Steps[None]:
    """Spark has logged every batch up to an epoch, of its checkpoint: from now on none of them is read again."""
    if upto:
        yield from allotted(upto)
    rows: Sequence[EpochRow] = yield FindUnlogged(upto)
    decisions: list[tuple[Decision, Planned]] = []
    epochs: set[int] = set()
    for row in rows:
        if row.epoch in epochs:
            continue
        planned: Planned = yield FindPlanned(row.gtrid)
        entry: Entry | None = yield Look(row.gtrid)
        state = state_of(row, entry)
        if state is EpochState.ACTIVE:
            decision = yield from _without_a_sink(row.gtrid, planned, resources)
            state = EpochState.ABORTED if decision is None else EpochState.DECIDED
        else:
            decision = entry.decision if entry is not None else None
        advance(EPOCH, state, EpochVerb.LOG, Result.OK if decision is not None else Result.RB)
        if decision is not None:
            decisions.append((decision, planned))
        epochs |= {one.epoch for one in planned.epochs}
    if epochs:
        yield Log(tuple(sorted(epochs)))
    for decision, planned in decisions:
        yield from carry_out(decision, planned.as_logged(), resources)


def _without_a_sink(gtrid: bytes, planned: Planned, resources: Collection[str]) -> Steps[Decision | None]:
    """Nobody decided the batch. Where no sink of ours was planned for it, another one has what it yielded, and the
    sources are decided alone. Else the sink was given up, by code that went on all the same: nothing of it happened."""
    swept = Swept()
    if planned.sunk or not set(planned.sources) <= set(resources):
        found = yield from scan(resources, swept)
        yield from settle(gtrid, found.get(gtrid, ()), resources, swept)
        entry: Entry | None = yield Look(gtrid)
        return entry.decision if entry is not None else None
    prepared: list[Branch] = []
    for resource in planned.sources:
        told: frozenset[Xid] | XaError = yield Scan(resource)
        if isinstance(told, XaError):
            raise PipelineError(f"{resource} can't be asked what epoch {planned.epoch} took: {told.message}")
        ours = sorted((xid for xid in told if xid.gtrid == gtrid), key=lambda xid: xid.bqual)
        prepared += [Branch(resource, xid) for xid in ours]
    decision = Decision(gtrid, tuple(branch for branch in prepared if is_source(branch.xid)))
    refused: LogError | None = yield Force(decision)
    if refused is not None:
        raise PipelineError(f"epoch {planned.epoch} can't be decided: {refused}") from refused
    yield from fence(gtrid, planned.sources)
    others = [branch for branch in prepared if not is_source(branch.xid)]
    yield from settle(gtrid, others, resources, swept)
    return decision


# --- the source -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Origin:
    """Who reads: a query, and which of its sources; a job without streaming is none."""

    query: str = ""
    place: int = 0


def check_newest(origin: Origin, start: int, end: int | None = None) -> Steps[None]:
    """EpochGone: the checkpoint names `start` as the source's last epoch, and a later one than that is decided, which
    is not `end`, the one that the checkpoint wants to have read again."""
    if not origin.query:
        return
    rows: Sequence[EpochRow] = yield FindLater(origin.query, origin.place, start)
    for row in rows:
        if row.epoch == end:
            continue
        entry: Entry | None = yield Look(row.gtrid)
        if row.logged or (entry is not None and entry.state in DECIDED):
            yield Standing()  # who has lost the pipeline hears of that instead
            raise _older(row.epoch, f"the checkpoint's last one is {start}")


def latest(
    origin: Origin, start: int, resource: str, queues: tuple[str, ...], outage_s: float = OUTAGE_S
) -> Steps[int]:
    """The epoch that is read next: `start` when there is nothing to read. EpochGone: later ones are decided."""
    yield from check_newest(origin, start)
    if not (yield from has_messages(resource, queues, outage_s)):
        return start
    return (yield from allot())


def allot() -> Steps[int]:
    """A new epoch."""
    epoch: int = yield Allot()
    return epoch


@dataclass(frozen=True, slots=True)
class Reading:
    """What an epoch reads: the branches of its partitions, which are to be read `again`, or to take `rows` messages in
    all, the first `aside` of which are set aside."""

    xids: tuple[Xid, ...]
    rows: int = 0
    aside: int = 0
    again: bool = False


def plan(
    own: Own,
    origin: Origin,
    start: int,
    end: int,
    resource: str,
    partitions: int,
    rows: int,
    resources: Collection[str],
    outage_s: float = OUTAGE_S,
) -> Steps[Reading]:
    """What the epoch reads, with at most so many partitions and rows. EpochGone: it is finished, or later ones are
    decided.

    1. Asked twice of one micro-batch, it tells the same.
    2. An epoch that is decided is read again, as its global transaction says.
    3. The first source of a micro-batch begins a global transaction, the others join it.
    """
    standing = yield from allotted(end)
    yield from check_newest(origin, start, end)
    row: EpochRow | None = yield FindEpoch(end)
    if row is None and end <= standing.forgotten:
        raise _older(end, "it is forgotten")
    entry: Entry | None = None
    if row is not None:
        entry = yield Look(row.gtrid)
        if state_of(row, entry) is EpochState.ACTIVE:
            if row.gtrid == standing.gtrid and own.planned(row.gtrid):
                return _reading((yield from _isolated(row.gtrid)), origin, end, partitions, rows)
            yield Abort(row.gtrid)
            entry = yield Look(row.gtrid)
            yield from fence(row.gtrid, resources)
    state = state_of(row, entry)
    if EPOCH.refusal(state, EpochVerb.PLAN) is not None:
        raise _older(end, "its messages are gone")
    shared = yield from _shared(own, origin, standing)
    yield from resolve(own, resources, shared)
    if state is EpochState.DECIDED and row is not None and entry is not None and entry.decision is not None:
        if shared is not None:
            raise _mixed(end)
        return Reading(tuple((yield from _again(row, entry.decision, resource, outage_s))), again=True)
    if origin.query and standing.gtrid is not None and standing.again == own.incarnation:
        replayed: Planned = yield FindPlanned(standing.gtrid)
        if not replayed.logged:
            raise _mixed(end)
    tries = row.tries + 1 if row is not None else 1
    gtrid = shared or own.gtrid(end, tries)
    isolation = yield from _isolated(gtrid)
    yield Plan(end, start, gtrid, tries, resource, origin.query, origin.place)
    if shared is None:
        yield from _begin(gtrid)
    advance(EPOCH, state, EpochVerb.PLAN)
    return _reading(isolation, origin, end, partitions, rows)


def _reading(isolation: Isolation, origin: Origin, epoch: int, partitions: int, rows: int) -> Reading:
    """A new try. Where something is suspected of one source, that is read in the order of its queue, and no other."""
    if isolation.suspects and isolation.place != origin.place:
        return Reading(())
    share = isolation.share(rows)
    count = 1 if isolation.suspects else min(partitions, share)
    xids = tuple(source_xid(isolation.gtrid, epoch, index) for index in range(count))
    return Reading(xids, share, isolation.aside)


def _isolated(gtrid: bytes) -> Steps[Isolation]:
    """How the try `gtrid` is planned after what came of the last one; noted before it is. Another source of the same
    query hears the same."""
    before: Isolation | None = yield FindIsolation()
    if before is None:
        return Isolation(gtrid)
    if before.gtrid == gtrid:
        return before
    entry: Entry | None = yield Look(before.gtrid)
    following = before.following(gtrid, decided=entry is not None and entry.state in DECIDED)
    if following.aside:
        logger.warning(
            "the first %d of the messages that wait failed alone: the next batch sets them aside", following.aside
        )
    elif following.suspects > 1:
        logger.warning(
            "one of %d messages may be what makes batches fail: the next batch reads half of them", following.suspects
        )
    elif following.suspects:
        logger.warning("the first of the messages that wait may be what makes batches fail: it is read alone")
    if following.suspects or before.suspects:
        yield Isolate(following)
    return following


def _shared(own: Own, origin: Origin, standing: PipelineRow) -> Steps[bytes | None]:
    """The global transaction that another source of the same query has begun for this micro-batch: it is at work, as
    that of an earlier one is not any more when the next one is planned."""
    gtrid = standing.gtrid
    if not origin.query or gtrid is None or not own.planned(gtrid):
        return None
    entry: Entry | None = yield Look(gtrid)
    planned: Planned = yield FindPlanned(gtrid)
    if entry is None or entry.state is not GtridState.ACTIVE or not planned.sources:
        return None
    others = all(row.query == origin.query and row.place != origin.place for row in planned.epochs)
    return gtrid if others else None


def _begin(gtrid: bytes) -> Steps[None]:
    refused: LogError | None = yield Begin(gtrid)
    if refused is not None:
        raise PipelineError(f"no global transaction can be begun: {refused}") from refused


def _again(row: EpochRow, decision: Decision, resource: str, outage_s: float) -> Steps[list[Xid]]:
    sources = [
        branch for branch in decision.branches if is_source(branch.xid) and source_epoch(branch.xid) == row.epoch
    ]
    elsewhere = {branch.resource for branch in sources} - {resource}
    if elsewhere:
        raise PipelineError(
            f"epoch {row.epoch} was read from {', '.join(sorted(elsewhere))}, and has to be read from there again: "
            f"{resource} must not take its place before that"
        )
    told: frozenset[Xid] | XaError = yield from patiently(Scan(resource), outage_s)
    if isinstance(told, XaError):
        raise PipelineError(f"{resource} can't be asked what epoch {row.epoch} holds: {told.message}")
    if not {branch.xid for branch in sources} <= told:
        raise _older(row.epoch, "its messages are gone")
    yield PlanAgain(row.gtrid)
    return [branch.xid for branch in sources]


def _older(epoch: int, why: str) -> EpochGone:
    return EpochGone(f"epoch {epoch} was decided and finished, and {why}: {OLDER}")


def _mixed(epoch: int) -> EpochGone:
    return EpochGone(
        f"epoch {epoch} is not of the same micro-batch as what the query's other sources read: the checkpoint was not "
        f"written as one, so {OLDER}"
    )


# --- the sink ---------------------------------------------------------------------------------------------------------
def plan_sink(own: Own, query: str, resources: Collection[str]) -> Steps[tuple[bytes, int, bool]]:
    """The global transaction that the sink of a query (of a job: "") works under, its epoch, and whether it is
    decided."""
    standing: PipelineRow = yield Standing()
    current = standing.gtrid
    entry: Entry | None = None
    if current is not None:
        entry = yield Look(current)
    active = entry is not None and entry.state is GtridState.ACTIVE
    yield from resolve(own, resources, current if active and own.planned(current or b"") else None)
    if current is not None and entry is not None:
        if active and own.planned(current):
            planned: Planned = yield FindPlanned(current)
            if planned.epochs and all(row.query == query for row in planned.epochs):
                _check_sources(planned, resources)
                yield from check_whole(own, query, current)
                yield Sink(current)
                return current, planned.epoch, False
        if active:
            yield Abort(current)
        elif entry.state in DECIDED and standing.again == own.incarnation:
            return current, epoch_of(current), True
    yield from check_whole(own, query, None)
    epoch: int = yield Allot()
    gtrid = own.gtrid(epoch, 1)
    yield Plan(epoch, 0, gtrid, 1, "", query, 0)
    yield from _begin(gtrid)
    yield Sink(gtrid)
    return gtrid, epoch, False


def check_whole(own: Own, query: str, gtrid: bytes | None) -> Steps[None]:
    """BatchRefused: a source of the query was planned for this micro-batch under another global transaction than
    `gtrid`, so that what it took would not be decided with what is written."""
    if not query:
        return
    waiting: Sequence[EpochRow] = yield FindWaiting(query)
    astray = [row for row in waiting if row.gtrid != gtrid and own.planned(row.gtrid)]
    if astray:
        names = ", ".join(f"{row.epoch} ({row.source})" for row in astray[:3])
        raise BatchRefused(f"epoch {names} is not part of what the sink would decide: the batch has to be run again")


def _check_sources(planned: Planned, resources: Collection[str]) -> None:
    missing = [source for source in planned.sources if source not in resources]
    if missing:
        raise PipelineError(
            f"the query reads resource {missing[0]!r}, which the sink does not know: whoever decides asks it what was "
            f"taken. Configure it for the sink as well, under the same name"
        )


def undecidable(what: str, error: LogError) -> PipelineError:
    """What to raise for a decision that the log did not take."""
    if isinstance(error, LogStopped):
        return PipelineError(f"{what}: whether it is decided is unknown until the log can be reached: {error}")
    return BatchRefused(f"{what} can't be decided: {error}")
