"""This test infers a schema from messages that wait at a real broker, and stay there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.xabridge.pipeline.core.environment import CoreEnvironment
from xabridge.pipeline import PipelineError, infer_schema


def test_a_schema_is_inferred_from_messages_that_stay_in_their_queue(
    env: CoreEnvironment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    bodies = ['{"id": 1}', "no json", '{"id": 2, "at": "2026-11-21T23:12:07Z"}']
    env.put(bodies)
    env.put(['{"id": 3, "name": "x"}'], queue="others")
    settings = env.settings
    options = {"pipeline": "sampling", "log": settings.log, "resource.broker": settings.url("broker")}
    assert infer_schema({**options, "queue": "orders,others"}) == "id bigint, at timestamp, name string"
    assert infer_schema({**options, "queue": "orders", "body_schema": "id int"}, 1) == "id bigint"
    assert env.queued() == bodies
    assert env.counts() == [0, 0, 0]
    env.put(['{"id": "x"}'])
    with pytest.raises(PipelineError, match="broker: orders: id is a number and text"):
        infer_schema({**options, "queue": "orders"})
    with pytest.raises(PipelineError, match="of 0 messages that wait, none has a JSON object"):
        infer_schema({**options, "queue": "empty"})
