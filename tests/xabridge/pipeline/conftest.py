"""These fixtures give each test with real Spark an environment, and one driver to all tests that do not kill it."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.xabridge.pipeline.environment import Driver, SparkEnvironment
from xabridge.pipeline import PipelineError, java

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.postgres import Postgres


@pytest.fixture(scope="session")
def java_home() -> Path:
    """Where Java is."""
    try:
        return java.find_java()
    except PipelineError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI has to have Java: {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spark(java_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A driver that no test kills, for all of them: it takes seconds to start."""
    folder = tmp_path_factory.mktemp("spark")
    settings = {"spark.master": "local[2,2]"}  # what fails here fails again: a second attempt shows that
    with Driver(folder, {"JAVA_HOME": str(java_home)}, settings) as driver:
        yield driver


@pytest.fixture
def env(tmp_path: Path, postgres: Postgres, java_home: Path) -> Iterator[SparkEnvironment]:
    """An environment of its own."""
    assert java_home.exists()
    env = SparkEnvironment(tmp_path, postgres)
    yield env
    env.close()
    shutil.rmtree(tmp_path / "faults")
