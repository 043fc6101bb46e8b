"""These fixtures give each test an environment, another broker, and each kind of database that rows go into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import Postgres
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.pipeline.core.environment import CoreEnvironment, new_broker, new_environment
from tests.xabridge.pipeline.core.sink_database import KINDS, SinkDatabase, sink_database


@pytest.fixture
def env(tmp_path: Path, postgres: Postgres) -> Iterator[CoreEnvironment]:
    """An environment with a broker of its own."""
    with new_environment(postgres, tmp_path) as env:
        yield env


@pytest.fixture
def small(tmp_path: Path) -> Iterator[CoreEnvironment]:
    """The same without a database, for tests that run in `make check`."""
    with new_environment(None, tmp_path) as env:
        yield env


@pytest.fixture
def second(env: CoreEnvironment, tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """Another broker, the resource `second`."""
    folder = tmp_path / "second"
    folder.mkdir()
    broker = new_broker(folder)
    env.others = (("second", f"amqp://{broker.address}/?timeout=2"),)
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture(params=KINDS)
def sink(env: CoreEnvironment, request: pytest.FixtureRequest) -> SinkDatabase:
    """A database that rows go into."""
    kind: str = request.param
    return sink_database(env, kind, request.getfixturevalue("mariadb") if kind == "maria" else None)
