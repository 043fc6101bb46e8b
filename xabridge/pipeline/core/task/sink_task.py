"""The executor's side of a sink: what one attempt of one task writes. No decision log is needed here, and none is
loaded.
"""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Self, cast

from tm.log import Branch
from tm.two_phase.ports import code_of
from tm.two_phase.return_codes import Verb
from xa import TMFAIL, TMSUCCESS, Code, XaError
from xabridge.pipeline.core.errors import BatchRefused, PipelineError
from xabridge.pipeline.core.resources import (
    PROCESS,
    ask_branches,
    call_resource,
    database_of,
    prepared_branches,
    send_messages,
)
from xabridge.pipeline.core.retry import is_outage
from xabridge.pipeline.core.secrets import expanded
from xabridge.pipeline.core.task.blameless_failure import excuse
from xabridge.pipeline.core.task.databases import SCHEMES, scheme_of
from xabridge.pipeline.core.task.message_encoder import encode_messages
from xabridge.pipeline.core.task.table_writer import csv_rows
from xabridge.pipeline.core.values import SinkReport
from xabridge.pipeline.core.xids import sink_prefix, sink_xid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tm.resources import Resource
    from xa import Xid
    from xabridge.pipeline.core.messages import Messages
    from xabridge.pipeline.core.resources import Resources
    from xabridge.pipeline.core.task.databases import CsvWriter, Database, RowWriter, StagingTable
    from xabridge.pipeline.core.task.lake_files import LakeFiles
    from xabridge.pipeline.core.values import (
        AddressTarget,
        Attempt,
        LakeTarget,
        OnceSettings,
        SinkPlan,
        Staged,
        TableTarget,
    )

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
        self._entropy = entropy
        self._random = entropy(8)
        self._used: dict[str, Resource] = {}
        self._xids: dict[str, Xid] = {}
        self._tables: dict[TableTarget, RowWriter] = {}
        self._staged: dict[str, StagingTable] = {}
        self._files: dict[str, LakeFiles] = {}
        self._ended = False
        self._rows = 0
        self._messages = 0
        self._octets = 0

    def write_csv(self, target: TableTarget, columns: Sequence[str], octets: bytes, rows: int) -> None:
        """Writes rows in PostgreSQL's CSV form (`COPY … FORMAT csv`: an empty cell without quotes is null). This is the
        fast way, because `pyarrow.csv` writes that form. Rows with a key are staged, and the driver upserts them after
        those of earlier partitions. Rows for the database that decides are staged too."""
        if self._plan.decided:
            return
        if self._is_staged(target):
            self.write_rows(target, columns, csv_rows(octets.decode("utf-8")))
            self._octets += len(octets)
            return
        self._write(target, rows, lambda: cast("CsvWriter", self._table(target)).csv(columns, octets))
        self._octets += len(octets)

    def write_rows(self, target: TableTarget, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Writes rows of Python values, as `write_csv`."""
        if self._plan.decided:
            return
        kept = list(rows)
        missing = [name for name in target.key if name not in columns]
        if missing:
            raise PipelineError(f"{target.table}: the rows have no column {', '.join(missing)}, which is in the key")
        if self._is_staged(target):
            self._write(target, len(kept), lambda: self._stage(target.resource).add(target, columns, kept))
        else:
            self._write(target, len(kept), lambda: self._table(target).rows(columns, kept))

    def _is_staged(self, target: TableTarget) -> bool:
        return bool(target.key) or self._plan.decides(target.resource)

    def write_files(self, target: LakeTarget, table: object, rows: int) -> None:
        """Writes rows for a Delta table, as a table of pyarrow's. The driver appends them with those of other tasks."""
        if self._plan.decided:
            return
        try:
            if self._ended:
                raise self._ended_error()
            files = self._files.get(target.resource)
            if files is None:
                from xabridge.pipeline.core.task.lake_files import LakeFiles  # noqa: PLC0415 — loads pyarrow

                resource = self._resources.get(target.resource, self._plan.url(target.resource))
                files = self._files[target.resource] = LakeFiles(resource, self._plan.gtrid, self._random.hex())
            files.add(target, table)
        except XaError as error:
            raise self._refusal(target.resource, error) from error
        self._rows += rows

    def _stage(self, name: str) -> StagingTable:
        if self._ended:
            raise self._ended_error()
        staged = self._staged.get(name)
        if staged is None:
            url = expanded(f"resources.{name}", self._plan.table_url(name))
            kind = database_of(name, url)
            staged = kind.staging(url, self._plan.gtrid, self._attempt.partition, self._random.hex())
            self._staged[name] = staged
        return staged

    def _write(self, target: TableTarget, rows: int, write: Callable[[], None]) -> None:
        kind = self._kind(target.resource)
        try:
            write()
        except kind.errors as error:
            fault = kind.fault(error)
            raise BatchRefused(f"{target.table}: {error}", of_rows=fault.of_rows, outage=fault.outage) from error
        except XaError as error:
            raise self._refusal(target.resource, error) from error
        self._rows += rows

    def _table(self, target: TableTarget) -> RowWriter:
        table = self._tables.get(target)
        if table is None:
            resource = self._branch(target.resource)
            orphans = partial(self._roll_back_orphans, resource)
            table = self._tables[target] = self._kind(target.resource).writer(resource, target, orphans)
        return table

    def first_ones(self, once: OnceSettings, values: Iterable[str]) -> frozenset[str]:
        """Those of the values that no row which was written had. From now on these rows count as written, if the batch
        is decided."""
        kind = self._kind(once.values.resource)
        try:
            resource = self._branch(once.values.resource)
            return kind.once.claim(resource, once, values, partial(self._roll_back_orphans, resource))
        except kind.errors as error:
            fault = kind.fault(error)
            raise BatchRefused(f"{once.values.table}: {error}", of_rows=fault.of_rows, outage=fault.outage) from error
        except XaError as error:
            raise self._refusal(once.values.resource, error) from error

    def _kind(self, name: str) -> Database:
        return database_of(name, self._plan.table_url(name))

    def send(self, target: AddressTarget, messages: Messages) -> None:
        """Sends messages."""
        if self._plan.decided:
            return
        try:
            resource = self._branch(target.resource)
            encoded = encode_messages(messages)
            send_messages(resource, target.address, encoded)
        except XaError as error:
            raise self._refusal(target.resource, error) from error
        self._messages += len(messages)
        self._octets += sum(map(len, encoded))

    def prepare(self) -> SinkReport:
        """Prepares every branch, durably. BatchRefused: the batch was aborted in the meantime, or the work can't be
        prepared."""
        began = time.perf_counter()
        branches = self._branches()
        staged = self._commit_staged()
        self._ended = True
        answers = ask_branches(self._used, Verb.END, branches, TMSUCCESS)
        if not any(isinstance(answer, XaError) for answer in answers):
            answers = ask_branches(self._used, Verb.PREPARE, branches)
        wrong = [answer for answer in answers if isinstance(answer, XaError)]
        if wrong:
            ask_branches(self._used, Verb.ROLLBACK, branches)
            messages = "; ".join(error.message for error in wrong)
            of_rows = any(error.code is Code.XA_RBINTEGRITY for error in wrong)
            outage = any(map(is_outage, wrong))
            raise BatchRefused(f"the attempt could not be prepared: {messages}", of_rows=of_rows, outage=outage)
        kept = tuple(
            branch for branch, answer in zip(branches, answers, strict=True) if code_of(answer) is not Code.XA_RDONLY
        )
        for branch in kept:
            resource = self._used[branch.resource]
            if scheme_of(resource.url) in SCHEMES:
                self._kind(branch.resource).prepared(resource, branch.xid)

        seconds = time.perf_counter() - began
        attempt, plan = self._attempt, self._plan
        return SinkReport(
            attempt.partition, attempt.task, plan.gtrid, kept, self._rows, self._messages, seconds, staged, self._octets
        )

    def _commit_staged(self) -> tuple[Staged, ...]:
        """Makes what is staged durable, and returns it."""
        staged: list[Staged] = []
        for name, rows in self._staged.items():
            kind = self._kind(name)
            try:
                staged += rows.commit()
            except kind.errors as error:
                outage = kind.fault(error).outage
                raise BatchRefused(f"{name}: rows can't be staged: {error}", outage=outage) from error
        for files in self._files.values():
            staged += files.finish()
        return tuple(staged)

    def _branches(self) -> tuple[Branch, ...]:
        return tuple(Branch(name, self._xids[name]) for name in self._used)

    def rollback(self) -> None:
        """Rolls back what is not prepared."""
        if self._ended:
            return
        self._ended = True
        for staged in self._staged.values():
            staged.close()
        for files in self._files.values():
            files.remove()
        branches = self._branches()
        ask_branches(self._used, Verb.END, branches, TMFAIL)
        ask_branches(self._used, Verb.ROLLBACK, branches)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.rollback()
        if isinstance(error, PipelineError) and not (isinstance(error, BatchRefused) and error.of_rows):
            urls = [(name, url) for name, url in self._plan.resources if name not in self._plan.skipped]
            excuse(urls, self._plan.gtrid, self._resources)

    def _branch(self, name: str) -> Resource:
        """The resource, with the attempt's branch begun."""
        resource = self._used.get(name)
        if resource is None:
            if self._ended:
                raise self._ended_error()
            resource = self._resources.get(name, self._plan.url(name))
            attempt = self._attempt  # a random part for each resource, because two of them may be one server's
            xid = sink_xid(self._plan.gtrid, attempt.partition, attempt.task, self._entropy(8))
            call_resource(resource, "start", lambda: resource.rm.start(xid, resource.rmid))
            self._used[name], self._xids[name] = resource, xid
        return resource

    @staticmethod
    def _ended_error() -> PipelineError:
        return PipelineError("the attempt can't write any more, because it is prepared or rolled back")

    def _refusal(self, name: str, error: XaError) -> BatchRefused:
        if name in self._used:
            self._used[name].failed(error)
        too_long = error.code is Code.XAER_INVAL
        return BatchRefused(f"{name}: {error}", of_rows=too_long, outage=is_outage(error))

    def _roll_back_orphans(self, resource: Resource) -> int:
        """Rolls back what earlier attempts at this task have prepared and Spark did not accept, and returns how many
        branches these were. A copy of the task that runs at the same time may be hit as well: then the driver finds its
        branch missing, and the batch is run again."""
        mine = sink_prefix(self._attempt.partition)
        gtrid = self._plan.gtrid
        own = self._xids.values()
        orphans = [
            Branch(resource.name, xid)
            for xid in prepared_branches(resource, gtrid)
            if xid.gtrid == gtrid and xid.bqual.startswith(mine) and xid not in own
        ]
        if orphans:
            logger.warning(
                "rolling back what earlier attempts at %s have prepared: %d", self._xids[resource.name], len(orphans)
            )
            ask_branches({resource.name: resource}, Verb.ROLLBACK, orphans)
        return len(orphans)
