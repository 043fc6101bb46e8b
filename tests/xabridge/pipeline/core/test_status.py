"""These tests check what a pipeline reports about its state to users."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tm.log import LogMissing
from xabridge.pipeline.core import Attempt, Batch, Offset
from xabridge.pipeline.core.ledger.status import pipelines, status
from xabridge.pipeline.core.process_ids import process_id

if TYPE_CHECKING:
    from tests.xabridge.pipeline.core.environment import CoreEnvironment


def test_status_shows_epochs_branches_and_what_can_not_be_reached(env: CoreEnvironment) -> None:
    with pytest.raises(LogMissing):
        pipelines(env.log)
    env.put(["1", "2"])
    reader = env.reader(partitions=1)
    end = reader.latest(Offset())
    (partition,) = reader.plan(Offset(), end)
    writer = env.writer()
    plan = writer.plan()
    report = env.write(plan, env.rows(partition), Attempt(0, 0))
    resources = (*env.settings.resources, ("gone", "amqp://127.0.0.1:1/?connect_timeout=1&timeout=1"))
    shown = status("orders", env.log, resources, opened=env.resources)
    assert pipelines(env.log) == ("orders",)
    assert (shown.driver, shown.incarnation) == ("driver-1", plan.incarnation)
    assert (shown.query, shown.sources) == ("q", (("broker: orders", process_id()),))
    assert [(epoch.epoch, epoch.state, epoch.branches) for epoch in shown.epochs] == [(1, "active", 0)]
    assert [len(shown.prepared[name] or ()) for name in ("broker", "shop")] == [2, 1]
    assert shown.prepared["gone"] is None
    assert "refused" in shown.unreachable["gone"]
    writer.commit(plan, Batch("q", 0), [report])
    reader.logged(end)
    reader.close()
    shown = status("orders", env.log, env.settings.resources, opened=env.resources)
    assert [(epoch.epoch, epoch.state, epoch.branches, epoch.logged) for epoch in shown.epochs] == [
        (1, "done", 3, True)
    ]
    assert shown.prepared == {"broker": (), "shop": ()}
    with pytest.raises(LogMissing):
        status("other", env.log, ())
