"""Deciding: commit and abort of a micro-batch. Coroutines over ports.

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
from functools import partial
from typing import TYPE_CHECKING, Final

from tm.log import Branch, Decision, LogError
from tm.log.sql_states import GtridState
from tm.verdicts import Verb
from xa import XaError
from xabridge.pipeline.core.errors import BatchRefused, EpochGone, PipelineError
from xabridge.pipeline.core.protocol.epoch_plan import OLDER, check_whole, undecidable
from xabridge.pipeline.core.protocol.isolation import EXCUSED, Isolation
from xabridge.pipeline.core.protocol.recovery import DECIDED, SweepResult, carry_out, fence, scan, settle, tell
from xabridge.pipeline.core.retry import retried
from xabridge.pipeline.core.xids import is_excuse, is_source, source_epoch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tm.log.sql_gtrids import Entry
    from xa import Xid
    from xabridge.pipeline.core.ledger.rows import PipelineRow, PlannedEpochs
    from xabridge.pipeline.core.protocol.ports import Ports
    from xabridge.pipeline.core.values import Batch, SinkPlan, SinkReport
    from xabridge.pipeline.core.xids import Incarnation

logger: Final = logging.getLogger("xabridge.pipeline")


@dataclass(slots=True)
class Outcome:
    """What became of a batch: its decision, whether it was decided before, and what was left to recovery."""

    decision: Decision
    before: bool
    swept: int = 0
    left: int = 0


async def commit(
    ports: Ports,
    own: Incarnation,
    plan: SinkPlan,
    batch: Batch | None,
    reports: Sequence[SinkReport],
    resources: Collection[str],
) -> Outcome:
    """As the module's docstring says. BatchRefused: it is not decided, and has to be run again."""
    try:
        return await _commit(ports, own, plan, batch, reports, resources)
    except PipelineError as error:
        with suppress(LogError):  # then nothing is noted of this try, or nothing is noted any more by this driver
            if isinstance(error, BatchRefused) and error.of_rows:
                found = await scan(ports, resources, SweepResult())
                await _note_failed(ports, plan.gtrid, found.get(plan.gtrid, []))
            else:
                await ports.ledger.note_failure(plan.gtrid, EXCUSED)
        raise


async def _commit(
    ports: Ports,
    own: Incarnation,
    plan: SinkPlan,
    batch: Batch | None,
    reports: Sequence[SinkReport],
    resources: Collection[str],
) -> Outcome:
    if batch is not None and batch.query != plan.query:
        raise PipelineError(
            f"{_name(plan, batch)} was planned for query {plan.query}, and query {batch.query} wrote it"
        )
    before = await _decided_before(ports, plan, batch)
    if before is not None:
        return await _discard(ports, own, plan, before, resources)
    standing = await ports.ledger.row()
    entry = await ports.log.entry(plan.gtrid)
    planned = await ports.ledger.planned(plan.gtrid)
    if (
        plan.decided
        or entry is None
        or entry.state is not GtridState.ACTIVE
        or standing.gtrid != plan.gtrid
        or not planned.epochs
    ):
        raise _not_at_work(plan, batch, entry, standing)
    await check_whole(ports, own, plan.query, plan.gtrid)
    reported = [branch for report in reports for branch in report.branches]
    reported += await _upserted(ports, plan, reports, resources)
    decision = Decision(plan.gtrid, await _prepared(ports, plan, planned, reported, resources))
    await _note_unproven(ports, plan.gtrid, decision.branches)
    if batch is not None:
        await ports.ledger.bind_batch(batch.query, batch.number, plan.gtrid, batch.offsets)
    refused = await ports.log.force(decision)
    if refused is not None:
        raise undecidable(_name(plan, batch), refused) from refused
    outcome = Outcome(decision, before=False)
    try:
        await _after(ports, plan, planned, outcome, resources, logged=batch is None or not planned.sources)
    except LogError as error:
        logger.warning("%s is decided; what could not be finished is left to recovery: %s", _name(plan, batch), error)
    return outcome


async def _decided_before(ports: Ports, plan: SinkPlan, batch: Batch | None) -> Decision | None:
    """The decision of the batch, if it has one."""
    gtrid, offsets = plan.gtrid, ""
    if batch is not None:
        bound = await ports.ledger.last_batch(batch.query)
        if bound is not None and bound.batch > batch.number:
            raise EpochGone(
                f"batch {batch.number} of query {batch.query} was decided long ago (the last one is {bound.batch}): "
                f"{OLDER}"
            )
        if bound is None or bound.batch != batch.number:
            return None
        gtrid, offsets = bound.gtrid, bound.offsets
        if gtrid != plan.gtrid:  # an earlier attempt at it: it never will be decided, unless it is
            await ports.log.abort(gtrid)
    entry = await ports.log.entry(gtrid)
    if entry is None or entry.decision is None or entry.state not in DECIDED:
        return None
    if batch is not None and gtrid != plan.gtrid:
        await _check_same(ports, plan, batch, entry.decision, offsets)
    return entry.decision


async def _check_same(ports: Ports, plan: SinkPlan, batch: Batch, decision: Decision, offsets: str) -> None:
    """The batch was decided before under another global transaction, which is right for one that reads nothing of ours:
    it is planned anew each time. EpochGone: this one or that one has, or it reads something else of others."""
    planned = await ports.ledger.planned(plan.gtrid)
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


async def _note_unproven(ports: Ports, gtrid: bytes, branches: Sequence[Branch]) -> None:
    """Where messages are set aside and there were no others, the decision proves nothing: all sources have their turn
    again."""
    known = await ports.ledger.isolation()
    if known is None or known.gtrid != gtrid or not known.aside:
        return
    messages = await _taken(ports, gtrid, branches)
    if messages.get(known.place, 0) <= known.aside:
        await ports.ledger.set_isolation(Isolation(gtrid, place=known.place))


async def _upserted(
    ports: Ports, plan: SinkPlan, reports: Sequence[SinkReport], resources: Collection[str]
) -> Sequence[Branch]:
    """The branches of the rows that tasks have staged; BatchRefused: they could not be upserted."""
    staged = tuple(one for report in reports for one in report.staged)
    if not staged:
        return ()
    for name in sorted({one.target.resource for one in staged}):
        _check_configured(name, resources)
    if any(report.staged and report.gtrid != plan.gtrid for report in reports):
        raise BatchRefused("rows by key are of another attempt: the batch has to be run again")
    answer = await retried(ports, partial(ports.branches.upsert, plan.gtrid, staged), plan.outage_s)
    if isinstance(answer, BatchRefused):
        raise answer
    return answer


def _check_configured(name: str, resources: Collection[str]) -> None:
    if name not in resources:
        raise PipelineError(f"resource {name!r} is not configured for the sink's commit")


async def _prepared(
    ports: Ports, plan: SinkPlan, planned: PlannedEpochs, reported: Sequence[Branch], resources: Collection[str]
) -> tuple[Branch, ...]:
    """What the decision names; BatchRefused where it is not all prepared."""
    prepared: dict[str, frozenset[Xid]] = {}
    for resource in sorted({branch.resource for branch in reported} | set(planned.sources)):
        _check_configured(resource, resources)
        told = await retried(ports, partial(ports.branches.prepared, resource), plan.outage_s)
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


async def _after(
    ports: Ports, plan: SinkPlan, planned: PlannedEpochs, outcome: Outcome, resources: Collection[str], *, logged: bool
) -> None:
    """Step 6; `logged`: there is nothing to wait for."""
    if logged:
        await ports.ledger.mark_logged(tuple(row.epoch for row in planned.epochs))
        planned = planned.as_logged()
    outcome.left = await carry_out(ports, outcome.decision, planned, resources)
    await fence(ports, plan.gtrid, resources)
    swept = SweepResult()
    found = await scan(ports, resources, swept)
    await settle(ports, plan.gtrid, found.get(plan.gtrid, ()), resources, swept)
    outcome.swept, outcome.left = swept.rolled_back, outcome.left + swept.left


async def _discard(
    ports: Ports, own: Incarnation, plan: SinkPlan, decision: Decision, resources: Collection[str]
) -> Outcome:
    """The batch was decided before: what this attempt has prepared goes, and what that one left is finished."""
    outcome = Outcome(decision, before=True)
    if plan.gtrid != decision.gtrid:
        swept = SweepResult()
        found = await scan(ports, resources, swept)
        await settle(ports, plan.gtrid, found.get(plan.gtrid, ()), resources, swept)
        outcome.swept, outcome.left = swept.rolled_back, swept.left
    planned = await ports.ledger.planned(decision.gtrid)
    outcome.left += await carry_out(ports, decision, planned, resources)
    standing = await ports.ledger.row()
    if standing.again == own.incarnation and standing.gtrid == decision.gtrid:
        await ports.ledger.end_replay()
    return outcome


async def abort(ports: Ports, plan: SinkPlan, resources: Collection[str], *, written: bool = False) -> bool:
    """Rolls the batch back; False: it is decided, and was left alone. `written`: every task had written, and it is the
    commit that failed: it has noted itself what its messages have to do with that."""
    if plan.decided:
        return False
    state = await ports.log.abort(plan.gtrid)
    if state in DECIDED:
        return False
    await fence(ports, plan.gtrid, resources)
    swept = SweepResult()
    mine = (await scan(ports, resources, swept)).get(plan.gtrid, [])
    if not written and not swept.unreachable and not any(is_excuse(branch.xid) for branch in mine):
        await _note_failed(ports, plan.gtrid, mine)
    await tell(ports, Verb.ROLLBACK, mine)
    return True


async def _note_failed(ports: Ports, gtrid: bytes, prepared: Sequence[Branch]) -> None:
    """One of the messages that the batch has read may be what made it fail."""
    messages = await _taken(ports, gtrid, prepared)
    if any(messages.values()):
        known = await ports.ledger.isolation()
        tried = known if known is not None else Isolation(gtrid)
        place = (tried if tried.gtrid == gtrid else replace(tried, suspects=0)).suspected(messages)
        await ports.ledger.note_failure(gtrid, messages.get(place, 0), place)


async def _taken(ports: Ports, gtrid: bytes, prepared: Sequence[Branch]) -> dict[int, int]:
    """How many messages of each source the batch has read, as far as can be told."""
    planned = await ports.ledger.planned(gtrid)
    places = {row.epoch: row.place for row in planned.epochs}
    messages: dict[int, int] = {}
    for resource in sorted({branch.resource for branch in prepared if is_source(branch.xid)}):
        told = await ports.branches.message_counts(resource, gtrid)
        if isinstance(told, XaError):
            return {}
        for xid, count in told.items():
            if is_source(xid) and (place := places.get(source_epoch(xid))) is not None:
                messages[place] = messages.get(place, 0) + count
    return messages


def _name(plan: SinkPlan, batch: Batch | None) -> str:
    name = f"pipeline {plan.pipeline!r}, epoch {plan.epoch}"
    return name if batch is None else f"{name} (batch {batch.number})"
