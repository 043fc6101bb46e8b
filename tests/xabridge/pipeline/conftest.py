"""These fixtures give each test with real Spark an environment, and all of them one driver, which no test kills."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.postgres import Postgres
from tests.xabridge.pipeline.environment import Driver, SparkEnvironment
from tests.xabridge.pipeline.faults import GENERATION, VARIABLE
from xabridge.pipeline import PipelineError, java


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
def shared_faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the faults that happen in the shared driver."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="session")
def shared_driver(java_home: Path, shared_faults: Path) -> Iterator[Driver]:
    """A driver takes seconds to start."""
    environment = {"JAVA_HOME": str(java_home), VARIABLE: str(shared_faults), GENERATION: "0"}
    settings = {"spark.master": "local[2,2]"}  # what fails here fails again: a second attempt shows that
    with closing(Driver(shared_faults.with_name("shared-driver"), environment, settings)) as driver:
        yield driver


@pytest.fixture
def spark(shared_driver: Driver, shared_faults: Path) -> Driver:
    """The driver of all tests, in which nothing fails; also not what an earlier test has left."""
    for path in shared_faults.iterdir():
        if path.name != "pids":
            path.unlink()
    return shared_driver


@pytest.fixture
def surviving(env: SparkEnvironment, spark: Driver, shared_faults: Path) -> Driver:
    """The same, for faults that do not kill it: those of this test happen there."""
    env.faults = shared_faults
    return spark


@pytest.fixture
def env(tmp_path: Path, postgres: Postgres, java_home: Path) -> Iterator[SparkEnvironment]:
    """An environment of its own."""
    assert java_home.exists()
    env = SparkEnvironment(tmp_path, postgres)
    yield env
    env.close()
    shutil.rmtree(tmp_path / "faults")
