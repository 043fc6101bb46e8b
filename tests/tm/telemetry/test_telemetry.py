"""These tests check what OpenTelemetry's exporters get, and that nothing happens if telemetry is not configured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.tm.shop import Shop
from tests.tm.two_resources import TwoResources
from tests.tm.wrapped import Gate
from tm import (
    ConfigurationError,
    HeuristicMixed,
    OutcomeUnknown,
    RolledBack,
    TransactionError,
    TransactionManager,
    configuration_from,
)
from tm.telemetry import METRICS, opentelemetry
from tm.telemetry.metrics import NODE
from tm.telemetry.recorder import Recorder
from tm.transaction import live_of
from xa import TMREGISTER, TMUSEASYNC, Code
from xa.extras import install_command
from xabridge.testing.ports import free_port
from xabridge.testing.reference import NetworkFault

ROOT = Path(__file__).parents[3]


class Exported:
    """What the SDK's exporters in memory got."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.exporter = InMemorySpanExporter()
        self.meters = MeterProvider([self.reader])
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.telemetry = opentelemetry(self.meters, self.tracers)

    def close(self) -> None:
        self.meters.shutdown()
        self.tracers.shutdown()

    def points(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """Metric → its points: attributes, and the value (counters, gauges) or count (histograms)."""
        data = self.reader.get_metrics_data()
        found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        for metric in (
            [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics] if data is not None else []
        ):
            found[metric.name] = [
                (dict(point.attributes or {}), point.count if hasattr(point, "count") else point.value)
                for point in metric.data.data_points
            ]
        return found

    def value(self, name: str, **attributes: Any) -> Any:
        """The sum over the points that have these attributes (xabridge. left out of their names)."""
        wanted = {f"xabridge.{key}": value for key, value in attributes.items()}
        return sum(value for has, value in self.points().get(f"xabridge.{name}", []) if wanted.items() <= has.items())

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == f"xabridge.{name}"]


@pytest.fixture
def both(exported: Exported) -> Iterator[TwoResources]:
    with TwoResources(telemetry=exported.telemetry) as two:
        yield two


def transact(both: TwoResources, key: str = "key") -> str:
    """A transaction with work at both; how it is called."""
    with both.manager.begin() as transaction:
        both.write(key)
    return str(transaction)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


# --- metrics ------------------------------------------------------------------------------------------------
def test_a_commit(both: TwoResources, exported: Exported) -> None:
    transact(both)
    transact(both)
    assert exported.value("transactions.begun") == 2
    assert exported.value("transactions.completed") == 2
    assert exported.value("transactions.completed", outcome="committed") == 2
    assert exported.value("transaction.duration", outcome="committed") == 2
    assert exported.value("phase.duration", phase="prepare") == 2
    assert exported.value("phase.duration", phase="commit") == 2
    assert exported.value("phase.duration", phase="rollback") == 0
    assert exported.value("log.force.duration", record="decision", failed=False) == 2
    for resource in ("one", "two"):
        for verb in ("start", "end", "prepare", "commit"):
            assert exported.value("resource.verb.duration", resource=resource, verb=verb) == 2, (resource, verb)
    assert exported.value("resource.verb.failures") == 0
    assert exported.value("transactions.in_doubt") == 0


def test_every_point_has_the_attributes_of_the_table(exported: Exported) -> None:
    """Also where a page of the node keeps its own account."""
    with TwoResources(telemetry=exported.telemetry, http=f"127.0.0.1:{free_port()}", http_token="x" * 16) as both:
        transact(both)
        both.two.script.plan("commit", Code.XA_HEURRB)
        with pytest.raises(HeuristicMixed):
            transact(both)
        both.manager.recover()
        points = exported.points()

    log = ("xabridge.log.size", "xabridge.log.decisions")
    elsewhere = ("xabridge.consumer.", "xabridge.pool.", "messaging.", "db.", *log)
    ours = [metric for metric in METRICS if not metric.name.startswith(elsewhere)]
    assert set(points) == {metric.name for metric in ours}
    for metric in ours:
        for has, _ in points[metric.name]:
            assert set(has) == {NODE, *metric.attributes}, metric.name
            assert has[NODE] == "node-1"
    assert exported.value("transactions.completed", outcome="mixed") == 1
    assert exported.value("log.force.duration", record="heuristic") == 1
    assert exported.value("resource.verb.failures", resource="two", verb="commit", code="XA_HEURRB") == 1


@pytest.mark.parametrize(
    ("vote", "failures"),
    [
        (Code.XA_RBDEADLOCK, {"verb": "prepare", "code": "XA_RBDEADLOCK"}),
        # with writes pending, which the reference refuses with ValueError: it raises what its contract does not name
        (Code.XA_RDONLY, {"verb": "prepare", "code": "RAISED"}),
        (None, {}),
    ],
    ids=["refused", "broken promise", "force fails"],
)
def test_what_is_rolled_back(both: TwoResources, exported: Exported, vote: Code | None, failures: Any) -> None:
    if vote is None:
        both.fault = "full"
    else:
        both.two.script.plan("prepare", vote)
    with pytest.raises(RolledBack):
        transact(both)
    assert exported.value("transactions.completed", outcome="rolled_back") == 1
    assert exported.value("phase.duration", phase="rollback") == 1
    assert exported.value("log.force.duration", record="decision", failed=True) == (vote is None)
    assert exported.value("log.force.duration", failed=False) == 0
    assert exported.value("resource.verb.failures") == bool(failures)
    assert exported.value("resource.verb.failures", resource="two", **failures) == bool(failures)


def test_in_doubt_until_recovery_has_finished_it(both: TwoResources, exported: Exported) -> None:
    both.two.script.plan("commit", fate=NetworkFault.REQUEST_LOST, times=3)
    with pytest.raises(OutcomeUnknown):
        transact(both)
    assert exported.value("transactions.completed", outcome="unknown") == 1
    assert exported.value("transactions.in_doubt") == 1
    both.two.partition()
    assert not both.manager.recover().clean
    assert exported.value("transactions.in_doubt") == 1
    assert exported.value("recovery.passes", clean=False) == 1
    both.two.heal()
    assert both.manager.recover().clean
    assert exported.value("transactions.in_doubt") == 0
    assert exported.value("recovery.findings", resource="two", action="committed") == 1
    assert exported.value("recovery.passes", clean=True) == 2  # with that of the start
    assert exported.value("recovery.duration") == 3


def test_in_doubt_while_a_rollback_could_not_be_told(both: TwoResources, exported: Exported) -> None:
    """Nothing of it is in the log, and its resource manager can't be scanned."""
    both.fault = "full"
    both.two.script.plan("rollback", fate=NetworkFault.REQUEST_LOST)
    with pytest.raises(RolledBack):
        transact(both)
    both.two.partition()
    both.manager.recover()
    assert exported.value("transactions.in_doubt") == 1
    both.two.heal()
    both.manager.recover()
    assert exported.value("transactions.in_doubt") == 0
    assert exported.value("recovery.findings", resource="two", action="rolled_back") == 1


def test_in_doubt_from_the_process_before(shop: Shop, exported: Exported) -> None:
    """The decision is in the log, the branch at a resource manager that can't be reached."""
    shop.in_doubt("a")
    shop.kill()
    shop["a"].script.clear()
    shop["a"].partition()
    manager = shop.open(telemetry=exported.telemetry)
    assert exported.value("transactions.in_doubt") == 1
    shop["a"].heal()
    manager.recover()
    assert exported.value("transactions.in_doubt") == 0
    manager.close(timeout_s=0)
    assert "xabridge.transactions.in_doubt" not in exported.points()


def test_what_lives_is_not_in_doubt(exported: Exported) -> None:
    """Decided, and its branches are being told at this moment."""
    gate = Gate("commit")
    with TwoResources(factory=gate.over, telemetry=exported.telemetry) as both:
        transaction = both.manager.begin()
        both.write()
        transaction.commit(wait="logged")
        report = both.manager.recover()
        assert len(both.one.in_doubt) == len(both.two.in_doubt) == 1
        assert report.clean
        assert exported.value("transactions.in_doubt") == 0
        gate.opened.set()
        both.manager.close()
        assert both.one.data == both.two.data == {"key": "value"}


def test_two_managers_share_one_telemetry(both: TwoResources, shop: Shop, exported: Exported) -> None:
    shop.add_decider()
    manager = shop.open(node="node-2", names="ad", telemetry=exported.telemetry)
    with manager.begin() as transaction:
        shop.write(transaction, names="ad")
    transact(both)
    manager.recover()
    manager.close(timeout_s=0)
    assert exported.value("transactions.completed", node="node-1") == 1
    assert exported.value("transactions.completed", node="node-2") == 1
    assert exported.value("resource.verb.duration", resource="d", verb="decide") == 1
    assert exported.value("resource.verb.duration", resource="d", verb="end_decisions") == 1
    assert exported.value("resource.verb.duration", resource="d", verb="decisions") >= 1
    assert exported.value("resource.verb.failures") == 0
    outcomes = {attributes(s)["xabridge.resource"]: attributes(s)["xabridge.outcome"] for s in exported.spans("branch")}
    assert outcomes == dict.fromkeys(("d", "a", "one", "two"), "committed")


# --- spans --------------------------------------------------------------------------------------------------
def test_spans_of_a_commit(both: TwoResources, exported: Exported) -> None:
    with exported.tracers.get_tracer("application").start_as_current_span("xabridge.request") as request:
        name = transact(both)
    (span,) = exported.spans("transaction")
    assert span.parent is not None
    assert span.parent.span_id == request.get_span_context().span_id
    assert attributes(span) == {
        "xabridge.gtrid": name,
        "xabridge.node": "node-1",
        "xabridge.outcome": "committed",
    }
    assert span.status.status_code is StatusCode.UNSET
    branches = exported.spans("branch")
    assert [attributes(branch)["xabridge.resource"] for branch in branches] == ["one", "two"]

    for branch in branches:
        assert branch.parent is not None
        assert branch.context is not None
        assert span.context is not None
        assert branch.parent.span_id == span.context.span_id
        assert branch.context.trace_id == request.get_span_context().trace_id
        assert [event.name for event in branch.events] == ["start", "end"]
        assert {dict(event.attributes or {})["xabridge.code"] for event in branch.events} == {"XA_OK"}
        verbs = [one for one in exported.exporter.get_finished_spans() if one.parent == branch.context]
        resource = attributes(branch)["xabridge.resource"]
        assert [verb.name for verb in verbs] == [f"prepare {resource}", f"commit {resource}"]
        assert {attributes(verb)["xabridge.code"] for verb in verbs} == {"XA_OK"}
        times = [
            branch.start_time or 0,
            *(time or 0 for verb in verbs for time in (verb.start_time, verb.end_time)),
            branch.end_time or 0,
        ]
        assert times == sorted(times)
        assert attributes(branch)["xabridge.outcome"] == "committed"
        assert attributes(branch)["xabridge.node"] == "node-1"
    assert len({attributes(branch)["xabridge.xid"] for branch in branches}) == 2


@pytest.mark.parametrize(
    ("verb", "code", "outcomes", "failed"),
    [
        ("prepare", Code.XA_RBOTHER, ("rolled_back", "rolled_back"), False),
        ("commit", Code.XA_HEURMIX, ("committed", "XA_HEURMIX"), True),
        ("commit", None, ("committed", "in_doubt"), True),
    ],
)
def test_outcomes_of_branches(
    both: TwoResources, exported: Exported, verb: str, code: Code | None, outcomes: tuple[str, str], failed: bool
) -> None:
    fate = NetworkFault.ARRIVES if code is not None else NetworkFault.REQUEST_LOST
    both.two.script.plan(verb, code, fate, times=1 if code is not None else 3)
    with pytest.raises(TransactionError):
        transact(both)
    one, two = sorted(exported.spans("branch"), key=lambda span: attributes(span)["xabridge.resource"])
    assert (attributes(one)["xabridge.outcome"], attributes(two)["xabridge.outcome"]) == outcomes
    assert (two.status.status_code is StatusCode.ERROR) == failed
    refused = [one for one in exported.exporter.get_finished_spans() if one.name == f"{verb} two"]
    assert {one.status.status_code for one in refused} == {StatusCode.ERROR}
    if code is not None:
        assert [attributes(one)["xabridge.code"] for one in refused] == [code.name]
    (span,) = exported.spans("transaction")
    assert (span.status.status_code is StatusCode.ERROR) == failed


def test_a_branch_that_only_read(both: TwoResources, exported: Exported) -> None:
    both.two.script.plan("prepare", Code.XA_RDONLY)
    with both.manager.begin() as transaction:
        transaction["one"].write("key", 1)
        transaction.enlist("two")
    outcomes = [attributes(branch)["xabridge.outcome"] for branch in exported.spans("branch")]
    assert outcomes == ["committed", "read_only"]
    assert exported.value("resource.verb.failures") == 0


def test_a_branch_that_registers_itself(exported: Exported) -> None:
    with TwoResources(TMREGISTER | TMUSEASYNC, telemetry=exported.telemetry) as both:
        transact(both)
        assert both.one.data == {"key": "value"}
    assert [attributes(branch)["xabridge.outcome"] for branch in exported.spans("branch")] == ["committed"] * 2


def test_a_timeout_ends_its_spans(both: TwoResources, exported: Exported) -> None:
    transaction = both.manager.begin()
    both.write()
    live_of(transaction).expire(both.clock.now + 1e6)
    assert [attributes(span)["xabridge.outcome"] for span in exported.spans("transaction")] == ["rolled_back"]
    assert [attributes(span)["xabridge.outcome"] for span in exported.spans("branch")] == ["rolled_back"] * 2
    both.manager.detach(live_of(transaction))


def test_nothing_is_kept_of_what_is_over(both: TwoResources) -> None:
    for number in range(20):
        transact(both, f"key {number}")
    recorder = both.manager.recorder
    assert isinstance(recorder, Recorder)
    assert not recorder._traces
    assert not recorder._left
    assert all(not vars(resource.rm)["_sent"] for resource in both.manager.resources.values())


# --- asked for, or not --------------------------------------------------------------------------------------
def test_nothing_is_imported_that_was_not_asked_for_and_a_missing_extra_is_told() -> None:
    program = (
        "import sys, tm, tm.telemetry; print([m for m in sys.modules if 'opentelemetry' in m])\n"
        "sys.modules['opentelemetry'] = None\n"
        "try: tm.telemetry.opentelemetry()\nexcept tm.ConfigurationError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    imported, _, told = done.stdout.partition("\n")
    assert imported == "[]", done.stderr
    assert install_command("otel") in told, done.stderr


@pytest.mark.parametrize(("line", "asked"), [("", False), ("telemetry = false", False), ("telemetry = true", True)])
def test_the_configuration_asks(tmp_path: Path, line: str, asked: bool) -> None:
    path = tmp_path / "xabridge.toml"
    path.write_text(f'node = "orders-1"\nlog = "file://{tmp_path}/log"\n{line}\n')
    assert configuration_from(path).telemetry is asked
    with TransactionManager.from_config(path) as manager:
        assert (manager._recorder is not None) is asked
    path.write_text('node = "orders-1"\ntelemetry = "yes"\n')
    with pytest.raises(ConfigurationError, match="telemetry: expected true or false, not 'yes'"):
        configuration_from(path)
