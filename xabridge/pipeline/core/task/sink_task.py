"""The executor's side of a sink: what one attempt of one task writes. No decision log is needed here, and none is
loaded.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Final, Self

import psycopg

from tm.log import Branch
from tm.two_phase.ports import code_of
from tm.two_phase.return_codes import Verb
from xa import TMFAIL, TMSUCCESS, Code, XaError
from xabridge.pipeline.core.errors import BatchRefused, PipelineError
from xabridge.pipeline.core.resources import (
    PROCESS,
    ask_branches,
    call_resource,
    database,
    prepared_branches,
    send_messages,
)
from xabridge.pipeline.core.secrets import expanded
from xabridge.pipeline.core.task.excuse import excuse
from xabridge.pipeline.core.task.message_encoder import encode_messages
from xabridge.pipeline.core.task.staging_table import StagingTable, is_connection_loss, is_row_error
from xabridge.pipeline.core.task.table_writer import TableWriter, csv_rows
from xabridge.pipeline.core.values import SinkReport
from xabridge.pipeline.core.xids import sink_prefix, sink_xid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tm.resources import Resource
    from xa import Xid
    from xabridge.pipeline.core.messages import Messages
    from xabridge.pipeline.core.resources import Resources
    from xabridge.pipeline.core.values import AddressTarget, Attempt, SinkPlan, TableTarget

logger: Final = logging.getLogger("xabridge.pipeline")


class SinkTask:
    """Writes for one attempt of one task, under one branch for each resource manager, started when it is first needed.

    As a context manager it rolls back what was not prepared.
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
        self._tables: dict[TableTarget, TableWriter] = {}
        self._staged: dict[str, StagingTable] = {}
        self._ended = False
        self._rows = 0
        self._messages = 0

    def write_csv(self, target: TableTarget, columns: Sequence[str], octets: bytes, rows: int) -> None:
        """Writes rows in PostgreSQL's CSV form (`COPY … FORMAT csv`: an empty cell without quotes is null). This is the
        fast way, because `pyarrow.csv` writes that form. Rows with a key are staged, and the driver upserts them after
        those of earlier partitions."""
        if self._plan.decided:
            return
        if target.key:
            self.write_rows(target, columns, csv_rows(octets.decode("utf-8")))
            return
        self._write(target, rows, lambda: self._table(target).csv(columns, octets))

    def write_rows(self, target: TableTarget, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Writes rows of Python values, as `write_csv`."""
        if self._plan.decided:
            return
        kept = list(rows)
        if target.key:
            self._write(target, len(kept), lambda: self._stage(target.resource).add(target, columns, kept))
        else:
            self._write(target, len(kept), lambda: self._table(target).rows(columns, kept))

    def _stage(self, name: str) -> StagingTable:
        if self._ended:
            raise self._ended_error()
        staged = self._staged.get(name)
        if staged is None:
            url = expanded(f"resources.{name}", self._plan.url(name))
            staged = StagingTable(url, self._plan.gtrid, self._attempt.partition, self._random.hex())
            self._staged[name] = staged
        return staged

    def _write(self, target: TableTarget, rows: int, write: Callable[[], None]) -> None:
        try:
            write()
        except psycopg.Error as error:
            raise BatchRefused(
                f"{target.table}: {error}", of_rows=is_row_error(error), outage=is_connection_loss(error)
            ) from error
        except XaError as error:
            raise self._refusal(target.resource, error) from error
        self._rows += rows

    def _table(self, target: TableTarget) -> TableWriter:
        table = self._tables.get(target)
        if table is None:
            resource = self._branch(target.resource)
            rm = database(resource)
            connection = rm.session(resource.rmid).psycopg
            table = self._tables[target] = TableWriter(connection, target, lambda: self._roll_back_orphans(resource))
        return table

    def send(self, target: AddressTarget, messages: Messages) -> None:
        """Sends messages."""
        if self._plan.decided:
            return
        try:
            resource = self._branch(target.resource)
            send_messages(resource, target.address, encode_messages(messages))
        except XaError as error:
            raise self._refusal(target.resource, error) from error
        self._messages += len(messages)

    def prepare(self) -> SinkReport:
        """Prepares every branch, durably. BatchRefused: the batch was aborted in the meantime, or the work can't be
        prepared."""
        began = time.perf_counter()
        branches = tuple(Branch(name, self._xid) for name in self._used)
        try:
            staged = tuple(one for rows in self._staged.values() for one in rows.commit())
        except psycopg.Error as error:
            raise BatchRefused(f"rows by key can't be staged: {error}", outage=is_connection_loss(error)) from error
        self._ended = True
        answers = ask_branches(self._used, Verb.END, branches, TMSUCCESS)
        if not any(isinstance(answer, XaError) for answer in answers):
            answers = ask_branches(self._used, Verb.PREPARE, branches)
        wrong = [answer for answer in answers if isinstance(answer, XaError)]
        if wrong:
            ask_branches(self._used, Verb.ROLLBACK, branches)
            told = "; ".join(error.message for error in wrong)
            of_rows = any(error.code is Code.XA_RBINTEGRITY for error in wrong)
            outage = any(map(is_connection_loss, wrong))
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
        ask_branches(self._used, Verb.END, branches, TMFAIL)
        ask_branches(self._used, Verb.ROLLBACK, branches)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.rollback()
        if isinstance(error, PipelineError) and not (isinstance(error, BatchRefused) and error.of_rows):
            urls = [(name, url) for name, url in self._plan.resources if name not in self._plan.skipped]
            excuse(urls, self._plan.gtrid, self._resources)

    @property
    def _xid(self) -> Xid:
        return sink_xid(self._plan.gtrid, self._attempt.partition, self._attempt.task, self._random)

    def _branch(self, name: str) -> Resource:
        """The resource, with the attempt's branch begun."""
        resource = self._used.get(name)
        if resource is None:
            if self._ended:
                raise self._ended_error()
            resource = self._resources.get(name, self._plan.url(name))
            call_resource(resource, "start", lambda: resource.rm.start(self._xid, resource.rmid))
            self._used[name] = resource
        return resource

    @staticmethod
    def _ended_error() -> PipelineError:
        return PipelineError("the attempt can't write any more, because it is prepared or rolled back")

    def _refusal(self, name: str, error: XaError) -> BatchRefused:
        if name in self._used:
            self._used[name].failed(error)
        too_long = error.code is Code.XAER_INVAL
        return BatchRefused(f"{name}: {error}", of_rows=too_long, outage=is_connection_loss(error))

    def _roll_back_orphans(self, resource: Resource) -> int:
        """Rolls back what earlier attempts at this task have prepared and Spark did not accept, and returns how many
        branches these were. A copy of the task that runs at the same time may be hit as well: then the driver finds its
        branch missing, and the batch is run again."""
        mine = sink_prefix(self._attempt.partition)
        gtrid = self._plan.gtrid
        orphans = [
            Branch(resource.name, xid)
            for xid in prepared_branches(resource, gtrid)
            if xid.gtrid == gtrid and xid.bqual.startswith(mine) and xid != self._xid
        ]
        if orphans:
            logger.warning("rolling back %d branches of earlier attempts at %s", len(orphans), self._xid)
            ask_branches({resource.name: resource}, Verb.ROLLBACK, orphans)
        return len(orphans)
