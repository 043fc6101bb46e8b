"""This fixture gives each test an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.pipeline.core.environment import CoreEnvironment, new_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres import Postgres


@pytest.fixture
def env(tmp_path: Path, postgres: Postgres) -> Iterator[CoreEnvironment]:
    """An environment with a broker of its own."""
    broker = EmbeddedBroker(tmp_path)
    env = new_environment(broker, postgres, tmp_path)
    try:
        yield env
    finally:
        env.close()
        broker.stop()
