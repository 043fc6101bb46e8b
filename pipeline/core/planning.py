"""Planning: what a micro-batch reads, and under which global transaction. Generators without I/O.

An epoch is planned under a new global transaction until one is decided. From then on its source branches, which stay
prepared until Spark has logged the batch, are read again: the same messages in the same order.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pipeline.core.effects import (
    Abort,
    Allot,
    Begin,
    FindEpoch,
    FindEpochOf,
    FindIsolation,
    FindUnlogged,
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
from pipeline.core.errors import BatchRefused, EpochGone, PipelineError
from pipeline.core.finishing import DECIDED, Swept, carry_out, fence, resolve, scan, settle
from pipeline.core.isolation import Isolation
from pipeline.core.naming import epoch_of, is_source, source_xid
from pipeline.core.outages import patiently
from pipeline.core.states import EPOCH, EpochState, EpochVerb
from pipeline.core.values import OUTAGE_S
from tm.effects import Force
from tm.log import Branch, Decision, LogStopped
from tm.log.sql_states import GtridState
from xa import XaError
from xa.machine import Result, advance

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pipeline.core.finishing import Steps
    from pipeline.core.ledger import EpochRow, PipelineRow
    from pipeline.core.naming import Own
    from tm.log import LogError
    from tm.log.sql_gtrids import Entry
    from xa import Xid

logger: Final = logging.getLogger("xabridge.pipeline")


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
    if not rows:
        return
    decisions: list[tuple[Decision, EpochRow]] = []
    for row in rows:
        entry: Entry | None = yield Look(row.gtrid)
        state = state_of(row, entry)
        if state is EpochState.ACTIVE:
            decision = yield from _without_a_sink(row, resources)
            state = EpochState.ABORTED if decision is None else EpochState.DECIDED
        else:
            decision = entry.decision if entry is not None else None
        advance(EPOCH, state, EpochVerb.LOG, Result.OK if decision is not None else Result.RB)
        if decision is not None:
            decisions.append((decision, row))
    yield Log(tuple(row.epoch for row in rows))
    for decision, row in decisions:
        yield from carry_out(decision, replace(row, logged=True), resources)


def _without_a_sink(row: EpochRow, resources: Collection[str]) -> Steps[Decision | None]:
    """Nobody decided the epoch. Where no sink of ours was planned for it, another one has what it yielded, and the
    source is decided alone. Else the sink was given up, by code that went on all the same: nothing of it happened."""
    swept = Swept()
    if row.sunk or row.source not in resources:
        found = yield from scan(resources, swept)
        yield from settle(row.gtrid, found.get(row.gtrid, ()), resources, swept)
        entry: Entry | None = yield Look(row.gtrid)
        return entry.decision if entry is not None else None
    told: frozenset[Xid] | XaError = yield Scan(row.source)
    if isinstance(told, XaError):
        raise PipelineError(f"{row.source} can't be asked what epoch {row.epoch} took: {told.message}")
    mine = sorted((xid for xid in told if xid.gtrid == row.gtrid and is_source(xid)), key=lambda xid: xid.bqual)
    decision = Decision(row.gtrid, tuple(Branch(row.source, xid) for xid in mine))
    refused: LogError | None = yield Force(decision)
    if refused is not None:
        raise PipelineError(f"epoch {row.epoch} can't be decided: {refused}") from refused
    yield from fence(row.gtrid, (row.source,))
    others = [Branch(row.source, xid) for xid in told if xid.gtrid == row.gtrid and not is_source(xid)]
    yield from settle(row.gtrid, others, resources, swept)
    return decision


# --- the source -------------------------------------------------------------------------------------------------------
def latest(start: int, resource: str, queues: tuple[str, ...], outage_s: float = OUTAGE_S) -> Steps[int]:
    """The epoch that is read next: `start` when there is nothing to read."""
    if not (yield from has_messages(resource, queues, outage_s)):
        return start
    return (yield from allot())


def allot() -> Steps[int]:
    """A new epoch."""
    epoch: int = yield Allot()
    return epoch


@dataclass(frozen=True, slots=True)
class Planned:
    """What an epoch reads: the branches of its partitions, which are to be read `again`, or to take `rows` messages in
    all, the first `aside` of which are set aside."""

    xids: tuple[Xid, ...]
    rows: int = 0
    aside: int = 0
    again: bool = False


def plan(
    own: Own,
    start: int,
    end: int,
    resource: str,
    partitions: int,
    rows: int,
    resources: Collection[str],
    outage_s: float = OUTAGE_S,
) -> Steps[Planned]:
    """What the epoch reads, with at most so many partitions and rows. EpochGone: it is finished."""
    standing = yield from allotted(end)
    row: EpochRow | None = yield FindEpoch(end)
    if row is None and end <= standing.forgotten:
        raise _gone(end)
    entry: Entry | None = None
    if row is not None:
        entry = yield Look(row.gtrid)
        if state_of(row, entry) is EpochState.ACTIVE:
            yield Abort(row.gtrid)
            entry = yield Look(row.gtrid)
            yield from fence(row.gtrid, resources)
    state = state_of(row, entry)
    if EPOCH.refusal(state, EpochVerb.PLAN) is not None:
        raise _gone(end)
    yield from resolve(own, resources, None)
    if state is EpochState.DECIDED and row is not None and entry is not None and entry.decision is not None:
        return Planned(tuple((yield from _again(row, entry.decision, resource, outage_s))), again=True)
    tries = row.tries + 1 if row is not None else 1
    gtrid = own.gtrid(end, tries)
    isolation = yield from _isolated(gtrid)
    share = isolation.share(rows)
    count = 1 if isolation.suspects else min(partitions, share)
    yield Plan(end, start, gtrid, tries, resource)
    yield from _begin(gtrid)
    advance(EPOCH, state, EpochVerb.PLAN)
    return Planned(tuple(source_xid(gtrid, index) for index in range(count)), share, isolation.aside)


def _isolated(gtrid: bytes) -> Steps[Isolation]:
    """How the try `gtrid` is planned after what came of the last one; noted before it is."""
    before: Isolation | None = yield FindIsolation()
    if before is None:
        return Isolation(gtrid)
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
    yield Isolate(following if following.suspects else None)
    return following


def _begin(gtrid: bytes) -> Steps[None]:
    refused: LogError | None = yield Begin(gtrid)
    if refused is not None:
        raise PipelineError(f"no global transaction can be begun: {refused}") from refused


def _again(row: EpochRow, decision: Decision, resource: str, outage_s: float) -> Steps[list[Xid]]:
    sources = [branch for branch in decision.branches if is_source(branch.xid)]
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
        raise _gone(row.epoch)
    yield PlanAgain(row.gtrid)
    return [branch.xid for branch in sources]


def _gone(epoch: int) -> EpochGone:
    return EpochGone(
        f"epoch {epoch} was decided and finished: its messages are gone, and its output is there. The checkpoint is "
        "older than the decision log (a backup?); start with a new checkpoint, nothing is read twice"
    )


# --- the sink ---------------------------------------------------------------------------------------------------------
def plan_sink(own: Own, resources: Collection[str]) -> Steps[tuple[bytes, int, bool]]:
    """The global transaction that a sink works under, its epoch, and whether it is decided."""
    standing: PipelineRow = yield Standing()
    current = standing.gtrid
    entry: Entry | None = None
    if current is not None:
        entry = yield Look(current)
    active = entry is not None and entry.state is GtridState.ACTIVE
    yield from resolve(own, resources, current if active and own.planned(current or b"") else None)
    if current is not None and entry is not None:
        if active and own.planned(current):
            row: EpochRow | None = yield FindEpochOf(current)
            if row is not None:
                _check_source(row, resources)
                yield Sink(current)
                return current, row.epoch, False
        if active:
            yield Abort(current)
        elif entry.state in DECIDED and standing.again == own.incarnation:
            return current, epoch_of(current), True
    epoch: int = yield Allot()
    gtrid = own.gtrid(epoch, 1)
    yield Plan(epoch, 0, gtrid, 1, "")
    yield from _begin(gtrid)
    yield Sink(gtrid)
    return gtrid, epoch, False


def _check_source(row: EpochRow, resources: Collection[str]) -> None:
    if row.source and row.source not in resources:
        raise PipelineError(
            f"the source reads resource {row.source!r}, which the sink does not know: whoever decides asks it what was "
            f"taken. Configure it for the sink as well, under the same name"
        )


def undecidable(what: str, error: LogError) -> PipelineError:
    """What to raise for a decision that the log did not take."""
    if isinstance(error, LogStopped):
        return PipelineError(f"{what}: whether it is decided is unknown until the log can be reached: {error}")
    return BatchRefused(f"{what} can't be decided: {error}")
