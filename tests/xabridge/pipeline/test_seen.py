"""This test runs a query in a session as users have it: its Spark UI shows the query, to this machine only, and
OpenTelemetry is told what the ledger knows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.xabridge.pipeline.environment import BRIEF, ROOT, SparkEnvironment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SCRIPT = """
import json, sys, time
from urllib.request import urlopen

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from xabridge import pipeline

source, sink, checkpoint, settings = (json.loads(text) for text in sys.argv[1:])
reader, exporter, tracers = InMemoryMetricReader(), InMemorySpanExporter(), TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(exporter))
metrics.set_meter_provider(MeterProvider([reader]))
trace.set_tracer_provider(tracers)
spark = pipeline.session("seen", settings=settings)
rows = spark.readStream.format("amqp").options(**source).load()
rows = rows.selectExpr("CAST(CAST(body AS string) AS bigint) AS id", "body")
writer = rows.writeStream.format("xa").options(**sink).option("checkpointLocation", checkpoint)
query = writer.queryName("copying").trigger(availableNow=True).start()
query.awaitTermination()
deadline = time.monotonic() + 60
while len([span for span in exporter.get_finished_spans() if span.name == "xabridge.pipeline.batch"]) < 3:
    assert time.monotonic() < deadline, "no spans came"
    time.sleep(0.1)
address = spark.sparkContext.uiWebUrl
with urlopen(f"{address}/StreamingQuery/") as page:
    text = page.read().decode()
spans = [[span.name, dict(span.attributes)] for span in exporter.get_finished_spans()]
port = f"{int(address.rpartition(':')[2]):04X}"
listening = [line.split() for file in ("tcp", "tcp6") for line in open(f"/proc/net/{file}").readlines()[1:]]
bound = sorted({cells[1].partition(":")[0] for cells in listening if cells[3] == "0A" and cells[1].endswith(port)})
found = {}
for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
    found[metric.name] = sum(getattr(point, "value", 0) for point in metric.data.data_points)
told = {"page": text, "spans": spans, "metrics": found, "bound": bound}
print(json.dumps(told), file=sys.__stdout__)
spark.stop()
"""


@pytest.mark.long
def test_a_query_in_a_session_of_ours_is_seen(env: SparkEnvironment, java_home: Path) -> None:
    env.send(range(250))
    settings = {name: value for name, value in BRIEF.items() if name != "spark.ui.enabled"}
    given = (env.source(), env.sink(table="rows", address="out"), env.checkpoint, settings)
    command = [sys.executable, "-c", SCRIPT, *map(json.dumps, given)]
    surroundings = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    surroundings |= {"PYTHONPATH": str(ROOT), "JAVA_HOME": str(java_home)}
    done = subprocess.run(command, cwd=env.folder, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    assert told["bound"], "the UI listens"

    assert set(told["bound"]) <= loopback
    assert "copying" in told["page"]
    batches = [attributes for name, attributes in told["spans"] if name == "xabridge.pipeline.batch"]
    assert [(one["xabridge.pipeline.batch"], one["xabridge.pipeline.branches"]) for one in batches] == [
        (0, 6), (1, 6), (2, 6),
    ]  # fmt: skip
    phases = {attributes["xabridge.phase"] for name, attributes in told["spans"] if name == "xabridge.pipeline.phase"}
    assert phases >= {"latestOffset", "addBatch", "decide", "finish"}
    counts = {name.removeprefix("xabridge.pipeline."): value for name, value in told["metrics"].items()}
    assert (counts["epochs"], counts["rows"], counts["written.rows"], counts["sent.messages"]) == (3, 250, 250, 250)
    assert counts["lag"] == 50
    assert counts["lag.age"] > 0
    assert counts["written.size"] > 250
