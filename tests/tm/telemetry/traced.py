"""This module looks at exported spans, and follows a trace over the messages of any broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from rm_amqp import Message
from tests.tm.telemetry.test_telemetry import Exported
from tm import TransactionManager


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def named(exported: Exported, name: str) -> list[ReadableSpan]:
    return [span for span in exported.exporter.get_finished_spans() if span.name == name]


def carried(message: Message) -> tuple[int, int]:
    """The span that a message carries."""
    _, trace_id, span_id, _ = (message.properties or {})["traceparent"].split("-")
    return int(trace_id, 16), int(span_id, 16)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def check_messages_are_traced(exported: Exported, url: str, queue: str, other: str, folder: Path) -> None:
    """What a handler sends, what comes again and what becomes a dead letter, stays in the trace of its sender."""
    settings: dict[str, Any] = {"telemetry": exported.telemetry, "background": False}
    with TransactionManager("n", f"file://{folder}/traced", {"broker": url}, **settings) as manager:
        with manager.begin() as tx:
            tx["broker"].send(queue, Message("good", properties={"kind": "a"}))
            tx["broker"].send(queue, Message("bad"))
        good, bad = map(ids, named(exported, f"send {queue}"))

        @manager.consumer(queue, idle_s=0.1, dead_on=ZeroDivisionError, dead_letter=other, timeout_s=20)
        def handle(message: Message, tx: Any) -> None:
            tx["broker"].send(other, Message("next"))
            if message.body == "bad":
                raise ZeroDivisionError

        with handle, manager.begin() as tx:
            found = {message.body: message for message in (tx["broker"].receive(other, 30) for _ in range(2))}
        sent = {ids(span): span for span in named(exported, f"send {other}")}
        assert sorted(found) == ["bad", "next"]
        assert carried(found["bad"]) == bad
        assert carried(found["next"]) in sent
        assert carried(found["next"])[0] == good[0]
        processes = named(exported, f"process {queue}")
        assert [parent(one) for one in processes].count(good) == 1
        assert [parent(one) for one in processes].count(bad) == 2
        assert {link for span in named(exported, f"receive {other}") for link in links(span)} == set(
            map(carried, found.values())
        )
