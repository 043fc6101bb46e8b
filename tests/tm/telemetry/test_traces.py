"""These tests follow a trace over messages, transactions and processes, with the SDK's exporter in memory."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace

from rm_amqp import Message
from tests.tm.telemetry.test_telemetry import Exported, attributes
from tests.tm.two_resources import TwoResources
from tm import ResourceConfig, RolledBack, TransactionManager
from xabridge.testing import TestBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

ROOT = Path(__file__).parents[3]
GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exported() -> Iterator[Exported]:
    exported = Exported()
    yield exported
    exported.close()


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as broker:
        yield broker


@pytest.fixture
def manager(broker: TestBroker, exported: Exported, tmp_path: Path) -> Iterator[TransactionManager[Any]]:
    config = ResourceConfig(broker.url)
    with TransactionManager("n", f"file://{tmp_path}/log", {"broker": config}, telemetry=exported.telemetry) as manager:
        yield manager


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def current() -> tuple[int, int]:
    context = trace.get_current_span().get_span_context()
    return context.trace_id, context.span_id


def named(exported: Exported, name: str) -> list[ReadableSpan]:
    return [span for span in exported.exporter.get_finished_spans() if span.name == name]


def test_a_transaction_is_the_current_span(exported: Exported) -> None:
    tracer = exported.tracers.get_tracer("application")
    with TwoResources(telemetry=exported.telemetry) as both, tracer.start_as_current_span("request") as request:
        with both.manager.begin():
            inside = current()
            with tracer.start_as_current_span("work"):
                both.write("key")
            suspended = both.manager.suspend()
            assert trace.get_current_span() is request
            both.manager.resume(suspended)
            assert current() == inside
        assert trace.get_current_span() is request
        with pytest.raises(ZeroDivisionError), both.manager.begin():
            raise ZeroDivisionError
        assert trace.get_current_span() is request
    first, second = exported.spans("transaction")
    assert ids(first) == inside
    assert parent(named(exported, "work")[0]) == inside
    assert parent(first) == parent(second)
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_message_carries_the_trace(exported: Exported, manager: TransactionManager[Any]) -> None:
    with manager.begin() as tx:
        sender = current()
        tx["broker"].send("q", Message("a", properties={"kind": 1}))
        tx["broker"].send_batch("q", [Message("b"), Message("c", properties={"traceparent": GIVEN})])
    with manager.begin() as tx:
        first, second, third = tx["broker"].receive_batch("q", 3, 5)
    told = f"00-{sender[0]:032x}-{sender[1]:016x}"
    assert first.properties.pop("traceparent")[:-3] == told
    assert first.properties == {"kind": 1}
    assert second.properties["traceparent"][:-3] == told
    assert third.properties == {"traceparent": GIVEN}
    assert len(exported.spans("transaction")) == 2


def test_a_handler_continues_the_trace_of_its_message(exported: Exported, manager: TransactionManager[Any]) -> None:
    with manager.begin() as tx:
        sender = current()
        tx["broker"].send("q", Message("a"))
    seen = []

    @manager.consumer("q", idle_s=0.05)
    def handler(_: Message, tx: Any) -> None:
        seen.append(current())
        tx["broker"].send("next", Message("b"))
        handler.ask_to_stop()

    handler.run()
    (process,) = named(exported, "process q")
    sending, handling = exported.spans("transaction")[:2]
    assert (ids(sending), ids(handling)) == (sender, seen[0])
    assert (parent(process), parent(handling)) == (sender, ids(process))
    assert process.kind is trace.SpanKind.CONSUMER
    assert attributes(process) == {
        "xabridge.node": "n",
        "messaging.system": "amqp",
        "messaging.operation.name": "process",
        "messaging.destination.name": "q",
        "messaging.batch.message_count": 1,
        "xabridge.outcome": "committed",
    }
    assert {parent(branch) for branch in exported.spans("branch")} == {ids(sending), ids(handling)}
    with manager.begin() as tx:
        assert tx["broker"].receive("next", 5).properties["traceparent"].split("-")[1] == f"{sender[0]:032x}"


def test_a_batch_has_links(exported: Exported, manager: TransactionManager[Any]) -> None:
    senders = []
    for body in "ab":
        with manager.begin() as tx:
            senders.append(current())
            tx["broker"].send("q", Message(body))

    @manager.consumer("q", idle_s=0.05, batch=2, takes="batch")
    def handler(batch: list[Message], _: Any) -> None:
        assert len(batch) == 2
        handler.ask_to_stop()

    handler.run()
    (process,) = named(exported, "process q")
    assert process.parent is None
    assert [(link.context.trace_id, link.context.span_id) for link in process.links] == senders


@pytest.mark.parametrize("waits", ["worker", "broker"])
def test_what_comes_again_and_what_is_dead_stays_in_its_trace(
    exported: Exported, manager: TransactionManager[Any], waits: Any
) -> None:
    with manager.begin() as tx:
        sender = current()
        tx["broker"].send("q", Message("a"))
    tries = []

    @manager.consumer("q", idle_s=0.02, max_deliveries=2, retry_waits=waits, retry_first_s=0.01)
    def handler(_: Message, __: Any) -> None:
        tries.append(current())
        raise ZeroDivisionError

    with handler, manager.begin() as tx:
        letter = tx["broker"].receive("q.dead", 20)
    assert len(tries) == 2
    processes = named(exported, "process q")
    assert {parent(process) for process in processes} == {sender}
    outcomes = [attributes(process)["xabridge.outcome"] for process in processes]
    assert (outcomes.count("rolled_back"), outcomes[-1]) == (2, "committed")
    assert letter.properties["traceparent"].split("-")[1:3] == [f"{sender[0]:032x}", f"{sender[1]:016x}"]


def test_a_transaction_that_is_marked_leaves_its_span(exported: Exported) -> None:
    with TwoResources(telemetry=exported.telemetry) as both:
        with pytest.raises(RolledBack), both.manager.begin() as tx:
            tx.set_rollback_only()
        assert not trace.get_current_span().get_span_context().is_valid


CONSUMER = """
    import json, sys
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from xabridge import Message, TransactionManager, opentelemetry

    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = opentelemetry(tracer_provider=tracers)
    with TransactionManager("other", sys.argv[1], {"broker": sys.argv[2]}, telemetry=telemetry) as manager:
        @manager.consumer("q", idle_s=0.05)
        def handler(message, tx):
            with tracers.get_tracer("application").start_as_current_span("database"):
                tx["broker"].send("next", Message("b"))
            handler.ask_to_stop()

        handler.run()
    print(json.dumps([
        [span.name, span.context.trace_id, span.context.span_id, span.parent and span.parent.span_id]
        for span in exporter.get_finished_spans()
    ]))
"""


@pytest.mark.slow
def test_a_trace_goes_on_in_another_process(
    exported: Exported, manager: TransactionManager[Any], broker: TestBroker, tmp_path: Path
) -> None:
    with exported.tracers.get_tracer("application").start_as_current_span("request"), manager.begin() as tx:
        trace_id, sender = current()
        tx["broker"].send("q", Message("a"))
    program = [sys.executable, "-c", textwrap.dedent(CONSUMER), f"file://{tmp_path}/other", broker.url]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    spans = {name: (trace_id, span, parent) for name, trace_id, span, parent in json.loads(done.stdout)}
    assert {one for one, *_ in spans.values()} == {trace_id}
    process, transaction, database = spans["process q"], spans["xabridge.transaction"], spans["database"]
    assert (process[2], transaction[2], database[2]) == (sender, process[1], transaction[1])
    assert spans["xabridge.branch"][2] == transaction[1]
    with manager.begin() as tx:
        assert tx["broker"].receive("next", 5).properties["traceparent"].split("-")[2] == f"{database[1]:016x}"
