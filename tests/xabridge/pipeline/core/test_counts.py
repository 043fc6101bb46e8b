"""Delivery counts: a batch that failed is not its messages' fault, whoever gives them back, and however."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xa import TMFAIL
from xabridge.pipeline.core import Attempt, Batch, Offset
from xabridge.pipeline.core.resources import Resources

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rm_amqp.embedded import EmbeddedBroker
    from tests.xabridge.pipeline.core.stage import Stage

ROWS = [f"{number}" for number in range(10)]


def counts(broker: EmbeddedBroker, queue: str = "orders") -> list[int]:
    """How often each message was delivered in vain."""
    return broker.inside(lambda one: [entry.count for entry in one.container.resource.find(queue)])


def _aborted(stage: Stage) -> None:
    """A batch that is written and given up."""
    reader = stage.reader()
    writer = stage.writer()
    partitions = reader.plan(Offset(), reader.latest(Offset()))
    plan = writer.plan()
    reports = [stage.write(plan, stage.rows(part), Attempt(part.index, part.index)) for part in partitions]
    writer.abort(plan, Batch("q", 0), reports)
    reader.close()
    writer.close()


def _planned_again(stage: Stage) -> None:
    """A driver that dies, and the next one, which rolls back what it finds prepared."""
    reader = stage.reader()
    for partition in reader.plan(Offset(), reader.latest(Offset())):
        stage.rows(partition)
    reader.close()


def _broker_restarted(stage: Stage) -> None:
    """The same; and the broker is started again between the two, with what it has stored."""
    _planned_again(stage)
    stage.broker.stop()
    stage.broker.start()


def _interrupted(stage: Stage) -> None:
    """An attempt that is interrupted in the middle of taking."""
    reader = stage.reader()
    first, _ = reader.plan(Offset(), reader.latest(Offset()))
    other = Resources()
    resource = other.get(first.resource, first.url)
    resource.mend()
    resource.rm.start(first.xid, 1)
    assert len(resource.rm.session(1).gather("orders", 5)) == 5
    resource.rm.end(first.xid, 1, TMFAIL)
    other.close()
    reader.close()


@pytest.mark.parametrize("failing", [_aborted, _planned_again, _broker_restarted, _interrupted])
def test_a_batch_that_failed_raises_no_count(stage: Stage, failing: Callable[[Stage], None]) -> None:
    stage.put(ROWS)
    for _ in range(2):
        failing(stage)
    reader = stage.reader()
    reader.plan(Offset(), reader.latest(Offset()))  # whatever is left is rolled back
    assert counts(stage.broker) == [0] * 10
    assert counts(stage.broker, "orders.dead") == []
    reader.close()
