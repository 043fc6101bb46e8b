"""These fixtures give each test with real Spark an environment, and one driver to all tests that do not kill it."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.xabridge.pipeline.environment import Driver, SparkEnvironment
from tests.xabridge.pipeline.faults import GENERATION, VARIABLE
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


@pytest.fixture(scope="session")
def faults_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the driver that survives its faults."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="session")
def surviving_driver(java_home: Path, faults_folder: Path) -> Iterator[Driver]:
    """A driver in which faults happen, and which no fault kills, for all tests that have such faults."""
    environment = {"JAVA_HOME": str(java_home), VARIABLE: str(faults_folder), GENERATION: "1"}
    with Driver(faults_folder.with_name("surviving-driver"), environment, {}) as driver:
        yield driver


@pytest.fixture
def surviving(env: SparkEnvironment, surviving_driver: Driver, faults_folder: Path) -> Driver:
    """That driver, for the faults of this test."""
    env.share_faults(faults_folder)
    return surviving_driver


@pytest.fixture
def env(tmp_path: Path, postgres: Postgres, java_home: Path) -> Iterator[SparkEnvironment]:
    """An environment of its own."""
    assert java_home.exists()
    env = SparkEnvironment(tmp_path, postgres)
    yield env
    env.close()
    shutil.rmtree(tmp_path / "faults")
