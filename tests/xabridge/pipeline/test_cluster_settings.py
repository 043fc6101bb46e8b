"""These tests check which settings of a Spark application a pipeline refuses, and of which it warns."""

from __future__ import annotations

import logging

import pytest

from xabridge.pipeline import PipelineError
from xabridge.pipeline.spark.cluster_settings import check_settings


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
