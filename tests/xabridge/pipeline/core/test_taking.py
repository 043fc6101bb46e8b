"""Attempts at one source partition, over the embedded broker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tests.xabridge.pipeline.core.stage import bodies
from xa import TMSUCCESS
from xabridge.pipeline.core import BatchRefused, Offset
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.core.task import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rm_amqp import AmqpResource
    from tests.xabridge.pipeline.core.stage import Stage
    from xabridge.pipeline.core import SourcePartition

ROWS = [f"{number}" for number in range(6)]


@pytest.fixture
def other() -> Iterator[Resources]:
    """Another executor's."""
    resources = Resources()
    yield resources
    resources.close()


def _planned(stage: Stage, partitions: int = 1) -> list[SourcePartition]:
    stage.put(ROWS)
    reader = stage.reader(partitions=partitions)
    planned = list(reader.plan(Offset(), reader.latest(Offset())))
    reader.close()
    return planned


def _begun(partition: SourcePartition, resources: Resources, count: int) -> AmqpResource:
    """An attempt that has taken some messages."""
    resource = resources.get(partition.resource, partition.url)
    resource.mend()
    rm: AmqpResource = resource.rm  # type: ignore[assignment]
    rm.start(partition.xid, 1)
    assert len(rm.session(1).gather("orders", count)) == count
    return rm


def test_every_attempt_reads_the_same_rows_in_the_same_order(stage: Stage, other: Resources) -> None:
    first, second = _planned(stage, 2)
    rows = [stage.rows(first), stage.rows(second)]
    assert [len(one) for one in rows] == [6, 0]  # each may take 50
    assert rows[0] == ROWS
    for partition, told in zip((first, second), rows, strict=True):
        again = [body for chunk in read(partition, resources=other, chunk=4) for body in bodies(chunk)]
        assert again == told
    assert stage.prepared() == ["src/1/0", "src/1/1"]  # what took nothing is prepared as well


def test_a_partition_that_took_nothing_takes_nothing_later(stage: Stage, other: Resources) -> None:
    first, second = _planned(stage, 2)
    assert [len(stage.rows(one)) for one in (first, second)] == [6, 0]
    stage.put(["late"])
    assert list(read(second, resources=other)) == []
    assert stage.queued() == ["late"]


def test_an_attempt_whose_executor_died_is_taken_over(stage: Stage, other: Resources) -> None:
    (partition,) = _planned(stage)
    lost = _begun(partition, other, 2)
    stage.broker.cut(lost.container)
    lost.drop()
    assert stage.rows(partition) == ROWS


def test_an_attempt_that_ended_and_died_is_completed(stage: Stage, other: Resources) -> None:
    (partition,) = _planned(stage)
    lost = _begun(partition, other, 2)
    lost.end(partition.xid, 1, TMSUCCESS)
    lost.drop()
    assert stage.rows(partition) == ROWS[:2]


def test_an_attempt_at_work_is_waited_for(stage: Stage, other: Resources) -> None:
    (partition,) = _planned(stage)
    slow = _begun(partition, other, 3)
    asked = threading.Event()
    rows: list[str] = []

    def copy() -> None:
        resources = Resources()
        for chunk in read(partition, resources=resources, sleep=lambda _: asked.set()):
            rows.extend(bodies(chunk))
        resources.close()

    thread = threading.Thread(target=copy)
    thread.start()
    assert asked.wait(30)
    slow.end(partition.xid, 1, TMSUCCESS)
    thread.join(30)
    assert rows == ROWS[:3]


def test_a_partition_of_an_epoch_that_was_given_up_is_refused(stage: Stage) -> None:
    (partition,) = _planned(stage)
    plan = stage.writer().plan()
    stage.writer().abort(plan, None, [])
    with pytest.raises(BatchRefused, match="given up"):
        stage.rows(partition)
    assert stage.prepared() == []
    assert stage.queued() == ROWS
