"""These tests check delivery counts: a failed batch must not raise the count of its messages, whichever process returns
them, and in whichever way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xa import TMFAIL
from xabridge.pipeline.core import Attempt, Batch, Offset
from xabridge.pipeline.core.resources import Resources

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.rm_amqp.embedded import EmbeddedBroker
    from tests.xabridge.pipeline.core.environment import CoreEnvironment

ROWS = [f"{number}" for number in range(10)]


def counts(broker: EmbeddedBroker, queue: str = "orders") -> list[int]:
    """How often each message was delivered in vain."""
    return broker.inside(lambda one: [entry.count for entry in one.container.resource.find(queue)])


def _aborted(env: CoreEnvironment) -> None:
    """A batch that is written and given up."""
    reader = env.reader()
    writer = env.writer()
    partitions = reader.plan(Offset(), reader.latest(Offset()))
    plan = writer.plan()
    reports = [env.write(plan, env.rows(part), Attempt(part.index, part.index)) for part in partitions]
    writer.abort(plan, Batch("q", 0), reports)
    reader.close()
    writer.close()


def _planned_again(env: CoreEnvironment) -> None:
    """A driver that dies, and the next one, which rolls back what it finds prepared."""
    reader = env.reader()
    for partition in reader.plan(Offset(), reader.latest(Offset())):
        env.rows(partition)


def _broker_restarted(env: CoreEnvironment) -> None:
    """The same; and the broker is started again between the two, with what it has stored."""
    _planned_again(env)
    env.broker.stop()
    env.broker.start()


def _interrupted(env: CoreEnvironment) -> None:
    """An attempt that is interrupted in the middle of taking."""
    reader = env.reader()
    first, _ = reader.plan(Offset(), reader.latest(Offset()))
    other = Resources()
    resource = other.get(first.resource, first.url)
    resource.reopen()
    resource.rm.start(first.xid, 1)
    assert len(resource.rm.session(1).gather("orders", 5)) == 5
    resource.rm.end(first.xid, 1, TMFAIL)
    other.close()


@pytest.mark.parametrize("failing", [_aborted, _planned_again, _broker_restarted, _interrupted])
def test_a_batch_that_failed_raises_no_count(env: CoreEnvironment, failing: Callable[[CoreEnvironment], None]) -> None:
    env.put(ROWS)
    for _ in range(2):
        failing(env)
    reader = env.reader()
    reader.plan(Offset(), reader.latest(Offset()))  # whatever is left is rolled back
    assert counts(env.broker) == [0] * 10
    assert counts(env.broker, "orders.dead") == []
