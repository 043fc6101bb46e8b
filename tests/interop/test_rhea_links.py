"""rhea, the AMQP client for node: how links are refused, attached again, windowed, drained and filtered.

What is checked stands in rhea/links.js, from the side of rhea's user; here is what each scenario ends with.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.interop import programs

if TYPE_CHECKING:
    from pathlib import Path

    from xabridge.testing.broker import BrokerProcess


pytestmark = [pytest.mark.slow]  # test_proton_links.py has most of this in a process that is there already


def run(rhea: Path, port: int, scenario: str, **options: Any) -> Any:
    """The result of a scenario."""
    return programs.run(["node", "links.js"], port, scenario, folder=rhea, **options)


@pytest.mark.parametrize(
    ("scenario", "result"),
    [
        ("drain", [0, 3, 7, 0]),
        ("exhausted", [4, 3]),
        ("replies", {"answers": [["one", "to one"], ["two", "to two"]], "late": "amqp:not-found"}),
        ("crowd", 1100),
        ("credit", []),
        ("settled", {"modes": [1, 1], "bodies": list(range(10)), "settled": True, "left": []}),
        ("reattach", {"closed": [False, False], "bodies": [2, 3], "left": []}),
        ("selector", {"green": 167, "left": 833, "wrong": "amqp:invalid-field"}),
        ("large", 40 << 20),
        ("excessive", [64 << 20, "amqp:link:message-size-exceeded", ["small"]]),
    ],
)
def test_scenario(rhea: Path, broker: BrokerProcess, scenario: str, result: Any) -> None:
    assert run(rhea, broker.port, scenario) == result


def test_the_receiver_settles_second(rhea: Path, broker: BrokerProcess) -> None:
    told = run(rhea, broker.port, "second")
    assert told == {"modes": [1, 1], "settledFirst": False, "twice": ["in three steps"] * 2, "left": []}


@pytest.mark.parametrize("what", ["sessions", "links"])
def test_opened_and_closed_many_times(rhea: Path, broker: BrokerProcess, what: str) -> None:
    for pairs in (70, 1100):
        ended, left = run(rhea, broker.port, what, pairs=pairs)
        assert ended == pairs
        assert set(left) == {"still useful"}


def test_one_link_more_than_a_session_may_have(rhea: Path, broker: BrokerProcess) -> None:
    told = run(rhea, broker.port, "full", links=256)
    assert told == ["amqp:resource-limit-exceeded", ["the first", "the last"]]


def test_frames_of_512_octets(rhea: Path, broker: BrokerProcess) -> None:
    assert run(rhea, broker.port, "frames", max_frame_size=512) == 12


def test_a_sender_without_an_address(rhea: Path, broker: BrokerProcess) -> None:
    told = run(rhea, broker.port, "anonymous")
    assert told == {
        "offered": True,
        "one": ["to anonymous.one", "to anonymous.one"],
        "two": ["to anonymous.two"],
    }


def test_a_sender_without_an_address_is_held_to_what_is_allowed(rhea: Path, restricted: BrokerProcess) -> None:
    told = run(rhea, restricted.port, "astray")
    assert "accepted" not in told["conditions"]
    assert told["conditions"][1:] == ["amqp:not-found", "amqp:unauthorized-access"]
    assert told["arrived"] == [4]


def test_a_filter_that_is_not_in_force_is_not_in_the_answer(rhea: Path, broker: BrokerProcess) -> None:
    told = run(rhea, broker.port, "filter")
    assert told["filters"] == [], "what is echoed is promised"


def test_a_source_does_not_promise_what_it_does_not_keep(rhea: Path, broker: BrokerProcess) -> None:
    told = run(rhea, broker.port, "promises")
    if told["condition"] is None:
        assert (told["durable"], told["lasts"]) == (0, False), "the broker keeps no state of links that are gone"
        assert told["capabilities"] == []


NOT_ALLOWED: Final = {"amqp:unauthorized-access"}
NO_TOPICS: Final = {"amqp:not-implemented", "amqp:not-found", "amqp:not-allowed", "amqp:invalid-field"}


@pytest.mark.parametrize(
    ("link", "conditions"),
    [
        ({"sender": "forbidden"}, NOT_ALLOWED),
        ({"receiver": "forbidden"}, NOT_ALLOWED),
        ({"sender": "$nothing"}, {"amqp:not-found"}),
        ({"receiver": "$nothing"}, {"amqp:not-found"}),
        ({"sender": "topic://allowed"}, NO_TOPICS | NOT_ALLOWED),
        ({"receiver": "topic://allowed"}, NO_TOPICS | NOT_ALLOWED),
        ({"sender": {"target": {"address": "allowed.topic", "capabilities": ["topic"]}}}, NO_TOPICS),
        ({"receiver": {"source": {"address": "allowed.topic", "capabilities": ["topic"]}}}, NO_TOPICS),
        ({"receiver": {"source": {"address": "allowed.topic", "capabilities": ["topic", "shared"]}}}, NO_TOPICS),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_link_is_refused_at_once(
    rhea: Path, restricted: BrokerProcess, link: dict[str, Any], conditions: set[str]
) -> None:
    told = run(rhea, restricted.port, "refusal", **link)
    assert told["condition"] in conditions
    assert not told["terminus"], "an attach that is refused is answered without a terminus"
    assert not told["sendable"]
    assert not {"forbidden", "topic://allowed", "allowed.topic"} & set(told["queues"])


@pytest.mark.parametrize("way", ["sender", "receiver"])
def test_topics_are_refused_where_everything_is_allowed(rhea: Path, broker: BrokerProcess, way: str) -> None:
    told = run(rhea, broker.port, "refusal", **{way: "topic://prices"})
    assert told["condition"] in NO_TOPICS
    assert "topic://prices" not in told["queues"], "a topic that becomes a queue gives each message to one reader only"
