"""The tables of metrics in the guides are those of the code, and no name stands for two metrics."""

from __future__ import annotations

from collections import Counter

from dtx.broker.telemetry.metrics import METRICS as BROKER
from tests.docs.guide import ROOT
from tm.telemetry.metrics import METRICS as MANAGER
from tm.telemetry.metrics import metrics_table
from xa.telemetry.metric import table
from xabridge.outbox.metrics import METRICS as OUTBOX
from xabridge.pipeline.spark.progress_metrics import METRICS as PIPELINES

PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code() -> None:
    assert metrics_table() in PAGE
    assert table(BROKER) in PAGE
    assert table(PIPELINES) in PAGE


def test_a_name_is_one_metric() -> None:
    every = (*BROKER, *MANAGER, *OUTBOX, *PIPELINES)
    assert Counter(series for metric in every for series in metric.series).most_common(1)[0][1] == 1
    assert all(metric.name.startswith(("xabridge.", "messaging.", "db.client.connection.")) for metric in every)
