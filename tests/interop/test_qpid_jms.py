"""Qpid JMS against the embedded broker: sessions, queues and messages as JMS has them.

Each use is a class in jms/, which checks from the side of JMS' user; here is what each ends with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from proton import Message
from proton.utils import BlockingConnection, SyncRequestResponse

from xabridge.testing.broker import BrokerProcess

pytestmark = [pytest.mark.slow]


def queues(broker: BrokerProcess) -> set[str]:
    """The names of the broker's queues."""
    connection = BlockingConnection(f"amqp://127.0.0.1:{broker.port}", timeout=30)
    try:
        answer: Any = SyncRequestResponse(connection, "$management").call(Message(properties={"operation": "queues"}))
        return {queue["name"] for queue in answer.body}
    finally:
        connection.close()


USES: Final[dict[str, Any]] = {
    "Transactions": {
        "early": [],
        "first": [["a", False, 1], ["b", False, 1]],
        "again": [["a", True, 2], ["b", True, 2]],
        "before": [],
        "answers": ["answer"],
        "left": [],
    },
    "Abandoned": {"seen": "one", "left": ["one", "two"]},
    "Selectors": {
        "browsed": ["1", "5", "7", "11"],
        "colour = 'red' AND number BETWEEN 2 AND 8": ["3", "6"],
        "JMSPriority > 4": ["8"],
        "JMSType = 'seven'": ["7"],
        "JMSCorrelationID LIKE 'c1%'": ["1", "10", "11"],
        "number * 2 = 4 OR nothing = 1": ["2"],
        "left": ["0", "4", "5", "9"],
    },
    "Browsers": {"empty": [], "all": True, "taken": ["0", "1"], "left": 300},
    "Large": 40 << 20,
    "Prefetch": {"first": "0", "others": 9, "nothing": [None, None], "later": "later", "last": ["still later"]},
    "OneEach": {"wrong": [], "left": [], "dead": []},
    "Acknowledgement": {"again": [["d", True, 2], ["e", True, 2]], "closed": ["d", True, "e"], "left": []},
    "Closes": {"before": 0, "allBack": True, "left": []},
    "Messages": {
        "map": [1, 2],
        "stream": [1 << 40, "text"],
        "bytes": "utf",
        "object": "[a, 2]",
        "properties": ["täxt", 0.5],
        "fields": [7, True, True, True],
        "left": [],
    },
    "Delays": {"kept": True},
    "TimeToLive": {"dead": "short", "left": ["long"]},
    "Groups": {"order": ["1:a1", "2:b1", "2:nothing", "2:a1", "1:nothing", "1:a2", "1:a3"], "left": []},
}


@pytest.mark.parametrize("use", USES)
def test_use(jms: Callable[[int, str], Any], broker: BrokerProcess, use: str) -> None:
    assert jms(broker.port, use) == USES[use]


def test_requests_and_replies_over_two_connections(jms: Callable[[int, str], Any], broker: BrokerProcess) -> None:
    told = jms(broker.port, "TemporaryQueues")
    assert (told["one"], told["two"]) == ("to one", "to two")
    for when in ("late", "gone"):
        assert "not-found" in told[when], "a temporary queue lasts until it is deleted, or its connection is closed"


def test_a_message_that_is_too_large(jms: Callable[[int, str], Any], broker: BrokerProcess) -> None:
    refusal, after = jms(broker.port, "Excessive")
    assert "message-size-exceeded" in refusal or "max message size" in refusal.lower()
    assert after == ["small"]


def test_sends_that_do_not_wait(jms: Callable[[int, str], Any], restricted: BrokerProcess) -> None:
    told = jms(restricted.port, "AsynchronousSends")
    assert told["completed"] == told["taken"] == [str(number) for number in range(10)]
    assert told["failed"] == [f"{number} ResourceAllocationException" for number in range(10, 15)]


def test_topics(jms: Callable[[int, str], Any], broker: BrokerProcess) -> None:
    """Each subscription gets what is committed, once; what is unsubscribed, or does not last, is gone."""
    assert jms(broker.port, "Topics") == {
        "consumer": ["committed", 0],
        "selecting": 0,
        "durable": "committed",
        "shared": ["committed"],
        "global": "committed",
        "again": "while it is away",
        "in use": True,
        "temporary": True,
        "unknown": True,
        "after": ["still useful"],
    }
    assert [name for name in queues(broker) if "jms.topic" in name] == []


def test_a_producer_without_a_destination(jms: Callable[[int, str], Any], restricted: BrokerProcess) -> None:
    told = jms(restricted.port, "AnonymousProducers")
    assert "unauthorized-access" in told["refusal"]
    assert told["one"] == ["first", "fourth"]
    assert told["two"] == ["second"]
