"""These tests check which master a Spark session gets, which settings of an application a pipeline refuses, and of
which it warns.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from xabridge.pipeline import PipelineError
from xabridge.pipeline.spark.cluster_settings import check_settings
from xabridge.pipeline.spark_master import chosen_master

CLUSTER = "spark://host:7077"
APPLICATION = """
import json
from xabridge import pipeline

spark = pipeline.session("submitted", settings={"spark.ui.enabled": "false"})
print(json.dumps([spark.sparkContext.master, spark.conf.get("spark.sql.shuffle.partitions")]))
spark.stop()
try:
    pipeline.session("submitted", "local[7]")
except pipeline.PipelineError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.parametrize(
    ("given", "submitted", "chosen"),
    [
        (None, None, "local[2,4]"),
        ("local[1]", None, "local[1]"),
        (None, CLUSTER, CLUSTER),
        (CLUSTER, CLUSTER, CLUSTER),
        (None, "local[*]", "local[*]"),
        ("local[1]", "local[*]", "local[1]"),  # spark-submit was given none
    ],
)
def test_the_master_of_a_session(given: str | None, submitted: str | None, chosen: str, tmp_path: Path) -> None:
    assert chosen_master(given, submitted, {}, tmp_path) == chosen


def test_another_master_than_that_of_spark_submit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PipelineError, match=r"the master is 'local\[1\]', but spark-submit has set 'spark://host:7077'"
    ):
        chosen_master("local[1]", CLUSTER, {}, tmp_path)


@pytest.mark.parametrize(
    "line", [f"spark.master {CLUSTER}", f"  spark.master\t=  {CLUSTER} ", f"spark.master:{CLUSTER}"]
)
def test_the_master_of_the_defaults(line: str, tmp_path: Path) -> None:
    for folder, environment in ((tmp_path / "conf", {}), (tmp_path / "own", {"SPARK_CONF_DIR": str(tmp_path / "own")})):
        folder.mkdir()
        file = folder / "spark-defaults.conf"
        file.write_text(f"# spark.master spark://other:7077\nspark.master.rest.enabled true\n{line}\n")
        assert chosen_master(None, None, environment, tmp_path) == CLUSTER
        assert chosen_master("local[1]", None, environment, tmp_path) == "local[1]"
        assert chosen_master(None, "local[3]", environment, tmp_path) == "local[3]"
        file.unlink()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
def test_spark_submit_chooses_the_master(java_home: Path, tmp_path: Path) -> None:
    """Also with another setting than the default of a session."""
    from tests.xabridge.pipeline.cluster import HOME  # noqa: PLC0415 — needs PySpark
    from tests.xabridge.pipeline.environment import JAVA_OPTIONS, ROOT  # noqa: PLC0415 — as above

    (tmp_path / "application.py").write_text(APPLICATION)
    options = ["--master", "local[3]", "--conf", "spark.sql.shuffle.partitions=5"]
    options += ["--driver-java-options", JAVA_OPTIONS]
    done = subprocess.run(
        [str(HOME / "bin" / "spark-submit"), *options, str(tmp_path / "application.py")],
        env=os.environ
        | {"JAVA_HOME": str(java_home), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
        | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    first, second = map(json.loads, done.stdout.splitlines()[-2:])
    assert first == ["local[3]", "5"]
    assert "spark-submit has set 'local[3]': omit one of them" in second


def test_settings_of_an_ordinary_application_are_no_matter(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_settings({"spark.speculation": "false", "spark.master": "local[2]"}, once=True)
        check_settings(
            {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.minExecutors": "4"}, once=True
        )
    assert caplog.records == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"spark.speculation": "true"}, "can only wait for the first one"),
        ({"spark.dynamicAllocation.enabled": "TRUE"}, "minExecutors is not set"),
        ({"spark.python.worker.reuse": "false"}, "every task starts a Python process"),
    ],
)
def test_what_wastes_work_is_told(settings: dict[str, str], words: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_settings(settings, once=False)
    (told,) = caplog.messages
    assert words in told


def test_copies_of_tasks_that_write_once_are_refused() -> None:
    with pytest.raises(PipelineError, match="Switch speculation off"):
        check_settings({"spark.speculation": "true"}, once=True)
