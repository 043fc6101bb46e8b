"""A stage for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.pipeline.core.stage import Stage, new_stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres import Postgres


@pytest.fixture
def stage(tmp_path: Path, postgres: Postgres) -> Iterator[Stage]:
    """A stage with a broker of its own."""
    broker = EmbeddedBroker(tmp_path)
    stage = new_stage(broker, postgres, tmp_path)
    try:
        yield stage
    finally:
        stage.close()
        broker.stop()
