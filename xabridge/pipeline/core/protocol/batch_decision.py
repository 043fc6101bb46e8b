"""The commit and the abort of a micro-batch.

Commit:

 1. A batch that was decided before is not decided again: this attempt at it is rolled back.
 2. Earlier batches are finished at every resource where this one has branches. Otherwise messages of this batch could
    be visible before theirs.
 3. What tasks have staged is written: rows by key are upserted, files are appended. These branches are prepared. The
    rows for a database that decides wait for step 6.
 4. Every branch that a task reported must be prepared. What the sources took is what their prepared branches hold.
 5. The batch is bound to its global transaction, durably.
 6. The decision, which names all of these branches, is forced into the log: the commit point. The transaction that does
    so also writes the rows for the database that decides, which is the log's. Nothing is raised after it.
 7. The sinks are committed, the global transaction is fenced, and its other branches are rolled back. The sources wait
    until Spark has logged the batch.

The order of batches rests on step 2, and not on who carries out their decisions, and when: at a resource, at most one
decided batch is not finished. Step 2 costs nothing where the plan of the sink found every decision carried out, because
no other batch of the pipeline is decided between the plan of a batch and its decision.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tm.log import Branch, Decision, LogError
from tm.log.sql.states import GtridState
from tm.two_phase.return_codes import Verb
from xa import XaError
from xabridge.pipeline.core.errors import BatchRefused, EpochGone, PipelineError
from xabridge.pipeline.core.protocol.epoch_plan import OLDER, check_one_gtrid, decision_error
from xabridge.pipeline.core.protocol.isolation import EXCUSED, Isolation
from xabridge.pipeline.core.protocol.recovery import (
    DECIDED,
    SweepResult,
    carry_out,
    carry_out_all,
    fence,
    finish_branches,
    roll_back_others,
    scan,
    settle,
)
from xabridge.pipeline.core.retry import pauses, retried
from xabridge.pipeline.core.values import StagedFiles
from xabridge.pipeline.core.xids import epoch_of, is_excuse, is_source, source_epoch, source_index

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tm.log.sql.gtrids import Entry
    from xa import Xid
    from xabridge.pipeline.core.ledger.rows import PipelineRow, PlannedEpochs
    from xabridge.pipeline.core.protocol.isolation import Searched
    from xabridge.pipeline.core.protocol.ports import Ports
    from xabridge.pipeline.core.values import Batch, SinkPlan, SinkReport
    from xabridge.pipeline.core.xids import Incarnation

logger: Final = logging.getLogger("xabridge.pipeline")


@dataclass(slots=True)
class Outcome:
    """The result of a batch: its decision; whether it was decided `before`; how many messages it has `taken` from its
    sources, if they could be asked; how many orphans were rolled back (`swept`), and how many branches are left to
    recovery (`left`)."""

    decision: Decision
    before: bool
    taken: int | None = None
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
    """Commits the batch, as the module's docstring says. BatchRefused: it is not decided, and has to be run again."""
    try:
        return await _commit(ports, own, plan, batch, reports, resources)
    except PipelineError as error:
        with suppress(LogError):  # the failure is not noted then: the log is away, or another driver has the pipeline
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
            f"{_batch_name(plan, batch)} was planned for query {plan.query}, but query {batch.query} wrote it"
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
        raise _refusal(plan, batch, entry, standing)

    await check_one_gtrid(ports, own, plan.query, plan.gtrid)
    reported = [branch for report in reports for branch in report.branches]
    await _finish_earlier(ports, plan, batch, _used(plan, planned, reports), resources)
    reported += await _write_staged(ports, plan, reports, resources)
    decision = Decision(plan.gtrid, await _branches_to_decide(ports, plan, planned, reported, resources))
    await _reset_unproven_isolation(ports, plan.gtrid, decision.branches)
    taken = await _taken(ports, planned, plan.gtrid)
    if batch is not None:
        await ports.ledger.bind_batch(batch.query, batch.number, plan.gtrid, batch.offsets)
    await _force(ports, plan, batch, decision, reports)
    outcome = Outcome(decision, before=False, taken=taken)
    present = _present(plan, decision, resources)
    try:
        await _finish(ports, plan, planned, outcome, present, logged=batch is None or not planned.sources)
    except LogError as error:
        logger.warning(
            "%s is decided; recovery will finish the branches that could not be finished now: %s",
            _batch_name(plan, batch),
            error,
        )
    return outcome


async def _taken(ports: Ports, planned: PlannedEpochs, gtrid: bytes) -> int | None:
    """How many messages the batch takes from its sources; None where one can't be asked."""
    taken = 0
    for resource in planned.sources:
        counts = await ports.branches.message_counts(resource, gtrid)
        if isinstance(counts, XaError):
            return None
        taken += sum(count for xid, count in counts.items() if is_source(xid))
    return taken


def _used(plan: SinkPlan, planned: PlannedEpochs, reports: Sequence[SinkReport]) -> frozenset[str]:
    """The resources at which the decision will have branches."""
    staged = {one.target.resource for report in reports for one in report.staged}
    written = frozenset(branch.resource for report in reports for branch in report.branches)
    return written.union(planned.sources, (name for name in staged if not plan.decides(name)))


async def _finish_earlier(
    ports: Ports, plan: SinkPlan, batch: Batch | None, used: frozenset[str], resources: Collection[str]
) -> None:
    """Step 2. BatchRefused: an earlier batch can't be finished at a resource that this one has used."""
    needed = sorted(used.intersection(plan.unfinished))
    if not needed:
        return

    for resource in needed:
        _check_configured(resource, resources)
    name, waits = _batch_name(plan, batch), False
    for pause_s in (*pauses(plan.outage_s), None):
        oldest = (await carry_out_all(ports, needed)).oldest
        left = ", ".join(f"epoch {epoch_of(oldest[one])} at {one}" for one in needed if one in oldest)
        if not left:
            return
        if pause_s is None:
            raise BatchRefused(
                f"{name} can't be decided, because earlier batches are decided and could not be finished ({left}): "
                "their messages come before those of this batch"
            )
        if not waits:
            logger.warning("%s waits until earlier batches are finished: %s", name, left)
        waits = True
        await ports.pause(pause_s)


async def _force(
    ports: Ports, plan: SinkPlan, batch: Batch | None, decision: Decision, reports: Sequence[SinkReport]
) -> None:
    """Step 6. BatchRefused: the rows of the database that decides can't be written, or the log decided otherwise."""
    staged = [one for report in reports for one in report.staged if plan.decides(one.target.resource)]
    rows = [one for one in staged if not isinstance(one, StagedFiles)]  # no lake decides
    if rows:
        refused = await retried(ports, partial(ports.log.force_with_rows, decision, rows), plan.outage_s)
    else:
        refused = await ports.log.force(decision)
    if isinstance(refused, BatchRefused):
        raise refused
    if refused is not None:
        raise decision_error(_batch_name(plan, batch), refused) from refused


def _present(plan: SinkPlan, decision: Decision, resources: Collection[str]) -> list[str]:
    """The resources, but for those that the batch has skipped and does not need: they would only be waited for."""
    needed = {branch.resource for branch in decision.branches}
    return [name for name in resources if name in needed or name not in plan.skipped]


async def _decided_before(ports: Ports, plan: SinkPlan, batch: Batch | None) -> Decision | None:
    """The decision of the batch, if it has one."""
    gtrid, offsets = plan.gtrid, ""
    if batch is not None:
        bound = await ports.ledger.last_batch(batch.query)
        if bound is not None and bound.batch > batch.number:
            raise EpochGone(
                f"batch {batch.number} of query {batch.query} was decided long ago (the last decided batch is "
                f"{bound.batch}): {OLDER}"
            )
        if bound is None or bound.batch != batch.number:
            return None
        gtrid, offsets = bound.gtrid, bound.offsets
        if gtrid != plan.gtrid:  # an earlier attempt at this batch: unless it is decided already, it never will be
            await ports.log.abort(gtrid)

    entry = await ports.log.entry(gtrid)
    if entry is None or entry.decision is None or entry.state not in DECIDED:
        return None
    if batch is not None and gtrid != plan.gtrid:
        await _check_same(ports, plan, batch, entry.decision, offsets)
    return entry.decision


async def _check_same(ports: Ports, plan: SinkPlan, batch: Batch, decision: Decision, offsets: str) -> None:
    """The batch was decided before, under another global transaction. That is right for a batch that reads none of our
    sources, because such a batch gets a new global transaction each time it is planned. EpochGone: one of the two has
    read from our sources, or the batch reads other offsets of other sources now."""
    planned = await ports.ledger.planned(plan.gtrid)
    ours = planned.sources or any(is_source(branch.xid) for branch in decision.branches)
    if ours or (offsets and batch.offsets and offsets != batch.offsets):
        raise EpochGone(f"batch {batch.number} of query {batch.query} was already decided with other messages: {OLDER}")


def _refusal(plan: SinkPlan, batch: Batch | None, entry: Entry | None, standing: PipelineRow) -> PipelineError:
    name = _batch_name(plan, batch)
    if plan.decided:
        return PipelineError(
            f"{name}: epoch {plan.epoch} was decided as another batch, because the checkpoint was copied, or another "
            "sink used it. Use the checkpoint of that batch. If it is lost, start with a new checkpoint, and the query "
            "says what is possible then"
        )
    if entry is not None and entry.state is GtridState.ABORTED:
        return BatchRefused(f"{name} was aborted: its branches are rolled back, and it has to be run again")
    if standing.gtrid != plan.gtrid:
        return BatchRefused(f"{name} has to be run again, because another batch of the pipeline was planned since")
    return BatchRefused(
        f"{name} can't be decided: its global transaction is {entry.state.value if entry else 'unknown'}"
    )


async def _reset_unproven_isolation(ports: Ports, gtrid: bytes, branches: Sequence[Branch]) -> None:
    """Where messages were set aside and the batch had no others, its decision proves nothing about them. So every
    source may be suspected again."""
    known = await ports.ledger.isolation()
    if known is None or known.gtrid != gtrid or not known.aside:
        return
    messages = await _message_counts(ports, gtrid, branches)
    if messages.get((known.place, known.shard), 0) <= known.aside:
        await ports.ledger.set_isolation(known.unsuspected(gtrid))


async def _write_staged(
    ports: Ports, plan: SinkPlan, reports: Sequence[SinkReport], resources: Collection[str]
) -> Sequence[Branch]:
    """Writes what tasks have staged, and returns the prepared branches. BatchRefused: it could not be written."""
    if any(report.staged and report.gtrid != plan.gtrid for report in reports):
        raise BatchRefused("what was staged belongs to another attempt: the batch has to be run again")
    staged = tuple(one for report in reports for one in report.staged if not plan.decides(one.target.resource))
    if not staged:
        return ()
    for name in sorted({one.target.resource for one in staged}):
        _check_configured(name, resources)
    answer = await retried(ports, partial(ports.branches.write_staged, plan.gtrid, staged), plan.outage_s)
    if isinstance(answer, BatchRefused):
        raise answer
    return answer


def _check_configured(name: str, resources: Collection[str]) -> None:
    if name not in resources:
        raise PipelineError(f"resource {name!r} is not configured for the sink's commit")


async def _branches_to_decide(
    ports: Ports, plan: SinkPlan, planned: PlannedEpochs, reported: Sequence[Branch], resources: Collection[str]
) -> tuple[Branch, ...]:
    """The branches that the decision names. BatchRefused: not all of them are prepared."""
    prepared: dict[str, frozenset[Xid]] = {}
    for resource in sorted({branch.resource for branch in reported} | set(planned.sources)):
        _check_configured(resource, resources)
        xids = await retried(ports, partial(ports.branches.prepared, resource), plan.outage_s)
        if isinstance(xids, XaError):
            raise BatchRefused(f"can't read the prepared branches of {resource}: {xids.message}")
        prepared[resource] = xids

    strange = [branch for branch in reported if branch.xid.gtrid != plan.gtrid]
    missing = [branch for branch in reported if branch.xid not in prepared[branch.resource]]
    if strange or missing:
        what = "of another attempt" if strange else "not prepared any more"
        names = ", ".join(f"{branch.xid} on {branch.resource}" for branch in (strange or missing)[:3])
        count = len(strange or missing)
        branches = "1 branch is" if count == 1 else f"{count} branches are"
        raise BatchRefused(f"{branches} {what} ({names}): the batch has to be run again")
    sources = [
        Branch(resource, xid)
        for resource in planned.sources
        for xid in sorted(prepared[resource], key=lambda xid: xid.bqual)
        if xid.gtrid == plan.gtrid and is_source(xid)
    ]
    return (*sources, *reported)


async def _finish(
    ports: Ports, plan: SinkPlan, planned: PlannedEpochs, outcome: Outcome, resources: Collection[str], *, logged: bool
) -> None:
    """Step 7. `logged`: the sources need not wait for Spark."""
    if logged:
        await ports.ledger.mark_logged(tuple(row.epoch for row in planned.epochs))
        planned = planned.as_logged()
    left = await carry_out(ports, outcome.decision, planned, resources)
    outcome.left = len(left)
    if left:
        names = ", ".join(sorted({branch.resource for branch in left}))
        logger.warning(
            "pipeline %r, epoch %d is decided, but it can't be finished at %s now: what it wrote there becomes visible "
            "later, and before what later batches write there",
            plan.pipeline,
            plan.epoch,
            names,
        )

    await fence(ports, plan.gtrid, resources)
    swept = SweepResult()
    found = await scan(ports, resources, swept)
    sources = {branch.xid for branch in outcome.decision.branches if is_source(branch.xid)}
    others = [branch for branch in found.get(plan.gtrid, ()) if branch.xid not in sources]
    if others:
        planned = await ports.ledger.planned(plan.gtrid)
        await roll_back_others(ports, outcome.decision, planned.finished, others, swept)
    outcome.swept, outcome.left = swept.rolled_back, outcome.left + swept.left


async def _discard(
    ports: Ports, own: Incarnation, plan: SinkPlan, decision: Decision, resources: Collection[str]
) -> Outcome:
    """The batch was decided before: rolls back what this attempt has prepared, and finishes what that one has left."""
    outcome = Outcome(decision, before=True)
    if plan.gtrid != decision.gtrid:
        swept = SweepResult()
        found = await scan(ports, resources, swept)
        await settle(ports, plan.gtrid, found.get(plan.gtrid, ()), resources, swept)
        outcome.swept, outcome.left = swept.rolled_back, swept.left
    planned = await ports.ledger.planned(decision.gtrid)
    outcome.left += len(await carry_out(ports, decision, planned, resources))
    standing = await ports.ledger.row()
    if standing.again == own.incarnation and standing.gtrid == decision.gtrid:
        await ports.ledger.end_replay()
    return outcome


async def abort(ports: Ports, plan: SinkPlan, resources: Collection[str], *, written: bool = False) -> bool:
    """Rolls the batch back. False: it is decided, and was left alone. `written`: every task had written, so that it was
    the commit that failed; the commit has noted itself whether a message may be to blame."""
    if plan.decided:
        return False
    state = await ports.log.abort(plan.gtrid)
    if state in DECIDED:
        return False
    await fence(ports, plan.gtrid, resources)
    swept = SweepResult()
    mine = (await scan(ports, resources, swept)).get(plan.gtrid, [])
    all_asked = set(swept.unreachable) <= set(plan.skipped)  # tasks make no excuses at a broker that is skipped
    if not written and all_asked and not any(is_excuse(branch.xid) for branch in mine):
        await _note_failed(ports, plan.gtrid, mine)
    await finish_branches(ports, Verb.ROLLBACK, mine)
    return True


async def _note_failed(ports: Ports, gtrid: bytes, prepared: Sequence[Branch]) -> None:
    """Notes that one of the messages that the batch has read may have made it fail."""
    messages = await _message_counts(ports, gtrid, prepared)
    if any(messages.values()):
        known = await ports.ledger.isolation()
        tried = known if known is not None else Isolation(gtrid)
        searched = (tried if tried.gtrid == gtrid else replace(tried, suspects=0)).suspected(messages)
        if searched is not None:
            await ports.ledger.note_failure(gtrid, messages.get(searched, 0), *searched)


async def _message_counts(ports: Ports, gtrid: bytes, prepared: Sequence[Branch]) -> dict[Searched, int]:
    """How many messages the batch has read of each shard of each source. Empty where a broker can't be asked."""
    planned = await ports.ledger.planned(gtrid)
    rows = {row.epoch: row for row in planned.epochs}
    messages: dict[Searched, int] = {}
    for resource in sorted({branch.resource for branch in prepared if is_source(branch.xid)}):
        counts = await ports.branches.message_counts(resource, gtrid)
        if isinstance(counts, XaError):
            return {}
        for xid, count in counts.items():
            if is_source(xid) and (row := rows.get(source_epoch(xid))) is not None:
                index, shards = source_index(xid), row.read.shards
                searched = (row.place, shards[index].sorted() if index < len(shards) else None)
                messages[searched] = messages.get(searched, 0) + count
    return messages


def _batch_name(plan: SinkPlan, batch: Batch | None) -> str:
    name = f"pipeline {plan.pipeline!r}, epoch {plan.epoch}"
    return name if batch is None else f"{name} (batch {batch.number})"
