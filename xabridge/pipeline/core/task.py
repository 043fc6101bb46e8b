"""The executors' side of a pipeline: `read` and `SinkTask`. No decision log is needed here, and none is loaded.

Resource managers stay open in the process, for the tasks that come after.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any, Final, Self

import psycopg

from rm_amqp import AmqpResource
from tm.effects import Call, Pause, code_of
from tm.log import Branch
from tm.performer import Performer
from tm.verdicts import Verb
from xa import TMFAIL, TMSUCCESS, Code, XaError
from xabridge.pipeline.core import taking
from xabridge.pipeline.core.decoding import Sorting, decoded
from xabridge.pipeline.core.encoding import encoded
from xabridge.pipeline.core.errors import BatchRefused, PipelineError
from xabridge.pipeline.core.functions import function_named
from xabridge.pipeline.core.naming import excuse_xid, sink_prefix, sink_xid
from xabridge.pipeline.core.resources import PROCESS, asked, broker, database, prepared
from xabridge.pipeline.core.secrets import expanded
from xabridge.pipeline.core.staged_rows import StagedRows, is_loss, is_of_rows
from xabridge.pipeline.core.tabling import Table, csv_rows
from xabridge.pipeline.core.values import SinkReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tm.effects import Answer
    from tm.resources import Resource
    from xabridge.pipeline.core.messages import Messages
    from xabridge.pipeline.core.resources import Resources
    from xabridge.pipeline.core.taking import Effect, Taken
    from xabridge.pipeline.core.values import AddressTarget, Attempt, SinkPlan, SourcePartition, TableTarget

logger: Final = logging.getLogger("xabridge.pipeline")

CHUNK: Final = 10_000


# --- the source -----------------------------------------------------------------------------------------------------
def read(
    partition: SourcePartition,
    *,
    chunk: int = CHUNK,
    resources: Resources = PROCESS,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Messages]:
    """The messages of the partition, at most `chunk` at a time: the same ones in the same order in every attempt.
    They are prepared, durably, before the first one is yielded. BatchRefused: the epoch was given up meanwhile."""
    try:
        resource = resources.get(partition.resource, partition.url)
        taker = Taker(resource, partition, sleep, chunk)
        rows: Iterable[Messages] = taker.rows if taker.take() else _again(resource, partition, chunk)
        yield from rows
    except PipelineError:
        excuse(((partition.resource, partition.url),), partition.xid.gtrid, resources)
        raise


def _pairs(taken: Taken) -> Iterator[tuple[str | None, bytes]]:
    for queue, messages in taken:
        for octets in messages:
            yield queue, octets


def _again(resource: Resource, partition: SourcePartition, chunk: int) -> Iterator[Messages]:
    """What the prepared branch tells. Of an attempt that came no further than its end, it tells the bad ones too."""
    sorting = _sorting(partition)
    sorting.aside = 0
    for messages in decoded(_told(resource, partition), chunk, sorting):
        if sorting.bad:
            break
        yield messages
    if sorting.bad:
        raise BatchRefused(f"{partition.xid} tells messages that are bad now: {next(iter(sorting.bad.values()))}")


def _sorting(partition: SourcePartition) -> Sorting:
    return Sorting(partition.aside, partition.text, function_named(partition.bad_records))


def _told(resource: Resource, partition: SourcePartition) -> Iterator[tuple[str | None, bytes]]:
    """What the prepared branch holds."""
    try:
        for page in broker(resource).retired(partition.xid, resource.rmid):
            for octets in page:
                yield None, octets
    except XaError as error:
        resource.failed(error)
        raise BatchRefused(f"what {partition.xid} holds can't be read: {error}") from error


class Taker:
    """Performs the effects of `xabridge.pipeline.core.taking` on a broker. `rows`: what was taken, and is told."""

    def __init__(
        self, resource: Resource, partition: SourcePartition, sleep: Callable[[float], None], chunk: int = CHUNK
    ) -> None:
        self._resource = resource
        self._partition = partition
        self._rm = broker(resource)
        self._sleep = sleep
        self._chunk = chunk
        self.rows: list[Messages] = []

    def take(self) -> bool:
        """As `taking.take`; False: it was prepared before, and is to be read. Whatever interrupts it leaves no branch
        at work."""
        partition = self._partition
        steps = taking.take(
            partition.xid, partition.queues, partition.share, round(partition.outage_s / taking.PAUSE_S) + 1
        )
        try:
            effect = next(steps)
            while True:
                effect = steps.send(self.perform(effect))
        except StopIteration as end:
            return end.value is not None
        except BaseException:
            self._leave(partition)
            raise

    def _leave(self, partition: SourcePartition) -> None:
        """Nobody waits for this attempt any more: what it took goes back at once. The branch is not told to roll back,
        as it may be another attempt's by then: after an end in failure nothing of this one can be prepared."""
        branch = Branch(partition.resource, partition.xid)
        Performer({partition.resource: self._resource}, None).perform(Call(Verb.END, (branch,), TMFAIL))

    def perform(self, effect: Effect) -> Any:
        """The answer to `effect`."""
        if isinstance(effect, Pause):
            self._sleep(effect.seconds)
            return None
        if isinstance(effect, taking.Judge):
            return self._judge(effect.taken)
        try:
            return asked(self._resource, type(effect).__name__.lower(), lambda: self._ask(effect))
        except XaError as error:
            return error

    def _judge(self, taken: Taken) -> taking.Judged:
        """Reads the messages."""
        sorting = _sorting(self._partition)
        self.rows = list(decoded(_pairs(taken), self._chunk, sorting))
        for place, why in sorting.bad.items():
            logger.warning("%s: message %d is bad, and given back: %s", self._partition.xid, place, why)
        count = sum(len(messages) for _, messages in taken)
        judged = taking.judge(self._partition.aside, sorting.bad, count, sum(map(len, self.rows)))
        if self._partition.aside:
            told = "others are read without them" if self.rows else "there are no others"
            logger.warning("%s: the first of %d messages failed alone: %s", self._partition.xid, count, told)
        return judged

    def _ask(self, effect: Effect) -> Any:
        rm, rmid = self._rm, self._resource.rmid
        match effect:
            case taking.Start(xid):
                return rm.start(xid, rmid)
            case taking.Take(queue, count):
                return rm.session(rmid).gather(queue, count)
            case taking.Prepare(xid, judged):
                rm.end(xid, rmid, TMSUCCESS)
                return rm.prepare_kept(xid, rmid, judged.failed, judged.released)
            case taking.Hold(xid):
                next(rm.retired(xid, rmid, 1), None)
                return Code.XA_OK
            case taking.Adopt(xid):
                return rm.prepare_kept(xid, rmid)
        raise AssertionError(effect)


def excuse(urls: Iterable[tuple[str, str]], gtrid: bytes, resources: Resources) -> None:
    """The attempt failed, and its messages are not to blame: says so to the driver, by a branch at a broker."""
    xid = excuse_xid(gtrid, os.urandom(8))
    for name, url in urls:
        try:
            resource = resources.get(name, url)
            if not isinstance(resource.rm, AmqpResource):
                continue
            rm = resource.rm
            asked(resource, "start", lambda rm=rm, resource=resource: rm.start(xid, resource.rmid))  # type: ignore[misc]
            rm.end(xid, resource.rmid, TMSUCCESS)
            rm.prepare_kept(xid, resource.rmid)
        except (XaError, PipelineError) as error:
            logger.warning("%s: it can't be told there that no message is to blame: %s", name, error)
        else:
            return


# --- the sink -------------------------------------------------------------------------------------------------------
class SinkTask:
    """What one attempt of one task writes: a branch for each resource manager, begun when it is first needed.

    As context manager it rolls back what was not prepared.
    """

    def __init__(
        self,
        plan: SinkPlan,
        attempt: Attempt,
        *,
        resources: Resources = PROCESS,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._plan = plan
        self._attempt = attempt
        self._resources = resources
        self._random = entropy(8)
        self._used: dict[str, Resource] = {}
        self._tables: dict[TableTarget, Table] = {}
        self._staged: dict[str, StagedRows] = {}
        self._ended = False
        self._rows = 0
        self._messages = 0

    def write_csv(self, target: TableTarget, columns: Sequence[str], octets: bytes, rows: int) -> None:
        """Writes rows in PostgreSQL's CSV form (`COPY … FORMAT csv`: what is empty and not quoted is null): the fast
        way, `pyarrow.csv` writes it. With a key the driver upserts them, after those of earlier partitions."""
        if self._plan.decided:
            return
        if target.key:
            self.write_rows(target, columns, csv_rows(octets.decode("utf-8")))
            return
        self._written(target, rows, lambda: self._table(target).csv(columns, octets))

    def write_rows(self, target: TableTarget, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Writes rows of Python values, as `write_csv`."""
        if self._plan.decided:
            return
        kept = list(rows)
        if target.key:
            self._written(target, len(kept), lambda: self._stage(target.resource).add(target, columns, kept))
        else:
            self._written(target, len(kept), lambda: self._table(target).rows(columns, kept))

    def _stage(self, name: str) -> StagedRows:
        if self._ended:
            raise self._over()
        staged = self._staged.get(name)
        if staged is None:
            url = expanded(f"resources.{name}", self._plan.url(name))
            staged = StagedRows(url, self._plan.gtrid, self._attempt.partition, self._random.hex())
            self._staged[name] = staged
        return staged

    def _written(self, target: TableTarget, rows: int, write: Callable[[], None]) -> None:
        try:
            write()
        except psycopg.Error as error:
            raise BatchRefused(f"{target.table}: {error}", of_rows=is_of_rows(error), outage=is_loss(error)) from error
        except XaError as error:
            raise self._heard(target.resource, error) from error
        self._rows += rows

    def _table(self, target: TableTarget) -> Table:
        table = self._tables.get(target)
        if table is None:
            resource = self._branch(target.resource)
            rm = database(resource)
            connection = rm.session(resource.rmid).psycopg
            table = self._tables[target] = Table(connection, target, lambda: self._roll_back_orphans(resource))
        return table

    def send(self, target: AddressTarget, messages: Messages) -> None:
        """Sends messages."""
        if self._plan.decided:
            return
        try:
            resource = self._branch(target.resource)
            broker(resource).session(resource.rmid).post(target.address, encoded(messages))
        except XaError as error:
            raise self._heard(target.resource, error) from error
        self._messages += len(messages)

    def prepare(self) -> SinkReport:
        """Prepares every branch; durable when it returns. BatchRefused: the batch was given up meanwhile, or what was
        written can't be."""
        began = time.perf_counter()
        branches = tuple(Branch(name, self._xid) for name in self._used)
        try:
            staged = tuple(one for rows in self._staged.values() for one in rows.commit())
        except psycopg.Error as error:
            raise BatchRefused(f"rows by key can't be staged: {error}", outage=is_loss(error)) from error
        self._ended = True
        performer = Performer(self._used, None)
        answers: list[Answer] = performer.perform(Call(Verb.END, branches, TMSUCCESS)) if branches else []
        if not any(isinstance(answer, XaError) for answer in answers) and branches:
            answers = performer.perform(Call(Verb.PREPARE, branches))
        wrong = [answer for answer in answers if isinstance(answer, XaError)]
        if wrong:
            performer.perform(Call(Verb.ROLLBACK, branches))
            told = "; ".join(error.message for error in wrong)
            of_rows = any(error.code is Code.XA_RBINTEGRITY for error in wrong)
            outage = any(map(is_loss, wrong))
            raise BatchRefused(f"the attempt could not be prepared: {told}", of_rows=of_rows, outage=outage)
        kept = tuple(
            branch for branch, answer in zip(branches, answers, strict=True) if code_of(answer) is not Code.XA_RDONLY
        )
        seconds = time.perf_counter() - began
        attempt, plan = self._attempt, self._plan
        return SinkReport(
            attempt.partition, attempt.task, plan.gtrid, kept, self._rows, self._messages, seconds, staged
        )

    def rollback(self) -> None:
        """Rolls back what is not prepared."""
        if self._ended:
            return
        self._ended = True
        for staged in self._staged.values():
            staged.close()
        branches = tuple(Branch(name, self._xid) for name in self._used)
        performer = Performer(self._used, None)
        if branches:
            performer.perform(Call(Verb.END, branches, TMFAIL))
            performer.perform(Call(Verb.ROLLBACK, branches))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.rollback()
        if isinstance(error, PipelineError) and not (isinstance(error, BatchRefused) and error.of_rows):
            excuse(self._plan.resources, self._plan.gtrid, self._resources)

    @property
    def _xid(self) -> Any:
        return sink_xid(self._plan.gtrid, self._attempt.partition, self._attempt.task, self._random)

    def _branch(self, name: str) -> Resource:
        """The resource, with the attempt's branch begun."""
        resource = self._used.get(name)
        if resource is None:
            if self._ended:
                raise self._over()
            resource = self._resources.get(name, self._plan.url(name))
            asked(resource, "start", lambda: resource.rm.start(self._xid, resource.rmid))
            self._used[name] = resource
        return resource

    @staticmethod
    def _over() -> PipelineError:
        return PipelineError("the attempt is prepared, or rolled back: nothing is written any more")

    def _heard(self, name: str, error: XaError) -> BatchRefused:
        if name in self._used:
            self._used[name].failed(error)
        too_long = error.code is Code.XAER_INVAL
        return BatchRefused(f"{name}: {error}", of_rows=too_long, outage=is_loss(error))

    def _roll_back_orphans(self, resource: Resource) -> int:
        """What earlier attempts at this task have prepared and Spark did not take; or, at a copy that runs beside this
        one, what it did: the driver then finds it missing, and the batch is run again."""
        mine = sink_prefix(self._attempt.partition)
        gtrid = self._plan.gtrid
        orphans = [
            Branch(resource.name, xid)
            for xid in prepared(resource, gtrid)
            if xid.gtrid == gtrid and xid.bqual.startswith(mine) and xid != self._xid
        ]
        if orphans:
            logger.warning("%d branches of earlier attempts at %s are rolled back", len(orphans), self._xid)
            Performer({resource.name: resource}, None).perform(Call(Verb.ROLLBACK, tuple(orphans)))
        return len(orphans)
