"""What the page of nodes shows: consumers, timelines, nodes that are away or say what no node says."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.event_loop import in_loop
from tests.lying_server import Lie, LyingServer, Protocol
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.tm.shop import Clock
from tests.xabridge.console.conftest import Visitor, break_down, place_of, text_of
from tests.xabridge.console.scene import TOKEN, node
from xa.telemetry.endpoint import Answer, EndpointThread
from xabridge.console import nodes
from xabridge.console.brokers import BrokerUnreachable
from xabridge.console.charts import SPARK_HEIGHT, WIDTH, sparkline, timeline
from xabridge.console.nodes import KEPT_S, Completed, NodeLink, Step
from xabridge.console.settings import WatchedNode
from xabridge.testing.contract.client import case
from xabridge.testing.ports import free_port
from xabridge.text import took


def away() -> WatchedNode:
    return WatchedNode("away", f"http://127.0.0.1:{free_port()}", TOKEN)


def test_the_page_shows_consumers_and_timelines(broker: EmbeddedBroker, visit: Callable[..., Visitor]) -> None:
    with node() as one:
        wrong = WatchedNode("stranger", one.url, "another token, which is wrong")
        visitor = visit(place_of(broker), nodes=(one, wrong, away()))
        visitor.sign_in("orders-svc")
        assert "node-1" not in visitor.get("/nodes", status=403), "who may not look at the broker sees no node"
        visitor.sign_in("viewer")
        page = visitor.get("/nodes")
        said = text_of(page)

    assert "orders-1 node node-1" in said
    assert "Consumers 2" in said
    assert "Under way 1" in said
    assert "rolled back" in said
    assert page.count('class="timeline"') == 3
    assert "log: decision" in page
    assert "one: prepare" in page
    assert "<img src=x" not in page
    assert "stranger has another token" in said
    assert "away can't be reached" in said
    assert TOKEN not in page


def test_the_overview_tells_of_nodes_what_does_not_work(broker: EmbeddedBroker, visit: Callable[..., Visitor]) -> None:
    consumer = {
        "queue": "orders", "state": "running", "workers": 2, "busy": 1, "counts": {}, "trouble": [],
        "rates": {"handled": 7.0, "failed": 2.0},
    }  # fmt: skip
    live = {"name": "t", "age_s": 3.0, "timeout_s": 60.0, "state": "active", "suspended": False, "resources": ["shop"]}
    told = {
        "node": "n", "pid": 1, "trouble": ["<img src=x onerror=alert(1)>\u202e can't be reached"], "waiting": 0,
        "live": [live], "slowest": [], "last": [], "consumers": [consumer],
    }  # fmt: skip

    async def page() -> Answer:
        return Answer(200, json.dumps(told).encode())

    with EndpointThread({"/node": page}, "127.0.0.1", 0) as server:
        one = WatchedNode("orders-1", f"http://127.0.0.1:{server.port}", TOKEN)
        lost = away()
        visitor = visit(place_of(broker), nodes=(one, lost))
        visitor.sign_in("viewer")
        page_ = visitor.get("/")
        said = text_of(page_)
        assert "now node away is away: away can't be reached" in said
        assert f"First xabridge health {lost.url}/ready Then" in said
        assert "orders-1, consumer of orders: 22 % of what it gets fails" in said
        assert re.search("now node orders-1: .* can't be reached", said)
        assert "several versions are at work: " in said
        assert "1 3.0 s 7" in said
        assert "<img src=x" not in page_
        assert "\u202e" not in page_
        break_down(broker)
        for link in visitor.console.sessions.links_to("main"):
            link._rights = None  # what was told a moment ago holds for a while
        said = text_of(visitor.get("/"))
        assert "who may see this is asked at main, which is away" in said
        assert "Not known yet of the nodes" in said
        assert "node away" not in said


def test_what_no_node_says_is_not_shown() -> None:
    wrong: list[Any] = [[], {}, {"node": "n"}, "nothing", None]
    wrong.append({"node": "n", "pid": 1, "trouble": [], "waiting": float("inf")})
    said = iter(wrong)

    async def page() -> Answer:
        return Answer(200, json.dumps(next(said)).encode())

    with EndpointThread({"/node": page}, "127.0.0.1", 0) as server:
        for told in wrong:
            link = NodeLink(WatchedNode("n", f"http://127.0.0.1:{server.port}", TOKEN))
            with case(told), pytest.raises(BrokerUnreachable, match="n does not answer as a node does"):
                asyncio.run(link.look())


@in_loop
async def test_a_node_that_does_not_answer_costs_nothing_and_is_asked_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node() as one:
        link = NodeLink(away(), clock)
        with pytest.raises(BrokerUnreachable, match="can't be reached"):
            await link.look()
        link.watched = one
        clock.now += KEPT_S
        with pytest.raises(BrokerUnreachable):  # what failed last, at once
            await link.look()
        assert link.page.asking is not None
        await link.page.asking
        assert (await link.look()).node == "node-1"

    clock.now += 100
    link.page.asking = asyncio.create_task(asyncio.sleep(60))
    monkeypatch.setattr(nodes, "PATIENCE_S", 0.01)
    with pytest.raises(BrokerUnreachable, match="does not answer"):
        await asyncio.wait_for(link.look(), 30)
    link.page.asking.cancel()


@in_loop
async def test_a_node_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each octet comes in time, and the answer never."""

    monkeypatch.setattr(nodes, "PATIENCE_S", 0.0)
    monkeypatch.setattr(nodes, "ANSWER_S", 0.3)
    with LyingServer(Protocol.HTTP) as server:
        server.lie(Lie.DRIP)
        link = NodeLink(WatchedNode("drips", f"http://127.0.0.1:{server.port}", TOKEN))
        with pytest.raises(BrokerUnreachable, match="has not answered yet"):
            await link.look()
        assert link.page.asking is not None
        await asyncio.wait({link.page.asking}, timeout=60)
        with pytest.raises(BrokerUnreachable, match="no whole answer"):
            await link.look()


@pytest.mark.parametrize(("value", "is_high"), [(2.0, False), (2000.0, True)])
def test_a_line_of_next_to_nothing_is_low(value: float, is_high: bool) -> None:
    """An idle broker answers a few requests of the console itself."""
    drawn = sparkline([value] * 3)
    highest = min(float(y) for y in re.findall(r",([\d.]+)", drawn.line))
    assert (highest < SPARK_HEIGHT / 2) == is_high
    assert drawn.most == value


def test_bars_stay_in_the_picture_and_are_told_in_words() -> None:
    steps = (
        Step("shop", "prepare", 0.5, 0.25, "XA_OK"),
        Step("", "decision", 0.75, 1e9, ""),
        *(Step(f"r{number}", "start", 1e9, 0.0, "") for number in range(20)),
    )
    one = Completed("t", 0.0, 1.0, "committed", (), {"work": 0.5, "prepare": 0.25, "other": 1.0}, steps, 0)
    drawn = timeline(one, 2.0)

    assert [took(seconds) for seconds in (4e-6, 0.004, 0.4, 119.0, 300.0)] == [
        "4 µs",
        "4.0 ms",
        "400 ms",
        "119.0 s",
        "5 m",
    ]
    assert drawn.label == "1.0 s: work 500 ms, prepare 250 ms"
    assert drawn.lanes[:2] == ("shop", "log")
    assert len(drawn.lanes) == 8
    assert all(bar.x >= 0 and bar.width > 0 and bar.x + bar.width <= WIDTH for bar in drawn.bars)
    assert "shop: prepare 250 ms, XA_OK" in [bar.label for bar in drawn.bars]
    (prepare,) = [bar for bar in drawn.bars if bar.label.startswith("shop")]
    assert (prepare.x, prepare.width, prepare.looks) == (250.0, 125.0, "prepare")
