"""The plan of a micro-batch: what it reads, and under which global transaction.

Each try at an epoch is planned under a new global transaction, until one of them is decided. From then on the epoch is
replayed: its source branches, which stay prepared until Spark has logged the batch, are read again and yield the same
messages in the same order.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tm.log import Branch, Decision, LogStopped
from tm.log.sql.states import GtridState
from xa import XaError
from xa.machine import Result, advance
from xabridge.pipeline.core.epoch_states import EPOCH, EpochState, EpochVerb
from xabridge.pipeline.core.errors import BatchRefused, EpochGone, PipelineError
from xabridge.pipeline.core.ledger.rows import NOTHING, PlannedEpochs
from xabridge.pipeline.core.protocol.isolation import Isolation
from xabridge.pipeline.core.protocol.recovery import DECIDED, SweepResult, carry_out, fence, resolve, scan, settle
from xabridge.pipeline.core.protocol.source_clearance import clear
from xabridge.pipeline.core.protocol.waiting_shards import NONE, WaitingShards, look, look_once
from xabridge.pipeline.core.retry import retried
from xabridge.pipeline.core.shards import PlannedRead, Shard, is_pattern, matches
from xabridge.pipeline.core.values import OUTAGE_S
from xabridge.pipeline.core.xids import epoch_of, is_source, source_epoch, source_index, source_xid

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tm.log import LogError
    from tm.log.sql.gtrids import Entry
    from xa import Xid
    from xabridge.pipeline.core.ledger.rows import EpochRow, PipelineRow
    from xabridge.pipeline.core.protocol.ports import Ports
    from xabridge.pipeline.core.protocol.source_clearance import ClearanceResult
    from xabridge.pipeline.core.values import Source
    from xabridge.pipeline.core.xids import Incarnation

logger: Final = logging.getLogger("xabridge.pipeline")

MAX_TASKS: Final = 1000
"""The most tasks that read a source in one epoch."""
OLDER: Final = (
    "the checkpoint is older than what was decided (a backup?). Restore the newest checkpoint. If it is lost, start "
    "with a new checkpoint, and the query says what is possible then"
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


@dataclass(frozen=True, slots=True)
class QuerySource:
    """One source of a query, with its place there. The query is empty for a job without streaming."""

    source: Source
    query: str = ""
    place: int = 0


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The input of an epoch: the branch of each partition, and its shard. Either they are read `again`, or they take
    `rows` messages in all, the first `aside` of which are set aside. `exact`: suspected messages are searched by their
    number, so that no other limit holds; they are no more than an earlier batch had. `skipped`: brokers that are away,
    with the reason."""

    parts: tuple[tuple[Xid, Shard], ...]
    rows: int = 0
    aside: int = 0
    again: bool = False
    exact: bool = False
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def xids(self) -> tuple[Xid, ...]:
        """The branches."""
        return tuple(xid for xid, _ in self.parts)


@dataclass(frozen=True, slots=True)
class PlannedSink:
    """The global transaction that a sink writes for, the epoch, and whether that is decided. `skipped`: brokers that
    the batch does not read, because they are away. `unfinished`: resources where an earlier batch is not finished."""

    gtrid: bytes
    epoch: int
    decided: bool = False
    skipped: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EpochPlanner:
    """Plans the epochs of one pipeline, for one incarnation of it, over these resources. For an outage of a broker it
    waits `outage_s`."""

    ports: Ports
    own: Incarnation
    resources: Collection[str]
    outage_s: float = OUTAGE_S

    # --- what Spark has logged ----------------------------------------------------------------------------------------
    async def logged(self, upto: int) -> None:
        """Spark has logged every batch of its checkpoint up to this epoch, so that none of them is read again: finishes
        their source branches, and decides what no sink of ours has decided."""
        if upto:
            await self._allotted(upto)
        rows = await self.ports.ledger.unlogged(upto)
        decisions: list[tuple[Decision, PlannedEpochs]] = []
        epochs: set[int] = set()
        for row in rows:
            if row.epoch in epochs:
                continue
            planned = await self.ports.ledger.planned(row.gtrid)
            entry = await self.ports.log.entry(row.gtrid)
            state = state_of(row, entry)
            if state is EpochState.ACTIVE:
                decision = await self._decide_without_sink(row.gtrid, planned)
                state = EpochState.ABORTED if decision is None else EpochState.DECIDED
            else:
                decision = entry.decision if entry is not None else None
            advance(EPOCH, state, EpochVerb.LOG, Result.OK if decision is not None else Result.RB)
            if decision is not None:
                decisions.append((decision, planned))
            epochs |= {one.epoch for one in planned.epochs}

        if epochs:
            await self.ports.ledger.mark_logged(tuple(sorted(epochs)))
        for decision, planned in decisions:
            await carry_out(self.ports, decision, planned.as_logged(), self.resources)

    async def _decide_without_sink(self, gtrid: bytes, planned: PlannedEpochs) -> Decision | None:
        """Decides a logged batch that is not decided. Where no sink of ours was planned for it, a sink of somebody
        else has its rows, and the sources are decided alone. Otherwise our sink gave up and the user's code went on all
        the same: then nothing of the batch has happened, and it is rolled back."""
        swept = SweepResult()
        if planned.sunk or not set(planned.sources) <= set(self.resources):
            found = await scan(self.ports, self.resources, swept)
            await settle(self.ports, gtrid, found.get(gtrid, ()), self.resources, swept)
            entry = await self.ports.log.entry(gtrid)
            return entry.decision if entry is not None else None
        prepared: list[Branch] = []
        for resource in planned.sources:
            xids = await self.ports.branches.prepared(resource)
            if isinstance(xids, XaError):
                raise PipelineError(f"can't ask {resource} which messages epoch {planned.epoch} took: {xids.message}")
            ours = sorted((xid for xid in xids if xid.gtrid == gtrid), key=lambda xid: xid.bqual)
            prepared += [Branch(resource, xid) for xid in ours]

        decision = Decision(gtrid, tuple(branch for branch in prepared if is_source(branch.xid)))
        refused = await self.ports.log.force(decision)
        if refused is not None:
            raise PipelineError(f"epoch {planned.epoch} can't be decided: {refused}") from refused
        await fence(self.ports, gtrid, planned.sources)
        others = [branch for branch in prepared if not is_source(branch.xid)]
        await settle(self.ports, gtrid, others, self.resources, swept)
        return decision

    # --- the source ---------------------------------------------------------------------------------------------------
    async def latest(
        self, reader: QuerySource, start: int, away: Mapping[str, str] = NONE
    ) -> tuple[int, WaitingShards]:
        """The epoch to read next, and the shards that have messages; `start` when there is nothing to read. EpochGone:
        later ones are decided. `away`: brokers that are not asked, because they are known to be away, with the
        reason."""
        await self._check_newest(reader, start)
        waiting = await look(self.ports, reader.source, self.outage_s, away)
        return (await self.ports.ledger.allot() if waiting.shards else start), waiting

    async def plan(
        self, reader: QuerySource, start: int, end: int, rows: int, away: Mapping[str, str] = NONE
    ) -> ReadPlan:
        """Plans what the epoch reads, with so many rows at most. EpochGone: the epoch is finished, or later ones are
        decided. `away`: as `latest`.

        1. Planned twice for one micro-batch, an epoch gets the same plan, whatever queues there are by then.
        2. An epoch that is decided is replayed under its global transaction, from every broker that it was read from.
        3. A new try reads only at brokers where no earlier try can take messages any more, and where what earlier tries
           have taken is back. The other brokers are waited for, or skipped.
        4. The first source of a micro-batch begins a global transaction, and the others join it.
        """
        standing = await self._allotted(end)
        await self._check_newest(reader, start, end)
        row = await self.ports.ledger.epoch(end)
        if row is None and end <= standing.forgotten:
            raise _too_old(end, "it is forgotten")
        entry: Entry | None = None
        if row is not None:
            entry = await self.ports.log.entry(row.gtrid)
            if state_of(row, entry) is EpochState.ACTIVE:
                if row.gtrid == standing.gtrid and self.own.planned(row.gtrid):
                    known = await self.ports.ledger.isolation()
                    isolation = known if known is not None and known.gtrid == row.gtrid else Isolation(row.gtrid)
                    return _read_plan(isolation, end, row.read.shards, rows, dict(row.read.skipped))
                await self.ports.log.abort(row.gtrid)
                entry = await self.ports.log.entry(row.gtrid)
                await fence(self.ports, row.gtrid, self.resources)
        state = state_of(row, entry)
        if EPOCH.refusal(state, EpochVerb.PLAN) is not None:
            raise _too_old(end, "its messages do not exist any more")
        shared = await self._shared_gtrid(reader, standing)
        if state is EpochState.DECIDED and row is not None and entry is not None and entry.decision is not None:
            await resolve(self.ports, self.own, self.resources, shared)
            if shared is not None:
                raise _not_one_batch(end)
            return ReadPlan(tuple(await self._replayed_parts(reader.source, row, entry.decision)), again=True)

        if reader.query and standing.gtrid is not None and standing.again == self.own.incarnation:
            replayed = await self.ports.ledger.planned(standing.gtrid)
            if not replayed.logged:
                raise _not_one_batch(end)

        cleared = await clear(self.ports, self.own, reader.source, shared, self.resources, self.outage_s, away)
        waiting = await self._waiting(reader.source, cleared)
        tries = row.tries + 1 if row is not None else 1
        gtrid = shared or self.own.gtrid(end, tries)
        isolation = await self._next_isolation(gtrid, reader, cleared)
        shards = _shards(isolation, reader, end, rows, waiting.shards)
        present = tuple(name for name in reader.source.resources if name not in waiting.away)
        read = PlannedRead(
            tuple(sorted({one.resource for one in shards})) or present, shards, tuple(sorted(waiting.away.items()))
        )
        await self.ports.ledger.plan(end, start, gtrid, tries, read, reader.query, reader.place, cleared.fenced)
        if shared is None:
            await self._begin(gtrid)
        advance(EPOCH, state, EpochVerb.PLAN)
        return _read_plan(isolation, end, shards, rows, waiting.away)

    async def _waiting(self, source: Source, cleared: ClearanceResult) -> WaitingShards:
        """What is to be read now, of brokers that are cleared. One broker whose queues are named is not asked, because
        its tasks take what there is."""
        (first, *others) = source.shards
        if not others and not source.by_queue and not any(map(is_pattern, first.queues)):
            return WaitingShards([first])
        return await look_once(self.ports, source, self.outage_s, cleared.away)

    async def _next_isolation(self, gtrid: bytes, reader: QuerySource, cleared: ClearanceResult) -> Isolation:
        """How the try `gtrid` is isolated, after the result of the last try. It is noted before the try is planned, so
        that the other sources of the query get the same answer.

        The search knows messages by their place in the queue only. While the last try may still hold some at the broker
        of the suspected shard, others are at the head, and would be blamed for it; then the search begins anew. So it
        does where that broker is skipped, or the shard is not the source's any more: other messages don't wait for
        it.
        """
        before = await self.ports.ledger.isolation()
        if before is None:
            return Isolation(gtrid)
        if before.gtrid == gtrid:
            if before.suspects and before.place == reader.place and not _is_searchable(before, reader.source, cleared):
                before = before.unsuspected(gtrid)
                await self.ports.ledger.set_isolation(before)
            return before
        entry = await self.ports.log.entry(before.gtrid)
        decided = entry is not None and entry.state in DECIDED
        following = before.following(gtrid, decided=decided)
        if following.suspects:
            names = self.resources if following.shard is None else (following.shard.resource,)
            mine = following.place == reader.place
            held = cleared.unsure.intersection(names) or not (decided or await self._is_over(before.gtrid, names))
            if held or (mine and not _is_searchable(following, reader.source, cleared)):
                logger.warning(
                    "the search for messages that make batches fail starts again, because an earlier batch may still "
                    "hold some, or their broker is away"
                )
                following = following.unsuspected(gtrid)

        if following.aside:
            logger.warning(
                "the first %d waiting messages failed alone: the next batch sets them aside", following.aside
            )
        elif following.suspects > 1:
            logger.warning(
                "one of %d messages may make batches fail: the next batch reads half of them", following.suspects
            )
        elif following.suspects:
            logger.warning("the first waiting message may make batches fail: the next batch reads it alone")

        if following.suspects or before.suspects:
            await self.ports.ledger.set_isolation(following)
        return following

    async def _is_over(self, gtrid: bytes, resources: Collection[str]) -> bool:
        """Whether a try that is not decided holds nothing any more, because it is fenced at every resource."""
        fenced = [await self.ports.branches.fence(resource, gtrid) is None for resource in resources]
        return all(fenced)

    async def _shared_gtrid(self, reader: QuerySource, standing: PipelineRow) -> bytes | None:
        """The global transaction that another source of the same query has begun for this micro-batch. It is active;
        that of an earlier micro-batch is not active any more when the next one is planned."""
        gtrid = standing.gtrid
        if not reader.query or gtrid is None or not self.own.planned(gtrid):
            return None
        entry = await self.ports.log.entry(gtrid)
        planned = await self.ports.ledger.planned(gtrid)
        if entry is None or entry.state is not GtridState.ACTIVE or not planned.sources:
            return None
        others = all(row.query == reader.query and row.place != reader.place for row in planned.epochs)
        return gtrid if others else None

    async def _begin(self, gtrid: bytes) -> None:
        refused = await self.ports.log.begin(gtrid)
        if refused is not None:
            raise PipelineError(f"the log can't begin a global transaction: {refused}") from refused

    async def _replayed_parts(self, source: Source, row: EpochRow, decision: Decision) -> list[tuple[Xid, Shard]]:
        """The branches that hold what the epoch has read. All of it is read again, so that every broker is waited for,
        also where the source would skip it."""
        sources = [
            branch for branch in decision.branches if is_source(branch.xid) and source_epoch(branch.xid) == row.epoch
        ]
        resources = sorted({branch.resource for branch in sources})
        elsewhere = set(resources) - set(source.resources)
        if elsewhere:
            raise PipelineError(
                f"epoch {row.epoch} was read from {', '.join(sorted(elsewhere))}, and has to be read from there again "
                f"before the source is changed to {', '.join(source.resources)}"
            )

        for resource in resources:
            xids = await retried(self.ports, partial(self.ports.branches.prepared, resource), self.outage_s)
            if isinstance(xids, XaError):
                raise PipelineError(
                    f"can't ask {resource} which messages epoch {row.epoch} holds, and the epoch is decided, so all of "
                    f"it has to be read again: {xids.message}"
                )
            if not {branch.xid for branch in sources if branch.resource == resource} <= xids:
                raise _too_old(row.epoch, "its messages do not exist any more")
        await self.ports.ledger.plan_replay(row.gtrid)
        return [
            (branch.xid, Shard(branch.resource, ()))
            for branch in sorted(sources, key=lambda branch: source_index(branch.xid))
        ]

    async def _check_newest(self, reader: QuerySource, start: int, end: int | None = None) -> None:
        """EpochGone: the checkpoint is too old. It names `start` as the source's last epoch, and a later one is decided
        which is not `end`, the one that the checkpoint wants to read again."""
        if not reader.query:
            return
        rows = await self.ports.ledger.later(reader.query, reader.place, start)
        for row in rows:
            if row.epoch == end:
                continue
            entry = await self.ports.log.entry(row.gtrid)
            if row.logged or (entry is not None and entry.state in DECIDED):
                await self.ports.ledger.row()  # a driver that has lost the pipeline gets that error instead
                raise _too_old(row.epoch, f"the last epoch of the checkpoint is {start}")

    async def _allotted(self, epoch: int) -> PipelineRow:
        """The pipeline's row. PipelineError: the checkpoint names an epoch that this pipeline has never allotted."""
        row = await self.ports.ledger.row()
        if epoch > row.epoch:
            raise PipelineError(
                f"the checkpoint names epoch {epoch}, but the last epoch of pipeline {row.pipeline!r} is {row.epoch}: "
                "the checkpoint belongs to another decision log. Restore that log. If it is lost, so is what it had "
                "decided; a new checkpoint reads what is in the queues, and every other source from where its options "
                "begin"
            )
        return row

    # --- the sink -----------------------------------------------------------------------------------------------------
    async def plan_sink(self, query: str) -> PlannedSink:
        """Plans the sink of a query ("" for a job)."""
        standing = await self.ports.ledger.row()
        current = standing.gtrid
        entry: Entry | None = None
        planned = PlannedEpochs(())
        if current is not None:
            entry = await self.ports.log.entry(current)
            planned = await self.ports.ledger.planned(current)

        active = entry is not None and entry.state is GtridState.ACTIVE
        mine = current is not None and active and self.own.planned(current)
        skipped = planned.skipped if mine else ()
        joins = mine and bool(planned.epochs) and all(row.query == query for row in planned.epochs)
        if current is not None and active and not joins:
            await self.ports.log.abort(current)  # before it is read what is decided and not finished
        present = [name for name in self.resources if name not in skipped]
        unfinished = tuple(sorted((await resolve(self.ports, self.own, present, current if mine else None)).unfinished))
        if current is not None and joins:
            _check_sources(planned, self.resources)
            await check_one_gtrid(self.ports, self.own, query, current)
            await self.ports.ledger.mark_sink(current)
            return PlannedSink(current, planned.epoch, skipped=skipped, unfinished=unfinished)
        if (
            current is not None
            and entry is not None
            and entry.state in DECIDED
            and standing.again == self.own.incarnation
        ):
            return PlannedSink(current, epoch_of(current), decided=True)

        await check_one_gtrid(self.ports, self.own, query, None)
        epoch = await self.ports.ledger.allot()
        gtrid = self.own.gtrid(epoch, 1)
        await self.ports.ledger.plan(epoch, 0, gtrid, 1, NOTHING, query, 0)
        await self._begin(gtrid)
        await self.ports.ledger.mark_sink(gtrid)
        return PlannedSink(gtrid, epoch, unfinished=unfinished)


def _shards(
    isolation: Isolation, reader: QuerySource, epoch: int, rows: int, waiting: Sequence[Shard]
) -> tuple[Shard, ...]:
    """The shard of each task of a new try. While messages of one shard are suspected, it is read in the order of its
    queues by one task, and the others are not read."""
    source = reader.source
    if isolation.suspects:
        return (isolation.shard or source.shards[0].sorted(),) if isolation.place == reader.place else ()
    if not waiting:
        return ()
    most = min(isolation.share(rows), MAX_TASKS)
    count = len(waiting)
    first = epoch % count if count > most else 0  # each has its turn
    turned = [waiting[(first + index) % count] for index in range(count)]
    if source.by_queue:
        return tuple(turned[:most])
    tasks = min(max(source.partitions, count), most)
    return tuple(_from_queue(turned[index % count], index // count) for index in range(tasks))


def _from_queue(shard: Shard, first: int) -> Shard:
    """The shard for a task that begins with another queue than the other tasks."""
    turn = first % len(shard.queues)
    return replace(shard, queues=shard.queues[turn:] + shard.queues[:turn])


def _read_plan(
    isolation: Isolation, epoch: int, shards: Sequence[Shard], rows: int, skipped: Mapping[str, str]
) -> ReadPlan:
    """The plan of a try that is not decided."""
    parts = tuple((source_xid(isolation.gtrid, epoch, index), shard) for index, shard in enumerate(shards))
    share = isolation.share(rows) if parts else 0
    return ReadPlan(parts, share, isolation.aside, exact=bool(isolation.suspects), skipped=skipped)


def _is_searchable(isolation: Isolation, source: Source, cleared: ClearanceResult) -> bool:
    """Whether the suspected shard is one that the source can read now."""
    shard = isolation.shard
    if shard is None:
        return not any(is_pattern(queue) for queue in source.shards[0].queues)
    queues = next((one.queues for one in source.shards if one.resource == shard.resource), ())
    known = all(any(matches(queue, name) for queue in queues) for name in shard.queues)
    return known and shard.resource not in cleared.away


def _too_old(epoch: int, why: str) -> EpochGone:
    return EpochGone(f"epoch {epoch} was decided and finished, and {why}: {OLDER}")


def _not_one_batch(epoch: int) -> EpochGone:
    return EpochGone(
        f"epoch {epoch} does not belong to the same micro-batch as the epochs of the query's other sources: the "
        f"checkpoint has parts of different batches, so {OLDER}"
    )


async def check_one_gtrid(ports: Ports, own: Incarnation, query: str, gtrid: bytes | None) -> None:
    """BatchRefused: a source of the query was planned for this micro-batch under another global transaction than
    `gtrid`. What it took would not be decided together with what is written."""
    if not query:
        return
    waiting = await ports.ledger.waiting(query)
    astray = [row for row in waiting if row.gtrid != gtrid and own.planned(row.gtrid)]
    if astray:
        names = ", ".join(f"{row.epoch} ({', '.join(row.read.resources)})" for row in astray[:3])
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
