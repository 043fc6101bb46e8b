"""These tests check which sources and sinks belong together, by their options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from xabridge.pipeline import PipelineError
from xabridge.pipeline.options import sink_options, source_options
from xabridge.pipeline.spark.query_options import QueryOptions
from xabridge.pipeline.spark.registration import register

if TYPE_CHECKING:
    from pathlib import Path

BASE = {
    "pipeline": "orders",
    "log": "postgresql://x/decisions",
    "resource.a": "amqp://a/",
    "resource.b": "amqp://b/",
    "resource.shop": "postgresql://y/shop",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No xabridge.toml of this machine is read."""
    monkeypatch.chdir(tmp_path)


def parts(*sources: dict[str, str], sink: dict[str, str] | None = None) -> QueryOptions:
    return QueryOptions(
        tuple(source_options({**BASE, "queue": "orders", "resource": "a", **source}) for source in sources),
        None if sink is None else sink_options({**BASE, "table": "t", **sink}),
    )


def test_sources_at_several_brokers_and_their_sink() -> None:
    found = parts({}, {"resource": "b"}, {"queue": "more, others", "adopt": "q1"}, sink={}).settings()
    assert (found.pipeline, found.log, found.adopt) == ("orders", "postgresql://x/decisions", "q1")
    assert [name for name, _ in found.resources] == ["a", "b", "shop"]


def test_what_the_parts_know_beyond_each_other_is_known() -> None:
    found = parts({"resource.more": "amqp://m/"}, sink={"resource.other": "postgresql://z/other", "table": "shop:t"})
    assert [name for name, _ in found.settings().resources] == ["a", "b", "shop", "more", "other"]


def test_a_database_that_decides_is_nobodys_to_prepare_in() -> None:
    found = parts({"decider": "shop"}, sink={"decider": "shop"}).settings()
    assert ([name for name, _ in found.resources], [name for name, _ in found.deciders]) == (["a", "b"], ["shop"])


@pytest.mark.parametrize(
    ("sources", "sink", "message"),
    [
        ([{}], {"pipeline": "other"}, "of a: orders belongs to pipeline 'orders', and the sink to pipeline 'other'"),
        ([{}, {"pipeline": "other", "resource": "b"}], None, "share one decision. Give them the same option pipeline"),
        (
            [{}],
            {"log": "postgresql://x/elsewhere"},
            "the source of a: orders and the sink have different decision logs",
        ),
        ([{}, {"queue": "others, orders"}], {}, "two sources of the query read queue 'orders' of a"),
        ([{}, {"resource": "b, a", "queue": "ord*"}], {}, "read a queue that matches 'ord\\*' and 'orders' of a"),
        ([{"resource": "a, c", "resource.c": "amqp://c/"}], {}, "reads from c, and the sink does not know"),
        ([{}, {"resource.a": "amqp://z/", "resource": "b"}], {}, "another open string for it than another part"),
        ([{"resource": "c", "resource.c": "amqp://c/"}], {}, "reads from c, and the sink does not know that resource"),
        ([{"resource": "c", "resource.c": "amqp://c/"}, {}], None, "and the source of a: orders does not know"),
        (
            [{"adopt": "q1"}, {"adopt": "q2", "resource": "b"}],
            {},
            "a query can adopt the pipeline of one query, not of q1 and q2",
        ),
        ([{}], {"decider": "shop"}, "resource shop decides for one part of the query, and another part would prepare"),
    ],
)
def test_what_does_not_belong_together(sources: Any, sink: dict[str, str] | None, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        parts(*sources, sink=sink).settings()


def test_a_session_whose_driver_is_elsewhere_is_refused() -> None:
    with pytest.raises(PipelineError, match="Spark Connect"):
        register(object())  # type: ignore[arg-type]
