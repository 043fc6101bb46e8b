"""go-amqp against the embedded broker: outcomes and settlement, names of links, credit, filters, dynamic addresses.

What is checked stands in go/main.go, from the side of go-amqp's user; here is what each scenario ends with.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.interop.programs import run
from xabridge.testing.broker import BrokerProcess

pytestmark = [pytest.mark.slow, pytest.mark.long]  # rhea, Qpid JMS and proton do the same
NUMBERS: Final = [str(number) for number in range(300)]


@pytest.mark.parametrize(
    ("scenario", "result"),
    [
        (
            "outcomes",
            {
                "seen": ["accepted 0", "released 0", "modified 0", "rejected 0", "released 0", "modified 1"],
                "dead": ["rejected"],
                "left": [],
            },
        ),
        ("settled", {"found": NUMBERS[:50], "left": []}),
        ("second", {"found": NUMBERS[:10], "left": NUMBERS[10:20]}),
        (
            "closes",
            {"late": True, "link": "1", "session": "2", "connection": "3", "left": [*NUMBERS[3:10], *NUMBERS[:3]]},
        ),
        ("names", {"found": NUMBERS[:3], "left": []}),
        (
            "selector",
            {
                "found": NUMBERS[270:300:3],
                "inForce": "third AND number >= 270",
                "wrong": "amqp:invalid-field",
                "left": 290,
            },
        ),
        ("large", {"same": True, "left": []}),
        ("excessive", {"limit": 64 << 20, "refused": True, "left": ["small"]}),
        ("dynamic", ["to a dynamic source", "amqp:not-found"]),
        ("dynamic target", "to a dynamic target"),
        ("anonymous", {"one": ["go.to.one"], "two": ["go.to.two"], "nowhere": True}),
        ("credit", {"found": [*NUMBERS[:3], "later"], "others": 7, "early": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_scenario(go_amqp: list[str], broker: BrokerProcess, scenario: str, result: Any) -> None:
    assert run(go_amqp, broker.port, scenario) == result


@pytest.mark.parametrize(("credit", "there"), [(10, 0), (10, 3), (3, 3), (0, 0)])
def test_a_drain_is_answered(go_amqp: list[str], broker: BrokerProcess, credit: int, there: int) -> None:
    """go-amqp drains with a credit of 0, and waits for the answer, whatever was left of the credit."""
    assert run(go_amqp, broker.port, "drain", credit=credit, there=there) == [NUMBERS[:there], "after"]


def test_a_link_is_stolen_by_its_own_container(go_amqp: list[str], broker: BrokerProcess) -> None:
    told = run(go_amqp, broker.port, "stolen")
    assert told["condition"] == "amqp:link:stolen"
    assert told["found"] == ["one", "two"], "what the first link held comes to the one that took its place"
    assert told["other"] == "for somebody else"


def test_a_message_above_the_size_that_a_receiver_takes(go_amqp: list[str], broker: BrokerProcess) -> None:
    told = run(go_amqp, broker.port, "limit")
    assert not told["received"]
    assert told["told"], "the broker has sent what the receiver said that it does not take"
    assert told["condition"] == "amqp:link:message-size-exceeded"
    assert told["left"] == 1


def test_a_filter_that_is_not_in_force_is_not_in_the_answer(go_amqp: list[str], broker: BrokerProcess) -> None:
    assert run(go_amqp, broker.port, "filter") in {None, "amqp:not-implemented", "amqp:invalid-field"}


def test_sessions_and_links_from_many_goroutines(go_amqp: list[str], broker: BrokerProcess) -> None:
    assert run(go_amqp, broker.port, "many", pairs=1100) == 1100
