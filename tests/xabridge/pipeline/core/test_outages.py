"""Outages of a few seconds: nobody hears of them but the log."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from xabridge.pipeline.core import AddressTarget, Attempt, Batch, BatchRefused, Offset, PipelineError, TableTarget
from xabridge.pipeline.core.outages import Patience, pauses
from xabridge.pipeline.core.resources import PROCESS
from xabridge.pipeline.writing import Layout, TaskWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.xabridge.pipeline.core.stage import Stage

ROWS = [f"{number}" for number in range(10)]
LAYOUT = Layout(TableTarget("shop", "orders"), ("body",), AddressTarget("broker", "alerts"))
KEYED = Layout(TableTarget("shop", "totals", ("product",)), ("product",), None)


@pytest.fixture(autouse=True)
def _closed(stage: Stage) -> Iterator[None]:
    """What tasks have opened in this process."""
    assert stage.resources is not PROCESS
    yield
    PROCESS.close()


def _batches(*columns: str) -> Iterator[pa.RecordBatch]:
    for row in ROWS:
        yield pa.record_batch([pa.array([row])] * len(columns), names=list(columns))


def _away(stage: Stage, seconds: float) -> threading.Timer:
    """The broker goes away, and is back a moment later."""
    stage.broker.stop()
    timer = threading.Timer(seconds, stage.broker.start)
    timer.start()
    return timer


def _disconnect(stage: Stage) -> None:
    """PostgreSQL drops every connection, as when it is started again."""
    with psycopg.connect(stage.database) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_a_broker_that_is_away_for_a_moment_is_waited_for(stage: Stage) -> None:
    stage.put(ROWS)
    reader = stage.reader()
    timer = _away(stage, 1.5)
    end = reader.latest(Offset())
    timer.join()
    partitions = reader.plan(Offset(), end)
    writer = stage.writer()
    plan = writer.plan()
    timer = _away(stage, 1.5)
    rows = [stage.rows(partition) for partition in partitions]
    timer.join()
    assert sorted(rows[0] + rows[1], key=int) == ROWS
    reports = [stage.write(plan, one, Attempt(at, at)) for at, one in enumerate(rows)]
    timer = _away(stage, 1.5)
    assert not writer.commit(plan, Batch("q", 0), reports).before
    timer.join()
    assert sorted(stage.table(), key=int) == ROWS
    reader.logged(end)
    assert stage.prepared() == []
    reader.close()
    writer.close()


@pytest.mark.parametrize("layout", [LAYOUT, KEYED], ids=["table and address", "by key"])
def test_a_task_writes_again_what_went_away_with_its_connections(stage: Stage, layout: Layout) -> None:
    writer = stage.writer()
    plan = writer.plan(streaming=False)

    def rows() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(_batches("body", "product")):
            if number in {4, 7}:
                _disconnect(stage)
            yield batch

    report = TaskWriter(layout, plan).write(rows(), Attempt(0, 0))
    assert report.rows == len(ROWS)
    _disconnect(stage)
    writer.commit(plan, None, [report])
    if layout is LAYOUT:
        assert stage.table() == stage.queued("alerts") == ROWS
    else:
        with psycopg.connect(stage.database) as connection:
            assert connection.execute("SELECT count(*) FROM totals").fetchone() == (len(ROWS),)
    assert stage.prepared() == []
    writer.close()


def test_an_outage_that_lasts_too_long_fails_the_batch(stage: Stage) -> None:
    stage.outage_s = 0.3
    stage.put(ROWS)
    reader = stage.reader()
    stage.broker.stop()
    with pytest.raises(PipelineError, match="can't be read"):
        reader.latest(Offset())
    stage.broker.start()
    writer = stage.writer()
    plan = writer.plan()

    def rows() -> Iterator[pa.RecordBatch]:
        stage.broker.stop()
        yield from _batches("body")

    with pytest.raises(BatchRefused) as refused:
        TaskWriter(LAYOUT, plan).write(rows(), Attempt(0, 0))
    assert refused.value.outage
    stage.broker.start()
    writer.abort(plan, None, [])
    reader.close()
    writer.close()


def test_pauses_are_as_long_as_the_outage_may_last() -> None:
    assert sum(pauses(120.0)) == pytest.approx(120.0)
    assert list(pauses(0.0)) == []
    now = [0.0]
    patience = Patience(10.0, lambda seconds: now.__setitem__(0, now[0] + seconds), lambda: now[0])
    while patience.wait():
        pass
    assert 10.0 <= now[0] <= 15.0
