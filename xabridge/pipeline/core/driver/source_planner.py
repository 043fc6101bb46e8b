"""The driver's side of one source of a pipeline: it plans what each micro-batch reads."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.amqp.decoding import DecodeError
from rm_amqp import Message
from xa import XaError
from xa.coroutines import drive
from xabridge.pipeline.core.driver.admission import Delay, ReadLimits, shares_of, smaller
from xabridge.pipeline.core.driver.open_pipeline import OpenPipeline, pipeline_errors
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.ledger.opener import LedgerOpener
from xabridge.pipeline.core.ledger.rows import Lag
from xabridge.pipeline.core.process_ids import process_id
from xabridge.pipeline.core.protocol.epoch_plan import QuerySource
from xabridge.pipeline.core.protocol.recovery import resolve
from xabridge.pipeline.core.protocol.waiting_shards import count_waiting, look_once
from xabridge.pipeline.core.resources import PROCESS, broker, call_resource
from xabridge.pipeline.core.retry import retried
from xabridge.pipeline.core.values import Offset, SourcePartition
from xabridge.pipeline.core.xids import is_source, source_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tm.resources import Resource
    from xa import Xid
    from xabridge.pipeline.core.protocol.epoch_plan import ReadPlan
    from xabridge.pipeline.core.resources import Resources
    from xabridge.pipeline.core.shards import Shard
    from xabridge.pipeline.core.values import Settings, Source

logger: Final = logging.getLogger("xabridge.pipeline")

PURGE_EVERY: Final = 100
"""Batches between two purges of what is done."""
UNLIMITED: Final = ReadLimits()
AGAIN_S: Final = 5.0
"""How long a broker that was away is not asked."""


class SourcePlanner:
    """Plans one source of a pipeline.

    `driver` names the driver: the same name in all of its processes, and never that of another driver
    (`process_ids.driver_id`). With `streaming` it is a source of the query that the pipeline was bound to (`bind`), and
    this process plans it from now on. PipelineTaken: the pipeline is not bound to a query that reads this source, or
    another process plans it. Without `streaming` it is the source of a job, which takes the pipeline where its driver
    never had it.
    """

    def __init__(
        self,
        settings: Settings,
        source: Source,
        driver: str,
        *,
        streaming: bool = True,
        resources: Resources = PROCESS,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._source = source
        for resource in source.resources:
            settings.url(resource)
        opener = LedgerOpener(settings.log, settings.pipeline, sleep=sleep)
        with pipeline_errors():
            ledger = opener.join(driver, takes=not streaming)
            try:
                self._reader = QuerySource(source, *(ledger.claim(str(source), process_id()) if streaming else ()))
            except BaseException:
                ledger.close()
                raise

        self._pipeline = OpenPipeline(ledger, resources.of(settings.resources), sleep)
        self._planner = self._pipeline.planner(settings.outage_s)
        ledger.ask_lag = self._lag
        self._logged = -1
        self._resolved = False
        self._limits: dict[int, ReadLimits] = {}
        self._delay = Delay(clock)
        self._away = BrokersAway(clock)
        self._batches = 0
        self._found: tuple[Shard, ...] = ()
        """What had messages when it was last asked for."""
        self._planned_rows = 0
        self._waiting: Mapping[Shard, tuple[int, float | None]] = {}
        """How many messages waited when the last try was planned, and when the oldest was made."""
        self._shares: tuple[tuple[Xid, ...], list[int]] = (), []
        """The branches of the last plan, and how many messages each may take."""

    def planned_rows(self) -> int:
        """How many messages were planned to be taken since the last call of this. Fewer than the limits allow, while a
        failed batch is being isolated."""
        rows, self._planned_rows = self._planned_rows, 0
        return rows

    def taken_rows(self, end: Offset) -> int:
        """How many messages an epoch took: those that its source branches hold, so it is 0 once they are finished."""
        ports = self._pipeline.ports
        taken = 0
        with pipeline_errors():
            row = drive(ports.ledger.epoch(end.epoch))
            if row is None:
                return 0
            for resource in row.read.resources:
                counting = partial(ports.branches.message_counts, resource, row.gtrid)
                counts = drive(retried(ports, counting, self._settings.outage_s))
                if isinstance(counts, XaError):
                    raise PipelineError(f"{resource} can't be asked what epoch {end.epoch} took: {counts.message}")
                mine = (xid for xid in counts if is_source(xid) and source_epoch(xid) == end.epoch)
                taken += sum(counts[xid] for xid in mine)
        return taken

    def latest(self, start: Offset, limits: ReadLimits = UNLIMITED) -> Offset:
        """The end of the next micro-batch; `start` when there is nothing to read, or when it is not yet time to. Spark
        has logged `start`. `limits` are Spark's limits for the batch; `plan` keeps to them."""
        self.logged(start)
        self._resolve()
        source = self._source
        least = 0 if limits.at_once else max(source.least, limits.least or 0)
        if least > 1 and not self._delay.is_over(self.available(), least, source.delay_s):
            with pipeline_errors():  # as below
                drive(self._pipeline.ledger.row())
            return start
        self._delay.begin()

        with pipeline_errors():
            epoch, waiting = drive(self._planner.latest(self._reader, start.epoch, self._away.now()))
            self._away.note(waiting.away)
            self._found = tuple(waiting.shards)
            if epoch == start.epoch:  # a driver that has lost the pipeline must not wait for messages for ever
                drive(self._pipeline.ledger.row())
        self._limits = {epoch: limits}
        return Offset(epoch)

    def available(self) -> int:
        """How many messages there are to read now, at the brokers that are there."""
        self._resolve()
        with pipeline_errors():
            counted, away = drive(
                count_waiting(self._pipeline.ports, self._source, self._settings.outage_s, self._away.now())
            )
        self._away.note(away)
        return counted

    def _resolve(self) -> None:
        """Finishes what earlier drivers have left over, once, so that the messages that it holds can be read again."""
        if self._resolved:
            return
        with pipeline_errors():
            drive(resolve(self._pipeline.ports, self._pipeline.own, self._pipeline.names, None))
        self._resolved = True

    def plan(self, start: Offset, end: Offset) -> Sequence[SourcePartition]:
        """The partitions of the epoch `end`: it begins a new global transaction, or is replayed where it is decided. []
        when `start` is `end`. EpochGone, PipelineTaken."""
        if start == end:
            return []
        self.logged(start)
        limits = self._limits.get(end.epoch, UNLIMITED)
        rows = smaller(self._source.rows, limits.rows)
        with pipeline_errors():
            planned = drive(self._planner.plan(self._reader, start.epoch, end.epoch, rows, self._away.now()))
            decided = self._decided(again=planned.again)

        self._away.note(planned.skipped)
        count = len(planned.parts)
        self._planned_rows += planned.rows
        if planned.again:
            logger.info("epoch %d is decided: what it took is read again from its branches (%d)", end.epoch, count)
        octets = 0 if planned.exact else smaller(self._source.octets, limits.octets)
        octets = -(-octets // max(count, 1))
        shares = self._shared(planned)
        return [self._partition(end.epoch, index, planned, decided, shares[index], octets) for index in range(count)]

    def _lag(self) -> Lag | None:
        """What waits, for people; None if a broker does not say it now. It is asked for when a new try is planned: what
        earlier tries held is back in the queues then."""
        try:
            self._waiting = {shard: self._waits(shard) for shard in self._found or self._waiting_shards()}
        except (XaError, PipelineError):
            self._waiting = {}
            return None
        made = [oldest_at for _, oldest_at in self._waiting.values() if oldest_at is not None]
        return Lag(sum(count for count, _ in self._waiting.values()), min(made, default=None))

    def _waiting_shards(self) -> Sequence[Shard]:
        """What `latest` would find. It was not called for a batch that an earlier driver has left, nor for a job."""
        return drive(look_once(self._pipeline.ports, self._source, 0.0, self._away.now())).shards

    def _waits(self, shard: Shard) -> tuple[int, float | None]:
        resource = self._pipeline.resources[shard.resource]
        return call_resource(resource, "browse", partial(_waits, resource, shard.queues))

    def _shared(self, planned: ReadPlan) -> list[int]:
        """How many messages each partition may take. A plan that is asked for again has the same."""
        rows, count, waiting = planned.rows, len(planned.parts), self._waiting
        if planned.again:
            return [0] * count
        if self._shares[0] == planned.xids:
            return self._shares[1]
        if self._source.by_queue and not planned.exact and all(shard in waiting for _, shard in planned.parts):
            shares = shares_of(rows, [waiting[shard][0] for _, shard in planned.parts])
        else:
            shares = [rows // count + (index < rows % count) for index in range(count)]
        self._shares = planned.xids, shares
        return shares

    def _decided(self, *, again: bool) -> int:
        """The last batch of the query that is decided; the one before it where the last one is read again."""
        last = self._pipeline.ledger.decided_batch(self._reader.query)
        return -1 if last is None else last.batch - again

    def _partition(
        self, epoch: int, index: int, planned: ReadPlan, decided: int, share: int, octets: int
    ) -> SourcePartition:
        source = self._source
        xid, shard = planned.parts[index]

        return SourcePartition(
            self._settings.pipeline,
            epoch,
            index,
            xid,
            shard.resource,
            self._settings.url(shard.resource),
            shard.queues,
            share,
            query=self._reader.query,
            decided=decided,
            aside=planned.aside,
            text=source.text,
            bad_records=source.bad_records,
            keep_bad=source.keep_bad,
            bad_address=source.bad_address,
            outage_s=self._settings.outage_s,
            octets=octets,
        )

    def plan_job(self) -> Sequence[SourcePartition]:
        """`latest` and `plan` for a job without streaming: it gets an epoch of its own, whatever there is to read."""
        with pipeline_errors():
            epoch = drive(self._pipeline.ports.ledger.allot())
        return self.plan(Offset(), Offset(epoch))

    def logged(self, end: Offset) -> None:
        """Spark has logged every batch up to `end`, so that none of them will be read again: finishes their source
        branches. An epoch whose sink is not ours is decided now, with its sources alone."""
        if end.epoch == self._logged:
            return
        with pipeline_errors():
            drive(self._planner.logged(end.epoch))
            # In the other processes, too, what has ended must not be anybody's work any more.
            self._pipeline.ledger.log.flush()
            self._batches += 1
            if self._batches % PURGE_EVERY == 0:
                self._pipeline.ledger.purge()
        self._logged = end.epoch

    def close(self) -> None:
        """Closes the ledger. Nothing is lost where this is not called."""
        self._pipeline.close()


def _waits(resource: Resource, queues: Sequence[str]) -> tuple[int, float | None]:
    """How many messages the queues have, and when the first of the oldest ones was made. XaError."""
    rm = broker(resource)
    waiting = sum(rm.count(queue, resource.rmid) for queue in queues)
    first = (rm.first(queue, resource.rmid) for queue in queues) if waiting else ()
    return waiting, min((at for at in map(_made_at, first) if at), default=None)


def _made_at(octets: bytes | None) -> float | None:
    """When the sender made a message, as far as it says so."""
    if octets is None:
        return None
    try:
        return Message.from_octets(octets).creation_time or None
    except (WireError, DecodeError):  # the task that reads it tells about it
        return None


class BrokersAway:
    """Remembers for a moment which brokers of a source are away. To ask one whose host does not answer takes as long as
    its open string says. The other brokers would wait for that with each batch, and so it is asked only now and
    then."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, tuple[float, str]] = {}

    def now(self) -> Mapping[str, str]:
        """Those that are not asked now, with the reason."""
        now = self._clock()
        return {name: why for name, (until, why) in self._until.items() if now < until}

    def note(self, away: Mapping[str, str]) -> None:
        """These are away, with the reason, and the others are not."""
        asked = self.now()
        for name in [name for name in self._until if name not in away]:
            logger.info("%s is read again", name)
            del self._until[name]
        for name, why in away.items():
            if name not in asked:
                if name not in self._until:
                    logger.warning("%s is skipped until it can be reached: %s", name, why)
                self._until[name] = self._clock() + AGAIN_S, why
