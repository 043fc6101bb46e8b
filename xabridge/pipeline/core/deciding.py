"""Deciding: commit and abort of a micro-batch. Generators without I/O.

Commit:

 1. What was decided before is not decided again: this attempt is rolled back.
 2. Rows that tasks have staged by key are upserted, and their branches prepared.
 3. Every branch that a task reported must be prepared; what the source took is what its prepared branches hold.
 4. The batch is bound to its global transaction, durably.
 5. The decision, with all of these branches, is forced into the log: the commit point. From here on nothing is raised.
 6. The sinks are committed, the global transaction is fenced, and its other branches are rolled back. The sources wait
    until Spark has logged the batch.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tm.effects import Force
from tm.log import Branch, Decision, LogError
from tm.log.sql.states import GtridState
from tm.verdicts import Verb
from xa import XaError
from xabridge.pipeline.core.effects import (
    Abort,
    Bind,
    Count,
    Failed,
    FindBatch,
    FindIsolation,
    FindPlanned,
    Isolate,
    Log,
    Look,
    Replayed,
    Scan,
    Standing,
    Upsert,
)
from xabridge.pipeline.core.errors import BatchRefused, EpochGone, PipelineError
from xabridge.pipeline.core.finishing import DECIDED, Swept, carry_out, fence, scan, settle, tell
from xabridge.pipeline.core.isolation import EXCUSED, Isolation
from xabridge.pipeline.core.naming import is_excuse, is_source, source_epoch
from xabridge.pipeline.core.outages import patiently
from xabridge.pipeline.core.planning import OLDER, check_whole, undecidable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tm.log.sql.gtrids import Entry
    from xa import Xid
    from xabridge.pipeline.core.finishing import Steps
    from xabridge.pipeline.core.ledger import BatchRow, PipelineRow, Planned
    from xabridge.pipeline.core.naming import Own
    from xabridge.pipeline.core.values import Batch, SinkPlan, SinkReport

logger: Final = logging.getLogger("xabridge.pipeline")


@dataclass(slots=True)
class Outcome:
    """What became of a batch: its decision, whether it was decided before, and what was left to recovery."""

    decision: Decision
    before: bool
    swept: int = 0
    left: int = 0


def commit(
    own: Own, plan: SinkPlan, batch: Batch | None, reports: Sequence[SinkReport], resources: Collection[str]
) -> Steps[Outcome]:
    """As the module's docstring says. BatchRefused: it is not decided, and has to be run again."""
    try:
        return (yield from _commit(own, plan, batch, reports, resources))
    except PipelineError as error:
        with suppress(LogError):  # then nothing is noted of this try, or nothing is noted any more by this driver
            if isinstance(error, BatchRefused) and error.of_rows:
                found = yield from scan(resources, Swept())
                yield from _note_failed(plan.gtrid, found.get(plan.gtrid, []))
            else:
                yield Failed(plan.gtrid, EXCUSED)
        raise


def _commit(
    own: Own, plan: SinkPlan, batch: Batch | None, reports: Sequence[SinkReport], resources: Collection[str]
) -> Steps[Outcome]:
    if batch is not None and batch.query != plan.query:
        raise PipelineError(
            f"{_name(plan, batch)} was planned for query {plan.query}, and query {batch.query} wrote it"
        )
    before = yield from _decided_before(plan, batch)
    if before is not None:
        return (yield from _discard(own, plan, before, resources))
    standing: PipelineRow = yield Standing()
    entry: Entry | None = yield Look(plan.gtrid)
    planned: Planned = yield FindPlanned(plan.gtrid)
    if (
        plan.decided
        or entry is None
        or entry.state is not GtridState.ACTIVE
        or standing.gtrid != plan.gtrid
        or not planned.epochs
    ):
        raise _not_at_work(plan, batch, entry, standing)
    yield from check_whole(own, plan.query, plan.gtrid)
    reported = [branch for report in reports for branch in report.branches]
    reported += yield from _upserted(plan, reports, resources)
    decision = Decision(plan.gtrid, (yield from _prepared(plan, planned, reported, resources)))
    yield from _note_unproven(plan.gtrid, decision.branches)
    if batch is not None:
        yield Bind(batch.query, batch.number, plan.gtrid, batch.offsets)
    refused: LogError | None = yield Force(decision)
    if refused is not None:
        raise undecidable(_name(plan, batch), refused) from refused
    outcome = Outcome(decision, before=False)
    try:
        yield from _after(plan, planned, outcome, resources, logged=batch is None or not planned.sources)
    except LogError as error:
        logger.warning("%s is decided; what could not be finished is left to recovery: %s", _name(plan, batch), error)
    return outcome


def _decided_before(plan: SinkPlan, batch: Batch | None) -> Steps[Decision | None]:
    """The decision of the batch, if it has one."""
    gtrid, offsets = plan.gtrid, ""
    if batch is not None:
        bound: BatchRow | None = yield FindBatch(batch.query)
        if bound is not None and bound.batch > batch.number:
            raise EpochGone(
                f"batch {batch.number} of query {batch.query} was decided long ago (the last one is {bound.batch}): "
                f"{OLDER}"
            )
        if bound is None or bound.batch != batch.number:
            return None
        gtrid, offsets = bound.gtrid, bound.offsets
        if gtrid != plan.gtrid:  # an earlier attempt at it: it never will be decided, unless it is
            yield Abort(gtrid)
    entry: Entry | None = yield Look(gtrid)
    if entry is None or entry.decision is None or entry.state not in DECIDED:
        return None
    if batch is not None and gtrid != plan.gtrid:
        yield from _check_same(plan, batch, entry.decision, offsets)
    return entry.decision


def _check_same(plan: SinkPlan, batch: Batch, decision: Decision, offsets: str) -> Steps[None]:
    """The batch was decided before under another global transaction, which is right for one that reads nothing of ours:
    it is planned anew each time. EpochGone: this one or that one has, or it reads something else of others."""
    planned: Planned = yield FindPlanned(plan.gtrid)
    ours = planned.sources or any(is_source(branch.xid) for branch in decision.branches)
    if ours or (offsets and batch.offsets and offsets != batch.offsets):
        raise EpochGone(
            f"batch {batch.number} of query {batch.query} was decided, with other messages than now: {OLDER}"
        )


def _not_at_work(plan: SinkPlan, batch: Batch | None, entry: Entry | None, standing: PipelineRow) -> PipelineError:
    name = _name(plan, batch)
    if plan.decided:
        return PipelineError(
            f"{name}: epoch {plan.epoch} was decided, and not as this batch: the checkpoint was copied, or another "
            "sink had it. Start with a new checkpoint"
        )
    if entry is not None and entry.state is GtridState.ABORTED:
        return BatchRefused(f"{name} was given up: it is rolled back, and has to be run again")
    if standing.gtrid != plan.gtrid:
        return BatchRefused(f"{name}: another batch of the pipeline was planned since; it has to be run again")
    return BatchRefused(f"{name}: its global transaction is {entry.state.value if entry else 'unknown'}")


def _note_unproven(gtrid: bytes, branches: Sequence[Branch]) -> Steps[None]:
    """Where messages are set aside and there were no others, the decision proves nothing: all sources have their turn
    again."""
    known: Isolation | None = yield FindIsolation()
    if known is None or known.gtrid != gtrid or not known.aside:
        return
    messages: dict[int, int] = yield from _taken(gtrid, branches)
    if messages.get(known.place, 0) <= known.aside:
        yield Isolate(Isolation(gtrid, place=known.place))


def _upserted(plan: SinkPlan, reports: Sequence[SinkReport], resources: Collection[str]) -> Steps[tuple[Branch, ...]]:
    """The branches of the rows that tasks have staged; BatchRefused: they could not be upserted."""
    staged = tuple(one for report in reports for one in report.staged)
    if not staged:
        return ()
    for name in sorted({one.target.resource for one in staged}):
        _check_configured(name, resources)
    if any(report.staged and report.gtrid != plan.gtrid for report in reports):
        raise BatchRefused("rows by key are of another attempt: the batch has to be run again")
    answer: tuple[Branch, ...] | BatchRefused = yield from patiently(Upsert(plan.gtrid, staged), plan.outage_s)
    if isinstance(answer, BatchRefused):
        raise answer
    return answer


def _check_configured(name: str, resources: Collection[str]) -> None:
    if name not in resources:
        raise PipelineError(f"resource {name!r} is not configured for the sink's commit")


def _prepared(
    plan: SinkPlan, planned: Planned, reported: Sequence[Branch], resources: Collection[str]
) -> Steps[tuple[Branch, ...]]:
    """What the decision names; BatchRefused where it is not all prepared."""
    prepared: dict[str, frozenset[Xid]] = {}
    for resource in sorted({branch.resource for branch in reported} | set(planned.sources)):
        _check_configured(resource, resources)
        told: frozenset[Xid] | XaError = yield from patiently(Scan(resource), plan.outage_s)
        if isinstance(told, XaError):
            raise BatchRefused(f"{resource} can't be asked what is prepared: {told.message}")
        prepared[resource] = told
    strange = [branch for branch in reported if branch.xid.gtrid != plan.gtrid]
    missing = [branch for branch in reported if branch.xid not in prepared[branch.resource]]
    if strange or missing:
        what = "of another attempt" if strange else "not prepared any more"
        names = ", ".join(f"{branch.xid} on {branch.resource}" for branch in (strange or missing)[:3])
        raise BatchRefused(f"{len(strange or missing)} branches are {what} ({names}): the batch has to be run again")
    sources = [
        Branch(resource, xid)
        for resource in planned.sources
        for xid in sorted(prepared[resource], key=lambda xid: xid.bqual)
        if xid.gtrid == plan.gtrid and is_source(xid)
    ]
    return (*sources, *reported)


def _after(
    plan: SinkPlan, planned: Planned, outcome: Outcome, resources: Collection[str], *, logged: bool
) -> Steps[None]:
    """Step 6; `logged`: there is nothing to wait for."""
    if logged:
        yield Log(tuple(row.epoch for row in planned.epochs))
        planned = planned.as_logged()
    outcome.left = yield from carry_out(outcome.decision, planned, resources)
    yield from fence(plan.gtrid, resources)
    swept = Swept()
    found = yield from scan(resources, swept)
    yield from settle(plan.gtrid, found.get(plan.gtrid, ()), resources, swept)
    outcome.swept, outcome.left = swept.rolled_back, outcome.left + swept.left


def _discard(own: Own, plan: SinkPlan, decision: Decision, resources: Collection[str]) -> Steps[Outcome]:
    """The batch was decided before: what this attempt has prepared goes, and what that one left is finished."""
    outcome = Outcome(decision, before=True)
    if plan.gtrid != decision.gtrid:
        swept = Swept()
        found = yield from scan(resources, swept)
        yield from settle(plan.gtrid, found.get(plan.gtrid, ()), resources, swept)
        outcome.swept, outcome.left = swept.rolled_back, swept.left
    planned: Planned = yield FindPlanned(decision.gtrid)
    outcome.left += yield from carry_out(decision, planned, resources)
    standing: PipelineRow = yield Standing()
    if standing.again == own.incarnation and standing.gtrid == decision.gtrid:
        yield Replayed()
    return outcome


def abort(plan: SinkPlan, resources: Collection[str], *, written: bool = False) -> Steps[bool]:
    """Rolls the batch back; False: it is decided, and was left alone. `written`: every task had written, and it is the
    commit that failed: it has noted itself what its messages have to do with that."""
    if plan.decided:
        return False
    state: GtridState = yield Abort(plan.gtrid)
    if state in DECIDED:
        return False
    yield from fence(plan.gtrid, resources)
    swept = Swept()
    mine = (yield from scan(resources, swept)).get(plan.gtrid, [])
    if not written and not swept.unreachable and not any(is_excuse(branch.xid) for branch in mine):
        yield from _note_failed(plan.gtrid, mine)
    yield from tell(Verb.ROLLBACK, mine)
    return True


def _note_failed(gtrid: bytes, prepared: Sequence[Branch]) -> Steps[None]:
    """One of the messages that the batch has read may be what made it fail."""
    messages: dict[int, int] = yield from _taken(gtrid, prepared)
    if any(messages.values()):
        known: Isolation | None = yield FindIsolation()
        tried = known if known is not None else Isolation(gtrid)
        place = (tried if tried.gtrid == gtrid else replace(tried, suspects=0)).suspected(messages)
        yield Failed(gtrid, messages.get(place, 0), place)


def _taken(gtrid: bytes, prepared: Sequence[Branch]) -> Steps[dict[int, int]]:
    """How many messages of each source the batch has read, as far as can be told."""
    planned: Planned = yield FindPlanned(gtrid)
    places = {row.epoch: row.place for row in planned.epochs}
    messages: dict[int, int] = {}
    for resource in sorted({branch.resource for branch in prepared if is_source(branch.xid)}):
        told: Mapping[Xid, int] | XaError = yield Count(resource, gtrid)
        if isinstance(told, XaError):
            return {}
        for xid, count in told.items():
            if is_source(xid) and (place := places.get(source_epoch(xid))) is not None:
                messages[place] = messages.get(place, 0) + count
    return messages


def _name(plan: SinkPlan, batch: Batch | None) -> str:
    name = f"pipeline {plan.pipeline!r}, epoch {plan.epoch}"
    return name if batch is None else f"{name} (batch {batch.number})"
