"""OpenPipeline: a pipeline that a process of the driver has open, and the ports to it, which block."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from tm.log import DecisionRefused, LogError
from tm.log.sql.gtrids import NodeTakenOver
from tm.resources.blocking_ports import BlockingPorts
from tm.two_phase.return_codes import Verb
from xa import SharingBranches, XaError, log_prefix
from xabridge.pipeline.core.driver.queue_list import QueueList
from xabridge.pipeline.core.errors import BatchRefused, PipelineError, PipelineTaken
from xabridge.pipeline.core.protocol.epoch_plan import EpochPlanner
from xabridge.pipeline.core.protocol.ports import Ports
from xabridge.pipeline.core.resources import ask_branches, broker, call_resource, prepared_branches
from xabridge.pipeline.core.values import StagedFiles
from xabridge.pipeline.core.xids import Incarnation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tm.log import Branch, Decision, Heuristic
    from tm.log.sql import SqlLog
    from tm.log.sql.gtrids import Entry
    from tm.log.sql.states import GtridState
    from tm.resources import Resource
    from tm.two_phase.ports import Answer
    from xa import Xid
    from xabridge.pipeline.core.ledger.sql_ledger import SqlLedger
    from xabridge.pipeline.core.task.staged_rows import StagedRows
    from xabridge.pipeline.core.values import Staged

logger: Final = logging.getLogger("xabridge.pipeline")


class OpenPipeline:
    """A pipeline that this process has open: its ledger, its resource managers, and the ports to both. Not for several
    threads at a time."""

    def __init__(
        self, ledger: SqlLedger, resources: Mapping[str, Resource], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.ledger = ledger
        self.own = Incarnation(ledger.pipeline, ledger.log.log_id, ledger.log.epoch)
        self.names = tuple(resources)
        self.resources = resources
        prefix = log_prefix(ledger.pipeline, ledger.log.log_id)

        async def pause(seconds: float) -> None:
            sleep(seconds)

        self.log = BlockingLog(ledger.log, prefix, sleep)
        self._branches = BlockingBranches(resources, prefix)
        self.ports = Ports(ledger, self.log, self._branches, pause)

    def planner(self, outage_s: float) -> EpochPlanner:
        """What plans its epochs, and waits so long for a broker that is away."""
        return EpochPlanner(self.ports, self.own, self.names, outage_s)

    def close(self) -> None:
        """Closes the ledger, and what was opened to ask brokers for their queues."""
        self._branches.close()
        self.ledger.close()


class BlockingLog:
    """A `LogPort`. `prefix`: what every gtrid of the log begins with."""

    def __init__(self, log: SqlLog, prefix: bytes, sleep: Callable[[float], None] = time.sleep) -> None:
        self._log = log
        self._prefix = prefix
        self._sleep = sleep
        self._ports = BlockingPorts({}, log)
        self.forced_at: float | None = None
        """When the last decision became durable, by the clock of `time.perf_counter`."""

    async def begin(self, gtrid: bytes) -> LogError | None:
        try:
            self._log.begin(gtrid)
        except NodeTakenOver:
            raise
        except DecisionRefused as error:
            return error
        return None

    async def force(self, decision: Decision) -> LogError | None:
        refused = await self._ports.force(decision)
        if refused is None:
            self.forced_at = time.perf_counter()
        return refused

    async def force_with_rows(self, decision: Decision, staged: Sequence[StagedRows]) -> LogError | BatchRefused | None:
        from xabridge.pipeline.core.driver.deciding_rows import decide_with_rows  # noqa: PLC0415 — loads psycopg

        try:
            decide_with_rows(self._log, decision, staged, self._prefix, self._sleep)
        except (LogError, BatchRefused) as error:
            return error
        self.forced_at = time.perf_counter()
        return None

    async def abort(self, gtrid: bytes) -> GtridState:
        return self._log.abort(gtrid)

    async def entry(self, gtrid: bytes) -> Entry | None:
        return self._log.entry(gtrid)

    async def decisions(self) -> Sequence[Decision]:
        return self._log.decisions()

    async def end(self, decision: Decision) -> None:
        await self._ports.end(decision)

    async def note(self, heuristic: Heuristic) -> LogError | None:
        return await self._ports.note(heuristic)


class BlockingBranches:
    """A `BranchPort`. `prefix`: what every gtrid of the pipeline's log begins with."""

    def __init__(self, resources: Mapping[str, Resource], prefix: bytes) -> None:
        self._resources = resources
        self._prefix = prefix
        self._lists: dict[str, QueueList] = {}

    def close(self) -> None:
        """Closes what was opened to ask for queues."""
        lists, self._lists = self._lists, {}
        for one in lists.values():
            one.close()

    async def ask(self, verb: Verb, branches: Sequence[Branch]) -> list[Answer]:
        return ask_branches(self._resources, verb, branches)

    async def prepared(self, resource: str) -> frozenset[Xid] | XaError:
        try:
            return prepared_branches(self._resources[resource], self._prefix)
        except XaError as error:
            logger.warning("%s could not be asked for prepared branches: %s", resource, error)
            return error

    async def fence(self, resource: str, gtrid: bytes) -> XaError | None:
        fenced = self._resources[resource]
        rm = fenced.rm
        if not isinstance(rm, SharingBranches):
            return None
        try:
            call_resource(fenced, "fence", lambda: rm.fence(gtrid, fenced.rmid))
        except XaError as error:
            logger.warning("%s: the fence could not be set: %s", resource, error)
            return error
        return None

    async def message_counts(self, resource: str, gtrid: bytes) -> Mapping[Xid, int] | XaError:
        counted = self._resources[resource]
        try:
            return call_resource(counted, "recover", lambda: broker(counted).holds(gtrid, counted.rmid))
        except XaError as error:
            return error

    async def write_staged(self, gtrid: bytes, staged: Sequence[Staged]) -> Sequence[Branch] | BatchRefused:
        from xabridge.pipeline.core.driver.append_branch import append_staged_files  # noqa: PLC0415 — loads psycopg
        from xabridge.pipeline.core.driver.upsert_branch import upsert_staged_rows  # noqa: PLC0415 — loads psycopg

        done: list[Branch] = []
        for name in sorted({one.target.resource for one in staged}):
            rows = [one for one in staged if one.target.resource == name and not isinstance(one, StagedFiles)]
            files = [one for one in staged if one.target.resource == name and isinstance(one, StagedFiles)]
            try:
                if files:
                    branch = append_staged_files(self._resources[name], gtrid, files)
                else:
                    branch = upsert_staged_rows(self._resources[name], gtrid, rows, self._prefix)
            except BatchRefused as refused:
                ask_branches(self._resources, Verb.ROLLBACK, done)
                return refused
            done += [branch] if branch is not None else []
        return done

    async def has_messages(self, resource: str, queues: Sequence[str]) -> bool | XaError:
        read = self._resources[resource]
        rm = broker(read)
        try:
            for queue in queues:
                if call_resource(read, "browse", partial(rm.first, queue, read.rmid)) is not None:
                    return True
        except XaError as error:
            return error
        return False

    async def count_messages(self, resource: str, queues: Sequence[str]) -> int | XaError:
        counted = self._resources[resource]
        rm = broker(counted)
        try:
            return call_resource(counted, "browse", lambda: sum(rm.count(one, counted.rmid) for one in queues))
        except XaError as error:
            return error

    async def queues(self, resource: str, patterns: Sequence[str]) -> Mapping[str, int] | XaError:
        opened = self._lists.get(resource)
        if opened is None:
            opened = self._lists[resource] = QueueList(self._resources[resource])
        try:
            return opened.matching(patterns)
        except XaError as error:
            return error


@contextmanager
def pipeline_errors() -> Iterator[None]:
    """Raises errors of the decision log as errors of the pipeline."""
    try:
        yield
    except NodeTakenOver as error:
        raise PipelineTaken(str(error)) from error
    except LogError as error:
        raise PipelineError(f"the decision log failed: {error}") from error
