"""These tests check what a manager tells over HTTP: whether it is ready, whether it is alive, and its metrics."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.tm.telemetry.asking import asked, said
from tests.tm.two_resources import TwoResources
from tm import ConfigurationError, TransactionManager, configuration_from
from tm.telemetry.metrics import METRICS
from xa.telemetry.metric import prometheus_label
from xabridge.testing.ports import free_port

TOKEN = "a token of 24 characters"  # noqa: S105 — of these tests


@contextmanager
def served(**settings: Any) -> Iterator[tuple[TwoResources, int]]:
    """A manager, and the port at which it tells about itself."""
    port = free_port()
    with TwoResources(http=f"127.0.0.1:{port}", **settings) as both:
        yield both, port


def test_a_manager_is_ready_while_its_resources_can_be_reached() -> None:
    with served() as (both, port):
        assert said(port, "ready") == (200, {"ready": True, "trouble": []})
        assert said(port, "live") == (200, {"live": True, "trouble": []})
        both.two.partition()
        both.manager.recover()
        assert said(port, "ready") == (503, {"ready": False, "trouble": ["two could not be reached"]})
        assert said(port, "live")[0] == 200
        both.two.heal()
        both.manager.recover()
        assert said(port, "ready")[0] == 200
    with pytest.raises(urllib.error.URLError):
        asked(port, "live")


def test_the_metrics_are_those_of_the_table() -> None:
    with served() as (both, port):
        with both.manager.begin():
            both.write("key")
        both.manager.recover()
        status, _, text = asked(port, "metrics")
    assert status == 200
    known = {series: metric for metric in METRICS for series in metric.series}
    found = set()
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = {*known[sample.name].labels, prometheus_label("xabridge.node")}
            assert set(sample.labels) - {"le"} == labels, sample.name
            found.add(sample.name)

    assert {
        "xabridge_transactions_completed_total",
        "xabridge_transactions_active",
        "xabridge_recovery_unreachable",
    } <= found


def test_a_port_that_is_taken_and_a_wrong_token_are_errors_of_the_configuration() -> None:
    port = free_port()
    here = f"127.0.0.1:{port}"
    with TwoResources(http=here), pytest.raises(ConfigurationError, match=f"http {here}: "):
        TwoResources(http=here)
    with pytest.raises(ConfigurationError, match="expected host:port"):
        TwoResources(http="somewhere")
    with pytest.raises(ConfigurationError, match="http, which is not configured"):
        TwoResources(http_token=TOKEN)
    for token in ("short", "x" * 15, "with a line end\r\n here", "ä" * 20):
        with pytest.raises(ConfigurationError, match="at least 16 printable ASCII characters"):
            TwoResources(http=here, http_token=token)


def test_a_handler_that_hangs_in_every_worker_is_not_alive() -> None:
    with served() as (both, port):
        consumer = both.manager.consumer("orders", resource="one")(lambda _message, _tx: None)
        assert said(port, "ready")[0] == 503  # it is not started
        consumer._statistics._busy[0] = both.manager.begin(timeout_s=0.001), 0.0
        assert consumer.hanging == 1
        assert said(port, "live")[0] == 200, "not started: nothing is expected of it"
        consumer.failure = LookupError("a worker has failed")
        assert said(port, "live")[1]["trouble"] == ["the consumer of orders has failed: LookupError"]


def test_the_configuration_says_where(tmp_path: Path) -> None:
    file = tmp_path / "xabridge.toml"
    port = free_port()
    file.write_text(
        f'node = "n-1"\nlog = "file://{tmp_path}/log"\nhttp = "{port}"\nlog_format = "json"\n', encoding="utf-8"
    )
    configuration = configuration_from(file)
    assert (configuration.http, configuration.log_format) == (str(port), "json")
    with TransactionManager.from_config(file):
        assert said(port, "ready")[0] == 200
    for wrong in ('http = "x:y"', 'log_format = "xml"'):
        file.write_text(f'node = "n-1"\nlog = "file://{tmp_path}/log"\n{wrong}\n', encoding="utf-8")
        with pytest.raises(ConfigurationError, match="expected"):
            configuration_from(file)


def test_pools_and_the_log_are_shown(tmp_path: Path) -> None:
    port = free_port()
    resources = {"shop": f"sqlite:///{tmp_path}/shop.db?xa_pool_size=3"}
    config = tmp_path / "xabridge.toml"
    config.write_text(
        f'node = "n-1"\nhttp = "127.0.0.1:{port}"\n[resources]\n'
        f'shop = {{ url = "{resources["shop"]}", mode = "decider" }}\n',
        encoding="utf-8",
    )

    with TransactionManager.from_config(config):
        text = asked(port, "metrics")[2].decode()
    assert 'db_client_connection_max{db_client_connection_pool_name="shop",xabridge_node="n-1"} 3.0' in text
    assert 'db_client_connection_state="idle"' in text
    with TransactionManager("n-1", f"file://{tmp_path}/log", {}, http=f"127.0.0.1:{port}"):
        text = asked(port, "metrics")[2].decode()
    assert 'xabridge_log_decisions{xabridge_node="n-1"} 0.0' in text
    assert 'xabridge_log_size_bytes{xabridge_node="n-1"} 0.0' not in text


def test_the_page_of_the_node_is_for_who_has_the_token() -> None:
    with served() as (_, port):
        assert asked(port, "node", f"Bearer {TOKEN}")[0] == 404
    with served(http_token=TOKEN) as (_, port):
        assert asked(port, "node")[0] == 401
        for wrong in ("", "Bearer", f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xe4"):
            status, headers, _ = asked(port, "node", wrong)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer"), wrong
        assert said(port, "node", f"bearer {TOKEN}")[0] == 200
        assert said(port, "live")[0] == 200  # which nobody has to authenticate for


def test_the_page_of_the_node_has_live_and_completed_transactions() -> None:
    with served(http_token=TOKEN) as (both, port):
        with both.manager.begin() as first:
            both.write("key")
        with pytest.raises(LookupError), both.manager.begin():
            both.write("other")
            raise LookupError("the work has failed")
        both.manager.consumer("orders", resource="one")(lambda _message, _tx: None)

        with both.manager.begin() as third:
            both.manager["one"].write("third", "value")
            both.clock.now += 7
            _, told = said(port, "node", f"Bearer {TOKEN}")
            (live,) = told["live"]
            assert (live["name"], live["age_s"], live["resources"]) == (str(third), 7.0, ["one"])
            assert live["steps"][0][:2] == ["one", "start"]
        _, told = said(port, "node", f"Bearer {TOKEN}")

    assert told["node"] == "node-1"
    assert told["live"] == []
    one_phase, rolled_back, committed = told["last"]
    assert committed["name"] == str(first)
    assert committed["outcome"] == "committed"
    assert {(step[0], step[1]) for step in committed["steps"]} == {
        (name, verb) for name in ("one", "two") for verb in ("start", "end", "prepare", "commit")
    } | {("", "decision")}
    assert set(committed["phases"]) == {"work", "prepare", "decide", "commit"}
    assert rolled_back["outcome"] == "rolled back"
    assert set(rolled_back["phases"]) == {"work", "rollback"}
    assert set(one_phase["phases"]) == {"work", "commit"}
    for each in told["last"]:
        assert sum(each["phases"].values()) <= each["took_s"] * 1.001
    assert {each["name"] for each in told["slowest"]} == {each["name"] for each in told["last"]}
    took = [each["took_s"] for each in told["slowest"]]
    assert took == sorted(took, reverse=True)


def test_the_configuration_names_the_variable_of_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, port = tmp_path / "xabridge.toml", free_port()
    text = f'node = "n-1"\nlog = "file://{tmp_path}/log"\nhttp_token_env = "NODE_TOKEN"\n'
    file.write_text(f'http = "{port}"\n{text}', encoding="utf-8")
    monkeypatch.delenv("NODE_TOKEN", raising=False)
    assert configuration_from(file).http_token_env == "NODE_TOKEN"  # noqa: S105 — who only looks needs none
    with pytest.raises(ConfigurationError, match="the environment variable NODE_TOKEN is not set"):
        TransactionManager.from_config(file)
    monkeypatch.setenv("NODE_TOKEN", TOKEN)
    with TransactionManager.from_config(file):
        assert said(port, "node", f"Bearer {TOKEN}")[1]["node"] == "n-1"
    file.write_text(f'http = "{port}"\n{text}http_act_token_env = "NODE_ACT_TOKEN"\n', encoding="utf-8")

    with pytest.raises(ConfigurationError, match="http_act_token_env: the environment variable NODE_ACT_TOKEN is not"):
        TransactionManager.from_config(file)
    monkeypatch.setenv("NODE_ACT_TOKEN", TOKEN)
    with pytest.raises(ConfigurationError, match="the same as http_token"):
        TransactionManager.from_config(file)
    file.write_text(f'http = "{port}"\nnode = "n-1"\nhttp_act_token_env = "NODE_ACT_TOKEN"\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="who acts has to see first"):
        configuration_from(file)
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match="which is missing"):
        configuration_from(file)
