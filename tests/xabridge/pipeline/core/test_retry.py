"""These tests cause outages of a few seconds: only the log may mention them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest

from tests.xabridge.pipeline.core.environment import CoreEnvironment
from xabridge.pipeline.core import AddressTarget, Attempt, Batch, BatchRefused, Offset, PipelineError, TableTarget
from xabridge.pipeline.core.resources import PROCESS
from xabridge.pipeline.core.retry import Backoff, pauses
from xabridge.pipeline.options import TableRows
from xabridge.pipeline.routing import Routing
from xabridge.pipeline.spark.task_writer import SinkLayout, TaskWriter

ROWS = [f"{number}" for number in range(10)]
LAYOUT = SinkLayout(
    Routing((TableRows(TableTarget("shop", "orders"), ("body",)),)), Routing((AddressTarget("broker", "alerts"),))
)
KEYED = SinkLayout(Routing((TableRows(TableTarget("shop", "totals", ("product",)), ("product",)),)), Routing())


@pytest.fixture(autouse=True)
def _closed(env: CoreEnvironment) -> Iterator[None]:
    """What tasks have opened in this process."""
    assert env.resources is not PROCESS
    yield
    PROCESS.close()


def _batches(*columns: str) -> Iterator[pa.RecordBatch]:
    for row in ROWS:
        yield pa.record_batch([pa.array([row])] * len(columns), names=list(columns))


@contextmanager
def _away(env: CoreEnvironment) -> Iterator[None]:
    """The broker goes away, and is back a moment later."""
    env.broker.stop()
    timer = threading.Timer(0.4, env.broker.start)
    timer.start()
    yield
    timer.join()


def _disconnect(env: CoreEnvironment) -> None:
    """PostgreSQL drops every connection, as when it is started again."""
    env.change(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


def test_a_broker_that_is_away_for_a_moment_is_waited_for(env: CoreEnvironment) -> None:
    env.put(ROWS)
    reader = env.reader()
    with _away(env):
        end = reader.latest(Offset())
    partitions = reader.plan(Offset(), end)
    writer = env.writer()
    plan = writer.plan()

    with _away(env):
        rows = [env.rows(partition) for partition in partitions]
    assert sorted(rows[0] + rows[1], key=int) == ROWS
    reports = [env.write(plan, one, Attempt(at, at)) for at, one in enumerate(rows)]
    with _away(env):
        assert not writer.commit(plan, Batch("q", 0), reports).before
    assert sorted(env.table(), key=int) == ROWS
    reader.logged(end)
    assert env.prepared() == []


@pytest.mark.parametrize("layout", [LAYOUT, KEYED], ids=["table and address", "by key"])
def test_a_task_writes_again_what_went_away_with_its_connections(env: CoreEnvironment, layout: SinkLayout) -> None:
    writer = env.writer()
    plan = writer.plan(streaming=False)

    def rows() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(_batches("body", "product")):
            if number in {4, 7}:
                _disconnect(env)
            yield batch

    report = TaskWriter(layout, plan).write(rows(), Attempt(0, 0))
    assert report.rows == len(ROWS)
    _disconnect(env)
    writer.commit(plan, None, [report])
    if layout is LAYOUT:
        assert env.table() == env.queued("alerts") == ROWS
    else:
        assert env.ask("SELECT count(*) FROM totals") == [(len(ROWS),)]
    assert env.prepared() == []


def test_an_outage_that_lasts_too_long_fails_the_batch(env: CoreEnvironment) -> None:
    env.outage_s = 0.3
    env.put(ROWS)
    reader = env.reader()
    env.broker.stop()
    with pytest.raises(PipelineError, match="can't be read"):
        reader.latest(Offset())
    env.broker.start()
    writer = env.writer()
    plan = writer.plan()

    def rows() -> Iterator[pa.RecordBatch]:
        env.broker.stop()
        yield from _batches("body")

    with pytest.raises(BatchRefused) as refused:
        TaskWriter(LAYOUT, plan).write(rows(), Attempt(0, 0))
    assert refused.value.outage
    env.broker.start()
    writer.abort(plan, None, [])


def test_pauses_are_as_long_as_the_outage_may_last() -> None:
    assert sum(pauses(120.0)) == pytest.approx(120.0)
    assert list(pauses(0.0)) == []
    now = [0.0]
    patience = Backoff(10.0, lambda seconds: now.__setitem__(0, now[0] + seconds), lambda: now[0])
    while patience.wait():
        pass
    assert 10.0 <= now[0] <= 15.0
