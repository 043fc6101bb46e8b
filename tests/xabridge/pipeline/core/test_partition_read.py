"""These tests run attempts at one source partition over the embedded broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from rm_amqp import AmqpResource
from tests.xabridge.pipeline.core.environment import CoreEnvironment, bodies
from xa import TMSUCCESS
from xabridge.pipeline.core import BatchRefused, SourcePartition
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.core.task.source_task import read
from xabridge.pipeline.spark.json_bodies import json_reader

ROWS = [f"{number}" for number in range(6)]
ORDER = pa.struct([pa.field("number", pa.int64(), nullable=False), pa.field("product", pa.string())])


@pytest.fixture
def env(small: CoreEnvironment) -> CoreEnvironment:
    """No table is written."""
    return small


@pytest.fixture
def other() -> Iterator[Resources]:
    """Another executor's."""
    resources = Resources()
    yield resources
    resources.close()


def _planned(env: CoreEnvironment, partitions: int = 1) -> list[SourcePartition]:
    env.put(ROWS)
    reader, _, planned = env.began(partitions=partitions)
    reader.close()
    return list(planned)


def _begun(partition: SourcePartition, resources: Resources, count: int) -> AmqpResource:
    """An attempt that has taken some messages."""
    resource = resources.get(partition.resource, partition.url)
    resource.reopen()
    rm: AmqpResource = resource.rm  # type: ignore[assignment]
    rm.start(partition.xid, 1)
    assert len(rm.session(1).gather("orders", count)) == count
    return rm


def test_every_attempt_reads_the_same_rows_in_the_same_order(env: CoreEnvironment, other: Resources) -> None:
    """Also where the first took nothing: a later one takes nothing either."""
    parts = _planned(env, 2)
    rows = [env.rows(part) for part in parts]
    assert rows == [ROWS, []], "each may take 50"
    env.put(["late"])
    again = [[body for chunk in read(part, resources=other, chunk=4) for body in bodies(chunk)] for part in parts]
    assert again == rows
    assert env.queued() == ["late"]
    assert env.prepared() == ["src/1/0", "src/1/1"], "what took nothing is prepared as well"


@pytest.mark.parametrize("ended", [False, True])
def test_an_attempt_whose_executor_died_is_taken_over_or_completed_if_it_had_ended(
    env: CoreEnvironment, other: Resources, *, ended: bool
) -> None:
    (partition,) = _planned(env)
    lost = _begun(partition, other, 2)
    if ended:
        lost.end(partition.xid, 1, TMSUCCESS)
    else:
        env.broker.cut(lost.container)
    lost.drop()
    assert env.rows(partition) == (ROWS[:2] if ended else ROWS)


def test_an_attempt_at_work_is_waited_for(env: CoreEnvironment, other: Resources) -> None:
    (partition,) = _planned(env)
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


@pytest.mark.slow
def test_a_partition_of_an_epoch_that_was_given_up_is_refused(env: CoreEnvironment) -> None:
    (partition,) = _planned(env)
    plan = env.writer().plan()
    env.writer().abort(plan, None, [])
    with pytest.raises(BatchRefused, match="epoch was aborted"):
        env.rows(partition)
    assert env.prepared() == []
    assert env.queued() == ROWS


def test_a_bad_body_goes_back_and_the_others_are_the_same_in_every_attempt(env: CoreEnvironment) -> None:
    env.put(['{"number": 1}', '{"number": "two"}', '{"number": 3, "product": "globe"}'])
    (partition,) = env.began(partitions=1)[2]
    for _ in range(2):  # the second one reads the prepared branch
        (chunk,) = read(partition, resources=env.resources, body=json_reader(ORDER))
        assert chunk.body == [{"number": 1, "product": None}, {"number": 3, "product": "globe"}]
    wider = pa.struct([*ORDER.fields, pa.field("cents", pa.int64())])
    (again,) = read(partition, resources=env.resources, body=json_reader(wider))
    rows: list[Any] = list(again.body)
    assert [row["cents"] for row in rows] == [None, None], "a replay by a schema with a new column"
    narrower = pa.struct([pa.field("product", pa.string(), nullable=False)])
    with pytest.raises(BatchRefused, match="messages that are bad now: it can't be read: product is missing"):
        list(read(partition, resources=env.resources, body=json_reader(narrower)))
