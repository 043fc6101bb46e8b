"""These tests follow a trace over messages, transactions and processes, with the SDK's exporter in memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import StatusCode

from rm_amqp import Message, NoMessage
from tests.postgres import Postgres
from tests.tm.telemetry.test_telemetry import Exported, attributes
from tests.tm.telemetry.traced import carried, ids, links, named, parent
from tests.tm.two_resources import TwoResources
from tm import ResourceConfig, RolledBack, TransactionManager
from xa import XaMisuse
from xabridge.testing import TestBroker

ROOT = Path(__file__).parents[3]
GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as broker:
        yield broker


@pytest.fixture
def manager(broker: TestBroker, exported: Exported, tmp_path: Path) -> Iterator[TransactionManager[Any]]:
    config = ResourceConfig(broker.url)
    with TransactionManager("n", f"file://{tmp_path}/log", {"broker": config}, telemetry=exported.telemetry) as manager:
        yield manager


def current() -> tuple[int, int]:
    context = trace.get_current_span().get_span_context()
    return context.trace_id, context.span_id


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
        with pytest.raises(RolledBack), both.manager.begin() as tx:
            tx.set_rollback_only()
        assert trace.get_current_span() is request

    first, second, _ = exported.spans("transaction")
    assert ids(first) == inside
    assert parent(named(exported, "work")[0]) == inside
    assert parent(first) == parent(second)
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_transaction_of_a_task_is_its_current_span_no_longer_than_it_lasts(exported: Exported) -> None:
    """Although it is completed in a thread."""

    async def work() -> None:
        for _ in range(2):
            async with both.manager.begin() as tx:
                assert trace.get_current_span() is not request
                (await tx.aenlist("one")).write("key", "value")
            assert trace.get_current_span() is request

    tracer = exported.tracers.get_tracer("application")
    with TwoResources(telemetry=exported.telemetry) as both, tracer.start_as_current_span("request") as request:
        asyncio.run(work())
    first, second = exported.spans("transaction")
    assert parent(first) == parent(second) == ids(named(exported, "request")[0])


def test_a_message_carries_the_trace(exported: Exported, manager: TransactionManager[Any]) -> None:
    with manager.begin() as tx:
        sender = current()
        tx["broker"].send("q", Message("a", id="m-1", properties={"kind": 1}))
        assert current() == sender
        given = Message("b", properties={"traceparent": GIVEN})
        tx["broker"].send("q", given)
        tx["broker"].send_batch("q", [Message("c"), Message("d"), given])

    with manager.begin() as tx:
        receiver = current()
        first, second = tx["broker"].receive("q", 5), tx["broker"].receive("q", 5)
        rest = tx["broker"].receive_batch("q", 5, 5)
        with pytest.raises(NoMessage):
            tx["broker"].receive("q", 0)

    assert first.properties == {"kind": 1, "traceparent": first.properties["traceparent"]}
    assert [one.properties for one in (second, rest[2])] == [{"traceparent": GIVEN}] * 2
    alone, again, batch = named(exported, "send q")
    created = named(exported, "create q")
    assert list(map(ids, (alone, *created))) == list(map(carried, (first, *rest[:2])))
    assert {parent(one) for one in (alone, again, batch, *created)} == {sender}
    assert (links(alone), links(again)) == ([], [carried(given)])
    assert links(batch) == list(map(carried, rest))
    kinds = [one.kind.name for one in (alone, again, batch, *created)]
    assert kinds == ["PRODUCER", "CLIENT", "CLIENT", "PRODUCER", "PRODUCER"]
    here = {"xabridge.node": "n", "messaging.system": "amqp", "messaging.destination.name": "q"}
    operation = {
        name: {**here, "messaging.operation.name": name, "messaging.operation.type": name}
        for name in ("send", "create", "receive")
    }
    assert attributes(alone) == {**operation["send"], "messaging.message.id": "m-1"}
    assert attributes(batch) == {**operation["send"], "messaging.batch.message_count": 3}
    assert attributes(created[0]) == operation["create"]
    received = named(exported, "receive q")
    assert {(parent(one), one.kind.name) for one in received} == {(receiver, "CLIENT")}
    assert list(map(links, received)) == [[carried(first)], [carried(second)], list(map(carried, rest))]
    assert attributes(received[0]) == {**operation["receive"], "messaging.message.id": "m-1"}
    assert attributes(received[2]) == {**operation["receive"], "messaging.batch.message_count": 3}
    assert len(exported.spans("transaction")) == 2


def test_messages_in_the_event_loop_carry_the_trace(exported: Exported, manager: TransactionManager[Any]) -> None:
    async def work() -> list[Message]:
        async with manager.begin() as tx:
            session = (await tx.aenlist("broker")).aio
            await session.send("q", Message("a"))
            await session.send_batch("q", [Message("b"), Message("c")])
        async with manager.begin() as tx:
            session = (await tx.aenlist("broker")).aio
            return [await session.receive("q", 5), *await session.receive_batch("q", 5, 5)]

    messages = asyncio.run(work())
    alone, batch = named(exported, "send q")
    assert [ids(alone), *links(batch)] == list(map(carried, messages))
    assert list(map(links, named(exported, "receive q"))) == [[ids(alone)], links(batch)]


def test_a_send_that_fails_is_told(exported: Exported, manager: TransactionManager[Any]) -> None:
    with pytest.raises(XaMisuse), manager.begin() as tx:
        tx["broker"].send("q", Message(object()))
    (span,) = named(exported, "send q")
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]
    with pytest.raises(XaMisuse), manager.begin() as tx:
        tx["broker"].receive("$management/none", 0)
    assert [one.status.status_code for one in exported.exporter.get_finished_spans() if one.name.startswith("receive")]


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
    (send,) = named(exported, "send q")
    sending, handling = exported.spans("transaction")[:2]
    assert (ids(sending), ids(handling)) == (sender, seen[0])
    assert (parent(send), parent(process), parent(handling)) == (sender, ids(send), ids(process))
    assert named(exported, "receive q") == [], "a consumer's messages have their span process"
    assert process.kind is trace.SpanKind.CONSUMER
    assert attributes(process) == {
        "xabridge.node": "n",
        "messaging.system": "amqp",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "q",
        "messaging.batch.message_count": 1,
        "xabridge.outcome": "committed",
    }
    assert {parent(branch) for branch in exported.spans("branch")} == {ids(sending), ids(handling)}
    with manager.begin() as tx:
        assert tx["broker"].receive("next", 5).properties["traceparent"].split("-")[1] == f"{sender[0]:032x}"


def test_a_batch_has_links(exported: Exported, manager: TransactionManager[Any]) -> None:
    for body in "ab":
        with manager.begin() as tx:
            tx["broker"].send("q", Message(body))

    @manager.consumer("q", idle_s=0.05, batch=2, takes="batch")
    def handler(batch: list[Message], _: Any) -> None:
        assert len(batch) == 2
        handler.ask_to_stop()

    handler.run()
    (process,) = named(exported, "process q")
    assert process.parent is None
    assert links(process) == list(map(ids, named(exported, "send q")))


@pytest.mark.parametrize("waits", ["worker", "broker"])
def test_what_comes_again_and_what_is_dead_stays_in_its_trace(
    exported: Exported, manager: TransactionManager[Any], waits: Any
) -> None:
    with manager.begin() as tx:
        tx["broker"].send("q", Message("a"))
    (sender,) = map(ids, named(exported, "send q"))
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
    assert carried(letter) == sender


CONSUMER = """
    import json, sys
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from xabridge import Message, TransactionManager, opentelemetry

    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = opentelemetry(tracer_provider=tracers)
    resources = {"broker": sys.argv[2], "shop": sys.argv[3]}
    with TransactionManager("other", sys.argv[1], resources, telemetry=telemetry) as manager:
        @manager.consumer("q", idle_s=0.05)
        def handler(message, tx):
            with tracers.get_tracer("application").start_as_current_span("database"):
                tx["shop"].exec_driver_sql("CREATE TABLE traced (number integer)")
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
    exported: Exported, manager: TransactionManager[Any], broker: TestBroker, postgres: Postgres, tmp_path: Path
) -> None:
    with exported.tracers.get_tracer("application").start_as_current_span("request"), manager.begin() as tx:
        tx["broker"].send("q", Message("a"))
    ((trace_id, sender),) = map(ids, named(exported, "send q"))
    program = [sys.executable, "-c", textwrap.dedent(CONSUMER), f"file://{tmp_path}/other", broker.url]
    program.append(postgres.create_database())
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    spans = {name: (trace_id, span, parent) for name, trace_id, span, parent in told}
    assert {one for one, *_ in spans.values()} == {trace_id}
    process, transaction, database = spans["process q"], spans["xabridge.transaction"], spans["database"]
    assert (process[2], transaction[2], database[2]) == (sender, process[1], transaction[1])
    branches = {span for name, _, span, above in told if name == "xabridge.branch" and above == transaction[1]}
    assert {(name, above in branches) for name, *_, above in told if name.endswith((" broker", " shop"))} == {
        ("prepare broker", True),
        ("commit broker", True),
        ("prepare shop", True),
        ("commit shop", True),
    }
    assert spans["send next"][2] == database[1]

    with manager.begin() as tx:
        assert carried(tx["broker"].receive("next", 5)) == spans["send next"][:2]
    (receive,) = named(exported, "receive next")
    assert links(receive) == [spans["send next"][:2]]
